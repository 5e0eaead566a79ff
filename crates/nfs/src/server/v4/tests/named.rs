//! Named attributes, which SMB sees as streams.

use super::*;

const MADE: fn() -> OpenHow = || Some(CreateHow::Guarded(Fattr::default()));

impl Modern<'_> {
    /// The attribute directory of a file.
    fn attributes_of(&self, file: Handle, make: bool) -> Result<Handle, Status> {
        let mut answer = self.run(&[Op::Putfh(file), Op::Openattr(make), Op::Getfh]);
        answer.ok::<()>(opnum::PUTFH);
        match answer.next(opnum::OPENATTR) {
            Status::OK => Ok(answer.ok(opnum::GETFH)),
            status => Err(status),
        }
    }

    fn open_in(&self, dir: Handle, name: &str, how: OpenHow) -> Result<(Handle, Stateid), Status> {
        let mut answer = self.run(&[Op::Putfh(dir), self.open_op(name, share::BOTH, 0, how), Op::Getfh]);
        answer.ok::<()>(opnum::PUTFH);
        match answer.next(opnum::OPEN) {
            Status::OK => {
                let open = OpenOk::parse(&mut answer.d).unwrap();
                Ok((answer.ok(opnum::GETFH), open.stateid))
            }
            status => Err(status),
        }
    }

    fn values(&self, handle: Handle) -> Attributes {
        let wanted =
            [attr::TYPE, attr::SIZE, attr::NAMED_ATTR, attr::FILEID, attr::NUMLINKS, attr::FILEHANDLE];
        let mut answer = self.run(&[Op::Putfh(handle), Op::Getattr(Bitmap::of(&wanted))]);
        answer.ok::<()>(opnum::PUTFH);
        Attributes::parse(&answer.ok(opnum::GETATTR)).unwrap()
    }

    fn names(&self, dir: Handle) -> Vec<(String, Attributes)> {
        let attributes = Bitmap::of(&[attr::TYPE, attr::SIZE, attr::FILEHANDLE]);
        let (mut cookie, mut names) = (0, Vec::new());
        loop {
            // So short that one name fits.
            let list = Readdir { cookie, verifier: [0; 8], dircount: 0, maxcount: 180, attributes };
            let mut answer = self.run(&[Op::Putfh(dir), Op::Readdir(list)]);
            answer.ok::<()>(opnum::PUTFH);
            let page: ReaddirOk = answer.ok(opnum::READDIR);
            for entry in page.entries {
                cookie = entry.cookie;
                let name = String::from_utf8(entry.name.0.to_vec()).unwrap();
                names.push((name, Attributes::parse(&entry.attributes).unwrap()));
            }
            if page.eof {
                return names;
            }
        }
    }

    fn read(&self, file: Handle, stateid: Stateid) -> Vec<u8> {
        let mut answer = self.run(&[Op::Putfh(file), read_op(stateid, 0, 100)]);
        answer.ok::<()>(opnum::PUTFH);
        assert_eq!(answer.next(opnum::READ), Status::OK);
        let (_eof, len) = (answer.d.u32().unwrap(), answer.d.u32().unwrap());
        answer.d.peek(len as usize).to_vec()
    }
}

/// What SMB sees of the file "f".
fn streams(server: &Server) -> Vec<(String, u64)> {
    let vfs = &server.vfs(0);
    weft_machine::rt::block_on(async {
        let file = vfs.lookup(NodeId::ROOT, b"f", false).await.unwrap();
        let all = vfs.streams(file.node).await.unwrap();
        all.into_iter().map(|entry| (String::from_utf8(entry.name).unwrap(), entry.size)).collect()
    })
    .unwrap()
}

#[test]
fn a_named_attribute_is_made_written_listed_read_renamed_and_removed() {
    let server = server();
    let c = Modern::new(&server, "a");
    let (file, _) = c.open("f", share::BOTH, 0);
    assert_eq!(c.values(file).named_attr, Some(false));
    assert_eq!(c.attributes_of(file, false), Err(Status::NOENT));
    let dir = c.attributes_of(file, true).unwrap();
    assert!(c.names(dir).is_empty());
    assert_eq!(c.open_in(dir, "Notes", None), Err(Status::NOENT));
    let (notes, stateid) = c.open_in(dir, "Notes", MADE()).unwrap();
    // Current by then, because it is opened again below.
    let stateid = Stateid { seqid: 0, ..stateid };
    assert_eq!(c.status(notes, write_op(stateid, 0, b"hello")), Status::OK);
    assert_eq!(c.read(notes, stateid), b"hello");
    // Also without any state.
    assert_eq!(c.read(notes, Stateid::ANONYMOUS), b"hello");
    assert_eq!(streams(&server), [("Notes".to_owned(), 5)]);
    // Their types.
    let (of_file, of_dir, of_notes) = (c.values(file), c.values(dir), c.values(notes));
    assert_eq!(of_file.named_attr, Some(true));
    assert_eq!((of_dir.kind, of_dir.named_attr), (Some(FileType::ATTRDIR), Some(false)));
    assert_eq!((of_notes.kind, of_notes.size), (Some(FileType::NAMEDATTR), Some(5)));
    assert_eq!((of_dir.filehandle, of_notes.filehandle), (Some(dir), Some(notes)));
    let numbers = [of_file.fileid, of_dir.fileid, of_notes.fileid];
    assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2]);
    // Names are case-insensitive as in SMB, and exist once.
    assert_eq!(c.open_in(dir, "nOTES", MADE()), Err(Status::EXIST));
    assert_eq!(c.open_in(dir, "nOTES", Some(CreateHow::Unchecked(Fattr::default()))).unwrap().0, notes);
    for name in ["second", "third"] {
        c.open_in(dir, name, MADE()).unwrap();
    }
    let listed = c.names(dir);
    assert_eq!(listed.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(), ["Notes", "second", "third"]);
    assert_eq!(listed[0].1.filehandle, Some(notes));
    // The parent of the directory is the file; an attribute is not a directory.
    let mut answer = c.run(&[Op::Putfh(dir), Op::Lookupp, Op::Getfh]);
    answer.ok::<()>(opnum::PUTFH);
    answer.ok::<()>(opnum::LOOKUPP);
    assert_eq!(answer.ok::<Handle>(opnum::GETFH), file);
    assert_eq!(c.status(notes, Op::Lookupp), Status::NOTDIR);
    assert_eq!(c.status(dir, Op::Lookup(text("Notes"))), Status::OK);
    // Truncated when opened, renamed over another, removed.
    let empty = Attributes { size: Some(0), ..Attributes::default() }.fattr();
    c.open_in(dir, "Notes", Some(CreateHow::Unchecked(empty))).unwrap();
    assert_eq!(c.values(notes).size, Some(0));
    assert_eq!(c.status(notes, write_op(stateid, 0, b"new")), Status::OK);
    let rename = Op::Rename(Rename { from: text("Notes"), to: text("second") });
    assert_eq!(c.run(&[Op::Putfh(dir), Op::Savefh, rename]).status, Status::OK);
    assert_eq!(streams(&server), [("second".to_owned(), 3), ("third".to_owned(), 0)]);
    assert_eq!(c.status(dir, Op::Remove(text("third"))), Status::OK);
    assert_eq!(c.status(dir, Op::Remove(text("third"))), Status::NOENT);
    assert_eq!(c.status(dir, Op::Remove(text("second"))), Status::OK);
    assert_eq!(c.values(file).named_attr, Some(false));
    // Its open still reads its bytes.
    assert_eq!(c.read(notes, stateid), b"new");
    assert_eq!(c.status(notes, Op::Close(Close { seqid: 0, stateid })), Status::OK);
}

#[test]
fn what_cannot_be_done_with_named_attributes() {
    let server = server();
    let c = Modern::new(&server, "a");
    let (file, _) = c.open("f", share::BOTH, 0);
    let dir = c.attributes_of(file, true).unwrap();
    let (notes, stateid) = c.open_in(dir, "n", MADE()).unwrap();
    for (name, expected) in [
        ("a:b", Status::BADCHAR),
        ("a\\b", Status::BADCHAR),
        ("a/b", Status::BADCHAR),
        (".", Status::BADNAME),
    ] {
        assert_eq!(c.open_in(dir, name, MADE()), Err(expected));
    }
    assert_eq!(c.open_in(dir, "x", Some(CreateHow::Exclusive([1; 8]))), Err(Status::INVAL));
    for handle in [dir, notes] {
        assert_eq!(c.attributes_of(handle, true), Err(Status::WRONG_TYPE));
    }
    let folder = Op::Create(Create {
        kind: CreateType::Other(FileType::DIR),
        name: text("d"),
        attributes: mode(0o755),
    });
    assert_eq!(c.status(dir, folder), Status::INVAL);
    let out = |from, to| {
        let rename = Op::Rename(Rename { from: text("n"), to: text("n2") });
        c.run(&[Op::Putfh(from), Op::Savefh, Op::Putfh(to), rename]).status
    };
    assert_eq!(out(dir, root(&server)), Status::INVAL);
    assert_eq!(out(root(&server), dir), Status::INVAL);
    let link = [Op::Putfh(notes), Op::Savefh, Op::Putfh(root(&server)), Op::Link(text("l"))];
    assert_eq!(c.run(&link).status, Status::INVAL);
    // The mode is the file's, and cannot be changed through an attribute.
    let chmod = |attributes| Op::Setattr(Setattr { stateid, attributes });
    assert_eq!(c.status(notes, chmod(mode(0))), Status::ATTRNOTSUPP);
    assert_eq!(c.status(dir, chmod(mode(0))), Status::INVAL);
    let long = Attributes { size: Some((1 << 40) + 1), ..Attributes::default() }.fattr();
    assert_eq!(c.status(notes, chmod(long)), Status::NOSPC);
    assert_eq!(c.status(notes, Op::Listxattrs(Listxattrs { cookie: 0, maxcount: 100 })), Status::WRONG_TYPE);
    assert_eq!(c.status(dir, read_op(Stateid::ANONYMOUS, 0, 1)), Status::ISDIR);
    // Version 3 does not support them.
    for handle in [dir, notes] {
        let handle = weft_wire::nfs3::Handle::new(handle.as_bytes()).unwrap();
        let status = crate::server::tests::status_of(&server, weft_wire::nfs3::procedure::GETATTR, &handle);
        assert_eq!(status, weft_wire::nfs3::Status::STALE);
    }
}

#[test]
fn named_attributes_are_as_private_as_their_file() {
    let server = server_of(Limits::default(), Policy { decides: true, squash_root: true });
    let owner = Modern { uid: 7, ..Modern::new(&server, "a") };
    let vfs = &server.vfs(0);
    let made = weft_machine::rt::block_on(async {
        let set = weft_store::SetAttr {
            mode: Some(0o640),
            uid: Some(7),
            gid: Some(7),
            ..weft_store::SetAttr::default()
        };
        let file = vfs
            .create(NodeId::ROOT, b"f", weft_store::Make::File, weft_store::Exists::Fail, set)
            .await
            .unwrap()
            .attr;
        vfs.stream(file.node, b"secret", true).await.unwrap();
        file
    })
    .unwrap();
    let handle = crate::server::tests::handle_of(&server, 0, made.node);
    let file = Handle::new(handle.as_bytes()).unwrap();
    let dir = owner.attributes_of(file, false).unwrap();
    let (secret, _) = owner.open_in(dir, "secret", None).unwrap();
    let other = Modern { uid: 8, ..Modern::new(&server, "b") };
    assert_eq!(other.attributes_of(file, false), Err(Status::ACCESS));
    for op in [
        Op::Lookup(text("secret")),
        Op::Remove(text("secret")),
        Op::Readdir(Readdir {
            cookie: 0,
            verifier: [0; 8],
            dircount: 0,
            maxcount: 4096,
            attributes: Bitmap::EMPTY,
        }),
    ] {
        assert_eq!(other.status(dir, op.clone()), Status::ACCESS, "{op:?}");
    }
    assert_eq!(other.open_in(dir, "secret", None), Err(Status::ACCESS));
    assert_eq!(other.open_in(dir, "new", MADE()), Err(Status::ACCESS));
    assert_eq!(other.status(secret, read_op(Stateid::ANONYMOUS, 0, 1)), Status::ACCESS);
}

#[test]
fn a_stream_that_is_to_go_with_its_last_close_takes_no_file_along() {
    use weft_store::opens::{Opening, Rights};
    let server = server();
    let c = Modern::new(&server, "a");
    let (file, _) = c.open("f", share::BOTH, 0);
    let dir = c.attributes_of(file, true).unwrap();
    let (notes, stateid) = c.open_in(dir, "n", MADE()).unwrap();
    let vfs = &server.vfs(0);
    let node = weft_machine::rt::block_on(async {
        let file = vfs.lookup(NodeId::ROOT, b"f", false).await.unwrap();
        vfs.stream(file.node, b"n", false).await.unwrap().attr.node
    })
    .unwrap();
    // An SMB client opens it to delete it, and is gone first.
    let smb = vfs.opens().try_open(node, &Opening::new(Rights::ALL, Rights::ALL, vfs.opens().key())).unwrap();
    smb.set_delete_on_close();
    assert!(smb.close().is_none());
    assert_eq!(c.status(notes, Op::Close(Close { seqid: 0, stateid })), Status::OK);
    assert!(streams(&server).is_empty());
    assert_eq!(c.at_root(&[Op::Lookup(text("f"))]).status, Status::OK);
}

/// As large as SMB's streams, which they are: a ramdisk frees their space with the file.
#[test]
fn a_large_named_attribute_is_a_file_beside_its_file() {
    static PIECE: [u8; 1 << 18] = [7; 1 << 18];
    let size = (40 << 20) + PIECE.len() as u64;
    let server = server();
    let c = Modern::new(&server, "a");
    let free = || weft_machine::rt::block_on(async { server.vfs(0).statfs().await.unwrap().free }).unwrap();
    let before = free();
    let (file, opened) = c.open("f", share::BOTH, 0);
    let dir = c.attributes_of(file, true).unwrap();
    let (large, stateid) = c.open_in(dir, "large", MADE()).unwrap();
    let stateid = Stateid { seqid: 0, ..stateid };
    for n in [0, 1, 40] {
        assert_eq!(c.status(large, write_op(stateid, n << 20, &PIECE)), Status::OK);
    }
    let commit = Op::Commit(Commit { offset: 0, count: 0 });
    assert_eq!(c.status(large, commit), Status::OK);
    assert_eq!(c.values(large).size, Some(size));
    assert_eq!(streams(&server), [("large".to_owned(), size)]);
    assert_eq!(c.read(large, stateid), [7; 100]);
    assert!(before - free() >= size);
    let rename = Op::Rename(Rename { from: text("large"), to: text("other") });
    assert_eq!(c.run(&[Op::Putfh(dir), Op::Savefh, rename]).status, Status::OK);
    assert_eq!(streams(&server), [("other".to_owned(), size)]);
    let listed = c.names(root(&server));
    assert_eq!(listed.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(), ["f"]);
    assert_eq!(c.at_root(&[Op::Lookup(text(".weft-streams"))]).status, Status::NOENT);
    assert_eq!(c.status(large, Op::Close(Close { seqid: 0, stateid })), Status::OK);
    let opened = Stateid { seqid: 0, ..opened };
    assert_eq!(c.status(file, Op::Close(Close { seqid: 0, stateid: opened })), Status::OK);
    assert_eq!(c.at_root(&[Op::Remove(text("f"))]).status, Status::OK);
    assert!(before - free() < 1 << 20);
}

/// The same in a folder on the host, where every open descriptor would keep the space in use.
#[test]
fn what_is_removed_over_nfs_gives_the_space_of_its_large_named_attributes_back() {
    static PIECE: [u8; 1 << 18] = [7; 1 << 18];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let vfs = Vfs::new(weft_store::backend::Dir::open(&path).unwrap());
    let server = Server::new(Config {
        shares: vec![Share::new("data", vfs)],
        pool: weft_machine::Pool::new(16 << 20),
        limits: Limits::default(),
        policy: Policy { decides: false, squash_root: true },
        durable: None,
    });
    let c = Modern::new(&server, "a");
    let nameless = || {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        let targets = descriptors.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
        targets.filter(|to| to.starts_with(&path) && to.to_string_lossy().ends_with(" (deleted)")).count()
    };
    let files = || walk(&path.join(".weft-streams"));
    for of_attribute in [true, false] {
        let (file, opened) = c.open("f", share::BOTH, 0);
        let dir = c.attributes_of(file, true).unwrap();
        let (large, stateid) = c.open_in(dir, "large", MADE()).unwrap();
        let stateid = Stateid { seqid: 0, ..stateid };
        assert_eq!(c.status(large, write_op(stateid, 0, &PIECE)), Status::OK);
        assert_eq!(c.status(large, Op::Commit(Commit { offset: 0, count: 0 })), Status::OK);
        assert_eq!(c.read(large, stateid), [7; 100]);
        assert_eq!(c.status(large, Op::Close(Close { seqid: 0, stateid })), Status::OK);
        // Also without an open: the server keeps it open for the next caller.
        assert_eq!(c.read(large, Stateid::ANONYMOUS), [7; 100]);
        let opened = Stateid { seqid: 0, ..opened };
        assert_eq!(c.status(file, Op::Close(Close { seqid: 0, stateid: opened })), Status::OK);
        assert_eq!(files(), 1);
        if of_attribute {
            assert_eq!(c.status(dir, Op::Remove(text("large"))), Status::OK);
            assert_eq!((files(), nameless()), (0, 0));
        }
        assert_eq!(c.at_root(&[Op::Remove(text("f"))]).status, Status::OK);
        assert_eq!((files(), nameless()), (0, 0));
    }
}

/// The number of files below a folder.
fn walk(folder: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { walk(&path) } else { 1 }).sum()
}
