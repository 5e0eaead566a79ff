//! Attacks on another client's log-on by a man in the middle: required signing, allowed dialects, and the target of a
//! proof.

use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::negotiate::{Context, SecurityMode};
use weft_wire::smb2::rdma_transform::RdmaTransformId;
use weft_wire::smb2::{Command, Dialect, NtStatus};

use super::harness::*;
use crate::server::Signing;

const REMOTE: &str = "10.0.0.7:1000";
const HERE: [&str; 4] = ["127.0.0.1:1000", "[::1]:1000", "[::ffff:127.0.0.1]:1000", "shm:pid 7"];

fn offer(guid: u8) -> Offer {
    Offer { guid: [guid; 16], ..Offer::default() }
}

/// Whether a session of this client may send an unsigned request; the announcement must agree.
async fn may_leave_unsigned(client: &mut Client, offer: Offer) -> bool {
    let mode = client.negotiate(offer).await.security_mode;
    client.log_on("alice", PASSWORD).await.unwrap();
    client.tree().await;
    client.sign = false;
    let request = create_request("x", CreateOptions::NONE);
    let status = client.status(Command::Create, |out| request.emit(out)).await;
    assert_eq!(status == NtStatus::ACCESS_DENIED, mode.contains(SecurityMode::SIGNING_REQUIRED));
    client.sign = true;
    client.open("x", CreateOptions::NONE).await;
    status == NtStatus::SUCCESS
}

#[test]
fn who_comes_over_a_network_signs() {
    story(async {
        for (signing, remote, here) in [
            (Signing::Exposed, false, true),
            (Signing::Required, false, false),
            (Signing::Enabled, true, true),
        ] {
            let world = World::with(|config| config.signing = signing);
            assert_eq!(
                may_leave_unsigned(&mut world.connect_from(REMOTE), offer(1)).await,
                remote,
                "{signing:?}"
            );
            for (peer, guid) in HERE.into_iter().zip(2..) {
                let mut client = world.connect_from(peer);
                assert_eq!(may_leave_unsigned(&mut client, offer(guid)).await, here, "{signing:?}, {peer}");
            }
        }
        assert_eq!(Signing::default(), Signing::Exposed);
    });
}

/// Linux has no RDMA transforms: if signed, its payload would move inside messages, and RDMA would be useless.
#[test]
fn an_rdma_client_signs_where_it_can_sign_payload() {
    story(async {
        let world = World::with(|config| config.signing = Signing::Exposed);
        let mut cannot = world.connect_from(REMOTE);
        cannot.wire.max_rdma.set(Some(8 << 20));
        assert!(may_leave_unsigned(&mut cannot, offer(1)).await);
        let mut can = world.connect_from(REMOTE);
        can.wire.max_rdma.set(Some(8 << 20));
        let mut with_transforms = offer(2);
        with_transforms.contexts.push(Context::RdmaTransform(vec![RdmaTransformId::SIGNING.0]));
        assert!(!may_leave_unsigned(&mut can, with_transforms).await);
    });
}

/// A session that began locally does not become an unsigned one over a network.
#[test]
fn a_channel_over_a_network_signs_whatever_its_session_does() {
    story(async {
        let world = World::with(|config| config.signing = Signing::Exposed);
        let mut first = world.connect_from("127.0.0.1:1");
        first.negotiate(offer(1)).await;
        first.log_on("alice", PASSWORD).await.unwrap();
        first.tree().await;
        let file = first.open("x", CreateOptions::NONE).await;
        assert_eq!(first.read(file, 1).await.0, NtStatus::END_OF_FILE, "not signed");
        let mut second = world.connect_from(REMOTE);
        second.negotiate(offer(1)).await;
        second.bind(&first).await.unwrap();
        (second.tree, second.sign) = (first.tree, false);
        assert_eq!(second.read(file, 1).await.0, NtStatus::ACCESS_DENIED);
        second.sign = true;
        assert_eq!(second.read(file, 1).await.0, NtStatus::END_OF_FILE);
    });
}

#[test]
fn dialects_below_the_minimum_are_refused() {
    story(async {
        let world = World::with(|config| config.min_dialect = Dialect::V3_0);
        for (dialects, expected) in [
            (vec![Dialect::V2_0_2], None),
            (vec![Dialect::V2_0_2, Dialect::V2_1], None),
            (vec![Dialect::V2_0_2, Dialect::V2_1, Dialect::V3_0], Some(Dialect::V3_0)),
            (vec![Dialect::V2_1, Dialect::V3_1_1], Some(Dialect::V3_1_1)),
        ] {
            let mut client = world.connect_from(REMOTE);
            let (header, response) = client.try_negotiate(Offer { dialects, ..Offer::default() }).await;
            assert_eq!(response.map(|response| response.dialect), expected);
            assert_eq!(header.status == NtStatus::NOT_SUPPORTED, expected.is_none());
        }
    });
}

/// The victim called another server, which relays its proof to this one.
#[test]
fn a_proof_for_another_server_is_refused_where_requests_need_no_key() {
    story(async {
        let attempt = async |signing, peer: &str, called: &'static str| {
            let world = World::with(|config| config.signing = signing);
            let mut client = world.connect_from(peer);
            client.called = called;
            client.negotiate(Offer::default()).await;
            client.log_on("alice", PASSWORD).await.map(|_| ())
        };
        for called in ["evil.example", "10.6.6.6", "weft.evil.example"] {
            assert_eq!(
                attempt(Signing::Enabled, REMOTE, called).await,
                Err(NtStatus::ACCESS_DENIED),
                "{called}"
            );
            assert_eq!(
                attempt(Signing::Exposed, HERE[0], called).await,
                Err(NtStatus::ACCESS_DENIED),
                "{called}"
            );
            // Without the key from the proof the session is useless to an attacker; an alias is accepted.
            assert_eq!(attempt(Signing::Exposed, REMOTE, called).await, Ok(()), "{called}");
        }
        for called in ["WEFT", "localhost", "127.0.0.1", "192.0.2.7"] {
            assert_eq!(attempt(Signing::Enabled, REMOTE, called).await, Ok(()), "{called}");
        }
    });
}
