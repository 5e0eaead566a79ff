//! Shares that require encryption in sessions that do not: which requests are encrypted, and what a user is told.

use std::rc::Rc;

use bytes::Bytes;
use futures_util::FutureExt;
use weft_machine::sim::Sim;
use weft_store::backend::Ram;
use weft_store::vfs::{Share, Vfs};
use weft_wire::smb2::negotiate::CipherId;
use weft_wire::smb2::{Command, Dialect};

use super::super::*;
use super::multichannel::FaultyChannel;
use super::own::Own;
use super::{Between, CIPHERS, story};

/// A server with the encrypted share "data" and the share "open".
fn own() -> Own {
    Own::new(|config| {
        config.shares[0].rules.encrypted = true;
        config.shares.push(Share::new("open", Vfs::new(Ram::new(16 << 20))));
    })
}

/// Only requests outside of trees may be unencrypted.
fn check(between: &Between) {
    for header in between.plain.borrow().iter() {
        let outside =
            [Command::Negotiate, Command::SessionSetup, Command::TreeConnect, Command::Echo, Command::Logoff];
        assert!(outside.contains(&header.command), "{:?} is not encrypted", header.command);
        assert_eq!(header.tree_id(), Some(0), "{:?}", header.command);
    }
}

/// Control codes, CANCEL, the CLOSE of a dropped file, breaks and further connections were the paths to doubt.
#[test]
fn every_request_in_an_encrypted_share_is_encrypted() {
    let cases = CIPHERS.map(|(dialect, cipher)| (dialect, cipher, Wish::IfRequired));
    let signed = (Dialect::V3_1_1, CipherId::AES_128_GCM, Wish::Required);
    for (dialect, cipher, signing) in cases.into_iter().chain([signed]) {
        Sim::new(71).run(async move {
            let own = own();
            let options =
                || Options { dialects: dialect..=dialect, ciphers: vec![cipher], signing, ..own.options() };
            let first = own.tcp().await;
            let faulty = FaultyChannel::new(first.clone());
            let session = Session::connect(faulty.clone(), options()).await.unwrap();
            let tree = session.tree("data").await.unwrap();
            assert_eq!(session.interfaces().await.unwrap().len(), 1);
            assert_eq!(session.endpoints().await.unwrap().len(), 3);
            assert_eq!(session.referral("data", "a").await.unwrap(), None);
            let second = own.tcp().await;
            session.add(second.clone()).await.unwrap();
            story::tell(&session, "data").await.unwrap();

            let file = tree.open_kept("f", OpenOptions::create()).await.unwrap();
            file.write(0, Bytes::from_static(b"hello, world")).await.unwrap();
            assert!(file.read(0, 12).now_or_never().is_none(), "dropped before its answer: CANCEL");
            drop(tree.open("f", OpenOptions::read()).await.unwrap());
            let third = own.tcp().await;
            let other = Session::connect(third.clone(), options()).await.unwrap();
            let theirs = other.tree("data").await.unwrap();
            // Breaks the lease of the first session, which acknowledges that.
            theirs.open("f", OpenOptions::truncate()).await.unwrap().close().await.unwrap();
            drop(theirs);
            other.echo().await.unwrap();

            // The session goes on by the second connection, and then by a new session.
            faulty.cut();
            assert!(file.read(0, 12).await.unwrap().is_empty());
            let fourth = own.tcp().await;
            let session = session.again(fourth.clone()).await.unwrap();
            let tree = session.tree("data").await.unwrap();
            session.interfaces().await.unwrap();
            assert_eq!(tree.stat("f").await.unwrap().len, 0);
            drop((tree, file));
            session.logoff().await.unwrap();
            for between in [first, second, third, fourth] {
                check(&between);
                assert!(!between.saw(b"hello, world"), "{dialect} {cipher:?}: plaintext on the wire");
            }
        });
    }
}

#[test]
fn what_protects_the_payload_is_told_of_each_share() {
    for (dialect, cipher) in CIPHERS {
        for (signing, encryption) in [
            (Wish::IfRequired, Wish::IfRequired),
            (Wish::Required, Wish::IfRequired),
            (Wish::IfRequired, Wish::Required),
        ] {
            Sim::new(72).run(async move {
                let own = own();
                let ciphers = vec![cipher];
                let options =
                    Options { dialects: dialect..=dialect, ciphers, signing, encryption, ..own.options() };
                let session = Session::connect(own.tcp().await, options).await.unwrap();
                let open = session.tree("open").await.unwrap().describe();
                let sealed = session.tree("data").await.unwrap().describe();
                let told = sealed.to_string();
                assert_eq!((sealed.cipher, sealed.signing), (Some(cipher), None), "{told}");
                match encryption {
                    Wish::Required => {
                        assert!(told.contains(&format!(", encrypted ({cipher:?}), ")), "{told}");
                        assert_eq!(open.cipher, Some(cipher));
                    }
                    Wish::IfRequired => {
                        assert!(
                            told.contains(&format!(", encrypted for the share ({cipher:?}), ")),
                            "{told}"
                        );
                        assert_eq!((open.cipher, open.signing.is_some()), (None, signing == Wish::Required));
                    }
                }
                let told = open.to_string();
                let none = (signing, encryption) == (Wish::IfRequired, Wish::IfRequired);
                assert_eq!(told.contains(", neither signed nor encrypted, "), none, "{told}");
            });
        }
    }
}

/// Without RDMA transforms, encrypted payload travels in messages; the other share keeps its RDMA.
#[test]
fn whether_payload_moves_by_rdma_is_told_of_each_share() {
    for transforms in [false, true] {
        Sim::new(73).run(async move {
            let own = own();
            let (between, _) = own.rdma();
            let options = Options { rdma_transforms: transforms, ..own.options() };
            let session = Session::connect(between.clone(), options).await.unwrap();
            let (open, sealed) = (session.tree("open").await.unwrap(), session.tree("data").await.unwrap());
            for (tree, rdma) in [(open, true), (sealed, transforms)] {
                let (told, before) = (tree.describe(), between.exposed.get());
                assert_eq!(told.rdma, rdma, "{told}");
                let file = tree.open("f", OpenOptions::create()).await.unwrap();
                file.write(0, vec![7; 1 << 20].into()).await.unwrap();
                assert_eq!(between.exposed.get() > before, rdma, "{told}");
            }
        });
    }
}

/// The tree that such requests named was gone.
#[test]
fn requests_for_no_particular_share_outlive_the_first_share() {
    for dialect in [Dialect::V3_0_2, Dialect::V3_1_1] {
        Sim::new(74).run(async move {
            let own = own();
            let channel: Rc<Between> = own.tcp().await;
            let options = Options { dialects: dialect..=dialect, ..own.options() };
            let session = Session::connect(channel.clone(), options).await.unwrap();
            drop(session.tree("data").await.unwrap());
            session.add(own.tcp().await).await.unwrap();
            assert_eq!(session.carriers().len(), 2);
            assert_eq!(session.interfaces().await.unwrap().len(), 1);
            // The tree of the first is kept, so the second share does not take it away.
            drop(session.tree("data").await.unwrap());
            assert_eq!(session.endpoints().await.unwrap().len(), 3);
        });
    }
}
