//! Checking in advance whether the host allows removing a name.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use rustix::thread::{CapabilitySet, CapabilitySets};

use super::*;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The answer for `a` with these capabilities.
fn asked(folder: &Path, effective: CapabilitySet) -> Result<(), Error> {
    let vfs = Vfs::from(Dir::open(folder).unwrap());
    let ask = move || {
        let sets = CapabilitySets { effective, permitted: effective, inheritable: CapabilitySet::empty() };
        rustix::thread::set_capabilities(None, sets).unwrap();
        rt::block_on(vfs.may_unlink(NodeId::ROOT, b"a")).unwrap()
    };
    std::thread::spawn(ask).join().unwrap()
}

#[test]
fn a_name_goes_by_the_rights_to_its_folder() {
    let none = CapabilitySet::empty();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "").unwrap();
    assert!(asked(dir.path(), none).is_ok());
    set_mode(dir.path(), 0o555);
    assert!(matches!(asked(dir.path(), none), Err(Error::Access)));
    set_mode(dir.path(), 0o755);
    let read_only = Vfs::from(Dir::open(dir.path()).unwrap()).read_only();
    let asked = rt::block_on(read_only.may_unlink(NodeId::ROOT, b"a")).unwrap();
    assert!(matches!(asked, Err(Error::ReadOnly)));
}

#[test]
fn a_name_in_a_sticky_folder_goes_by_its_owner() {
    let none = CapabilitySet::empty();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a");
    fs::write(&file, "").unwrap();
    set_mode(dir.path(), 0o1777);
    assert!(asked(dir.path(), none).is_ok());
    // Only root gives files away.
    if chown(dir.path(), Some(65533), None).is_err() {
        return;
    }
    assert!(asked(dir.path(), none).is_ok(), "the file is its own");
    chown(&file, Some(65534), None).unwrap();
    assert!(matches!(asked(dir.path(), none), Err(Error::Access)));
    assert!(asked(dir.path(), CapabilitySet::FOWNER).is_ok());
    set_mode(dir.path(), 0o777);
    assert!(asked(dir.path(), none).is_ok());
}
