//! The seeds that run with every test, and that a seed repeats itself.

/// Seeds of one run: some 20 seconds of one core.
const SEEDS: u64 = 200;

#[test]
fn every_seed_ends_well() {
    let (mut answered, mut crashes, mut breaks, mut copied, mut broken) = (0, 0, 0, 0, 0);
    for seed in 0..SEEDS {
        let report = weft_sim::run(seed);
        answered += report.answered;
        crashes += report.crashes;
        breaks += report.leases.1;
        copied += report.copied;
        broken += report.broken;
    }
    // A world in which nothing happens finds nothing.
    assert!(answered > SEEDS * 30 && crashes > SEEDS / 4, "{answered} calls, {crashes} crashes");
    assert!(breaks > SEEDS / 4, "{breaks} breaks of leases");
    assert!(copied > SEEDS && broken > SEEDS / 4, "{copied} copies, {broken} broken connections");
}

#[test]
fn a_seed_repeats_itself() {
    for seed in [1, 2, 3, 4] {
        assert_eq!(weft_sim::run(seed), weft_sim::run(seed), "seed {seed}");
    }
}
