//! Chooses the library that seals and opens faster on this machine.
//!
//! Owns the result of one short measurement per process. Both libraries are always linked; which one is faster, by up
//! to a factor of two, depends on the processor.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use weft_wire::smb2::negotiate::CipherId;
use weft_wire::smb2::transform::TRANSFORM_LEN;

use super::seal::{Opener, Sealer};

/// A library that provides AES-GCM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// aws-lc-rs: decrypts from one buffer into another.
    AwsLc,
    /// ring: works in place, so decryption copies first.
    Ring,
}

impl Engine {
    /// Measures now, once per process, instead of when the first session is established.
    pub fn choose() {
        Choice::of_this_machine();
    }
}

/// The measurement's result: sealing and opening choose independently, because opening with ring includes a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub seal: Engine,
    pub open: Engine,
}

/// Large enough that throughput, not set-up, decides; small enough that measuring takes about a millisecond.
const SAMPLE: usize = 64 * 1024;
const ROUNDS: usize = 5;

impl Choice {
    /// The choice for this process; the first call measures.
    pub fn of_this_machine() -> Choice {
        static CHOICE: OnceLock<Choice> = OnceLock::new();
        *CHOICE.get_or_init(|| {
            let key = [0x5a; 16];
            let mut sealed = vec![0; TRANSFORM_LEN + SAMPLE];
            let mut plain = vec![0; SAMPLE];
            let mut best = |engine| {
                let choice = Choice { seal: engine, open: engine };
                let cipher = CipherId::AES_128_GCM;
                let (sealer, opener) = (Sealer::with(choice, cipher, &key), Opener::with(choice, cipher, &key));
                let (mut seal, mut open) = (Duration::MAX, Duration::MAX);
                for _ in 0..ROUNDS {
                    let start = Instant::now();
                    sealer.seal(1, &mut sealed).expect("a fresh counter");
                    let middle = Instant::now();
                    opener.open(&sealed, &mut plain).expect("what was just sealed");
                    seal = seal.min(middle.duration_since(start));
                    open = open.min(middle.elapsed());
                }
                (seal, open)
            };
            let (aws, ring) = (best(Engine::AwsLc), best(Engine::Ring));
            let faster = |aws, ring| if ring < aws { Engine::Ring } else { Engine::AwsLc };
            let choice = Choice { seal: faster(aws.0, ring.0), open: faster(aws.1, ring.1) };
            tracing::debug!(
                "AES-GCM of {SAMPLE} bytes: seal {:?} (aws-lc) {:?} (ring), open {:?} {:?}; chosen {choice:?}",
                aws.0,
                ring.0,
                aws.1,
                ring.1
            );
            choice
        })
    }
}
