//! Fuzz targets, which must survive any input: MPA set-up, the FPDU stream, the rings of shared memory. Each is one
//! function.
//!
//! The fuzzers in `fuzz/` run them for hours; the test below runs them for a second over the same corpus, so that they
//! keep working. They exist only in builds for tests and fuzzing.
//!
//! An input is a [`Script`]: its bytes decide what happens, one after the other.

pub(crate) use weft_machine::sim::Script;

pub use crate::iwarp::{fpdu_stream, mpa_setup};
pub use crate::shm::shm_rings;

/// A name, as in `fuzz/`, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: &[Target] =
    &[("mpa_setup", mpa_setup), ("fpdu_stream", fpdu_stream), ("shm_rings", shm_rings)];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use weft_machine::sim::Rng;

    use super::*;

    fn rounds() -> usize {
        // More rounds on demand: WEFT_FUZZ_ROUNDS=100000 cargo test -p weft-rdma --release fuzz
        std::env::var("WEFT_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
    }

    #[test]
    fn random_scripts_do_no_harm() {
        for (name, target) in TARGETS {
            let mut rng = Rng::new(name.len() as u64);
            for _ in 0..rounds() {
                let mut script = vec![0; rng.below(300)];
                rng.fill(&mut script);
                // Favours small numbers, which are the likelier decisions.
                script.iter_mut().filter(|_| rng.one_in(2)).for_each(|byte| *byte %= 16);
                target(&script);
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
                target(&sample);
                for _ in 0..rounds() / 20 {
                    let mut damaged = sample[..rng.within(0..=sample.len() as u64) as usize].to_vec();
                    for _ in 0..rng.below(4) {
                        let at = rng.below(damaged.len());
                        if let Some(byte) = damaged.get_mut(at) {
                            *byte = rng.bits() as u8;
                        }
                    }
                    target(&damaged);
                }
            }
        }
    }
}
