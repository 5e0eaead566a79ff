//! What callers without the right to write may not do, besides writing.

use weft_store::SetAttr;

use super::*;

const OWNER: u32 = 2001;
const GROUP: u32 = 3000;

fn sys(uid: u32, gid: u32) -> Credential {
    Credential::Sys(AuthSys::new(Bytes::from_static(b"host"), uid, gid))
}

#[test]
fn who_may_not_write_flushes_nothing() {
    let server = server_where(Policy { decides: true, squash_root: true });
    let file = make(&server, b"f");
    let node = node_of(&server, &file);
    rt::block_on(async {
        let commit = async |who: Credential| {
            let args = CommitArgs { file, offset: 0, count: 0 };
            let number = (nfs3::PROGRAM, nfs3::VERSION, procedure::COMMIT);
            let done: Outcome<CommitOk, WccOnly> =
                results_for_as(&server, PEER, who, number, &args).await.unwrap();
            done.map_or_else(|failed| failed.status, |_| Status::OK)
        };
        let chmod = async |mode| {
            let set = SetAttr { uid: Some(OWNER), gid: Some(GROUP), mode: Some(mode), ..SetAttr::default() };
            server.vfs(0).setattr(node, set).await.unwrap();
        };
        let (owner, member, stranger) = (sys(OWNER, 1), sys(2002, GROUP), sys(2003, 1));
        chmod(0o664).await;
        assert_eq!(commit(owner.clone()).await, Status::OK);
        assert_eq!(commit(member.clone()).await, Status::OK);
        assert_eq!(commit(stranger.clone()).await, Status::ACCES, "who may read");
        chmod(0o600).await;
        for other in [member, stranger, sys(0, 0), Credential::None] {
            assert_eq!(commit(other.clone()).await, Status::ACCES, "{other:?}");
        }
        chmod(0).await;
        assert_eq!(commit(owner).await, Status::OK, "the owner may have opened it before");
    })
    .unwrap();
}
