//! Chooses the library that seals and opens faster on this machine.
//!
//! Owns the result of one short measurement per process. Both libraries are always linked; which one is faster, by up
//! to a factor of two, depends on the processor.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use weft_wire::smb2::negotiate::CipherId;

use super::cipher::{Engine, Key};

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
const ROUNDS: u8 = 5;

impl Choice {
    /// The choice for this process; the first call measures.
    pub fn of_this_machine() -> Choice {
        static CHOICE: OnceLock<Choice> = OnceLock::new();
        *CHOICE.get_or_init(|| {
            let key = [0x5a; 16];
            let (mut sealed, mut plain) = (vec![0; SAMPLE], vec![0; SAMPLE]);
            let mut best = |engine| {
                let key = Key::new(CipherId::AES_128_GCM, engine, &key);
                let (mut seal, mut open) = (Duration::MAX, Duration::MAX);
                for round in 0..ROUNDS {
                    let nonce = [round; 12];
                    let start = Instant::now();
                    let tag = key.encrypt(nonce, &[], &mut sealed);
                    let middle = Instant::now();
                    let opened = key.decrypt(nonce, &[], &tag, &sealed, &mut plain);
                    open = open.min(middle.elapsed());
                    assert!(opened.is_ok(), "opens what it has just sealed");
                    seal = seal.min(middle.duration_since(start));
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
