//! Runs the fuzz targets for a few seconds.

use std::path::Path;

use weft_machine::sim::Rng;

use super::*;

fn rounds() -> usize {
    // Longer on demand: WEFT_FUZZ_ROUNDS=100000 cargo test -p weft-nfs --release fuzz
    std::env::var("WEFT_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}

#[test]
fn random_scripts_do_no_harm() {
    for (name, target) in TARGETS {
        for seed in 0..rounds() as u64 {
            let mut rng = Rng::new(seed);
            let mut script = vec![0; rng.below(1500)];
            rng.fill(&mut script);
            let caught = std::panic::catch_unwind(|| target(&script));
            if let Err(panic) = caught {
                eprintln!("{name}, seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// Inputs that once failed.
#[test]
fn the_corpus_does_no_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in TARGETS {
        let Ok(samples) = std::fs::read_dir(corpus.join(name)) else { continue };
        samples.for_each(|sample| target(&std::fs::read(sample.unwrap().path()).unwrap()));
    }
}
