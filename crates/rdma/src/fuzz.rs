//! What must survive any bytes: MPA set-up, the FPDU stream, the rings of shared memory. One function each.
//!
//! Spec: none. The fuzzers of `fuzz/` run them for hours; the test below runs them for a second over the same corpus, so
//! that they stay alive. Owns: nothing. Does not: exist in a build that is neither a test nor a fuzzer's.
//!
//! An input is a [`Script`]: its bytes decide what happens, one after the other, and an end of it reads as zeros. So every
//! input means something, and a small change of it is a small change of what happens.

pub use crate::iwarp::{fpdu_stream, mpa_setup};
pub use crate::shm::shm_rings;

/// A name, as in `fuzz/`, and what runs under it.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: &[Target] =
    &[("mpa_setup", mpa_setup), ("fpdu_stream", fpdu_stream), ("shm_rings", shm_rings)];

/// Decisions, read from bytes.
pub(crate) struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Script<'a> {
        Script(bytes)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// True for one byte in `n`, 0 among them.
    pub(crate) fn one_in(&mut self, n: u8) -> bool {
        self.byte().is_multiple_of(n)
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn long(&mut self) -> u64 {
        let mut long = [0; 8];
        let bytes = self.bytes(8);
        long[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(long)
    }

    /// A number below `n`, which is not 0 and fits in 16 bits.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        let drawn = if n <= 256 { usize::from(self.byte()) } else { usize::from(self.word()) };
        drawn % n
    }

    /// The next bytes, as many as there are up to `n`.
    pub(crate) fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use weft_machine::sim::Rng;

    use super::*;

    fn rounds() -> usize {
        // Longer on demand: WEFT_FUZZ_ROUNDS=100000 cargo test -p weft-rdma --release fuzz
        std::env::var("WEFT_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
    }

    #[test]
    fn random_scripts_do_no_harm() {
        for (name, target) in TARGETS {
            let mut rng = Rng::new(name.len() as u64);
            for _ in 0..rounds() {
                let mut script = vec![0; rng.below(300)];
                rng.fill(&mut script);
                // Small numbers are likelier decisions than large ones.
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
