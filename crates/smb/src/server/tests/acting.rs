//! As whom the files of a folder are used: who gets access to one at all, and what changes while the server runs.
//!
//! Only root can act for others, so as another user these tests say that they are skipped.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use weft_machine::credentials::{self, Credentials};
use weft_machine::rt;
use weft_store::backend::Dir;
use weft_store::rules::ActsAs;
use weft_store::vfs::Share;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::{self, CreateDisposition, CreateOptions};
use weft_wire::smb2::{Command, NtStatus};

use super::harness::*;
use super::system::Stub;
use crate::auth::Secret;
use crate::server::User;

const ALICE: u32 = 2001;
const BOB: u32 = 2002;
const TEAM: u32 = 3000;

/// A share of a folder that everybody may write to. alice and bob have accounts of the system, carol has none, and tester
/// is the server's own user.
struct Folder {
    folder: tempfile::TempDir,
    world: World,
}

impl Folder {
    /// `None` if this process cannot act for others.
    fn new() -> Option<Folder> {
        if let Err(e) = credentials::check() {
            println!("SKIPPED: only root can act for other users: {e}");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let stub = Stub::of(&[("alice", ALICE, &[3001, TEAM]), ("bob", BOB, &[3002])], &[]);
        let world = World::with(|config| {
            config.offers.system = Some(stub.lookups());
            let user = |name: &str| User::new(name, Secret::password(PASSWORD));
            config.users = ["alice", "bob", "carol"].map(user).into();
            config.users.push(User { is_server_itself: true, ..user("tester") });
            let mut share = Share::new("Data", Dir::open(folder.path()).unwrap().into());
            share.rules.acts = ActsAs::Caller;
            config.shares = vec![share];
        });
        Some(Folder { folder, world })
    }

    async fn logged_on(&self, name: &str) -> Client {
        let mut client = self.world.connect();
        client.negotiate(Offer { guid: [name.as_bytes()[0]; 16], ..Offer::default() }).await;
        client.log_on(name, PASSWORD).await.unwrap();
        client
    }

    async fn connected(&self, name: &str) -> Client {
        let mut client = self.logged_on(name).await;
        client.tree().await;
        client
    }

    fn owner(&self, name: &str) -> (u32, u32) {
        let meta = self.folder.path().join(name).metadata().unwrap();
        (meta.uid(), meta.gid())
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The share, with another user for everybody's files.
    fn forced(&self, uid: u32) -> Share {
        let mut share = Share::clone(&self.world.server.shares.now()[0]);
        share.rules.acts = ActsAs::User(Credentials::new(uid, uid, &[]).unwrap().into());
        share
    }
}

fn opening(name: &str, access: AccessMask, disposition: CreateDisposition) -> create::Request {
    create::Request { desired_access: access, disposition, ..create_request(name, CreateOptions::NONE) }
}

async fn may(client: &mut Client, name: &str, access: AccessMask) -> bool {
    let request = opening(name, access, CreateDisposition::Open);
    match client.status(Command::Create, |out| request.emit(out)).await {
        NtStatus::SUCCESS => true,
        NtStatus::ACCESS_DENIED => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_belong_to_the_accounts_of_their_users_and_a_user_without_one_gets_none() {
    let Some(folder) = Folder::new() else { return };
    rt::block_on(async {
        let mut alice = folder.connected("alice").await;
        let mut bob = folder.connected("bob").await;
        let file = alice.open("hers", CreateOptions::NONE).await;
        assert_eq!(alice.write(file, b"mine").await, NtStatus::SUCCESS);
        bob.open("his", CreateOptions::DIRECTORY_FILE).await;
        assert_eq!(folder.owner("hers"), (ALICE, 3001));
        assert_eq!(folder.owner("his"), (BOB, 3002));

        std::fs::set_permissions(folder.path().join("hers"), PermissionsExt::from_mode(0o600)).unwrap();
        assert!(may(&mut alice, "hers", AccessMask::FILE_READ_DATA).await);
        assert!(!may(&mut bob, "hers", AccessMask::FILE_READ_DATA).await);
        assert!(!may(&mut bob, "hers", AccessMask::WRITE_DAC).await);
        assert!(may(&mut bob, "hers", AccessMask::FILE_READ_ATTRIBUTES).await);
        // An open handle keeps its rights.
        std::fs::set_permissions(folder.path().join("hers"), PermissionsExt::from_mode(0o000)).unwrap();
        assert_eq!(alice.write(file, b"still").await, NtStatus::SUCCESS);

        let mut carol = folder.logged_on("carol").await;
        assert_eq!(carol.tree_connect(r"\\s\data").await.0.status, NtStatus::ACCESS_DENIED);
        assert_eq!(carol.tree_connect(r"\\s\IPC$").await.0.status, NtStatus::SUCCESS);
        let mut tester = folder.connected("tester").await;
        tester.open("of the server", CreateOptions::NONE).await;
        assert_eq!(folder.owner("of the server").0, rustix::process::geteuid().as_raw());
    })
    .unwrap();
}

#[test]
fn a_share_with_a_user_of_its_own_is_used_as_that_user_by_everybody() {
    let Some(folder) = Folder::new() else { return };
    rt::block_on(async {
        let mut alice = folder.connected("alice").await;
        let tree =
            |client: &Client| folder.world.server.sessions.find(client.session).unwrap().tree(client.tree);
        folder.world.server.replace_shares(vec![folder.forced(BOB)]);
        let users = ["alice", "bob", "carol"].map(|name| User::new(name, Secret::password(PASSWORD)));
        folder.world.server.replace_users(&users, &[]).await;
        assert!(tree(&alice).is_none(), "her files were used as hers");
        for name in ["alice", "carol"] {
            let mut client = folder.connected(name).await;
            client.open(name, CreateOptions::NONE).await;
            assert_eq!(folder.owner(name), (BOB, BOB));
        }
        alice.tree().await;
        folder.world.server.replace_users(&users, &[]).await;
        assert!(tree(&alice).is_some(), "nothing has changed");
    })
    .unwrap();
}
