//! Measures the AEAD engine of encrypted sessions alone: one end seals while the other opens.
//!
//! `cargo run --release -p weft-smb --example aead [SECONDS [DEPTH [SIZE...]]]`: one thread seals and another opens,
//! each on its own processor and cycling through DEPTH buffers, like the two ends of a connection with that many
//! requests in flight. Prints one line of JSON per size, in bytes per second.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use weft_smb::crypto::{Engine, Opener, Sealer};
use weft_wire::smb2::negotiate::CipherId;

const KEY: [u8; 16] = [0x5a; 16];
/// Iterations between two clock reads.
const BATCH: u32 = 16;

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds = args.next().map_or(1.0, |arg| arg.parse().expect("SECONDS"));
    let depth = args.next().map_or(8, |arg| arg.parse().expect("DEPTH"));
    let mut sizes: Vec<usize> = args.map(|arg| arg.parse().expect("SIZE, in bytes")).collect();
    if sizes.is_empty() {
        sizes = vec![64 << 10, 1 << 20];
    }
    Engine::choose();
    for size in sizes {
        let [seal, open] = both(size, depth, Duration::from_secs_f64(seconds));
        println!(r#"{{"cipher": "AES-128-GCM", "size": {size}, "seal": {seal:.0}, "open": {open:.0}}}"#);
    }
}

/// Bytes per second sealed and, at the same time, opened.
fn both(size: usize, depth: usize, duration: Duration) -> [f64; 2] {
    let begin = Barrier::new(2);
    std::thread::scope(|threads| {
        let seal = threads.spawn(|| {
            keep_to(0);
            let sealer = Sealer::new(CipherId::AES_128_GCM, &KEY);
            let mut payloads = vec![vec![0xa5; size]; depth];
            begin.wait();
            rate(size, duration, |n| {
                sealer.seal_payload(&mut payloads[n % depth]).expect("a fresh counter");
            })
        });
        let open = threads.spawn(|| {
            keep_to(1);
            let (sealer, opener) =
                (Sealer::new(CipherId::AES_128_GCM, &KEY), Opener::new(CipherId::AES_128_GCM, &KEY));
            let sealed: Vec<_> = (0..depth)
                .map(|_| {
                    let mut payload = vec![0xa5; size];
                    let (nonce, tag) = sealer.seal_payload(&mut payload).expect("a fresh counter");
                    (nonce, tag, payload)
                })
                .collect();
            let mut plain = vec![vec![0; size]; depth];
            begin.wait();
            rate(size, duration, |n| {
                let (nonce, tag, payload) = &sealed[n % depth];
                opener.open_payload(nonce, tag, payload, &mut plain[n % depth]).expect("what was sealed");
            })
        });
        [seal, open].map(|thread| thread.join().expect("no panic"))
    })
}

/// Bytes per second of `work`, which gets the iteration number.
fn rate(size: usize, duration: Duration, mut work: impl FnMut(usize)) -> f64 {
    let begin = Instant::now();
    let mut done = 0;
    while begin.elapsed() < duration {
        for _ in 0..BATCH {
            work(done);
            done += 1;
        }
    }
    (done * size) as f64 / begin.elapsed().as_secs_f64()
}

/// Pins this thread to the nth processor that the process may use, if it may use several.
fn keep_to(nth: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(all) = sched_getaffinity(None) else { return };
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
    let mut one = CpuSet::new();
    one.set(allowed[nth % allowed.len()]);
    // Without pinning the figures are still valid, only noisier.
    let _ = sched_setaffinity(None, &one);
}
