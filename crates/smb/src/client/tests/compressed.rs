//! Compression between our client and our server: plain, signed, encrypted, and only if both ask for it.

use weft_wire::smb2::compression::MAGIC_COMPRESSED;

use super::own::Own;
use super::*;
use crate::client::*;

const LEN: usize = 1 << 20;

fn text() -> Bytes {
    let lines = (0..).flat_map(|i: u32| format!("line {} of {i}\n", i * 7919 % 1013).into_bytes());
    lines.take(LEN).collect::<Vec<u8>>().into()
}

struct Ask {
    server: bool,
    client: bool,
    signing: Wish,
    encryption: Wish,
    rdma: bool,
}

impl Default for Ask {
    fn default() -> Ask {
        Ask {
            server: true,
            client: true,
            signing: Wish::IfRequired,
            encryption: Wish::IfRequired,
            rdma: false,
        }
    }
}

/// Runs the story, then moves a text both ways; returns how many bytes that took on the wire.
fn moved(ask: Ask) -> usize {
    weft_machine::sim::Sim::new(61).run(async {
        let own = Own::new(|config| config.offers.compression = ask.server);
        let between = if ask.rdma { own.rdma().0 } else { own.tcp().await };
        let options = Options {
            compression: ask.client,
            signing: ask.signing,
            encryption: ask.encryption,
            ..own.options()
        };
        let session = Session::connect(between.clone(), options).await.unwrap();
        super::story::tell(&session, "data").await.unwrap();
        let tree = session.tree("data").await.unwrap();
        let file = tree.open("text", OpenOptions::create()).await.unwrap();
        between.seen.borrow_mut().clear();
        file.write(0, text()).await.unwrap();
        assert!(file.read(0, LEN).await.unwrap() == text());
        let encrypted = ask.encryption == Wish::Required;
        let compressed = between.saw(&MAGIC_COMPRESSED);
        assert_eq!(compressed, ask.server && ask.client && !encrypted && !ask.rdma, "the kind of message");
        between.seen.borrow().len()
    })
}

#[test]
fn what_both_ask_for_is_compressed() {
    use Wish::{IfRequired, Required};
    for (signing, encryption) in [(IfRequired, IfRequired), (Required, IfRequired), (IfRequired, Required)] {
        let bytes = moved(Ask { signing, encryption, ..Ask::default() });
        assert!(bytes < LEN, "{bytes} bytes for twice {LEN}: signed {signing:?}, encrypted {encryption:?}");
    }
}

#[test]
fn what_only_one_asks_for_is_not() {
    for (server, client) in [(true, false), (false, true)] {
        let bytes = moved(Ask { server, client, ..Ask::default() });
        assert!(bytes > 2 * LEN, "{bytes} bytes");
    }
}

#[test]
fn what_moves_by_rdma_is_not() {
    // RDMA payload is not in messages, so it is not compressed.
    moved(Ask { rdma: true, ..Ask::default() });
}

/// A server that sends more than it declares ends the connection, and nothing else.
#[test]
fn damage_to_a_compressed_answer_is_noticed() {
    for at in [4, 20, 5000] {
        weft_machine::sim::Sim::new(62).run(async {
            let own = Own::new(|config| config.offers.compression = true);
            let between = own.tcp().await;
            let options = Options { compression: true, signing: Wish::Required, ..own.options() };
            let session = Session::connect(between.clone(), options).await.unwrap();
            let tree = session.tree("data").await.unwrap();
            let file = tree.open("text", OpenOptions::create()).await.unwrap();
            file.write(0, text()).await.unwrap();
            between.tamper(move |bytes| {
                let is = bytes.starts_with(&MAGIC_COMPRESSED);
                if is {
                    bytes[at] ^= 0x55;
                }
                is
            });
            assert!(file.read(0, LEN).await.is_err());
            assert!(between.changed.get() > 0);
        });
    }
}
