use weft_machine::sim;
use weft_store::SetAttr;

use super::super::served::Served;
use crate::connect::Remote;

async fn make(remote: &Remote, name: &str) {
    remote.create(name).await.unwrap().close().await.unwrap();
}

fn of_mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

/// The new content of a private file was everybody's to read until it was whole, and with --resume for as long as it lay there.
#[test]
fn what_replaces_a_private_file_is_nobody_else_s_meanwhile() {
    for (version, tag) in [("3", None), ("3", Some(".tag")), ("4.1", None), ("4.1", Some(".tag"))] {
        sim::logged(1, async move {
            let mut served = Served::new();
            let remote = served.nfs(version).await;
            for name in ["private", "plain"] {
                make(&remote, name).await;
            }
            served.set("private", of_mode(0o640)).await;
            let plain = served.found("plain").await.mode;
            for (name, mode) in [("private", 0o640), ("plain", plain), ("new", plain)] {
                let draft = remote.draft(name, tag).await.unwrap();
                let meanwhile = served.found(draft.path()).await.mode;
                assert_eq!(meanwhile, if name == "new" { plain } else { 0o600 }, "{name} {version} {tag:?}");
                draft.replace().await.unwrap();
                assert_eq!(served.found(name).await.mode, mode, "{name} {version} {tag:?}");
            }
            // One whose target is removed meanwhile is a new file like others.
            let draft = remote.draft("private", tag).await.unwrap();
            remote.remove("private").await.unwrap();
            draft.replace().await.unwrap();
            assert_eq!(served.found("private").await.mode, plain, "{version} {tag:?}");
        });
    }
}
