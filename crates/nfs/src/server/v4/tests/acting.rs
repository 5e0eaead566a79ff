//! What the server does for others when a caller of a folder closes a file. Only root can act for others.

use std::os::unix::fs::PermissionsExt;

use weft_machine::{credentials, rt};
use weft_store::backend::Dir;
use weft_store::opens::{Opening, Rights};
use weft_store::rules::ActsAs;

use super::*;

const READER: u32 = 2006;

/// The one who removes it has been permitted to; who closes it last need not be.
#[test]
fn a_file_that_smb_removes_is_gone_when_a_reader_closes_it() {
    if let Err(e) = credentials::check() {
        println!("SKIPPED: only root can act for other users: {e}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let path = folder.path().join("f");
    std::fs::write(&path, b"content").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let mut share = Share::new("folder", Dir::open(folder.path()).unwrap().into());
    share.rules.acts = ActsAs::Caller;
    let (pool, limits) = (weft_machine::Pool::new(16 << 20), Limits::default());
    let policy = Policy { decides: true, squash_root: true };
    let server = Server::new(Config { shares: vec![share], pool, limits, policy, durable: None });

    let mut reader = Old::new(&server, "a");
    reader.uid = READER;
    let (file, stateid) = reader.open("f", share::READ, 0);
    let vfs = &server.vfs(0);
    let node = rt::block_on(vfs.lookup(NodeId::ROOT, b"f", false)).unwrap().unwrap().node;
    let smb = vfs.opens().try_open(node, &Opening::new(Rights::ALL, Rights::ALL, vfs.opens().key())).unwrap();
    smb.set_delete_on_close();
    assert!(smb.close().is_none(), "the reader has it open");
    assert!(path.exists());
    let close = Op::Close(Close { seqid: reader.seqid, stateid });
    assert_eq!(reader.status(file, close), Status::OK);
    assert!(!path.exists());
}
