//! Fuzz targets: RDMA peers that send well-formed but senseless messages, name memory that does not exist, leave Reads
//! unanswered and end connections at any time.
//!
//! They cover RFC 8166 and [MS-SMBD]. The other end of the queue pair is scripted. The answers to an honest peer are
//! checked by tests. The targets exist only in builds for tests and fuzzing.
//!
//! An input is a [`Script`]: its bytes decide what the peer does, what the server's users do, and how time passes. They
//! check that nothing panics or loops (the number of polls per act is limited), that nothing waits for a silent peer
//! forever, that all posted work was valid, and that the pool is whole when the connection is gone.

mod calls;
mod frame;
mod peer;
mod transfers;

pub use calls::rpcrdma_peer;
pub use transfers::smbd_peer;
pub(crate) use weft_machine::sim::Script;

/// A name, as in `fuzz/`, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: &[Target] = &[("rpcrdma_peer", rpcrdma_peer), ("smbd_peer", smbd_peer)];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use weft_machine::sim::Rng;

    use super::*;

    /// Prints the input on which a target failed.
    struct Input<'a>(&'static str, &'a [u8]);

    impl Drop for Input<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let hex: String = self.1.iter().map(|byte| format!("{byte:02x}")).collect();
                eprintln!("{} died of {hex}", self.0);
            }
        }
    }

    fn run(name: &'static str, target: fn(&[u8]), input: &[u8]) {
        let _input = Input(name, input);
        target(input);
    }

    fn rounds() -> usize {
        // More rounds on demand: WEFT_FUZZ_ROUNDS=100000 cargo test -p weft-transport --release fuzz
        std::env::var("WEFT_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
    }

    #[test]
    fn random_scripts_do_no_harm() {
        for (name, target) in TARGETS {
            let mut rng = Rng::new(name.len() as u64);
            for _ in 0..rounds() {
                let mut script = vec![0; rng.below(1500)];
                rng.fill(&mut script);
                // Favours small numbers, which are the likelier decisions.
                script.iter_mut().filter(|_| rng.one_in(2)).for_each(|byte| *byte %= 16);
                run(name, *target, &script);
            }
        }
    }

    #[test]
    fn damaged_samples_do_no_harm() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        for (name, target) in TARGETS {
            let mut rng = Rng::new(7);
            let mut samples: Vec<_> = std::fs::read_dir(corpus.join(name))
                .unwrap_or_else(|e| panic!("no corpus for {name}: {e}"))
                .map(|sample| sample.unwrap().path())
                .collect();
            samples.sort();
            assert!(!samples.is_empty(), "an empty corpus for {name}");
            for sample in samples {
                let sample = std::fs::read(sample).unwrap();
                run(name, *target, &sample);
                for _ in 0..rounds() / 20 {
                    let mut damaged = sample[..rng.within(0..=sample.len() as u64) as usize].to_vec();
                    for _ in 0..rng.below(4) {
                        let at = rng.below(damaged.len());
                        if let Some(byte) = damaged.get_mut(at) {
                            *byte = rng.bits() as u8;
                        }
                    }
                    run(name, *target, &damaged);
                }
            }
        }
    }
}
