//! Where a folder does for a user what the kernel, asked by the same calls, would refuse him. Only root can act for others.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use weft_machine::credentials::{self, Credentials};

use super::*;

const OWNER: u32 = 2001;
const GROUP: u32 = 3000;

/// A folder that everybody may use, of another group than the user's, in each of the ways in which it is served.
fn served(mode: u32, story: impl AsyncFn(&std::path::Path, Vfs)) {
    if let Err(e) = credentials::check() {
        println!("SKIPPED: only root can act for other users: {e}");
        return;
    }
    rt::block_on(async {
        for on_workers in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            chown(folder.path(), None, Some(GROUP)).unwrap();
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
            let open = if on_workers { Dir::open_on_workers } else { Dir::open };
            story(folder.path(), open(folder.path()).unwrap().into()).await;
        }
    })
    .unwrap();
}

fn user(vfs: &Vfs, uid: u32, gid: u32) -> Vfs {
    vfs.acting_as(Caller::User(Arc::new(Credentials::new(uid, gid, &[]).unwrap())))
}

#[test]
fn who_may_write_sets_one_time_to_now_and_nobody_else_does() {
    served(0o777, async |folder, server| {
        let path = folder.join("f");
        std::fs::write(&path, b"content").unwrap();
        chown(&path, Some(OWNER), Some(GROUP)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o464)).unwrap();
        let node = server.lookup(NodeId::ROOT, b"f", false).await.unwrap().node;
        let (now, then) = (Some(SetTime::Now), Some(SetTime::To(Timestamp { secs: 1, nanos: 0 })));
        let [modified, accessed, past] = [(None, now), (now, None), (None, then)]
            .map(|(atime, mtime)| SetAttr { atime, mtime, ..SetAttr::default() });
        for (who, may) in [((OWNER, 3001), true), ((2002, GROUP), true), ((2006, 3008), false)] {
            for set in [&modified, &accessed] {
                let past = SetAttr { atime: then, ..past.clone() };
                server.setattr(node, past).await.unwrap();
                let done = user(&server, who.0, who.1).setattr(node, set.clone()).await;
                assert_eq!(done.is_ok(), may, "{who:?}: {set:?}");
                let meta = path.metadata().unwrap();
                let expected = (!may || set.atime.is_none(), !may || set.mtime.is_none());
                assert_eq!((meta.atime() == 1, meta.mtime() == 1), expected, "{who:?}: {set:?}");
            }
        }
        // The past is its owner's.
        let writer = user(&server, 2002, GROUP);
        writer.setattr(node, past.clone()).await.unwrap_err();
        user(&server, OWNER, 3001).setattr(node, past).await.unwrap();
    });
}

/// The umask takes permissions away that the client has asked for, so they are set afterwards.
#[test]
fn a_directory_hands_its_group_on_to_directories_of_users_who_are_not_in_it() {
    served(0o2777, async |folder, server| {
        for mode in [0o700, 0o755, 0o775, 0o777, 0o1777] {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            let made =
                user(&server, OWNER, 3001).create(NodeId::ROOT, b"d", Make::Dir, Exists::Fail, set).await;
            assert_eq!(made.unwrap().attr.mode, 0o2000 | mode);
            let meta = folder.join("d").metadata().unwrap();
            assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (OWNER, GROUP, 0o2000 | mode));
            std::fs::remove_dir(folder.join("d")).unwrap();
        }
        // A file of that group gets no bit from a user who is not in it.
        let set = SetAttr { mode: Some(0o2777), ..SetAttr::default() };
        let made = user(&server, OWNER, 3001).create(NodeId::ROOT, b"f", Make::File, Exists::Fail, set).await;
        assert_eq!(made.unwrap().attr.mode, 0o777);
    });
}
