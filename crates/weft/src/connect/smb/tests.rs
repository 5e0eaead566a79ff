use bytes::Bytes;
use weft_machine::sim;
use weft_store::SetAttr;

use super::super::served::Served;
use super::*;
use crate::connect::{FILE_MODE, Remote};

async fn make(remote: &Remote, name: &str) {
    remote.create(name).await.unwrap().close().await.unwrap();
}

async fn write(draft: &dyn RemoteDraft, content: &'static [u8]) {
    draft.partial().file.write(0, Bytes::from_static(content)).await.unwrap();
    draft.partial().file.flush().await.unwrap();
}

fn of_mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

/// The new content of a private file was readable by everybody until it was complete, and with --resume as long as it
/// existed.
#[test]
fn what_replaces_a_file_is_nobody_else_s_meanwhile() {
    for tag in [None, Some(".tag")] {
        sim::logged(1, async move {
            let served = Served::new();
            let remote = served.remote().await;
            for name in ["private", "plain"] {
                make(&remote, name).await;
            }
            served.set("private", of_mode(0o600)).await;
            let plain = served.found("plain").await.mode;
            assert_ne!(plain & 0o044, 0);
            for (name, mode) in [("private", 0o600), ("plain", plain), ("new", plain)] {
                let draft = remote.draft(name, tag, FILE_MODE).await.unwrap();
                let meanwhile = served.found(&draft.partial().path).await.mode;
                assert_eq!(meanwhile, if name == "new" { plain } else { 0o600 }, "{name} {tag:?}");
                write(&*draft, b"new").await;
                draft.replace().await.unwrap();
                assert_eq!(served.found(name).await.mode, mode, "{name} {tag:?}");
                assert_eq!(remote.stat(name).await.unwrap().unwrap().size, 3);
            }
            // If the target is removed meanwhile, the draft becomes a normal new file.
            let draft = remote.draft("private", tag, FILE_MODE).await.unwrap();
            remote.remove("private").await.unwrap();
            draft.replace().await.unwrap();
            assert_eq!(served.found("private").await.mode, plain, "{tag:?}");
            assert_eq!(remote.list("").await.unwrap().len(), 3);
        });
    }
}

/// Whoever created it, or could read it, may have it open.
#[test]
fn a_partial_file_that_others_may_read_is_not_written_to() {
    for tag in [None, Some(".tag")] {
        sim::logged(1, async move {
            let served = Served::new();
            let remote = served.remote().await;
            make(&remote, "f").await;
            let first = remote.draft("f", tag, FILE_MODE).await.unwrap();
            write(&*first, b"first").await;
            first.partial().file.close().await.unwrap();
            let left = served.found(&first.partial().path).await;
            // Our own partial file is resumed.
            let again = remote.draft("f", tag, FILE_MODE).await.unwrap();
            let found = served.found(&again.partial().path).await;
            assert_eq!(
                (found.size, found.node == left.node),
                if tag.is_some() { (5, true) } else { (0, false) }
            );
            again.partial().file.close().await.unwrap();
            remote.remove(&again.partial().path).await.unwrap();
            make(&remote, &again.partial().path).await;
            let (path, theirs) = (&again.partial().path, served.found(&again.partial().path).await);
            let last = remote.draft("f", tag, FILE_MODE).await.unwrap();
            assert_eq!(&last.partial().path, path);
            let found = served.found(path).await;
            assert!(found.node != theirs.node && found.mode == 0o600, "{tag:?}");
            last.discard().await.unwrap();
            assert_eq!(remote.list("").await.unwrap().len(), 1);
        });
    }
}

#[test]
fn servers_are_known_by_the_remark_of_their_pipes() {
    assert_eq!(named("IPC Service (Samba 4.17.12-Debian)").as_deref(), Some("Samba 4.17.12-Debian"));
    assert_eq!(named("Remote IPC").as_deref(), Some("Windows"));
    assert_eq!(named(""), None);
}
