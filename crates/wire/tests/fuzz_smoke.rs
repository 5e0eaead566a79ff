//! A short run of every fuzz target, on random bytes and on damaged samples. Long runs are `cargo fuzz run TARGET` in
//! `fuzz/`; this test keeps the targets compiling and catches easy panics in seconds.

#[path = "../../../fuzz/targets.rs"]
mod targets;

use std::path::Path;

/// xorshift64*, which gives the same bytes on every machine.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n.max(1)
    }
}

/// Beginnings that lead a parser past its first check.
const OPENINGS: &[&[u8]] = &[
    b"",
    b"MPA ID Req Frame\x40\x02\0\x04\x80\x01\x80\x01",
    b"\xfeSMB\x40\0\x01\0\0\0\0\0",
    b"\xfdSMB",
    b"\xffSMB\x72",
    b"WeftPerf\0\x02\x01\x01",
    b"NTLMSSP\0\x01\0\0\0",
    b"NTLMSSP\0\x03\0\0\0",
    b"\x60\x48\x06\x06\x2b\x06\x01\x05\x05\x02\xa0\x3e\x30\x3c",
    b"\0\0\0\x01\0\0\0\0\0\0\0\x02\0\x01\x86\xa3\0\0\0\x03",
    b"\0\0\0\x01\0\0\0\x01\0\0\0\x20\0\0\0\0",
    b"\0\x01\0\x01\0\0\0\0\x0a\0\0\0",
    b"NBDMAGICIHAVEOPT",
    b"IHAVEOPT\0\0\0\x07\0\0\0\x10\0\0\0\x02",
    b"IHAVEOPT\0\0\0\x0a\0\0\0\x10\0\0\0\x02",
    b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03",
    b"\x25\x60\x95\x13\0\0\0\x01",
    b"\x66\x8e\x33\xef\0\x01\0\x05",
    b"\x66\x8e\x33\xef\0\x01\x80\x02",
    b"WfRq\x01\0\x01\0",
    b"WfRs\x01\0\x04\0",
    b"WfLR\x01\0\x01\0",
    b"\x05\0\x0b\x03\x10\0\0\0\x48\0\0\0\x01\0\0\0\xb8\x10\xb8\x10\0\0\0\0\x01\0\0\0",
    b"\0\0\x84\0\0\x01\0\x01\0\0\0\0\x04_smb\x04_tcp\x05local\0\0\x0c\0\x01\xc0\x0c\0\x0c\0\x01\0\0\0\x78\0\x02\xc0\x0c",
    b"<?xml version='1.0'?><s:Envelope xmlns:s='http://www.w3.org/2003/05/soap-envelope'><s:Header>",
    b"\x01\0\x04\x80\x14\0\0\0\x14\0\0\0\0\0\0\0\x20\0\0\0\x01\x01\0\0\0\0\0\x01\0\0\0\0\x02\0\x40\0\x02\0\0\0",
];

fn rounds() -> usize {
    // For a longer run: WEFT_FUZZ_ROUNDS=1000000 cargo test -p weft-wire --release --test fuzz_smoke
    std::env::var("WEFT_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3000)
}

#[test]
fn random_bytes_panic_nothing() {
    for (name, target) in targets::TARGETS {
        let mut chance = Chance(name.bytes().fold(1, |seed, b| seed * 31 + u64::from(b)));
        for _ in 0..rounds() {
            let opening = OPENINGS[chance.below(OPENINGS.len())];
            let mut data = opening.to_vec();
            let tail = chance.below(400);
            // Small numbers are likelier lengths and counts than large ones.
            data.extend(
                (0..tail)
                    .map(|_| if chance.below(3) == 0 { chance.next() as u8 } else { chance.below(9) as u8 }),
            );
            target(&data);
        }
    }
}

#[test]
fn damaged_samples_panic_nothing() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in targets::TARGETS {
        let Ok(samples) = std::fs::read_dir(corpus.join(name)) else { continue };
        let mut chance = Chance(7);
        for sample in samples {
            let sample = std::fs::read(sample.unwrap().path()).unwrap();
            for len in 0..=sample.len() {
                target(&sample[..len]);
            }
            for _ in 0..rounds() / 10 {
                let mut damaged = sample.clone();
                for _ in 0..=chance.below(4) {
                    let at = chance.below(damaged.len());
                    if let Some(byte) = damaged.get_mut(at) {
                        *byte = chance.next() as u8;
                    }
                }
                target(&damaged);
            }
        }
    }
}
