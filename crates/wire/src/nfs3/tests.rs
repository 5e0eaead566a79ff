use proptest::prelude::*;

use super::*;

fn handle() -> Handle {
    Handle::new(&[0xa5; 24]).unwrap()
}

fn attributes() -> Attributes {
    let time = Time { seconds: 5, nseconds: 6 };
    Attributes {
        kind: FileType::Reg,
        mode: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 100,
        size: 1 << 40,
        used: 4096,
        rdev: SpecData::default(),
        fsid: 3,
        fileid: 77,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

fn wcc() -> WccData {
    let time = Time { seconds: 5, nseconds: 6 };
    WccData { before: Some(WccAttr { size: 1, mtime: time, ctime: time }), after: Some(attributes()) }
}

fn name(name: &'static [u8]) -> Name {
    Name(Bytes::from_static(name))
}

fn object() -> DirOp {
    DirOp { dir: handle(), name: name(b"big.iso") }
}

fn settings() -> SetAttributes {
    SetAttributes {
        mode: Some(0o600),
        uid: None,
        gid: Some(7),
        size: Some(9),
        atime: SetTime::Server,
        mtime: SetTime::Client(Time { seconds: 1, nseconds: 2 }),
    }
}

/// A sample of one type with functions to parse and emit it, for all generic tests.
struct Sample {
    what: &'static str,
    bytes: Vec<u8>,
    again: fn(Bytes) -> Result<Vec<u8>, Malformed>,
}

fn again<T: Xdr>(bytes: Bytes) -> Result<Vec<u8>, Malformed> {
    let mut d = Decoder::new(bytes);
    let value = T::parse(&mut d)?;
    d.end()?;
    let mut e = Encoder::default();
    value.emit(&mut e);
    Ok(e.into_bytes().to_vec())
}

fn sample<T: Xdr>(value: T) -> Sample {
    let mut e = Encoder::default();
    value.emit(&mut e);
    Sample { what: std::any::type_name::<T>(), bytes: e.into_bytes().to_vec(), again: again::<T> }
}

fn failed<T>(data: impl Xdr) -> Outcome<T, impl Xdr> {
    Err(Failure { status: Status::NOENT, data })
}

fn samples() -> Vec<Sample> {
    let post = || Some(attributes());
    vec![
        sample(GetattrArgs { object: handle() }),
        sample(Outcome::<_, ()>::Ok(GetattrOk { attributes: attributes() })),
        sample(SetattrArgs { object: handle(), attributes: settings(), guard: Some(Time::default()) }),
        sample(Outcome::<_, WccOnly>::Ok(WccOnly { wcc: wcc() })),
        sample(LookupArgs { what: object() }),
        sample(Outcome::<_, AttrOnly>::Ok(LookupOk {
            object: handle(),
            attributes: post(),
            dir_attributes: None,
        })),
        sample(failed::<LookupOk>(AttrOnly { attributes: post() })),
        sample(AccessArgs { object: handle(), access: 0x3f }),
        sample(Outcome::<_, AttrOnly>::Ok(AccessOk { attributes: post(), access: 1 })),
        sample(Outcome::<_, AttrOnly>::Ok(ReadlinkOk {
            attributes: post(),
            target: Path(Bytes::from_static(b"../x")),
        })),
        sample(ReadArgs { file: handle(), offset: u64::MAX, count: 8192 }),
        sample(Outcome::<_, AttrOnly>::Ok(ReadOk {
            head: ReadHead { attributes: post(), count: 5, eof: true },
            data: Bytes::from_static(b"hello"),
        })),
        sample(WriteArgs {
            head: WriteHead { file: handle(), offset: 3, count: 5, stable: Stable::FileSync },
            data: Bytes::from_static(b"hello").into(),
        }),
        sample(Outcome::<_, WccOnly>::Ok(WriteOk {
            wcc: wcc(),
            count: 5,
            committed: Stable::DataSync,
            verifier: [8; 8],
        })),
        sample(CreateArgs { object: object(), how: CreateHow::Unchecked(settings()) }),
        sample(CreateArgs { object: object(), how: CreateHow::Guarded(settings()) }),
        sample(CreateArgs { object: object(), how: CreateHow::Exclusive([1; 8]) }),
        sample(Outcome::<_, WccOnly>::Ok(CreateOk {
            object: Some(handle()),
            attributes: post(),
            dir: wcc(),
        })),
        sample(MkdirArgs { object: object(), attributes: settings() }),
        sample(SymlinkArgs {
            object: object(),
            attributes: settings(),
            target: Path(Bytes::from_static(b"t")),
        }),
        sample(MknodArgs {
            object: object(),
            node: Node::Device(FileType::Blk, settings(), SpecData { major: 1, minor: 2 }),
        }),
        sample(MknodArgs { object: object(), node: Node::Pipe(FileType::Fifo, settings()) }),
        sample(MknodArgs { object: object(), node: Node::Other(FileType::Dir) }),
        sample(RemoveArgs { object: object() }),
        sample(RenameArgs { from: object(), to: object() }),
        sample(Outcome::<_, RenameWcc>::Ok(RenameWcc { from_dir: wcc(), to_dir: WccData::default() })),
        sample(LinkArgs { file: handle(), link: object() }),
        sample(Outcome::<_, LinkWcc>::Ok(LinkWcc { attributes: post(), dir: wcc() })),
        sample(ReaddirArgs { dir: handle(), cookie: 1, verifier: [0; 8], count: 4096 }),
        sample(Outcome::<_, AttrOnly>::Ok(ReaddirOk {
            attributes: post(),
            verifier: [2; 8],
            entries: vec![Entry { fileid: 1, name: name(b"a"), cookie: 1 }; 2],
            eof: true,
        })),
        sample(ReaddirplusArgs {
            dir: handle(),
            cookie: 1,
            verifier: [0; 8],
            dircount: 4096,
            maxcount: 8192,
        }),
        sample(Outcome::<_, AttrOnly>::Ok(ReaddirplusOk {
            attributes: post(),
            verifier: [2; 8],
            entries: vec![
                EntryPlus {
                    fileid: 1,
                    name: name(b"abc"),
                    cookie: 1,
                    attributes: post(),
                    handle: Some(handle()),
                };
                2
            ],
            eof: false,
        })),
        sample(ObjectArgs { object: handle() }),
        sample(Outcome::<_, AttrOnly>::Ok(FsstatOk {
            attributes: post(),
            tbytes: 1,
            fbytes: 2,
            abytes: 3,
            tfiles: 4,
            ffiles: 5,
            afiles: 6,
            invarsec: 0,
        })),
        sample(Outcome::<_, AttrOnly>::Ok(FsinfoOk {
            attributes: post(),
            rtmax: 1,
            rtpref: 2,
            rtmult: 3,
            wtmax: 4,
            wtpref: 5,
            wtmult: 6,
            dtpref: 7,
            maxfilesize: 8,
            time_delta: Time { seconds: 0, nseconds: 1 },
            properties: FSF_LINK | FSF_SYMLINK,
        })),
        sample(Outcome::<_, AttrOnly>::Ok(PathconfOk {
            attributes: post(),
            linkmax: 1,
            name_max: 255,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        })),
        sample(CommitArgs { file: handle(), offset: 1, count: 0 }),
        sample(Outcome::<_, WccOnly>::Ok(CommitOk { wcc: wcc(), verifier: [3; 8] })),
    ]
}

#[test]
fn every_message_comes_back() {
    for s in samples() {
        assert_eq!((s.again)(Bytes::from(s.bytes.clone())).as_ref(), Ok(&s.bytes), "{}", s.what);
    }
}

#[test]
fn every_truncation_is_an_error() {
    for s in samples() {
        for len in 0..s.bytes.len() {
            assert!((s.again)(Bytes::copy_from_slice(&s.bytes[..len])).is_err(), "{} at {len}", s.what);
        }
    }
}

#[test]
fn a_getattr_call_as_it_lies_on_the_wire() {
    let mut e = Encoder::default();
    GetattrArgs { object: Handle::new(&[1, 2, 3, 4, 5]).unwrap() }.emit(&mut e);
    assert_eq!(&e.into_bytes()[..], &[0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0]);
}

#[test]
fn a_handle_of_65_bytes_is_malformed() {
    assert!(Handle::new(&[0; 65]).is_none());
    let mut e = Encoder::default();
    e.opaque(&[0; 65]);
    assert!(Handle::parse(&mut Decoder::new(e.into_bytes())).is_err());
}

#[test]
fn a_read_head_and_its_payload_are_a_read_result() {
    let head = ReadHead { attributes: None, count: 8, eof: false };
    let mut e = Encoder::default();
    head.emit(&mut e);
    let reduced = e.into_bytes();
    let data = Bytes::from_static(b"12345678");
    let inline = Bytes::from([&reduced[..], &data[..]].concat());
    let expected = ReadOk { head, data: data.clone() };
    assert_eq!(ReadOk::parse(&mut Decoder::new(inline)).as_ref(), Ok(&expected));
    assert_eq!(ReadOk::parse(&mut Decoder::reduced(reduced, Some(data))), Ok(expected));
}

proptest! {
    #[test]
    fn mutations_never_panic(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let all = samples();
        let s = which.get(&all);
        if !s.bytes.is_empty() {
            let mut bytes = s.bytes.clone();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let _ = (s.again)(Bytes::from(bytes));
        }
    }
}
