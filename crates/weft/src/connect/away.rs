//! Tests of copies whose server goes away.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use weft_machine::{rt, sim};

use super::served::Served;
use crate::cat::take_into;
use crate::connect::FILE_MODE;
use crate::transfer::take_place;

/// Each file of a copy used to wait again, three times: to write, to remove the written part, and to close it.
#[test]
fn a_server_that_has_stayed_away_for_so_long_is_not_waited_for_again() {
    let (waited, _) = sim::logged(1, async {
        let mut served = Served::new();
        let remote = served.remote().await;
        remote.outlast(Duration::from_secs(60), Arc::default());
        let drafts = join_all(["a", "b", "c", "d"].map(|name| remote.draft(name, None, FILE_MODE))).await;
        served.end().await;
        let begun = rt::now();
        let copying = drafts.into_iter().map(async |draft| {
            let draft = draft.unwrap();
            let lost = draft.partial().file.write(0, Bytes::from_static(b"x")).await.unwrap_err().to_string();
            assert!(lost.contains("could not be re-established within 60s"), "{lost}");
            assert!(draft.discard().await.is_err());
        });
        join_all(copying).await;
        assert!(remote.stat("e").await.is_err());
        rt::now() - begun
    });
    assert!((60..62).contains(&waited.as_secs()), "{waited:?}");
}

/// If the first server's host lost unflushed data, the copy lacked it.
#[test]
fn what_cannot_be_read_again_is_not_believed_on_a_server_that_was_restarted() {
    let (said, _) = sim::logged(1, async {
        let mut served = Served::new();
        let remote = served.remote().await;
        remote.outlast(Duration::from_secs(60), Arc::default());
        let draft = remote.draft("a", None, FILE_MODE).await.unwrap();
        let mut blocks = 0;
        let next_block = async || {
            blocks += 1;
            match blocks {
                1..10 => {}
                10 => {
                    served.end().await;
                    served.start();
                }
                _ => return Ok(Bytes::new()),
            }
            Ok(Bytes::from(vec![1; 1 << 20]))
        };
        let taken = take_into(&draft.partial().file, next_block).await;
        take_place(&remote, &*draft, taken, false).await.unwrap_err().reason().to_string()
    });
    assert!(said.contains("the server restarted"), "{said}");
}

/// The same over NFS, whose requests have individual limits. Written data used to wait twice as long for a flush
/// before it was removed.
#[test]
fn a_server_of_nfs_that_has_stayed_away_for_so_long_is_not_waited_for_again() {
    for version in ["3", "4.1"] {
        let (waited, _) = sim::logged(1, async move {
            let mut served = Served::new();
            let remote = served.nfs(version).await;
            let drafts = join_all(["a", "b", "c", "d"].map(|name| remote.draft(name, None, FILE_MODE))).await;
            for draft in &drafts {
                let file = &draft.as_ref().unwrap().partial().file;
                file.write(0, Bytes::from_static(b"x")).await.unwrap();
            }
            served.end().await;
            let begun = rt::now();
            let copying = drafts.into_iter().map(async |draft| {
                let draft = draft.unwrap();
                assert!(draft.partial().file.write(1, Bytes::from_static(b"x")).await.is_err());
                assert!(draft.discard().await.is_err());
            });
            join_all(copying).await;
            for next in ["e", "f", "g"] {
                assert!(remote.stat(next).await.is_err());
            }
            let waited = rt::now() - begun;
            // A server that is reachable again answers; the handles of version 3 are the previous server's.
            served.start_nfs();
            rt::sleep(Duration::from_secs(10)).await;
            let said = remote.stat("h").await.map(|found| assert!(found.is_none()));
            assert!(said.is_ok() || said.unwrap_err().to_string().contains("STALE"), "{version}");
            waited
        });
        assert!((90..92).contains(&waited.as_secs()), "{version}: {waited:?}");
    }
}
