//! Export rules when a compound goes from one share into another.

use weft_store::rules::{Export, Flavor as Named, Squash};
use weft_wire::rpc::Flavor;

use super::*;

/// Shares "ruled" and "plain", where everyone may write.
fn server(export: Export) -> Arc<Server> {
    let share = |name: &str| Share::new(name, Vfs::new(Ram::new(16 << 20)));
    let mut shares = vec![share("ruled"), share("plain")];
    for share in &shares {
        let set = weft_store::SetAttr { mode: Some(0o777), ..Default::default() };
        weft_machine::rt::block_on(share.vfs.setattr(NodeId::ROOT, set)).unwrap().unwrap();
    }
    shares[0].rules.nfs = export;
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
    let vfs = &server.shares[share].vfs;
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
