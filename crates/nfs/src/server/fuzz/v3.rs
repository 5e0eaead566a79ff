//! Calls of version 3, MOUNT and NLM. See RFC 1813.

use bytes::Bytes;
use weft_machine::sim::Script;
use weft_wire::nfs3::*;
use weft_wire::xdr::{Decoder, Encoder};
use weft_wire::{mount, nlm};

use super::{Asked, Knowledge};

/// GETATTR of this handle.
pub fn getattr(handle: &Bytes) -> (u32, u32, u32, Bytes) {
    let object = Handle::new(handle).expect("one of ours");
    (PROGRAM, VERSION, procedure::GETATTR, emitted(&GetattrArgs { object }))
}

fn emitted(args: &impl Xdr) -> Bytes {
    let mut e = Encoder::default();
    args.emit(&mut e);
    e.into_bytes()
}

fn handle(known: &Knowledge, script: &mut Script<'_>) -> Handle {
    let bytes = known.handles.pick(script).expect("a root at least");
    let mut bytes = bytes.to_vec();
    if script.rarely(64) {
        let at = script.below(bytes.len());
        bytes[at] ^= 1;
    }
    // Version 4 handles may be longer.
    Handle::new(&bytes[..bytes.len().min(MAX_HANDLE)]).expect("short enough")
}

fn name(script: &mut Script<'_>) -> Name {
    Name(super::name(script))
}

fn set(script: &mut Script<'_>) -> SetAttributes {
    let time = |script: &mut Script<'_>| match script.byte() % 8 {
        0 => SetTime::Server,
        1 => SetTime::Client(Time { seconds: script.edge() as u32, nseconds: script.edge() as u32 }),
        _ => SetTime::Keep,
    };
    SetAttributes {
        mode: script.rarely(3).then(|| script.edge() as u32),
        uid: script.rarely(8).then(|| script.edge() as u32),
        gid: script.rarely(8).then(|| script.edge() as u32),
        size: script.rarely(3).then(|| script.edge()),
        atime: time(script),
        mtime: time(script),
    }
}

fn verifier(script: &mut Script<'_>) -> Verifier {
    [script.byte() % 2; 8]
}

/// A call: its kind, program, version and procedure, and its arguments.
pub fn call(known: &Knowledge, script: &mut Script<'_>) -> (Asked, u32, u32, u32, Bytes) {
    match script.byte() % 16 {
        0 => return locking(known, script),
        1 => {
            let procedure = u32::from(script.byte() % 7);
            let path = *script.one_of(&["/ram", "/other", "/ram/a", "/ram/../other", "ram//b/", "/none", ""]);
            let args = emitted(&mount::DirPath(Bytes::from_static(path.as_bytes())));
            return (Asked::Other, mount::PROGRAM, mount::VERSION, procedure, args);
        }
        _ => {}
    }
    let which = match script.byte() {
        // Procedures that create something, more often than the others.
        byte @ 200.. => {
            *script.one_of(&[procedure::CREATE, procedure::WRITE, procedure::LOOKUP]) + u32::from(byte == 255)
        }
        byte => u32::from(byte % 23),
    };
    let args = match which {
        procedure::NULL => Bytes::new(),
        procedure::SETATTR => emitted(&SetattrArgs {
            object: handle(known, script),
            attributes: set(script),
            guard: script.rarely(8).then_some(Time { seconds: 1, nseconds: 1 }),
        }),
        procedure::LOOKUP | procedure::REMOVE | procedure::RMDIR => {
            emitted(&DirOp { dir: handle(known, script), name: name(script) })
        }
        procedure::ACCESS => {
            emitted(&AccessArgs { object: handle(known, script), access: script.edge() as u32 })
        }
        procedure::READ => emitted(&ReadArgs {
            file: handle(known, script),
            offset: script.edge(),
            count: script.edge() as u32,
        }),
        procedure::WRITE => write(known, script),
        procedure::CREATE => {
            let object = DirOp { dir: handle(known, script), name: name(script) };
            let how = match script.byte() % 4 {
                0 => CreateHow::Exclusive(verifier(script)),
                1 => CreateHow::Guarded(set(script)),
                _ => CreateHow::Unchecked(set(script)),
            };
            emitted(&CreateArgs { object, how })
        }
        procedure::MKDIR => {
            let object = DirOp { dir: handle(known, script), name: name(script) };
            emitted(&MkdirArgs { object, attributes: set(script) })
        }
        procedure::SYMLINK => {
            let object = DirOp { dir: handle(known, script), name: name(script) };
            emitted(&SymlinkArgs { object, attributes: set(script), target: Path(super::name(script)) })
        }
        procedure::MKNOD => {
            let object = DirOp { dir: handle(known, script), name: name(script) };
            let node = match script.byte() % 3 {
                0 => Node::Device(FileType::Chr, set(script), SpecData::default()),
                1 => Node::Pipe(FileType::Fifo, set(script)),
                _ => Node::Other(FileType::Reg),
            };
            emitted(&MknodArgs { object, node })
        }
        procedure::RENAME => emitted(&RenameArgs {
            from: DirOp { dir: handle(known, script), name: name(script) },
            to: DirOp { dir: handle(known, script), name: name(script) },
        }),
        procedure::LINK => emitted(&LinkArgs {
            file: handle(known, script),
            link: DirOp { dir: handle(known, script), name: name(script) },
        }),
        procedure::READDIR => emitted(&ReaddirArgs {
            dir: handle(known, script),
            cookie: script.edge(),
            verifier: [0; 8],
            count: script.edge() as u32,
        }),
        procedure::READDIRPLUS => emitted(&ReaddirplusArgs {
            dir: handle(known, script),
            cookie: script.edge(),
            verifier: [0; 8],
            dircount: script.edge() as u32,
            maxcount: script.edge() as u32,
        }),
        procedure::COMMIT => emitted(&CommitArgs {
            file: handle(known, script),
            offset: script.edge(),
            count: script.edge() as u32,
        }),
        _ => emitted(&ObjectArgs { object: handle(known, script) }),
    };
    (Asked::V3(which), PROGRAM, VERSION, which, args)
}

fn write(known: &Knowledge, script: &mut Script<'_>) -> Bytes {
    let len = script.below(5000);
    let count = if script.rarely(16) { script.edge() as u32 } else { len as u32 };
    let stable = *script.one_of(&[Stable::Unstable, Stable::DataSync, Stable::FileSync]);
    let head = WriteHead { file: handle(known, script), offset: script.edge(), count, stable };
    emitted(&WriteArgs { head, data: Bytes::from(vec![0x11; len]).into() })
}

/// Locks that do not wait: waiting ones are answered by a call to a port of the client, which has none.
fn locking(known: &Knowledge, script: &mut Script<'_>) -> (Asked, u32, u32, u32, Bytes) {
    use nlm::procedure::{LOCK, TEST, UNLOCK};
    let object = |script: &mut Script<'_>| nlm::Object(super::name(script));
    let which = *script.one_of(&[TEST, LOCK, UNLOCK]);
    let cookie = nlm::Object(Bytes::from_static(b"cookie"));
    let lock = nlm::Lock {
        caller: nlm::Object(Bytes::from_static(b"host")),
        file: handle(known, script),
        owner: object(script),
        svid: u32::from(script.byte() % 3),
        offset: script.edge(),
        length: script.edge(),
    };
    let exclusive = script.flag();
    let args = match which {
        TEST => emitted(&nlm::TestArgs { cookie, exclusive, lock }),
        UNLOCK => emitted(&nlm::UnlockArgs { cookie, lock }),
        _ => {
            let (block, reclaim) = (script.rarely(4), script.rarely(8));
            emitted(&nlm::LockArgs { cookie, block, exclusive, lock, reclaim, state: 1 })
        }
    };
    (Asked::Other, nlm::PROGRAM, nlm::VERSION, which, args)
}

/// Learns the handles in a reply.
pub fn learn(which: u32, mut d: Decoder, known: &mut Knowledge) {
    match which {
        procedure::LOOKUP => {
            let answer = Outcome::<LookupOk, AttrOnly>::parse(&mut d).expect("LOOKUP's results");
            if let Ok(ok) = answer {
                known.handles.learn(Bytes::copy_from_slice(ok.object.as_bytes()));
            }
        }
        procedure::CREATE | procedure::MKDIR | procedure::SYMLINK | procedure::MKNOD => {
            let answer = Outcome::<CreateOk, WccOnly>::parse(&mut d).expect("CREATE's results");
            if let Ok(CreateOk { object: Some(object), .. }) = answer {
                known.handles.learn(Bytes::copy_from_slice(object.as_bytes()));
            }
        }
        _ => return,
    }
    d.end().expect("nothing behind the results");
}
