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
use weft_wire::smb2::change_notify;
use weft_wire::smb2::create::{self, CreateDisposition, CreateOptions};
use weft_wire::smb2::fscc::notify::{Action, Change};
use weft_wire::smb2::{Command, FileId, NtStatus};

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

/// Requests the changes of a directory; `what` selects them.
fn ask_for_changes(client: &mut Client, dir: FileId, what: u32) {
    let flags = change_notify::Flags::WATCH_TREE;
    let wish =
        change_notify::Request { flags, output_buffer_length: 4096, file: dir, completion_filter: what };
    let request = client.request(Command::ChangeNotify, |out| wish.emit(out));
    client.send(request);
}

/// The status and the changes of the next final answer.
async fn changes(client: &mut Client) -> (NtStatus, Vec<(Action, String)>) {
    loop {
        let (header, body) = client.recv().await.unwrap();
        match header.status {
            NtStatus::PENDING => {}
            NtStatus::SUCCESS => {
                let told = change_notify::Response::parse(&body).unwrap().buffer;
                let told = Change::parse_list(&told).unwrap().into_iter();
                return (header.status, told.map(|change| (change.action, change.name)).collect());
            }
            status => return (status, Vec::new()),
        }
    }
}

/// The root of the share, opened for listing.
async fn root(client: &mut Client) -> FileId {
    let wish = opening("", AccessMask::FILE_READ_DATA, CreateDisposition::Open);
    let wish = create::Request { options: CreateOptions::DIRECTORY_FILE, ..wish };
    let (header, body) = client.call(Command::Create, |out| wish.emit(out)).await;
    assert_eq!(header.status, NtStatus::SUCCESS);
    create::Response::parse(&body).unwrap().file
}

async fn delete(client: &mut Client, name: &str, options: CreateOptions) {
    let file = client.open(name, options | CreateOptions::DELETE_ON_CLOSE).await;
    assert_eq!(client.close(file).await, NtStatus::SUCCESS);
}

/// FILE_NOTIFY_CHANGE_FILE_NAME and DIR_NAME; SIZE and LAST_WRITE.
const NAMES: u32 = 0x03;
const CONTENT: u32 = 0x18;

#[test]
fn a_watch_of_a_tree_tells_no_name_that_its_user_could_not_list() {
    let Some(folder) = Folder::new() else { return };
    rt::block_on(async {
        let (mut alice, mut bob) = (folder.connected("alice").await, folder.connected("bob").await);
        let dir = CreateOptions::DIRECTORY_FILE;
        // One closed to others, one that may be entered and not listed, one below each, and one that is open.
        for (name, mode) in
            [("private", 0o700), ("entered", 0o711), ("entered\\below", 0o755), ("shown", 0o755)]
        {
            let made = alice.open(name, dir).await;
            assert_eq!(alice.close(made).await, NtStatus::SUCCESS);
            let path = folder.path().join(name.replace('\\', "/"));
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        let inner = alice.open("private\\inner", dir).await;
        assert_eq!(alice.close(inner).await, NtStatus::SUCCESS);
        let root = root(&mut bob).await;
        ask_for_changes(&mut bob, root, NAMES);
        let (header, _) = bob.recv().await.unwrap();
        assert_eq!(header.status, NtStatus::PENDING);
        let names = ["private\\secret", "private\\inner\\secret", "entered\\secret", "entered\\below\\told"];
        for name in names {
            let file = alice.open(name, CreateOptions::NONE).await;
            assert_eq!(alice.close(file).await, NtStatus::SUCCESS);
        }
        let told = (Action::ADDED, "entered\\below\\told".to_owned());
        assert_eq!(changes(&mut bob).await, (NtStatus::SUCCESS, vec![told]));
        // What moves out of sight has gone, and what comes in sight is new.
        ask_for_changes(&mut bob, root, NAMES);
        std::fs::rename(folder.path().join("private/secret"), folder.path().join("shown/came")).unwrap();
        let told = (Action::ADDED, "shown\\came".to_owned());
        assert_eq!(changes(&mut bob).await, (NtStatus::SUCCESS, vec![told]));
        // A folder is judged as it was when it was last there.
        ask_for_changes(&mut bob, root, NAMES);
        delete(&mut alice, "private\\inner\\secret", CreateOptions::NONE).await;
        delete(&mut alice, "private\\inner", dir).await;
        delete(&mut alice, "private", dir).await;
        let told = (Action::REMOVED, "private".to_owned());
        assert_eq!(changes(&mut bob).await, (NtStatus::SUCCESS, vec![told]));
        // One that nobody has judged is not spoken of.
        let made = alice.open("brief", dir).await;
        assert_eq!(alice.close(made).await, NtStatus::SUCCESS);
        let file = alice.open("brief\\file", CreateOptions::NONE).await;
        assert_eq!(alice.close(file).await, NtStatus::SUCCESS);
        delete(&mut alice, "brief\\file", CreateOptions::NONE).await;
        delete(&mut alice, "brief", dir).await;
        ask_for_changes(&mut bob, root, NAMES);
        assert_eq!(changes(&mut bob).await, (NtStatus::NOTIFY_ENUM_DIR, Vec::new()));
    })
    .unwrap();
}

#[test]
fn where_unreadable_files_are_hidden_so_are_their_changes() {
    let Some(folder) = Folder::new() else { return };
    let mut share = Share::clone(&folder.world.server.shares.now()[0]);
    share.rules.hides_unreadable = true;
    folder.world.server.replace_shares(vec![share]);
    rt::block_on(async {
        let (mut alice, mut bob) = (folder.connected("alice").await, folder.connected("bob").await);
        let hidden = alice.open("hidden", CreateOptions::NONE).await;
        let shown = alice.open("shown", CreateOptions::NONE).await;
        std::fs::set_permissions(folder.path().join("hidden"), PermissionsExt::from_mode(0o600)).unwrap();
        let root = root(&mut bob).await;
        ask_for_changes(&mut bob, root, CONTENT | NAMES);
        assert_eq!(bob.recv().await.unwrap().0.status, NtStatus::PENDING);
        for file in [hidden, shown] {
            assert_eq!(alice.write(file, b"content").await, NtStatus::SUCCESS);
        }
        let (status, told) = changes(&mut bob).await;
        assert_eq!(status, NtStatus::SUCCESS);
        assert!(told.iter().all(|(_, name)| name == "shown") && !told.is_empty(), "{told:?}");
        // Who could see a name that is gone is not known any more.
        ask_for_changes(&mut bob, root, CONTENT | NAMES);
        delete(&mut alice, "hidden", CreateOptions::NONE).await;
        assert_eq!(alice.close(hidden).await, NtStatus::SUCCESS);
        while let (NtStatus::SUCCESS, told) = changes(&mut bob).await {
            assert!(told.iter().all(|(_, name)| name == "shown"), "{told:?}");
            ask_for_changes(&mut bob, root, CONTENT | NAMES);
        }
    })
    .unwrap();
}
