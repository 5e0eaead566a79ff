//! A directory in which a user has mounted a file system that admits nobody else, or that has lost its program.

use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::*;

/// Mounted until dropped.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn a_mount_that_cannot_be_asked_hides_nothing_but_its_own_attributes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("f"), b"content").unwrap();
    let at = folder.path().join("mnt");
    std::fs::create_dir(&at).unwrap();
    let program = match std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        Ok(program) => program,
        Err(e) => return println!("SKIPPED: /dev/fuse: {e}"),
    };
    let options = format!("fd={},rootmode=40000,user_id=3000,group_id=3000", program.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    if let Err(e) =
        mount("weft-test", &at, "fuse", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())
    {
        return println!("SKIPPED: cannot mount: {e}");
    }
    let mounted = Mounted(at);
    let vfs: Vfs = Dir::open(folder.path()).unwrap().into();
    let listed = || {
        let listing = rt::block_on(vfs.readdir_with_xattrs(ROOT, 0, 10)).unwrap().unwrap();
        let mut entries = listing.entries;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let [file, mnt] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!((&file.name[..], file.attr.as_ref().unwrap().size), (&b"f"[..], 7));
        assert_eq!(mnt.name, b"mnt");
        let unread = mnt.attr.as_ref().unwrap_err();
        assert_eq!(unread.kind, Some(Kind::Dir));
        assert_ne!(unread.fileid, 0);
        unread.why
    };
    assert_eq!(listed(), Errno::ACCESS);
    drop(program);
    // The kernel asks nobody whether root may enter.
    assert!(matches!(listed(), Errno::ACCESS | Errno::NOTCONN));
    rt::block_on(async {
        assert_eq!(vfs.lookup(ROOT, b"F", true).await.unwrap().size, 7);
        refused!(vfs.lookup(ROOT, b"mnt", false).await, Error::Access | Error::Io(_));
    })
    .unwrap();
    drop(mounted);
    assert!(rt::block_on(vfs.lookup(ROOT, b"mnt", false)).unwrap().is_ok());
}
