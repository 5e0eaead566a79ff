//! `weft-sim SEED`, `weft-sim FIRST..LAST`: lets worlds unfold, and says how they ended.
//!
//! A seed that fails is run to its end and told, and the next one follows; the exit code says whether there was any.

use std::panic::catch_unwind;
use std::process::ExitCode;

fn seeds(text: &str) -> Option<std::ops::Range<u64>> {
    match text.split_once("..") {
        Some((first, last)) => Some(first.parse().ok()?..last.parse().ok()?),
        None => {
            let seed: u64 = text.parse().ok()?;
            Some(seed..seed.checked_add(1)?)
        }
    }
}

fn main() -> ExitCode {
    let Some(seeds) = std::env::args().nth(1).and_then(|text| seeds(&text)) else {
        eprintln!("usage: weft-sim SEED | FIRST..LAST");
        return ExitCode::from(2);
    };
    let (mut failed, mut answered, mut crashes) = (Vec::new(), 0, 0);
    let (mut breaks, mut copied, mut broken) = (0, 0, 0);
    let one = seeds.end.saturating_sub(seeds.start) == 1;
    for seed in seeds.clone() {
        match catch_unwind(|| weft_sim::run(seed)) {
            Ok(report) => {
                answered += report.answered;
                crashes += report.crashes;
                breaks += report.leases.1;
                copied += report.copied;
                broken += report.broken;
                if one {
                    println!("seed {seed}: {report:?}");
                }
            }
            Err(_) => failed.push(seed),
        }
    }
    println!(
        "seeds {seeds:?}: {answered} calls answered, {crashes} crashes, {breaks} breaks of leases, {copied} calls of NFS twice, \
         {broken} connections broken; failed: {failed:?}"
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
