use std::io::Read;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use super::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn target(path: &Path) -> Target {
    match Destination::of(path).unwrap() {
        Destination::File(target) => *target,
        Destination::Stream(stream) => panic!("a stream: {}", stream.name()),
    }
}

fn draft(path: &Path) -> Draft {
    target(path).draft(|name| format!(".{name}.draft"), false).ok().unwrap()
}

/// The path of a draft.
fn drafted(draft: &Draft) -> PathBuf {
    draft.target.path.with_file_name(draft.beside().unwrap().0)
}

/// Writes and finishes like every command.
fn replace(path: &Path, with: &[u8]) {
    save(path, with).unwrap();
}

fn names(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_file_keeps_its_mode_owner_and_attributes() {
    let folder = folder();
    let path = folder.path().join("file");
    std::fs::write(&path, b"an older and longer content").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4751)).unwrap();
    rustix::fs::setxattr(&path, "user.comment", b"mine", XattrFlags::empty()).unwrap();
    let root = rustix::process::geteuid().is_root();
    if root {
        std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4751)).unwrap();
    }
    replace(&path, b"new");
    let now = std::fs::metadata(&path).unwrap();
    // The set-id bit certified the old program.
    assert_eq!(now.mode() & 0o7777, 0o751);
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    assert_eq!(filled(|buf| rustix::fs::getxattr(&path, "user.comment", buf)).unwrap(), b"mine");
    if root {
        assert_eq!((now.uid(), now.gid()), (1234, 4321));
    }
    assert_eq!(names(folder.path()), 1);
}

#[test]
fn what_replaces_a_private_file_is_nobody_else_s_meanwhile() {
    let folder = folder();
    let path = folder.path().join("file");
    std::fs::write(&path, b"old").unwrap();
    let draft = draft(&path);
    assert_eq!(draft.file.metadata().unwrap().mode() & 0o7777, 0o600);
    drop(draft);
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(names(folder.path()), 1);
}

#[test]
fn other_names_of_a_file_see_the_new_content() {
    let folder = folder();
    let (path, other) = (folder.path().join("file"), folder.path().join("other"));
    std::fs::write(&path, b"an older and longer content").unwrap();
    std::fs::hard_link(&path, &other).unwrap();
    let before = std::fs::metadata(&path).unwrap().ino();
    let (one, two) = (draft(&path), std::fs::read(&other).unwrap());
    one.file().unwrap().write_all(b"new").unwrap();
    assert_eq!(std::fs::read(&other).unwrap(), two, "nothing of it before it is whole");
    one.finish(None).unwrap();
    drop(one);
    assert_eq!(
        (std::fs::read(&path).unwrap(), std::fs::read(&other).unwrap()),
        (b"new".into(), b"new".into())
    );
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), before);
    assert_eq!(names(folder.path()), 2);
}

#[test]
fn symbolic_links_stay_and_what_they_lead_to_is_written() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("far")).unwrap();
    std::fs::write(at("far/file"), b"old").unwrap();
    symlink("far/second", at("first")).unwrap();
    symlink("file", at("far/second")).unwrap();
    replace(&at("first"), b"new");
    assert_eq!(std::fs::read(at("far/file")).unwrap(), b"new");
    // Also a link whose target does not exist yet.
    symlink("far/made", at("dangling")).unwrap();
    replace(&at("dangling"), b"made");
    assert_eq!(std::fs::read(at("far/made")).unwrap(), b"made");
    for link in ["first", "dangling", "far/second"] {
        assert!(std::fs::symlink_metadata(at(link)).unwrap().is_symlink(), "{link}");
    }
    symlink("round", at("round")).unwrap();
    assert!(Destination::of(&at("round")).is_err());
}

#[test]
fn an_open_file_by_its_descriptor_is_written_itself() {
    let folder = folder();
    let path = folder.path().join("file");
    let mut open = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::write(&path, b"an older and longer content").unwrap();
    let by_descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
    replace(Path::new(&by_descriptor), b"new");
    let mut text = Vec::new();
    open.read_to_end(&mut text).unwrap();
    assert_eq!(text, b"new", "who has it open sees it");
    assert_eq!(names(folder.path()), 1);
}

#[test]
fn fifos_and_devices_take_the_bytes_and_stay_what_they_are() {
    let folder = folder();
    let path = folder.path().join("fifo");
    rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let reader = {
        let path = path.clone();
        std::thread::spawn(move || std::fs::read(path).unwrap())
    };
    replace(&path, b"through the pipe");
    assert_eq!(reader.join().unwrap(), b"through the pipe");
    assert!(std::fs::metadata(&path).unwrap().file_type().is_fifo());
    replace(Path::new("/dev/null"), b"nothing");
    assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    let link = folder.path().join("link");
    symlink("/dev/null", &link).unwrap();
    assert!(matches!(Destination::of(&link).unwrap(), Destination::Stream(_)));
}

#[test]
fn what_cannot_be_written_says_so() {
    let folder = folder();
    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    assert!(Destination::of(&socket).unwrap_err().to_string().contains("is a socket"));
    assert!(Destination::of(folder.path()).unwrap_err().to_string().contains("is a folder"));
    assert!(save(&folder.path().join("no/such/folder"), b"").is_err());
    assert!(matches!(Destination::of(Path::new("-")).unwrap(), Destination::Stream(Stream(None))));
}

#[test]
fn a_new_file_has_the_mode_of_new_files() {
    let folder = folder();
    let (path, plain) = (folder.path().join("file"), folder.path().join("plain"));
    replace(&path, b"new");
    std::fs::write(&plain, b"new").unwrap();
    let mode = |path| std::fs::metadata(path).unwrap().mode();
    assert_eq!(mode(path), mode(plain));
}

#[test]
fn two_copies_to_one_target_do_not_meet_in_one_file() {
    let folder = folder();
    let path = folder.path().join("file");
    let first = draft(&path);
    let second = target(&path).draft(|name| format!(".{name}.draft"), false);
    assert!(second.err().unwrap().to_string().contains("under way"));
    assert!(drafted(&first).exists(), "it is not the second's to remove");
    first.finish(None).unwrap();
    // After the first draft has replaced the file, nobody writes to it any more.
    let third = draft(&path);
    assert!(path.exists() && drafted(&third).exists());
}

#[test]
fn a_folder_that_is_missing_is_named_with_what_makes_it() {
    let dir = tempfile::tempdir().unwrap();
    let says = |path: &str| Destination::of(&dir.path().join(path)).err().unwrap().to_string();
    assert!(says("none/file").ends_with(&format!("create it: mkdir -p {}/none", dir.path().display())));
    assert!(says("none/").ends_with("none/"));
    assert!(Destination::of(&dir.path().join("file")).is_ok());
}
