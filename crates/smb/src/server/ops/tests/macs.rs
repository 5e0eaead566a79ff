//! Macs: the context AAPL, and what follows from it.

use std::sync::atomic::{AtomicUsize, Ordering};

use weft_store::backend::Dir;
use weft_store::vfs::{Backend, Caller, Error, NodeId, Op, Outcome};
use weft_wire::security::{Ace, AceFlags, Dacl, SecurityDescriptor, Sid};
use weft_wire::smb2::aapl::{self, Parts, ServerCaps, VolumeCaps};
use weft_wire::smb2::create_context::{RequestContext, ResponseContext};
use weft_wire::smb2::flush;
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::fsctl::Copied;
use weft_wire::smb2::ioctl::{self, CtlCode};
use weft_wire::smb2::query_directory::{self, Flags};
use weft_wire::smb2::query_info::SecurityInformation;

use super::info::set_security;
use super::payload::{read, write};
use super::*;

const ALL: Parts = Parts(7);
/// What macOS 15 says of itself.
const MACOS: ServerCaps = ServerCaps(0x3f);

fn mac_bench(vfs: Vfs) -> Bench {
    let offers = Offers { mac_model: Some("Xserve".into()), ..Offers::default() };
    Bench::offering(offers, vfs, Dialect::V3_1_1, false)
}

fn query(parts: Parts, client: ServerCaps) -> RequestContext {
    RequestContext::Apple(aapl::Request::Query { parts, client })
}

/// Opens the root with these contexts; what Apple's of them are answered.
async fn ask(b: &Bench, contexts: Vec<RequestContext>) -> Vec<aapl::Response> {
    let opened = b.create(&Wish { contexts, ..Wish::dir("") }).await.unwrap();
    b.close(opened.file).await.unwrap();
    let apple = |context| match context {
        ResponseContext::Apple(answer) => Some(answer),
        _ => None,
    };
    opened.contexts.into_iter().filter_map(apple).collect()
}

/// Runs a story of a Mac that has asked.
fn with_mac(vfs: Vfs, client: ServerCaps, story: impl AsyncFnOnce(Bench)) {
    let work = async {
        let b = mac_bench(vfs);
        assert_eq!(ask(&b, vec![query(ALL, client)]).await.len(), 1);
        story(b).await;
    };
    rt::block_on(work).unwrap();
}

#[test]
fn each_question_is_answered_once() {
    let work = async {
        let b = mac_bench(Ram::new(DISK).into());
        let old = ServerCaps::READ_DIR_ATTR | ServerCaps::UNIX_BASED;
        let answer = |server: ServerCaps| aapl::Response::Query {
            server: Some(server),
            volume: Some(VolumeCaps::NONE),
            model: Some("Xserve".into()),
        };
        let always = ServerCaps::OSX_COPYFILE | ServerCaps::UNIX_BASED;
        let aces = always | ServerCaps::NFS_ACE;
        // Listings with flags instead of those without, if the client knows them.
        let asked = ask(&b, vec![query(ALL, MACOS)]).await;
        assert_eq!(asked, [answer(aces | ServerCaps::READ_DIR_ATTR_V2)]);
        assert_eq!(ask(&b, vec![query(ALL, old)]).await, [answer(always | ServerCaps::READ_DIR_ATTR)]);
        assert_eq!(ask(&b, vec![query(ALL, ServerCaps::NONE)]).await, [answer(always)]);
        let part = aapl::Response::Query { server: None, volume: None, model: Some("Xserve".into()) };
        assert_eq!(ask(&b, vec![query(Parts::MODEL_INFO, MACOS)]).await, [part]);
        // Unknown parts are left out.
        let none = aapl::Response::Query { server: None, volume: None, model: None };
        assert_eq!(ask(&b, vec![query(Parts(1 << 40), MACOS)]).await, [none]);
        // Of several, the first is answered.
        let resolve = RequestContext::Apple(aapl::Request::Resolve { file_id: 1 });
        let unknown = RequestContext::Apple(aapl::Request::Unknown { command: 9 });
        let many = vec![unknown, resolve.clone(), query(Parts::SERVER_CAPS, old), resolve, query(ALL, MACOS)];
        let first = aapl::Response::Query {
            server: Some(always | ServerCaps::READ_DIR_ATTR),
            volume: None,
            model: None,
        };
        let unresolved = aapl::Response::Resolve { status: NtStatus::NOT_SUPPORTED, path: String::new() };
        assert_eq!(ask(&b, many).await, [first, unresolved]);
        // A context that is cut off is a malformed request.
        for len in 0..8 {
            let data = Bytes::copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0][..len]);
            let contexts = vec![RequestContext::Unknown { name: (&b"AAPL"[..]).into(), data }];
            let cut = b.create(&Wish { contexts, ..Wish::dir("") }).await;
            assert_eq!(status(cut), NtStatus::INVALID_PARAMETER);
        }
    };
    rt::block_on(work).unwrap();
}

#[test]
fn nobody_is_answered_unless_the_server_offers_it() {
    run(async |b| {
        assert!(ask(&b, vec![query(ALL, MACOS)]).await.is_empty());
        b.put("f", b"").await;
        assert_eq!(listed(&b, "f").await[68..70], [0, 0], "an 8.3 name has no flags");
    });
}

#[test]
fn a_share_for_time_machine_says_that_it_can_sync_fully() {
    let work = async {
        let offers = Offers { mac_model: Some("Xserve".into()), ..Offers::default() };
        let server = server(offers, Ram::new(DISK).into());
        let mut share = Share::new("data", Ram::new(DISK).into());
        share.rules.backs_up_macs = true;
        server.replace_shares(vec![share]);
        let b = Bench::on(server, Dialect::V3_1_1, false);
        let volume = aapl::Response::Query { server: None, volume: Some(VolumeCaps::FULL_SYNC), model: None };
        assert_eq!(ask(&b, vec![query(Parts::VOLUME_CAPS, MACOS)]).await, [volume]);
    };
    rt::block_on(work).unwrap();
}

/// The bytes of the entry for one name.
async fn listed(b: &Bench, name: &str) -> Vec<u8> {
    let dir = b.open(&Wish::dir("")).await.unwrap();
    let request = query_directory::Request {
        class: FileClass::ID_BOTH_DIRECTORY,
        flags: Flags::NONE,
        file_index: 0,
        file: dir,
        output_buffer_length: 1 << 16,
        pattern: name.to_owned(),
    };
    let message = b.ask(Command::QueryDirectory, |out| request.emit(out)).await.unwrap();
    let buffer = query_directory::Response::parse(&message).unwrap().buffer.to_vec();
    b.close(dir).await.unwrap();
    buffer
}

fn finder_info() -> Vec<u8> {
    let head = [&b"AFP\0"[..], &[0, 0, 1, 0], &[0; 4], &[0, 0, 0, 0x80]].concat();
    let info = [&b"TEXTttxt"[..], &[0x40, 0], &[0; 10], &[1, 2, 3, 4], &[5, 6], &[0; 6]].concat();
    [head, info, vec![0; 12]].concat()
}

#[test]
fn a_listing_tells_what_a_mac_would_ask_for_each_file() {
    let folder = tempfile::tempdir().unwrap();
    for vfs in [Vfs::from(Ram::new(DISK)), Vfs::from(Dir::open(folder.path()).unwrap())] {
        with_mac(vfs, MACOS, async |b| {
            b.put("f", b"data").await;
            b.put("f:AFP_Resource", &[7; 300]).await;
            b.put("f:AFP_AfpInfo", &finder_info()).await;
            b.put("plain", b"").await;
            b.mkdir("d").await;
            b.put("d:AFP_AfpInfo", &finder_info()).await;
            let entry = listed(&b, "f").await;
            // EaSize: the maximal access. Flags: it has streams.
            assert_eq!(entry[64..70], [0xff, 0x01, 0x1f, 0, 0, 0]);
            assert_eq!(entry[70..78], 300u64.to_le_bytes());
            assert_eq!(entry[78..94], *b"TEXTttxt\x40\0\x05\x06\x01\x02\x03\x04");
            let mode = |entry: &[u8]| u16::from_le_bytes([entry[94], entry[95]]);
            assert_eq!(mode(&entry) & 0o170_000, 0o100_000);
            assert_ne!(mode(&entry) & 0o600, 0);
            assert_eq!(entry[104..], *b"f\0");
            let plain = listed(&b, "plain").await;
            assert_eq!(plain[68..70], [1, 0], "no streams");
            assert_eq!(plain[70..94], [0; 24]);
            let dir = listed(&b, "d").await;
            assert_eq!(dir[78..94], *b"\0\0\0\0\0\0\0\0\x40\0\x05\x06\x01\x02\x03\x04");
            assert_eq!(mode(&dir) & 0o170_000, 0o040_000);
        });
    }
    // Without flags for a client that does not know them.
    with_mac(Ram::new(DISK).into(), ServerCaps::READ_DIR_ATTR, async |b| {
        b.put("plain", b"").await;
        assert_eq!(listed(&b, "plain").await[64..70], [0xff, 0x01, 0x1f, 0, 24, 0]);
    });
    // And in SMB's own form for one that does not ask for the other.
    with_mac(Ram::new(DISK).into(), ServerCaps::NONE, async |b| {
        b.put("a name that is long", b"").await;
        let entry = listed(&b, "a name that is long").await;
        assert_eq!(entry[64..68], [0; 4]);
        assert_ne!(entry[68], 0, "it has an 8.3 name");
    });
}

/// Entries that were fetched in one form are not sent in the other.
#[test]
fn a_listing_in_progress_changes_its_form() {
    let work = async {
        let b = mac_bench(Ram::new(DISK).into());
        for name in ["a", "b", "c"] {
            b.put(name, b"").await;
        }
        let dir = b.open(&Wish::dir("")).await.unwrap();
        let next = async || {
            let request = query_directory::Request {
                class: FileClass::ID_BOTH_DIRECTORY,
                flags: Flags::RETURN_SINGLE_ENTRY,
                file_index: 0,
                file: dir,
                output_buffer_length: 4096,
                pattern: "?".into(),
            };
            let message = b.ask(Command::QueryDirectory, |out| request.emit(out)).await?;
            Ok(query_directory::Response::parse(&message).unwrap().buffer)
        };
        let first: Bytes = next().await.unwrap();
        assert_eq!(first[64..68], [0; 4]);
        ask(&b, vec![query(ALL, MACOS)]).await;
        let mut names = vec![first[104]];
        while let Ok::<Bytes, NtStatus>(entry) = next().await {
            assert_eq!(entry[64..68], [0xff, 0x01, 0x1f, 0]);
            names.push(entry[104]);
        }
        names.sort_unstable();
        // The folder itself came first.
        assert_eq!(names, *b".abc");
    };
    rt::block_on(work).unwrap();
}

async fn copy_whole(b: &Bench, from: FileId, to: FileId) -> Result<Copied, NtStatus> {
    let request = |code, file, input: Vec<u8>| ioctl::Request {
        code,
        file,
        input: input.into(),
        max_input_response: 0,
        max_output_response: 4096,
        flags: ioctl::Flags::IS_FSCTL,
    };
    let key = request(CtlCode::SRV_REQUEST_RESUME_KEY, from, Vec::new());
    let message = b.ask(Command::Ioctl, |out| key.emit(out)).await.unwrap();
    let key = ioctl::Response::parse(&message).unwrap().output[..24].to_vec();
    let copy = request(CtlCode::SRV_COPYCHUNK, to, [key, vec![0; 8]].concat());
    let message = b.ask(Command::Ioctl, |out| copy.emit(out)).await?;
    Ok(Copied::parse(&ioctl::Response::parse(&message).unwrap().output).unwrap())
}

async fn content(b: &Bench, path: &str) -> Vec<u8> {
    let file = b.open(&Wish::file(path)).await.unwrap();
    let content = read(b, file, 0, 1 << 20).await.unwrap();
    b.close(file).await.unwrap();
    content
}

#[test]
fn a_file_is_copied_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    for vfs in [Vfs::from(Ram::new(DISK)), Vfs::from(Dir::open(folder.path()).unwrap())] {
        with_mac(vfs, MACOS, async |b| {
            let data: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
            b.put("from", &data).await;
            b.put("from:AFP_Resource", &data[..100_000]).await;
            b.put("from:AFP_AfpInfo", &finder_info()).await;
            b.put("to", &[1; 400_000]).await;
            let node = b.vfs.lookup(NodeId::ROOT, b"from", false).await.unwrap().node;
            b.vfs.set_xattr(node, b"color", b"blue", weft_store::vfs::SetXattr::Either).await.unwrap();
            let mode = weft_store::vfs::SetAttr { mode: Some(0o755), ..Default::default() };
            b.vfs.setattr(node, mode).await.unwrap();
            let (from, to) =
                (b.open(&Wish::file("from")).await.unwrap(), b.open(&Wish::file("to")).await.unwrap());
            assert_eq!(copy_whole(&b, from, to).await.unwrap().total_bytes, 300_000);
            assert_eq!(status(copy_whole(&b, from, from).await), NtStatus::INVALID_PARAMETER);
            let mtime = b.vfs.getattr(node).await.unwrap().mtime;
            for file in [from, to] {
                b.close(file).await.unwrap();
            }
            assert_eq!(content(&b, "to").await, data);
            assert_eq!(content(&b, "to:AFP_Resource").await, data[..100_000]);
            assert_eq!(content(&b, "to:AFP_AfpInfo").await, finder_info());
            let copy = b.vfs.lookup(NodeId::ROOT, b"to", false).await.unwrap();
            assert_eq!(b.vfs.get_xattr(copy.node, b"color").await.unwrap(), b"blue");
            assert_eq!(copy.mtime, mtime);
            assert_ne!(copy.mode & 0o100, 0, "it can be executed");
            assert_eq!(copy.mode & 0o022, 0, "nobody else may write it");
        });
    }
}

#[test]
fn a_copy_changes_no_more_than_its_handle_may() {
    with_mac(Ram::new(DISK).into(), MACOS, async |b| {
        b.put("from", b"data").await;
        b.put("to", b"").await;
        let node = b.vfs.lookup(NodeId::ROOT, b"from", false).await.unwrap().node;
        b.vfs.set_xattr(node, b"color", b"blue", weft_store::vfs::SetXattr::Either).await.unwrap();
        let old = weft_store::vfs::Timestamp { secs: 500_000_000, nanos: 0 };
        let time = weft_store::vfs::SetTime::To(old);
        let set = weft_store::vfs::SetAttr { mode: Some(0o755), mtime: Some(time), ..Default::default() };
        b.vfs.setattr(node, set).await.unwrap();
        let before = b.vfs.lookup(NodeId::ROOT, b"to", false).await.unwrap();
        let from = b.open(&Wish::file("from")).await.unwrap();
        let to = Wish { access: AccessMask::FILE_WRITE_DATA, ..Wish::file("to") };
        let to = b.open(&to).await.unwrap();
        assert_eq!(copy_whole(&b, from, to).await.unwrap().total_bytes, 4);
        b.close(to).await.unwrap();
        assert_eq!(content(&b, "to").await, b"data");
        let after = b.vfs.getattr(before.node).await.unwrap();
        assert_eq!(after.mode, before.mode);
        assert_ne!(after.mtime, old);
        assert!(b.vfs.get_xattr(before.node, b"color").await.is_err());
    });
}

#[test]
fn only_a_mac_copies_without_chunks() {
    run(async |b| {
        b.put("from", b"data").await;
        b.put("to", b"").await;
        let (from, to) =
            (b.open(&Wish::file("from")).await.unwrap(), b.open(&Wish::file("to")).await.unwrap());
        assert_eq!(copy_whole(&b, from, to).await.unwrap(), Copied::default());
        assert_eq!(read(&b, to, 0, 10).await, Err(NtStatus::END_OF_FILE));
    });
}

#[test]
fn a_copy_needs_rights_on_both_files() {
    with_mac(Ram::new(DISK).into(), MACOS, async |b| {
        b.put("from", b"data").await;
        b.put("to", b"old").await;
        let with = |path, access| Wish { access, ..Wish::file(path) };
        let blind = b.open(&with("from", AccessMask::FILE_READ_ATTRIBUTES)).await.unwrap();
        let from = b.open(&with("from", AccessMask::FILE_READ_DATA)).await.unwrap();
        let to = b.open(&with("to", AccessMask::FILE_READ_DATA)).await.unwrap();
        let full = b.open(&Wish::file("to")).await.unwrap();
        assert_eq!(status(copy_whole(&b, blind, full).await), NtStatus::ACCESS_DENIED);
        assert_eq!(status(copy_whole(&b, from, to).await), NtStatus::ACCESS_DENIED);
        assert_eq!(content(&b, "to").await, b"old");
    });
}

/// A disk that counts the flushes of directories.
struct Counting(Ram, Arc<AtomicUsize>);

impl Backend for Counting {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        if matches!(op, Op::SyncDir { .. }) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        self.0.submit(op, by)
    }
}

#[test]
fn a_full_sync_reaches_the_name_of_a_file() {
    let count = Arc::new(AtomicUsize::new(0));
    let vfs = || Vfs::new(Counting(Ram::new(DISK), count.clone()));
    let flush_f = async |b: &Bench, full_sync| {
        let file = b.open(&Wish::file("f")).await.unwrap();
        write(b, file, 0, b"data").await.unwrap();
        let before = count.load(Ordering::Relaxed);
        b.ask(Command::Flush, |out| flush::Request { file, full_sync }.emit(out)).await.unwrap();
        b.close(file).await.unwrap();
        count.load(Ordering::Relaxed) - before
    };
    with_mac(vfs(), MACOS, async |b| {
        b.put("f", b"").await;
        assert_eq!(flush_f(&b, true).await, 1);
        assert_eq!(flush_f(&b, false).await, 0);
    });
    // For others these bits are reserved.
    let work = async {
        let b = mac_bench(vfs());
        b.put("f", b"").await;
        assert_eq!(flush_f(&b, true).await, 0);
    };
    rt::block_on(work).unwrap();
}

#[test]
fn names_are_found_in_any_normal_form_and_with_their_last_dot() {
    let folder = tempfile::tempdir().unwrap();
    let (composed, decomposed) = ("caf\u{e9}", "cafe\u{301}");
    std::fs::create_dir(folder.path().join(decomposed)).unwrap();
    std::fs::write(folder.path().join(decomposed).join("a. "), "kept").unwrap();
    std::fs::write(folder.path().join("end."), "dot").unwrap();
    with_mac(Dir::open(folder.path()).unwrap().into(), MACOS, async |b| {
        let shown = format!("{composed}\\a.\u{f028}");
        assert_eq!(content(&b, &shown).await, b"kept");
        assert_eq!(content(&b, &shown.to_uppercase()).await, b"kept");
        assert_eq!(content(&b, "end\u{f029}").await, b"dot");
        // A name that exists in the other form is not created again.
        let again = Wish { disposition: CreateDisposition::Create, ..Wish::dir(composed) };
        assert_eq!(status(b.open(&again).await), NtStatus::OBJECT_NAME_COLLISION);
        b.put("new\u{f029}", b"").await;
        b.put("a\u{f022}b\u{f028}", b"").await;
    });
    assert!(folder.path().join("new.").exists() && folder.path().join("a:b ").exists());
    // Others get exactly what they name.
    let work = async {
        let b = mac_bench(Dir::open(folder.path()).unwrap().into());
        assert!(!b.exists(composed).await && b.exists(decomposed).await);
        assert_eq!(content(&b, "end\u{f029}").await, b"dot");
    };
    rt::block_on(work).unwrap();
}

#[test]
fn what_says_nothing_does_not_exist_for_a_mac() {
    with_mac(Ram::new(DISK).into(), MACOS, async |b| {
        b.put("f", b"data").await;
        b.put("f:AFP_Resource", b"").await;
        let info = b
            .open(&Wish { disposition: CreateDisposition::OpenIf, ..Wish::file("f:AFP_AfpInfo") })
            .await
            .unwrap();
        // Before a Mac has written it, Finder info is empty, and has its form.
        let new = read(&b, info, 0, 100).await.unwrap();
        assert_eq!((new.len(), &new[..4]), (60, &b"AFP\0"[..]));
        for name in ["f:AFP_AfpInfo", "f:afp_resource"] {
            assert_eq!(status(b.open(&Wish::file(name)).await), NtStatus::OBJECT_NAME_NOT_FOUND, "{name}");
        }
        // Only its own form is accepted.
        assert_eq!(write(&b, info, 0, &finder_info()).await, Ok(60));
        for (at, bytes) in [(0, &b"AFQ\0"[..]), (1, b"FP"), (0, b"AF"), (16, b"TEXT")] {
            assert_eq!(write(&b, info, at, bytes).await, Err(NtStatus::INVALID_PARAMETER), "{at} {bytes:?}");
        }
        let mut other_version = finder_info();
        other_version[6] = 2;
        assert_eq!(write(&b, info, 0, &other_version).await, Err(NtStatus::INVALID_PARAMETER));
        assert_eq!(read(&b, info, 0, 100).await.unwrap(), finder_info());
        b.close(info).await.unwrap();
        assert_eq!(content(&b, "f:AFP_AfpInfo").await, finder_info());
        // All zeros remove it.
        let info = b.open(&Wish::file("f:AFP_AfpInfo")).await.unwrap();
        assert_eq!(write(&b, info, 0, &[0; 60]).await, Ok(60));
        b.close(info).await.unwrap();
        assert!(!b.exists("f:AFP_AfpInfo").await);
        let node = b.vfs.lookup(NodeId::ROOT, b"f", false).await.unwrap().node;
        assert!(b.vfs.streams(node).await.unwrap().is_empty());
    });
    // Others see streams like all others.
    run(async |b| {
        b.put("f:AFP_Resource", b"").await;
        b.put("f:AFP_AfpInfo", b"anything").await;
        assert!(b.exists("f:AFP_Resource").await);
        assert_eq!(content(&b, "f:AFP_AfpInfo").await, b"anything");
    });
}

/// The mode in an entry that denies nothing, which a Mac is shown and changes.
fn told_mode(aces: &mut [Ace]) -> Option<&mut Sid> {
    aces.iter_mut().find_map(|ace| match ace {
        Ace::Deny { sid, mask: AccessMask::NONE, .. } if sid.unix_mode().is_some() => Some(sid),
        _ => None,
    })
}

#[test]
fn a_mac_changes_a_mode_by_the_list_that_it_was_shown() {
    let folder = tempfile::tempdir().unwrap();
    for vfs in [Vfs::from(Ram::new(DISK)), Vfs::from(Dir::open(folder.path()).unwrap())] {
        with_mac(vfs, MACOS, async |b| {
            b.put("f", b"").await;
            let mode = async || b.vfs.lookup(NodeId::ROOT, b"f", false).await.unwrap().mode;
            let file = b.open(&Wish::file("f")).await.unwrap();
            let mut shown = b.shown(file).await.unwrap();
            let Dacl::List(aces) = &mut shown.dacl else { panic!("no list") };
            let told = told_mode(aces).unwrap();
            assert_eq!(told.unix_mode(), Some(mode().await));
            *told = Sid::nfs_mode(0o750);
            set_security(&b, file, SecurityInformation::DACL, &shown.to_bytes()).await.unwrap();
            assert_eq!(mode().await, 0o750);
            // The file has no list of its own: the next mode replaces the rights that this one stands for.
            let mut shown = b.shown(file).await.unwrap();
            let Dacl::List(aces) = &mut shown.dacl else { panic!("no list") };
            *told_mode(aces).unwrap() = Sid::nfs_mode(0o640);
            // With one more entry it gets one, without the entries that deny nothing.
            let more = Ace::allow(Sid::network(), AccessMask::FILE_READ_DATA, AceFlags::NONE);
            aces.push(more.clone());
            set_security(&b, file, SecurityInformation::DACL, &shown.to_bytes()).await.unwrap();
            assert_eq!(mode().await & 0o740, 0o640);
            let Dacl::List(mut aces) = b.shown(file).await.unwrap().dacl else { panic!("no list") };
            assert!(aces.contains(&more));
            assert!(told_mode(&mut aces).is_some());
            aces.drain(..3);
            assert_eq!(told_mode(&mut aces), None);
        });
    }
}

#[test]
fn a_mac_changes_the_list_and_the_mode_in_one_request() {
    let folder = tempfile::tempdir().unwrap();
    for vfs in [Vfs::from(Ram::new(DISK)), Vfs::from(Dir::open(folder.path()).unwrap())] {
        with_mac(vfs, MACOS, async |b| {
            b.put("f", b"").await;
            let mode = async || b.vfs.lookup(NodeId::ROOT, b"f", false).await.unwrap().mode & 0o777;
            let file = b.open(&Wish::file("f")).await.unwrap();
            let list = async || match b.shown(file).await.unwrap().dacl {
                Dacl::List(aces) => aces,
                other => panic!("{other:?}"),
            };
            let send = async |aces: Vec<Ace>| {
                let sent = SecurityDescriptor { dacl: Dacl::List(aces), ..SecurityDescriptor::default() };
                set_security(&b, file, SecurityInformation::DACL, &sent.to_bytes()).await.unwrap();
            };
            let network = |mask| Ace::allow(Sid::network(), mask, AceFlags::NONE);
            let (read, both) =
                (AccessMask::FILE_READ_DATA, AccessMask::FILE_READ_DATA | AccessMask::FILE_WRITE_DATA);
            // An entry more, with the mode that was shown.
            let before = mode().await;
            let mut aces = list().await;
            aces.push(network(read));
            send(aces).await;
            assert_eq!(mode().await, before);
            // The same subjects, with other rights and another mode: the entry keeps what the group does not have.
            let mut aces = list().await;
            *told_mode(&mut aces).unwrap() = Sid::nfs_mode(0o640);
            aces.iter_mut().filter(|ace| **ace == network(read)).for_each(|ace| *ace = network(both));
            send(aces).await;
            assert_eq!(mode().await, 0o640);
            assert!(list().await.contains(&network(both)), "{:?}", list().await);
            // Other rights with the mode that was shown: what the list takes away is gone.
            let mut aces = list().await;
            aces.iter_mut().filter(|ace| **ace == network(both)).for_each(|ace| *ace = network(read));
            send(aces).await;
            assert_eq!(mode().await, 0o640);
            let aces = list().await;
            assert!(aces.contains(&network(read)) && !aces.contains(&network(both)), "{aces:?}");
            // List and mode of another file: the mode decides for the owner, whom the list does not name.
            let told = Ace::Deny { flags: AceFlags::NONE, mask: AccessMask::NONE, sid: Sid::nfs_mode(0o640) };
            let bob = Ace::allow(Sid::unix_user(4711), both, AceFlags::NONE);
            send(vec![told, bob.clone()]).await;
            assert_eq!(mode().await, 0o640);
            assert!(list().await.contains(&bob), "{:?}", list().await);
            b.open(&Wish { access: both, ..Wish::file("f") }).await.unwrap();
        });
    }
}

#[test]
fn a_mac_renames_a_folder_in_which_it_has_files_open() {
    use weft_wire::smb2::fscc::file::Rename;
    let to = async |b: &Bench, dir: FileId, name: &str| {
        let mut buffer = Vec::new();
        Rename { replace_if_exists: false, root_directory: 0, name: name.into() }.emit(&mut buffer);
        let request = weft_wire::smb2::set_info::Request {
            info_type: weft_wire::smb2::query_info::InfoType::FILE,
            class: FileClass::RENAME.0,
            additional_information: 0,
            file: dir,
            buffer: buffer.into(),
        };
        b.ask(Command::SetInfo, |out| request.emit(out)).await.map(drop)
    };
    with_mac(Ram::new(DISK).into(), MACOS, async |b| {
        b.mkdir("d").await;
        b.put("d\\f", b"data").await;
        let file = b.open(&Wish::file("d\\f")).await.unwrap();
        let dir = b.open(&Wish::dir("d")).await.unwrap();
        to(&b, dir, "e").await.unwrap();
        assert_eq!(read(&b, file, 0, 10).await.unwrap(), b"data");
        // Not if somebody else has one open.
        let bob = b.as_user("bob");
        let his = bob.open(&Wish::file("e\\f")).await.unwrap();
        assert_eq!(to(&b, dir, "g").await, Err(NtStatus::ACCESS_DENIED));
        bob.close(his).await.unwrap();
        to(&b, dir, "g").await.unwrap();
    });
}
