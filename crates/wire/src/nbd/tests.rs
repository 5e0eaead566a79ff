use super::handshake::*;
use super::transmission::*;
use super::*;

#[test]
fn a_greeting_names_the_protocol_twice() {
    let greeting = Greeting { flags: FIXED_NEWSTYLE | NO_ZEROES };
    assert_eq!(&greeting.emit(), b"NBDMAGICIHAVEOPT\x00\x03");
    assert_eq!(Greeting::parse(b"NBDMAGICIHAVEOPT\x00\x03"), Ok(greeting));
    // Oldstyle.
    let old = *b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\x00\x00";
    assert_eq!(Greeting::parse(&old), Err(Malformed::Magic(0x4202_8186_1253)));
    for len in 0..GREETING_LEN {
        assert!(Greeting::parse(&greeting.emit()[..len]).is_err());
    }
}

#[test]
fn unknown_client_flags_are_refused() {
    let flags = ClientFlags { fixed_newstyle: true, no_zeroes: false };
    assert_eq!(flags.emit(), [0, 0, 0, 1]);
    assert_eq!(ClientFlags::parse(&[0, 0, 0, 1]), Ok(flags));
    assert_eq!(ClientFlags::parse(&[0, 0, 0, 5]), Err(Malformed::Flags(5)));
    assert_eq!(ClientFlags::parse(&[0, 0, 1]), Err(Malformed::Truncated(3)));
}

fn choices() -> Vec<Choice> {
    let wanted = Wanted { export: "vol1".into(), infos: vec![INFO_BLOCK_SIZE, 0xffff] };
    let queries = Queries { export: "vol1".into(), queries: vec![BASE_ALLOCATION.into(), "base:".into()] };
    vec![
        Choice::ExportName("vol1".into()),
        Choice::ExportName(String::new()),
        Choice::Abort,
        Choice::List,
        Choice::StartTls,
        Choice::Info(wanted.clone()),
        Choice::Go(wanted),
        Choice::StructuredReply,
        Choice::ListMetaContext(Queries { export: String::new(), queries: Vec::new() }),
        Choice::SetMetaContext(queries),
        Choice::Unknown(OptionCode(11)),
    ]
}

fn split(bytes: &[u8]) -> (OptionHeader, &[u8]) {
    let (header, data) = bytes.split_first_chunk::<OPTION_HEADER_LEN>().unwrap();
    let header = OptionHeader::parse(header).unwrap();
    assert_eq!(header.len as usize, data.len());
    (header, data)
}

#[test]
fn every_option_comes_back_and_every_cut_is_refused() {
    for choice in choices() {
        let bytes = choice.emit();
        let (header, data) = split(&bytes);
        assert_eq!(Choice::parse(header.code, data), Ok(choice.clone()));
        // EXPORT_NAME has no length field, so any bytes are a name; ABORT may carry anything.
        if matches!(choice, Choice::ExportName(_) | Choice::Abort | Choice::Unknown(_)) {
            continue;
        }
        for len in 0..data.len() {
            assert!(Choice::parse(header.code, &data[..len]).is_err(), "{choice:?} cut at {len}");
        }
        assert!(Choice::parse(header.code, &[data, &[0]].concat()).is_err(), "{choice:?} with a byte more");
    }
}

#[test]
fn go_is_a_name_and_what_the_client_would_like_to_know() {
    let bytes = b"IHAVEOPT\0\0\0\x07\0\0\0\x0a\0\0\0\x02v1\0\x01\0\x03";
    let go = Choice::Go(Wanted { export: "v1".into(), infos: vec![3] });
    assert_eq!(go.emit(), bytes[..]);
}

#[test]
fn names_are_utf8_without_nul_and_not_too_long() {
    let parse = |name: &[u8]| Choice::parse(OptionCode::EXPORT_NAME, name);
    assert!(parse("Bände".as_bytes()).is_ok() && parse(&[b'a'; MAX_STRING]).is_ok());
    for bad in [&b"\xff"[..], b"a\0b", &[b'a'; MAX_STRING + 1]] {
        assert_eq!(parse(bad), Err(Malformed::Name));
    }
}

#[test]
fn numbers_that_the_data_does_not_hold_are_refused() {
    // 65,535 information requests in two bytes, four billion queries in four.
    let infos = b"\0\0\0\0\xff\xff\0\0";
    assert_eq!(Choice::parse(OptionCode::GO, infos), Err(Malformed::Range("number of information requests")));
    let queries = b"\0\0\0\0\xff\xff\xff\xff\0\0\0\0";
    let parsed = Choice::parse(OptionCode::SET_META_CONTEXT, queries);
    assert_eq!(parsed, Err(Malformed::Range("number of queries")));
}

#[test]
fn every_option_reply_comes_back() {
    let replies = [
        Reply::Ack,
        Reply::Server("vol1".into()),
        Reply::Info(Info::Export { size: 10 << 30, flags: 0x0d6d }),
        Reply::Info(Info::Name("vol1".into())),
        Reply::Info(Info::Description("a volume".into())),
        Reply::Info(Info::BlockSize { minimum: 1, preferred: 4096, maximum: 32 << 20 }),
        Reply::MetaContext { id: 1, name: BASE_ALLOCATION.into() },
        Reply::Refused(Refusal::UnknownExport, "no such volume".into()),
        Reply::Refused(Refusal::TooBig, String::new()),
    ];
    for reply in replies {
        let bytes = reply.emit(OptionCode::GO);
        let (header, data) = bytes.split_first_chunk::<REPLY_HEADER_LEN>().unwrap();
        let (code, kind, len) = Reply::parse_header(header).unwrap();
        assert_eq!((code, len as usize), (OptionCode::GO, data.len()));
        assert_eq!(Reply::parse(kind, data), Ok(reply));
        // No cut causes a panic.
        (0..data.len()).for_each(|len| drop(Reply::parse(kind, &data[..len])));
    }
    assert!(Reply::parse(0x8000_00ff, b"").is_err());
}

#[test]
fn the_answer_to_export_name_has_zeros_unless_declined() {
    let chosen = Chosen { size: 4096, flags: 1 };
    assert_eq!(chosen.emit(true), b"\0\0\0\0\0\0\x10\0\0\x01");
    assert_eq!(chosen.emit(false).len(), 134);
    for no_zeroes in [true, false] {
        let bytes = chosen.emit(no_zeroes);
        assert_eq!(Chosen::parse(&bytes, no_zeroes), Ok(chosen));
        (0..bytes.len()).for_each(|len| assert!(Chosen::parse(&bytes[..len], no_zeroes).is_err()));
    }
}

#[test]
fn a_request_is_28_bytes() {
    let request = Request {
        flags: command_flags::FUA,
        command: Command::WRITE,
        cookie: 0x0102_0304_0506_0708,
        offset: 0x1000,
        len: 512,
    };
    let bytes = b"\x25\x60\x95\x13\0\x01\0\x01\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\x10\0\0\0\x02\0";
    assert_eq!(&request.emit(), bytes);
    assert_eq!(Request::parse(bytes), Ok(request));
    let mut lost = *bytes;
    lost[0] = 0;
    assert_eq!(Request::parse(&lost), Err(Malformed::Magic(0x0060_9513)));
}

#[test]
fn simple_replies_come_back() {
    for error in [None, Some(Code::Io), Some(Code::NoSpace), Some(Code::Shutdown)] {
        let reply = SimpleReply { cookie: 7, error };
        let bytes = reply.emit();
        assert_eq!(ReplyHeader::parse(&bytes), Ok(ReplyHeader::Simple(reply)));
        (0..bytes.len()).for_each(|len| assert!(ReplyHeader::parse(&bytes[..len]).is_err()));
    }
    // An error that this version does not know is still an error.
    let unknown = b"\x67\x44\x66\x98\0\0\0\x63\0\0\0\0\0\0\0\x07";
    let reply = SimpleReply { cookie: 7, error: Some(Code::Invalid) };
    assert_eq!(ReplyHeader::parse(unknown), Ok(ReplyHeader::Simple(reply)));
}

#[test]
fn every_chunk_comes_back_and_every_cut_is_refused() {
    let message = "past the end".to_owned();
    let chunks = [
        Chunk::None,
        Chunk::Data { offset: 1 << 40, len: 65536 },
        Chunk::Hole { offset: 512, len: u32::MAX },
        Chunk::BlockStatus {
            context: 1,
            descriptors: vec![
                Descriptor { len: 4096, flags: 0 },
                Descriptor { len: 8192, flags: Descriptor::HOLE | Descriptor::ZERO },
            ],
        },
        Chunk::Error { code: Code::Invalid, offset: None, message: message.clone() },
        Chunk::Error { code: Code::Io, offset: Some(4096), message },
    ];
    for chunk in chunks {
        let bytes = chunk.emit(0xabcd, true);
        let Ok(ReplyHeader::Chunk(header)) = ReplyHeader::parse(&bytes) else { panic!("{chunk:?}") };
        assert_eq!((header.cookie, header.done), (0xabcd, true));
        let payload = &bytes[CHUNK_HEADER_LEN..];
        assert_eq!(payload.len(), Chunk::fixed_len(&header) as usize);
        assert_eq!(Chunk::parse(&header, payload), Ok(chunk.clone()));
        for len in 0..payload.len() {
            let cut = Chunk::parse(&header, &payload[..len]);
            // A BLOCK_STATUS that is cut between descriptors is a shorter one.
            let fewer = matches!(cut, Ok(Chunk::BlockStatus { .. })) && len == payload.len() - 8;
            assert!(cut.is_err() || fewer, "{chunk:?} cut at {len}");
        }
    }
}

#[test]
fn chunks_that_say_nothing_are_refused() {
    let header = |kind, len| ChunkHeader { done: false, kind, cookie: 0, len };
    assert!(Chunk::parse(&header(0, 0), b"").is_err(), "NONE is always the last");
    assert!(Chunk::parse(&header(1, 8), &[0; 8]).is_err(), "data without bytes");
    assert!(Chunk::parse(&header(2, 12), &[0; 12]).is_err(), "a hole without bytes");
    assert!(Chunk::parse(&header(5, 4), &[0; 4]).is_err(), "no descriptor");
    assert!(Chunk::parse(&header(5, 12), &[0; 12]).is_err(), "an empty descriptor");
    assert!(Chunk::parse(&header(0x8001, 6), &[0; 6]).is_err(), "an error that is none");
    assert!(Chunk::parse(&header(77, 0), b"").is_err(), "no such type");
}
