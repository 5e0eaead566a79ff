//! The examples of [MS-XCA] 3, round trips over all samples, and hostile input.

use proptest::prelude::*;

use super::*;

const CODECS: [Algorithm; 4] = [Algorithm::LZNT1, Algorithm::LZ77, Algorithm::LZ77_HUFFMAN, Algorithm::LZ4];
const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz";

fn abc() -> Vec<u8> {
    b"abc".repeat(100)
}

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn packed(algorithm: Algorithm, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(pack(algorithm, data, usize::MAX, &mut out));
    out
}

fn unpacked(algorithm: Algorithm, data: &[u8], len: usize) -> Result<Vec<u8>, Corrupt> {
    let mut out = vec![0xa5; len];
    unpack(algorithm, data, &mut out).map(|()| out)
}

/// [MS-XCA] 3.1. Our encoder produces the same bytes.
#[test]
fn the_examples_of_plain_lz77() {
    let letters =
        hex("3f 00 00 00 61 62 63 64 65 66 67 68 69 6a 6b 6c 6d 6e 6f 70 71 72 73 74 75 76 77 78 79 7a");
    let repeated = hex("ff ff ff 1f 61 62 63 17 00 0f ff 26 01");
    for (compressed, plain) in [(letters, ALPHABET.to_vec()), (repeated, abc())] {
        assert_eq!(unpacked(Algorithm::LZ77, &compressed, plain.len()).unwrap(), plain);
        assert_eq!(packed(Algorithm::LZ77, &plain), compressed);
    }
}

/// [MS-XCA] 3.2: the nonzero bytes of the code length table, and what follows them.
#[test]
fn the_examples_of_lz77_with_huffman() {
    let example = |lengths: &[(usize, &[u8])], stream: &str| {
        let mut bytes = vec![0; 256];
        lengths.iter().for_each(|(at, some)| bytes[*at..at + some.len()].copy_from_slice(some));
        bytes.extend(hex(stream));
        bytes
    };
    let lengths: [(usize, &[u8]); 2] = [
        (48, &[0x50, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x45, 0x44, 0x04]),
        (128, &[4]),
    ];
    let letters = example(&lengths, "d8 52 3e d7 94 11 5b e9 19 5f f9 d6 7c df 8d 04 00 00 00 00");
    let repeated = example(&[(48, &[0x30, 0x23]), (128, &[0x02]), (143, &[0x20])], "a8 dc 00 00 ff 26 01");
    for (compressed, plain) in [(letters, ALPHABET.to_vec()), (repeated, abc())] {
        assert_eq!(unpacked(Algorithm::LZ77_HUFFMAN, &compressed, plain.len()).unwrap(), plain);
        // Equally good codes may differ, the length may not.
        let ours = packed(Algorithm::LZ77_HUFFMAN, &plain);
        assert_eq!(ours.len(), compressed.len());
        assert_eq!(unpacked(Algorithm::LZ77_HUFFMAN, &ours, plain.len()).unwrap(), plain);
    }
}

/// [MS-XCA] 3.3.
#[test]
fn the_example_of_lznt1() {
    let compressed = hex(
        "38 b0 88 46 23 20 00 20 47 20 41 00 10 a2 47 01 a0 45 20 44 00 08 45 01 50 79 00 c0 45 20 05 24 13 88 05 b4 \
         02 4a 44 ef 03 58 02 8c 09 16 01 48 45 00 be 00 9e 00 04 01 18 90 00",
    );
    let plain =
        b"F# F# G A A G F# E D D E F# F# E E F# F# G A A G F# E D D E F# E D D E E F# D E F# G F# D E \
                  F# G F# E D E A F# F# G A A G F# E D D E F# E D D\0";
    assert_eq!((compressed.len(), plain.len()), (59, 142));
    assert_eq!(unpacked(Algorithm::LZNT1, &compressed, 142).unwrap(), plain);
    let ended = [&compressed[..], &[0, 0]].concat();
    assert_eq!(unpacked(Algorithm::LZNT1, &ended, 142).unwrap(), plain, "with an end of the buffer");
}

/// Data of all kinds: runs, text, noise, and their mixtures, longer than the blocks and windows of the codecs.
fn samples() -> Vec<Vec<u8>> {
    let mut chance = 1u32;
    let mut noise = |len: usize| -> Vec<u8> {
        (0..len)
            .map(|_| {
                chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (chance >> 24) as u8
            })
            .collect()
    };
    let text: Vec<u8> =
        (0..30_000).flat_map(|i| format!("line {} of {}\n", i * i % 977, i).into_bytes()).collect();
    let skewed: Vec<u8> = noise(200_000).into_iter().map(|byte| byte.leading_zeros() as u8 * 3).collect();
    // Fibonacci counts need codes longer than the maximum.
    let (mut a, mut b, mut steep) = (1, 1, Vec::new());
    for byte in 0..23 {
        steep.extend(std::iter::repeat_n(byte, a));
        (a, b) = (b, a + b);
    }
    let mut seed = noise(steep.len());
    for i in (1..steep.len()).rev() {
        let j = (usize::from(seed.pop().unwrap()) << 9 | usize::from(noise(1)[0])) % (i + 1);
        steep.swap(i, j);
    }
    let mixed = [vec![0; 5000], noise(3000), text[..9000].to_vec(), vec![7; 100_000], noise(64)].concat();
    vec![
        vec![1],
        vec![1, 2],
        vec![5; 3],
        vec![0; 4096],
        vec![0; 65_536],
        vec![9; 65_537],
        vec![3; 200_000],
        noise(5),
        noise(70_000),
        text,
        skewed,
        steep,
        mixed,
        b"ab".repeat(40_000),
    ]
}

#[test]
fn there_and_back() {
    for (i, plain) in samples().into_iter().enumerate() {
        for algorithm in CODECS {
            let compressed = packed(algorithm, &plain);
            assert_eq!(
                unpacked(algorithm, &compressed, plain.len()).as_ref(),
                Ok(&plain),
                "{algorithm:?} {i}"
            );
            // A wrong length is detected.
            assert!(unpacked(algorithm, &compressed, plain.len() + 1).is_err(), "{algorithm:?} {i}");
            if algorithm != Algorithm::LZ77_HUFFMAN {
                assert!(unpacked(algorithm, &compressed, plain.len() - 1).is_err(), "{algorithm:?} {i}");
            }
        }
    }
}

#[test]
fn what_can_be_shorter_is() {
    let samples = samples();
    let text = &samples[9];
    for (algorithm, percent) in
        [(Algorithm::LZNT1, 60), (Algorithm::LZ77, 50), (Algorithm::LZ77_HUFFMAN, 35), (Algorithm::LZ4, 50)]
    {
        let len = packed(algorithm, text).len();
        assert!(len * 100 < text.len() * percent, "{algorithm:?}: {len} of {}", text.len());
    }
    assert!(!pack(Algorithm::LZ77, &samples[8], samples[8].len(), &mut Vec::new()), "noise is given up");
}

fn agreed(algorithms: &[Algorithm], chained: bool) -> Agreed {
    let ids: Vec<u16> = algorithms.iter().map(|algorithm| algorithm.0).collect();
    Agreed::of(chained.into(), &ids).unwrap()
}

fn restore(agreed: &Agreed, compressed: &[u8]) -> Result<Vec<u8>, Corrupt> {
    let mut out = vec![0xa5; agreed.original_len(compressed, 2 << 20)?];
    agreed.decompress(compressed, &mut out).map(|()| out)
}

#[test]
fn messages_of_every_agreement() {
    for plain in samples() {
        let message = [&[0xfe; 80][..], &plain].concat();
        for codec in CODECS {
            for agreed in [
                agreed(&[codec], false),
                agreed(&[codec], true),
                agreed(&[codec, Algorithm::PATTERN_V1], true),
            ] {
                if let Some(compressed) = agreed.compress(&message, 80) {
                    assert!(compressed.len() < message.len());
                    assert_eq!(restore(&agreed, &compressed).as_ref(), Ok(&message), "{agreed:?}");
                }
            }
        }
    }
}

#[test]
fn a_message_of_zeros_is_three_headers() {
    let message = [&[0xfe; 80][..], &[0; 1 << 20]].concat();
    let agreed = agreed(&[Algorithm::PATTERN_V1, Algorithm::LZ77], true);
    let compressed = agreed.compress(&message, 80).unwrap();
    assert_eq!(compressed.len(), 8 + 8 + 80 + 8 + 8);
    assert_eq!(restore(&agreed, &compressed), Ok(message));
}

#[test]
fn patterns_of_short_messages_are_worth_it_and_nothing_else_is() {
    let short = [&[7; 80][..], &[0; 500]].concat();
    let chained = agreed(&[Algorithm::PATTERN_V1, Algorithm::LZ77], true);
    let compressed = chained.compress(&short, 80).unwrap();
    assert_eq!(restore(&chained, &compressed), Ok(short.clone()));
    for (algorithms, chain) in
        [(&[Algorithm::LZ77][..], true), (&[Algorithm::PATTERN_V1, Algorithm::LZ77], false)]
    {
        assert_eq!(agreed(algorithms, chain).compress(&short, 80), None);
    }
    let text: Vec<u8> = b"no run in here, ".repeat(40);
    assert_eq!(chained.compress(&text, 0), None);
}

#[test]
fn agreements() {
    let Context::Compression { flags, algorithms } = Agreed::offer() else { panic!("an offer") };
    assert_eq!((flags, algorithms.len()), (1, 5));
    let both = Agreed::of(flags, &algorithms).unwrap();
    assert_eq!(both.context(), Agreed::offer());
    // 3.3.5.4: the answer lists everything in common, useful or not.
    let patterns = Agreed::of(0, &[4]).unwrap();
    assert_eq!(
        (&patterns.algorithms[..], patterns.compress(&[0; 5000], 0)),
        (&[Algorithm::PATTERN_V1][..], None)
    );
    assert_eq!(Agreed::of(1, &[0, 9]), None);
    assert_eq!(Agreed::of(0, &[3, 2, 3, 77]).unwrap().algorithms, [Algorithm::LZ77_HUFFMAN, Algorithm::LZ77]);
}

#[test]
fn what_was_not_agreed_on_is_refused() {
    let message = [&[0xfe; 80][..], &abc(), &[0; 5000]].concat();
    let all = Agreed::of(1, &OURS.map(|algorithm| algorithm.0)).unwrap();
    let chain = all.compress(&message, 80).unwrap();
    assert!(restore(&agreed(&[Algorithm::LZ4], false), &chain).is_err(), "a chain");
    assert!(restore(&agreed(&[Algorithm::LZ4], true), &chain).is_err(), "a pattern");
    let piece = agreed(&[Algorithm::LZ77], false).compress(&message, 80).unwrap();
    assert!(restore(&agreed(&[Algorithm::LZ4], false), &piece).is_err(), "an algorithm");
    assert!(all.original_len(&chain, message.len() - 1).is_err(), "longer than a message may be");
    for len in 0..chain.len() {
        assert!(restore(&all, &chain[..len]).is_err());
    }
}

/// A few bytes that claim to be many: never more than the declared length, which is checked first.
#[test]
fn bombs_do_not_go_off() {
    let all = Agreed::of(1, &OURS.map(|algorithm| algorithm.0)).unwrap();
    let mut bomb = Vec::new();
    Compressed::Chain { original: 4096 }.emit(&mut bomb);
    Payload::Pattern { byte: 0, count: u32::MAX }.emit(true, &mut bomb);
    assert_eq!(restore(&all, &bomb), Err(Corrupt("longer than declared")));
    let mut bomb = Vec::new();
    Compressed::Chain { original: u32::MAX }.emit(&mut bomb);
    Payload::Pattern { byte: 0, count: u32::MAX }.emit(true, &mut bomb);
    assert_eq!(restore(&all, &bomb), Err(Corrupt("longer than a message may be")));
    let mut bomb = Vec::new();
    Compressed::Piece { original: u32::MAX, algorithm: Algorithm::LZ77, plain: u32::MAX }.emit(&mut bomb);
    assert!(restore(&all, &bomb).is_err());
    // A match of 4 GiB.
    let long = hex("ff ff ff 7f 61 07 00 0f ff 00 00 ff ff ff ff");
    assert_eq!(unpacked(Algorithm::LZ77, &long, 4096), Err(Corrupt("longer than declared")));
    // A chain of empty payloads.
    let mut bomb = Vec::new();
    Compressed::Chain { original: 0 }.emit(&mut bomb);
    (0..100_000).for_each(|i| Payload::Plain(b"").emit(i == 0, &mut bomb));
    assert_eq!(restore(&all, &bomb), Err(Corrupt("too many payloads in a chain")));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn anything_there_and_back(pieces in prop::collection::vec((0u8..6, 1usize..300), 1..60)) {
        let plain: Vec<u8> = pieces.iter().flat_map(|(byte, len)| (0..*len).map(move |i| byte * (i % 5) as u8)).collect();
        for algorithm in CODECS {
            let compressed = packed(algorithm, &plain);
            prop_assert_eq!(unpacked(algorithm, &compressed, plain.len()), Ok(plain.clone()));
        }
    }

    #[test]
    fn noise_is_refused_or_read(which in 1u16..6, data in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = unpacked(Algorithm(which), &data, 4096);
    }

    #[test]
    fn damage_is_refused_or_read(at in any::<prop::sample::Index>(), byte in any::<u8>(), codec in 0usize..4) {
        let lines: Vec<u8> = (0..1000).flat_map(|i| format!("line {}\n", i * i % 97).into_bytes()).collect();
        let message = [&[0xfe; 80][..], &lines, &[0; 5000]].concat();
        let agreed = agreed(&[CODECS[codec], Algorithm::PATTERN_V1], true);
        let mut compressed = agreed.compress(&message, 80).unwrap();
        let at = at.index(compressed.len());
        compressed[at] = byte;
        let _ = restore(&agreed, &compressed);
    }
}

/// A short run of the fuzz target.
#[test]
fn the_fuzzer_finds_nothing_at_once() {
    let mut chance = 7u64;
    for round in 0..3000 {
        let mut data: Vec<u8> = Vec::new();
        for _ in 0..round % 300 {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            data.push(if chance >> 60 < 6 { (chance >> 40) as u8 } else { (chance >> 40) as u8 % 5 });
        }
        fuzz(&data);
    }
}
