//! Round trips of every command, cuts at every length, and damage.

mod samples;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;
use proptest::prelude::*;

use super::access::*;
use super::channel::{Channel, Descriptor, Descriptors, MAX_DESCRIPTORS};
use super::create_context::*;
use super::fscc::{FileClass, FsClass, directory, file, notify, security};
use super::*;
use samples::*;

#[test]
fn a_message_cut_anywhere_is_malformed() {
    for sample in samples() {
        let needed = sample.bytes.len() - sample.slack;
        for len in 0..needed {
            // A copy of exactly this length, so that reading past it is certainly out of bounds.
            let cut = Bytes::copy_from_slice(&sample.bytes[..len]);
            assert!(!(sample.parses)(&cut), "{} cut to {len} of {needed}", sample.name);
        }
        for len in needed..=sample.bytes.len() {
            assert!((sample.parses)(&sample.bytes.slice(..len)), "{} of {len}", sample.name);
        }
    }
}

#[test]
fn every_single_bit_flip_parses_or_errs() {
    let samples = samples();
    for sample in &samples {
        for bit in 0..sample.bytes.len() * 8 {
            let mut bytes = sample.bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            (sample.parses)(&bytes.into());
        }
    }
}

thread_local! {
    static SAMPLES: Vec<Sample> = samples();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    /// Damages several bytes at once and runs every parser: none panics.
    #[test]
    fn a_shaken_message_parses_or_errs(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        SAMPLES.with(|samples| {
            let mut bytes = which.get(samples).bytes.to_vec();
            for (at, value) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            let whole = Bytes::from(bytes);
            let cut = whole.slice(..cut.index(whole.len() + 1));
            for sample in samples {
                (sample.parses)(&whole);
                (sample.parses)(&cut);
            }
            for part in compound::split(whole.clone()) {
                let _ = part.map(|p| Header::parse(&p));
            }
            let _ = negotiate::Smb1Negotiate::parse(&whole);
            for class in LISTINGS {
                let _ = directory::parse(class, &whole);
            }
            let _ = ioctl::NetworkInterface::parse_list(&whole);
            let _ = file::Stream::parse_list(&whole);
            let _ = notify::Change::parse_list(&whole);
        });
    }

    #[test]
    fn any_bytes_parse_or_err(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let bytes = Bytes::from(bytes);
        SAMPLES.with(|samples| samples.iter().for_each(|s| { (s.parses)(&bytes); }));
        for class in LISTINGS {
            let _ = directory::parse(class, &bytes);
        }
        let _ = ioctl::NetworkInterface::parse_list(&bytes);
        let _ = file::Stream::parse_list(&bytes);
        let _ = notify::Change::parse_list(&bytes);
    }

    #[test]
    fn a_header_comes_back(charge: u16, status: u32, command: u16, credits: u16, next: u32, mid: u64, a: u64) {
        let header = Header {
            credit_charge: charge,
            status: NtStatus(status),
            command: Command::from_code(command),
            credits,
            flags: header::Flags::SIGNED,
            next_command: next,
            message_id: mid,
            id: Id::Sync { reserved: a as u32, tree: (a >> 32) as u32 },
            session_id: a,
            signature: GUID,
        };
        prop_assert_eq!(Header::parse(&header.to_bytes()), Ok(header));
    }

    #[test]
    fn unix_times_come_back(secs in -11_644_473_600i64..900_000_000_000, ticks in 0u32..10_000_000) {
        let nanos = ticks * 100;
        prop_assert_eq!(Filetime::from_unix(secs, nanos).to_unix(), (secs, nanos));
    }

    #[test]
    fn strings_come_back(text in "\\PC{0,40}") {
        let mut bytes = Vec::new();
        utf16::encode(&text, &mut bytes);
        prop_assert_eq!(utf16::encoded_len(&text), bytes.len());
        prop_assert_eq!(utf16::decode(&bytes), Ok(text.clone()));
        prop_assert_eq!(utf16::decode_lossy(&bytes), Ok(text));
    }
}

#[test]
fn unpaired_surrogates_and_odd_lengths() {
    assert!(utf16::decode(&[0x00, 0xd8, b'a', 0]).is_err());
    assert_eq!(utf16::decode_lossy(&[0x00, 0xd8, b'a', 0]), Ok("\u{fffd}a".into()));
    assert!(utf16::decode(b"abc").is_err());
    assert!(utf16::decode_lossy(b"abc").is_err());
}

#[test]
fn times_at_the_ends() {
    assert_eq!(Filetime::from_unix(0, 0), Filetime(116_444_736_000_000_000));
    assert_eq!(Filetime::from_unix(i64::MIN, 0), Filetime::ZERO);
    assert_eq!(Filetime::from_unix(i64::MAX, 999_999_999), Filetime(i64::MAX as u64));
    assert_eq!(Filetime::ZERO.to_set(), None);
    assert_eq!(Filetime::FREEZE.to_set(), None);
    assert_eq!(Filetime::THAW.to_set(), None);
    assert_eq!(Filetime(1).to_set(), Some(Filetime(1)));
    // No value causes a panic.
    Filetime(u64::MAX).to_unix();
}

#[test]
fn header_bytes() {
    let header = Header {
        credits: 31,
        id: Id::tree(0x0a0b_0c0d),
        session_id: 0x1122_3344,
        ..Header::request(Command::TreeConnect, 3)
    };
    #[rustfmt::skip]
    let expected = [
        0xfe, b'S', b'M', b'B', 64, 0, 1, 0,  0, 0, 0, 0,  3, 0, 31, 0,
        0, 0, 0, 0,  0, 0, 0, 0,  3, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0,  0x0d, 0x0c, 0x0b, 0x0a,  0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(header.to_bytes(), expected);
}

#[test]
fn read_request_bytes() {
    let mut out = Vec::new();
    let channel = Channel::RdmaV1Invalidate(
        [Descriptor { offset: 0x0102_0304_0506_0708, token: 0x0a0b_0c0d, length: 4096 }]
            .into_iter()
            .collect(),
    );
    read::Request {
        padding: 0x50,
        flags: read::Flags::NONE,
        length: 4096,
        offset: 8192,
        file: FileId { persistent: 1, volatile: 2 },
        minimum_count: 0,
        channel,
        remaining_bytes: 4096,
    }
    .emit(&mut out);
    #[rustfmt::skip]
    let expected = [
        49, 0, 0x50, 0,  0, 16, 0, 0,  0, 32, 0, 0, 0, 0, 0, 0,
        1, 0, 0, 0, 0, 0, 0, 0,  2, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0,  2, 0, 0, 0,  0, 16, 0, 0,  112, 0, 16, 0,
        8, 7, 6, 5, 4, 3, 2, 1,  0x0d, 0x0c, 0x0b, 0x0a,  0, 16, 0, 0,
    ];
    assert_eq!(out, expected);
}

#[test]
fn write_data_is_a_slice_of_the_message() {
    let bytes = message(|out| emit_write(&write_request(Channel::None, b"payload"), out));
    let request = write::Request::parse(&bytes).unwrap();
    assert_eq!(request.data.as_ptr(), bytes[write::REQUEST_DATA_AT..].as_ptr());
}

#[test]
fn channel_information_is_whole_descriptors_and_not_too_many() {
    let mut bytes = message(|out| read_request(Channel::RdmaV1(descriptors())).emit(out)).to_vec();
    bytes[HEADER_LEN + 46] = 17;
    assert!(read::Request::parse(&bytes.into()).is_err());
    let d = Descriptor { offset: 0, token: 0, length: u32::MAX };
    let many: Descriptors = std::iter::repeat_n(d, MAX_DESCRIPTORS + 1).collect();
    assert_eq!(many.total(), u64::from(u32::MAX) * (MAX_DESCRIPTORS as u64 + 1));
    let bytes = message(|out| read_request(Channel::RdmaV1(many)).emit(out));
    assert!(read::Request::parse(&bytes).is_err());
}

#[test]
fn an_offset_into_the_header_is_refused() {
    let mut bytes = message(|out| emit_write(&write_request(Channel::None, b"payload"), out)).to_vec();
    bytes[HEADER_LEN + 2] = 0;
    assert!(write::Request::parse(&bytes.into()).is_err());
}

#[test]
fn an_extended_tree_connect_finds_its_path() {
    let bytes = message(|out| {
        out.extend_from_slice(&[9, 0, 4, 0, 16, 0, 8, 0]);
        out.extend_from_slice(&[0; 16]);
        utf16::encode(r"\\s\", out);
    });
    let request = tree_connect::Request::parse(&bytes).unwrap();
    assert_eq!(request.path, r"\\s\");
    assert_eq!(request.share(), "");
}

#[test]
fn smb1_negotiate() {
    let mut bytes = b"\xffSMB\x72".to_vec();
    bytes.resize(32, 0);
    let dialects = b"\x02NT LM 0.12\0\x02SMB 2.002\0\x02SMB 2.???\0";
    bytes.push(0);
    bytes.extend_from_slice(&(dialects.len() as u16).to_le_bytes());
    bytes.extend_from_slice(dialects);
    let found = negotiate::Smb1Negotiate { smb_2_002: true, smb_2_wildcard: true };
    assert_eq!(negotiate::Smb1Negotiate::parse(&bytes), Ok(found));
    for len in 0..bytes.len() {
        assert!(negotiate::Smb1Negotiate::parse(&bytes[..len]).is_err());
    }
}

#[test]
fn compounds_split_where_they_were_linked() {
    let mut out = Vec::new();
    let mut starts = Vec::new();
    for (i, body) in [3usize, 8, 1].into_iter().enumerate() {
        let start = out.len();
        starts.push(start);
        Header::request(Command::Echo, i as u64).emit(&mut out);
        out.resize(out.len() + body, 0xa5);
        if i < 2 {
            compound::link(&mut out, start);
        }
    }
    assert!(starts.iter().all(|s| s.is_multiple_of(8)));
    let frame = Bytes::from(out.clone());
    let parts: Vec<_> = compound::split(frame.clone()).collect::<Result<_, _>>().unwrap();
    assert_eq!(parts.len(), 3);
    for (i, part) in parts.iter().enumerate() {
        assert_eq!(Header::parse(part).unwrap().message_id, i as u64);
    }
    for next in [1u32, 8, 63, 68, 12_345, u32::MAX, u32::MAX - 7, out.len() as u32] {
        header::patch_next_command(&mut out, next);
        assert!(compound::split(Bytes::from(out.clone())).any(|p| p.is_err()), "NextCommand {next}");
    }
    for len in 1..frame.len() {
        // The body's parser detects a cut inside a message after its header; the split detects a cut before that.
        let whole = compound::split(frame.slice(..len)).filter_map(Result::ok).count();
        assert!(whole <= 3);
    }
}

#[test]
fn create_contexts_that_loop_or_leave_are_refused() {
    let good = message(|out| create_request("f", request_contexts()).emit(out));
    let list_at = u32::from_le_bytes(good[HEADER_LEN + 48..HEADER_LEN + 52].try_into().unwrap()) as usize;
    for next in [1u32, 4, 8, 12, 17, 1 << 20, u32::MAX] {
        let mut bytes = good.to_vec();
        bytes[list_at..list_at + 4].copy_from_slice(&next.to_le_bytes());
        assert!(create::Request::parse(&bytes.into()).is_err(), "Next {next}");
    }
}

#[test]
fn too_many_create_contexts_are_refused() {
    let many = vec![RequestContext::OnDiskId; MAX_CONTEXTS + 1];
    assert!(create::Request::parse(&message(|out| create_request("f", many).emit(out))).is_err());
}

#[test]
fn listings_come_back_in_every_layout() {
    for class in LISTINGS {
        let bytes = listing(class);
        let entries = directory::parse(class, &bytes).unwrap();
        let names: Vec<_> = entries.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names, ["a", "größer.txt", "日本"], "{class:?}");
        if class == FileClass::ID_BOTH_DIRECTORY {
            assert_eq!(entries[2], entry("日本"));
        }
        for len in 1..bytes.len() {
            let cut = directory::parse(class, &bytes[..len]);
            assert!(cut.is_err(), "{class:?} cut to {len}: {cut:?}");
        }
    }
    assert!(directory::Writer::new(FileClass::BASIC, 4096).is_none());
}

#[test]
fn a_listing_stops_at_its_limit() {
    let len = listing(FileClass::NAMES).len();
    let mut writer = directory::Writer::new(FileClass::NAMES, len - 1).unwrap();
    assert!(writer.push(&entry("a")));
    assert!(writer.push(&entry("größer.txt")));
    assert!(!writer.push(&entry("日本")));
    assert_eq!(writer.len(), 2);
    assert_eq!(directory::parse(FileClass::NAMES, &writer.finish()).unwrap().len(), 2);
}

#[test]
fn other_lists_come_back() {
    let interfaces = [
        ioctl::NetworkInterface {
            index: 1,
            rss: true,
            rdma: false,
            link_speed_bps: 10_000_000_000,
            addr: IpAddr::V4(Ipv4Addr::LOCALHOST),
        },
        ioctl::NetworkInterface {
            index: 2,
            rss: false,
            rdma: true,
            link_speed_bps: 1,
            addr: IpAddr::V6(Ipv6Addr::LOCALHOST),
        },
    ];
    let mut out = Vec::new();
    ioctl::NetworkInterface::emit_list(&interfaces, &mut out);
    assert_eq!(out.len(), 152 * 2);
    assert_eq!(ioctl::NetworkInterface::parse_list(&out).unwrap(), interfaces);
    for len in 1..out.len() {
        assert!(ioctl::NetworkInterface::parse_list(&out[..len]).is_err(), "cut to {len}");
    }

    let streams = [
        file::Stream { size: 1, allocation_size: 4096, name: "::$DATA".into() },
        file::Stream { size: 2, allocation_size: 0, name: ":x:$DATA".into() },
    ];
    let mut out = Vec::new();
    file::Stream::emit_list(&streams, &mut out);
    assert_eq!(file::Stream::parse_list(&out).unwrap(), streams);

    let changes = [
        notify::Change { action: notify::Action::RENAMED_OLD_NAME, name: "odd".into() },
        notify::Change { action: notify::Action::RENAMED_NEW_NAME, name: "even".into() },
    ];
    let mut out = Vec::new();
    notify::Change::emit_list(&changes, &mut out);
    assert_eq!(notify::Change::parse_list(&out).unwrap(), changes);
}

#[test]
fn security_descriptors_name_their_sids() {
    assert_eq!(security::Sid::unix_user(1000).to_string(), "S-1-22-1-1000");
    assert_eq!(security::Sid::everyone().to_string(), "S-1-1-0");
    let mut out = Vec::new();
    descriptor().emit(&mut out);
    assert_eq!(out.len() % 4, 0);
}

#[test]
fn generic_access_expands() {
    assert_eq!(AccessMask::GENERIC_ALL.expand_generic(), AccessMask::FILE_ALL);
    let read = (AccessMask::GENERIC_READ | AccessMask::DELETE).expand_generic();
    assert_eq!(read, AccessMask::FILE_GENERIC_READ | AccessMask::DELETE);
}

#[test]
fn truncation_keeps_the_fixed_part() {
    let info = vec![1; 30];
    assert_eq!(fscc::truncate(&mut info.clone(), 30, 20), Some(false));
    let mut cut = info.clone();
    assert_eq!(fscc::truncate(&mut cut, 25, 20), Some(true));
    assert_eq!(cut.len(), 25);
    assert_eq!(fscc::truncate(&mut info.clone(), 19, 20), None);
}

#[test]
fn codes_have_names() {
    assert_eq!(NtStatus::ACCESS_DENIED.to_string(), "STATUS_ACCESS_DENIED");
    assert_eq!(NtStatus(0xC012_3456).to_string(), "NTSTATUS 0xc0123456");
    assert!(NtStatus::ACCESS_DENIED.is_error() && !NtStatus::BUFFER_OVERFLOW.is_error());
    assert!(NtStatus::PENDING.is_success() && !NtStatus::NO_MORE_FILES.is_success());
    assert_eq!(format!("{:?}", FsClass(99)), "FsClass(0x63)");
    assert_eq!(format!("{:?}", ioctl::CtlCode::WEFT_ENDPOINTS), "WEFT_ENDPOINTS");
    assert_eq!(Dialect::V3_1_1.to_string(), "3.1.1");
    for code in 0..0x20 {
        assert_eq!(Command::from_code(code).code(), code);
    }
}

/// Durations of the hot paths; run with `--ignored --nocapture --release`.
#[test]
#[ignore = "prints numbers, asserts nothing about them"]
fn hot_path_cost() {
    use std::hint::black_box;
    const N: u32 = 1_000_000;
    let read = message(|out| read_request(Channel::None).emit(out));
    let write = message(|out| emit_write(&write_request(Channel::None, b"some data"), out));
    let time = |name: &str, f: &mut dyn FnMut()| {
        let start = std::time::Instant::now();
        (0..N).for_each(|_| f());
        println!("{name}: {:.1} ns", start.elapsed().as_nanos() as f64 / f64::from(N));
    };
    time("READ request: header and body", &mut || {
        black_box((
            Header::parse(black_box(&read)).unwrap(),
            read::Request::parse(black_box(&read)).unwrap(),
        ));
    });
    time("WRITE request: header and body", &mut || {
        let parsed = write::Request::parse(black_box(&write)).unwrap();
        black_box((Header::parse(black_box(&write)).unwrap(), parsed));
    });
    let mut out = Vec::with_capacity(256);
    let header = Header::request(Command::Read, 1).reply(NtStatus::SUCCESS, 1);
    time("READ response: header and head", &mut || {
        out.clear();
        black_box(&header).emit(&mut out);
        read::Response::emit_head(black_box(8192), 0, &mut out);
        black_box(&out);
    });
}
