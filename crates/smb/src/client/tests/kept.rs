//! Durable handles: files that outlive the connections of their session.

use std::time::Duration;

use bytes::Bytes;
use weft_machine::rt;
use weft_machine::sim::Sim;
use weft_wire::smb2::{Dialect, NtStatus};

use super::super::*;
use super::multichannel::tcp;
use super::own::Own;
use super::story;

fn pattern(seed: u64) -> Bytes {
    story::pattern(3 << 20, seed).into()
}

#[test]
fn a_file_is_had_again_after_all_connections_are_lost() {
    for (dialect, encryption) in [
        (Dialect::V2_1, Wish::IfRequired),
        (Dialect::V3_0, Wish::Required),
        (Dialect::V3_0_2, Wish::IfRequired),
        (Dialect::V3_1_1, Wish::IfRequired),
        (Dialect::V3_1_1, Wish::Required),
    ] {
        Sim::new(61).run(async move {
            let own = Own::new(|_| {});
            let channel = tcp(&own).await;
            let options = Options { dialects: dialect..=dialect, encryption, ..own.options() };
            let session = Session::connect(channel.clone(), options).await.unwrap();
            let tree = session.tree("data").await.unwrap();
            let file = tree.open_kept("f", OpenOptions::create()).await.unwrap();
            assert!(file.is_kept(), "{dialect}");
            file.write(0, pattern(1)).await.unwrap();
            // The client loses the connection; the server has not noticed.
            channel.cut();
            assert!(file.read(0, 1).await.unwrap_err().is_loss());
            let session = session.again(tcp(&own).await).await.unwrap();
            assert_eq!(own.server.session_count(), 1, "the one that is lost has ended");
            let tree = session.tree("data").await.unwrap();
            let again = tree.reopen(&file).await.unwrap();
            assert_eq!(again.id().persistent, file.id().persistent, "the same handle");
            assert!(again.is_kept() && again.is_same_file(&file) == Some(true));
            assert_eq!(again.read(0, 3 << 20).await.unwrap(), pattern(1));
            again.write(3 << 20, pattern(2)).await.unwrap();
            assert_eq!(again.stat().await.unwrap().len, 6 << 20);
            // It exists exactly once.
            assert_eq!(
                tree.reopen(&file).await.err().unwrap().status(),
                Some(NtStatus::OBJECT_NAME_NOT_FOUND)
            );
            drop(file);
            again.close().await.unwrap();
            session.logoff().await.unwrap();
        });
    }
}

#[test]
fn a_server_that_was_restarted_has_no_such_handle_and_the_same_file() {
    Sim::new(62).run(async {
        let disk = weft_store::vfs::Vfs::new(weft_store::backend::Ram::new(256 << 20));
        let start = || {
            let share = weft_store::vfs::Share::new("data", disk.clone());
            Own::new(|config| config.shares = vec![share])
        };
        let (first, second) = (start(), start());
        let channel = tcp(&first).await;
        let session = Session::connect(channel.clone(), first.options()).await.unwrap();
        let tree = session.tree("data").await.unwrap();
        let file = tree.open_kept("f", OpenOptions::create()).await.unwrap();
        let other = tree.open_kept("g", OpenOptions::create()).await.unwrap();
        file.write(0, pattern(1)).await.unwrap();
        channel.cut();
        let session = session.again(tcp(&second).await).await.unwrap();
        let tree = session.tree("data").await.unwrap();
        assert_eq!(tree.reopen(&file).await.err().unwrap().status(), Some(NtStatus::OBJECT_NAME_NOT_FOUND));
        let again = tree.open_kept("f", OpenOptions::write()).await.unwrap();
        assert_eq!((again.is_same_file(&file), again.is_same_file(&other)), (Some(true), Some(false)));
        assert_eq!(again.read(0, 3 << 20).await.unwrap(), pattern(1));
    });
}

#[test]
fn nobody_waits_for_a_lease_that_keeps_a_file() {
    for encryption in [Wish::IfRequired, Wish::Required] {
        Sim::new(63).run(async move {
            let own = Own::new(|_| {});
            let options = || Options { encryption, ..own.options() };
            let session = Session::connect(tcp(&own).await, options()).await.unwrap();
            session.add(tcp(&own).await).await.unwrap();
            let tree = session.tree("data").await.unwrap();
            let file = tree.open_kept("f", OpenOptions::create()).await.unwrap();
            file.write(0, pattern(1)).await.unwrap();
            let other = Session::connect(tcp(&own).await, options()).await.unwrap();
            let theirs = other.tree("data").await.unwrap();
            let before = rt::now();
            // Breaks the lease's read caching, and waits for the acknowledgement.
            let emptied = theirs.open("f", OpenOptions::truncate()).await.unwrap();
            assert!(rt::now() - before < Duration::from_secs(1), "nobody had to run out of patience");
            emptied.write(0, pattern(2)).await.unwrap();
            assert_eq!(file.read(0, 3 << 20).await.unwrap(), pattern(2));
            // An open without sharing breaks the handle lease: the client could close the file, but instead gives up
            // keeping it.
            let alone =
                OpenOptions { share: weft_wire::smb2::access::ShareAccess::NONE, ..OpenOptions::read() };
            let refused = theirs.open("f", alone).await.err().unwrap();
            assert_eq!(refused.status(), Some(NtStatus::SHARING_VIOLATION));
            assert!(rt::now() - before < Duration::from_secs(2), "nobody had to run out of patience");
        });
    }
}
