//! Export rules when a compound goes from one share into another.

use weft_machine::rt;
use weft_store::rules::{Export, Flavor as Named, Squash};
use weft_store::{Exists, Make, SetAttr};
use weft_wire::rpc::Flavor;

use super::*;

fn root_of(server: &Server, share: usize) -> Handle {
    Handle::new(crate::server::tests::handle_of(server, share, NodeId::ROOT).as_bytes()).unwrap()
}

/// Makes a file with this content, which belongs to root.
fn file(server: &Server, share: usize, name: &[u8], mode: u32, content: &'static [u8]) {
    let vfs = &server.vfs(share);
    rt::block_on(async {
        let set = SetAttr { mode: Some(mode), uid: Some(0), gid: Some(0), ..SetAttr::default() };
        let made = vfs.make(NodeId::ROOT, name, Make::File, Exists::Fail, set).await;
        let (made, unsettled) = made.unwrap();
        vfs.settle(unsettled).await.unwrap();
        let file = vfs.open(made.attr.node, true).await.unwrap();
        file.write(0, &[Bytes::from_static(content)]).await.unwrap();
    })
    .unwrap();
}

/// Shares "ruled" and "plain", where everyone may write.
fn server(export: Export) -> Arc<Server> {
    server_of_both([export, Export::default()])
}

/// The same with rules for both.
fn server_of_both(exports: [Export; 2]) -> Arc<Server> {
    let share = |name: &str| Share::new(name, Vfs::new(Ram::new(16 << 20)));
    let mut shares = vec![share("ruled"), share("plain")];
    for (share, export) in shares.iter_mut().zip(exports) {
        share.rules.nfs = export;
        let set = weft_store::SetAttr { mode: Some(0o777), ..Default::default() };
        weft_machine::rt::block_on(share.vfs.setattr(NodeId::ROOT, set)).unwrap().unwrap();
    }
    let policy = Policy { decides: true, squash_root: true };
    let pool = weft_machine::Pool::new(16 << 20);
    Server::new(Config { shares, pool, limits: Limits::default(), policy, durable: None })
}

fn mkdir(name: &str) -> Op {
    Op::Create(Create {
        kind: CreateType::Other(FileType::DIR),
        name: text(name),
        attributes: Fattr::default(),
    })
}

fn owner(server: &Server, share: usize, name: &[u8]) -> u32 {
    let vfs = &server.vfs(share);
    weft_machine::rt::block_on(vfs.lookup(NodeId::ROOT, name, false)).unwrap().unwrap().uid
}

#[test]
fn the_caller_is_somebody_else_in_each_share() {
    let export = Export { squash: Some(Squash::All), anonymous: (Some(1000), None), ..Export::default() };
    let server = server(export);
    let mut old = Old::new(&server, "a");
    old.uid = 5;
    let ruled = [Op::Putrootfh, Op::Lookup(text("ruled"))];
    let plain = [Op::Putrootfh, Op::Lookup(text("plain"))];
    // Into one, saved, into the other, and back.
    let all = [&ruled[..], &[Op::Savefh], &plain, &[mkdir("a"), Op::Restorefh, mkdir("b")]].concat();
    assert_eq!(old.run(&all).status, Status::OK);
    assert_eq!((owner(&server, 1, b"a"), owner(&server, 0, b"b")), (5, 1000));
}

#[test]
fn a_read_only_export_says_so() {
    let server = server(Export { read_only: true, ..Export::default() });
    let old = Old::new(&server, "a");
    let into = |name| vec![Op::Putrootfh, Op::Lookup(text(name))];
    let make = |name| [into(name), vec![mkdir("d")]].concat();
    assert_eq!(old.run(&make("ruled")).status, Status::ROFS);
    assert_eq!(old.run(&make("plain")).status, Status::OK);
    let open = old.open_op(0, "f", share::WRITE, 0, Some(CreateHow::Unchecked(Fattr::default())));
    assert_eq!(old.run(&[into("ruled"), vec![open]].concat()).status, Status::ROFS);
}

#[test]
fn who_comes_from_elsewhere_or_names_itself_wrongly_learns_how_to_and_gets_no_further() {
    let elsewhere = server(Export { networks: vec!["203.0.113.0/24".parse().unwrap()], ..Export::default() });
    let old = Old::new(&elsewhere, "a");
    let lookup = [Op::Putrootfh, Op::Lookup(text("ruled"))];
    assert_eq!(old.run(&lookup).status, Status::ACCESS);
    assert_eq!(old.run(&[Op::Putrootfh, Op::Lookup(text("plain"))]).status, Status::OK);
    let secinfo = [Op::Putrootfh, Op::Secinfo(text("ruled"))];
    assert_eq!(old.run(&secinfo).status, Status::ACCESS);

    // Old identifies itself by ids; this export wants callers without any.
    let nameless = server(Export { flavors: vec![Named::None], ..Export::default() });
    let old = Old::new(&nameless, "a");
    assert_eq!(old.run(&lookup).status, Status::WRONGSEC);
    let mut answer = old.run(&secinfo);
    answer.ok::<()>(opnum::PUTROOTFH);
    let UpTo(flavors): SecinfoOk = answer.ok(opnum::SECINFO);
    assert_eq!(flavors, [Secinfo::Flavor(Flavor::NONE)]);
    // The same by handle: asking is allowed, using is not.
    let bytes = crate::server::tests::handle_of(&nameless, 0, NodeId::ROOT);
    let handle = Handle::new(bytes.as_bytes()).unwrap();
    assert_eq!(old.run(&[Op::Putfh(handle), Op::Getattr(Bitmap::default())]).status, Status::WRONGSEC);
    let asked = old.run(&[Op::Putfh(handle), Op::Secinfo(text("nothing"))]);
    assert_eq!(asked.status, Status::NOENT);
}

#[test]
fn asking_for_flavors_gives_no_handle_to_whom_the_export_refuses() {
    let server = server(Export { flavors: vec![Named::None], ..Export::default() });
    file(&server, 0, b"f", 0o666, b"data");
    let (ruled, plain) = (root_of(&server, 0), root_of(&server, 1));
    let listing = Readdir {
        cookie: 0,
        verifier: [0; 8],
        dircount: 0,
        maxcount: 8192,
        attributes: Bitmap::of(&[attr::FILEHANDLE]),
    };
    let uses = [
        Op::Getfh,
        Op::Getattr(Bitmap::of(&[attr::SIZE])),
        Op::Savefh,
        Op::Readdir(listing),
        Op::Lookup(text("f")),
        Op::Openattr(true),
        Op::Setattr(Setattr { stateid: Stateid::ANONYMOUS, attributes: mode(0o700) }),
        mkdir("d"),
        Op::Remove(text("f")),
    ];
    let mut old = Old::new(&server, "a");
    let modern = Modern::new(&server, "b");
    for using in uses {
        let asks = [Op::Putfh(ruled), Op::Secinfo(text("f")), using.clone()];
        assert_eq!(old.run(&asks).status, Status::NOFILEHANDLE, "{using:?}");
        assert_eq!(modern.run(&asks).status, Status::NOFILEHANDLE, "{using:?}");
        let asks = [Op::Putfh(ruled), Op::SecinfoNoName(0), using.clone()];
        assert_eq!(modern.run(&asks).status, Status::NOFILEHANDLE, "{using:?}");
    }
    let how = Some(CreateHow::Unchecked(Fattr::default()));
    let opens = [Op::Putfh(ruled), Op::Secinfo(text("f")), old.open_op(0, "f", share::BOTH, 0, how)];
    assert_eq!(old.run(&opens).status, Status::NOFILEHANDLE);
    old.seqid = 0;
    // In 4.0 an admitted caller keeps its handle.
    let makes = [Op::Putfh(plain), mkdir("d")];
    assert_eq!(old.run(&makes).status, Status::OK);
    assert_eq!(
        old.run(&[Op::Putfh(plain), Op::Secinfo(text("d")), Op::Lookup(text("d"))]).status,
        Status::OK
    );
}

#[test]
fn a_listing_of_shares_tells_a_refused_caller_their_names_only() {
    let server = server(Export { flavors: vec![Named::None], ..Export::default() });
    let old = Old::new(&server, "a");
    let list = |attributes| {
        let args = Readdir { cookie: 0, verifier: [0; 8], dircount: 0, maxcount: 8192, attributes };
        let mut answer = old.run(&[Op::Putrootfh, Op::Readdir(args)]);
        answer.ok::<()>(opnum::PUTROOTFH);
        let ReaddirOk { entries, eof, .. } = answer.ok(opnum::READDIR);
        assert!(eof);
        let names: Vec<_> = entries.iter().map(|entry| entry.name.clone()).collect();
        assert_eq!(names, [text("ruled"), text("plain")]);
        let values = entries.iter().map(|entry| Attributes::parse(&entry.attributes).unwrap());
        <[Attributes; 2]>::try_from(values.collect::<Vec<_>>()).unwrap()
    };
    let wanted = [attr::TYPE, attr::SIZE, attr::FILEHANDLE, attr::FILEID, attr::OWNER, attr::CHANGE];
    let [ruled, plain] = list(Bitmap::of(&wanted));
    assert_eq!(ruled, Attributes { kind: Some(FileType::DIR), ..Attributes::default() });
    assert_eq!(plain.filehandle, Some(root_of(&server, 1)));
    let wanted = [attr::RDATTR_ERROR, attr::FILEHANDLE, attr::FSID, attr::MOUNTED_ON_FILEID];
    let [ruled, plain] = list(Bitmap::of(&wanted));
    assert_eq!((ruled.rdattr_error, ruled.filehandle), (Some(Status::WRONGSEC.0), None));
    assert!(ruled.fsid.is_some() && ruled.mounted_on_fileid.is_some());
    assert_eq!((plain.rdattr_error, plain.filehandle), (Some(0), Some(root_of(&server, 1))));
}

#[test]
fn a_repeated_open_gives_its_file_only_to_an_admitted_caller() {
    let server = server(Export { flavors: vec![Named::Sys], ..Export::default() });
    let mut old = Old::new(&server, "a");
    old.open("f", share::BOTH, 0);
    let again = [Op::Putrootfh, old.open_op(old.seqid, "g", share::BOTH, 0, None), Op::Getfh];
    old.open("g", share::BOTH, 0);
    assert_eq!(old.run(&again).status, Status::OK);
    let nameless = call_as(77, 0, Credential::None, &again);
    assert_eq!(send(&server, nameless).status, Status::WRONGSEC);
}

#[test]
fn a_copy_reads_as_whom_the_source_export_makes_of_the_caller() {
    let squashes = |squash| Export { squash: Some(squash), ..Export::default() };
    let server = server_of_both([squashes(Squash::Root), squashes(Squash::None)]);
    file(&server, 0, b"secret", 0o600, b"secret");
    file(&server, 0, b"shown", 0o644, b"shown");
    let mut a = Modern::new(&server, "a");
    a.uid = 0;
    let how = Some(CreateHow::Unchecked(Fattr::default()));
    let open = a.open_op("to", share::BOTH, 0, how);
    let mut answer = a.run(&[Op::Putfh(root_of(&server, 1)), open]);
    answer.ok::<()>(opnum::PUTFH);
    let to_stateid = answer.ok::<OpenOk>(opnum::OPEN).stateid;
    let copy = |name| {
        let copy = Copy {
            from_stateid: Stateid::ANONYMOUS,
            to_stateid,
            from_offset: 0,
            to_offset: 0,
            count: 0,
            consecutive: true,
            synchronous: true,
            servers: UpTo::default(),
        };
        let from = [Op::Putfh(root_of(&server, 0)), Op::Lookup(text(name)), Op::Savefh];
        let to = [Op::Putfh(root_of(&server, 1)), Op::Lookup(text("to")), Op::Copy(copy)];
        a.run(&[from, to].concat()).status
    };
    assert_eq!(copy("secret"), Status::ACCESS);
    assert_eq!(copy("shown"), Status::OK);
}
