//! The fuzzer's target for a few seconds.

use std::path::Path;

use weft_machine::sim::Rng;

use super::*;

fn rounds() -> usize {
    // Longer on demand: WEFT_FUZZ_ROUNDS=100000 cargo test -p weft-replica --release fuzz
    std::env::var("WEFT_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}

/// `WEFT_SEED=n` runs that one alone.
#[test]
fn random_scripts_do_no_harm() {
    let seed = std::env::var("WEFT_SEED").ok().and_then(|n| n.parse::<u64>().ok());
    for (name, target) in TARGETS {
        for seed in seed.map_or(0..rounds() as u64, |seed| seed..seed + 1) {
            let mut rng = Rng::new(seed);
            let mut script = vec![0; rng.below(1500)];
            rng.fill(&mut script);
            // Small numbers are likelier decisions than large ones.
            script.iter_mut().filter(|_| rng.one_in(2)).for_each(|byte| *byte %= 16);
            if let Err(panic) = std::panic::catch_unwind(|| target(&script)) {
                let hex: String = script.iter().map(|byte| format!("{byte:02x}")).collect();
                eprintln!("{name}, seed {seed}, died of {hex}");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[test]
fn the_corpus_does_no_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in TARGETS {
        let samples =
            std::fs::read_dir(corpus.join(name)).unwrap_or_else(|e| panic!("no corpus for {name}: {e}"));
        let samples: Vec<_> = samples.map(|sample| sample.unwrap().path()).collect();
        assert!(!samples.is_empty(), "an empty corpus for {name}");
        for sample in samples {
            if let Err(panic) = std::panic::catch_unwind(|| target(&std::fs::read(&sample).unwrap())) {
                eprintln!("{} does harm", sample.display());
                std::panic::resume_unwind(panic);
            }
        }
    }
}
