//! Requests with exactly one defect: none of them reaches a file, on whichever path it is executed.

use std::time::Duration;

use weft_machine::rt;
use weft_store::NodeId;
use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::{Command, FileId, NtStatus, logoff, tree_disconnect};

use super::harness::*;
use crate::server::{Signing, frame};

/// What a request lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// A session that has not expired.
    Validity,
    /// A live session.
    Session,
    /// The signature that the server requires.
    Signature,
    /// A signature with the key of its channel.
    Key,
    /// The encryption that the server requires for its session.
    EncryptionOfSession,
    /// The encryption that the share requires.
    EncryptionOfShare,
    /// A tree of its own session: another session on the connection has a tree with this id.
    OwnTree,
    /// A tree that is still connected.
    Tree,
    /// A channel of its session: it arrives on a connection that is not bound.
    Channel,
}

/// The defect, whether the request is signed, and the answer (3.3.5.2.4, 3.3.5.2.9, 3.3.5.2.11).
const CASES: [(Lack, bool, NtStatus); 15] = [
    (Lack::Validity, true, NtStatus::NETWORK_SESSION_EXPIRED),
    (Lack::Validity, false, NtStatus::NETWORK_SESSION_EXPIRED),
    (Lack::Session, true, NtStatus::USER_SESSION_DELETED),
    (Lack::Session, false, NtStatus::USER_SESSION_DELETED),
    (Lack::Signature, false, NtStatus::ACCESS_DENIED),
    (Lack::Key, true, NtStatus::ACCESS_DENIED),
    (Lack::EncryptionOfSession, true, NtStatus::ACCESS_DENIED),
    (Lack::EncryptionOfSession, false, NtStatus::ACCESS_DENIED),
    (Lack::EncryptionOfShare, true, NtStatus::ACCESS_DENIED),
    (Lack::EncryptionOfShare, false, NtStatus::ACCESS_DENIED),
    (Lack::OwnTree, true, NtStatus::NETWORK_NAME_DELETED),
    (Lack::OwnTree, false, NtStatus::NETWORK_NAME_DELETED),
    (Lack::Tree, true, NtStatus::NETWORK_NAME_DELETED),
    (Lack::Channel, true, NtStatus::USER_SESSION_DELETED),
    (Lack::Channel, false, NtStatus::USER_SESSION_DELETED),
];

/// A request, and the path on which the server executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestPath {
    /// A READ without a future: [`frame::at_once`].
    ReadAtOnce,
    /// A READ with a flag that the fast path does not handle.
    Read,
    /// A WRITE without a future.
    WriteAtOnce,
    /// A WRITE with that flag.
    Write,
    Create,
}

const REQUEST_PATHS: [RequestPath; 5] = [
    RequestPath::ReadAtOnce,
    RequestPath::Read,
    RequestPath::WriteAtOnce,
    RequestPath::Write,
    RequestPath::Create,
];

const KEPT: &[u8] = b"what the file holds";
const CHANGED: &[u8] = b"what somebody wrote";

impl RequestPath {
    /// Reads `KEPT`, writes `data`, or creates a file named `name`.
    async fn ask(self, client: &mut Client, file: FileId, data: &[u8], name: &str) -> NtStatus {
        match self {
            RequestPath::ReadAtOnce | RequestPath::Read => {
                client.replay = self == RequestPath::Read;
                let (status, bytes) = client.read(file, 100).await;
                client.replay = false;
                assert_eq!(bytes, if status == NtStatus::SUCCESS { KEPT } else { b"" });
                status
            }
            RequestPath::WriteAtOnce | RequestPath::Write => {
                client.replay = self == RequestPath::Write;
                let status = client.write(file, data).await;
                client.replay = false;
                status
            }
            RequestPath::Create => {
                let request = create_request(name, CreateOptions::NONE);
                client.status(Command::Create, |out| request.emit(out)).await
            }
        }
    }
}

fn world(lack: Lack) -> World {
    World::with(|config| match lack {
        Lack::Validity => config.limits.session_ms = Some(60_000),
        Lack::Signature => config.signing = Signing::Required,
        Lack::EncryptionOfSession => config.require_encryption = true,
        Lack::EncryptionOfShare => config.shares[0].rules.encrypted = true,
        _ => {}
    })
}

/// A client without defects, with an open file.
async fn right(world: &World, lack: Lack) -> (Client, FileId) {
    let mut client = world.connect();
    client.negotiate(Offer::default()).await;
    client.log_on("alice", PASSWORD).await.unwrap();
    client.seal = matches!(lack, Lack::EncryptionOfSession | Lack::EncryptionOfShare);
    client.sign = true;
    client.tree().await;
    let file = client.open("f", CreateOptions::NONE).await;
    assert_eq!(client.write(file, KEPT).await, NtStatus::SUCCESS);
    (client, file)
}

/// The same client, whose requests have this defect from now on; the file may be another session's.
async fn without(lack: Lack, world: &World, client: Client, file: FileId) -> (Client, FileId) {
    let mut client = client;
    match lack {
        Lack::Validity => rt::sleep(Duration::from_secs(61)).await,
        Lack::Session => {
            let (header, _) = client.call(Command::Logoff, |out| logoff::Request.emit(out)).await;
            assert_eq!(header.status, NtStatus::SUCCESS);
        }
        Lack::Signature => {}
        Lack::Key => client.keys = world.client().await.keys,
        Lack::EncryptionOfSession | Lack::EncryptionOfShare => client.seal = false,
        Lack::OwnTree => {
            let own = (client.session, client.keys.take());
            (client.session, client.sign) = (0, false);
            client.log_on("alice", PASSWORD).await.unwrap();
            client.sign = true;
            // Ids are counted per session: both have the first one.
            client.tree().await;
            client.tree().await;
            let file = client.open("f", CreateOptions::NONE).await;
            assert_eq!(client.read(file, 100).await.0, NtStatus::SUCCESS);
            (client.session, client.keys) = own;
            return (client, file);
        }
        Lack::Tree => {
            let leave =
                client.status(Command::TreeDisconnect, |out| tree_disconnect::Request.emit(out)).await;
            assert_eq!(leave, NtStatus::SUCCESS);
        }
        Lack::Channel => {
            let mut other = world.connect();
            other.negotiate(Offer::default()).await;
            (other.session, other.tree) = (client.session, client.tree);
            other.keys = client.keys.clone();
            return (other, file);
        }
    }
    (client, file)
}

/// The content of a file, read without the server.
async fn content(world: &World, name: &str) -> Option<Vec<u8>> {
    let vfs = world.server.shares.now()[0].vfs.clone();
    let attr = vfs.lookup(NodeId::ROOT, name.as_bytes(), false).await.ok()?;
    let file = vfs.open(attr.node, false).await.unwrap();
    Some(file.read(0, 1 << 20).data().await.unwrap().into_chain(&world.pool).await.unwrap().concat())
}

#[test]
fn what_lacks_anything_reaches_no_file_in_any_way() {
    story(async {
        for ((lack, signed, refused), path) in
            CASES.into_iter().flat_map(|case| REQUEST_PATHS.map(|path| (case, path)))
        {
            let case = format!("{path:?} without {lack:?}, signed: {signed}");
            let world = world(lack);
            let (mut client, file) = right(&world, lack).await;
            // Without a defect it reaches the file, on the intended path.
            let at_once = frame::AT_ONCE.get();
            let status = path.ask(&mut client, file, KEPT, "made").await;
            assert_eq!(status, NtStatus::SUCCESS, "{case}");
            let expected = matches!(path, RequestPath::ReadAtOnce | RequestPath::WriteAtOnce);
            assert_eq!(frame::AT_ONCE.get() - at_once, usize::from(expected), "{case}");

            let (mut client, file) = without(lack, &world, client, file).await;
            client.sign = signed;
            let at_once = frame::AT_ONCE.get();
            let status = path.ask(&mut client, file, CHANGED, "too much").await;
            assert_eq!(status, refused, "{case}");
            assert_eq!(frame::AT_ONCE.get(), at_once, "{case}");
            assert_eq!(content(&world, "f").await.as_deref(), Some(KEPT), "{case}");
            assert_eq!(content(&world, "too much").await, None, "{case}");
        }
    });
}

#[test]
fn an_encrypted_read_at_once_needs_what_others_need() {
    story(async {
        let world = world(Lack::Tree);
        let (mut client, file) = right(&world, Lack::EncryptionOfSession).await;
        let before = frame::AT_ONCE.get();
        let (status, data) = client.read(file, 100).await;
        assert_eq!((status, &data[..]), (NtStatus::SUCCESS, KEPT));
        assert_eq!(frame::AT_ONCE.get(), before + 1);
        let leave = client.status(Command::TreeDisconnect, |out| tree_disconnect::Request.emit(out)).await;
        assert_eq!(leave, NtStatus::SUCCESS);
        assert_eq!(client.read(file, 100).await.0, NtStatus::NETWORK_NAME_DELETED);
        assert_eq!(frame::AT_ONCE.get(), before + 1);
    });
}
