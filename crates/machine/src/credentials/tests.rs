use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Runs a story on a thread of its own, because identities belong to threads. Only root can tell it.
fn as_root(story: impl FnOnce() + Send + 'static) {
    if let Err(e) = check() {
        println!("SKIPPED: only root can act for other users: {e}");
        return;
    }
    std::thread::spawn(story).join().unwrap();
}

/// File user, file group, groups and effective capabilities of this thread.
fn identity() -> (u32, u32, Vec<Gid>, CapabilitySet) {
    // SAFETY: no id is set.
    let (uid, gid) = unsafe { (libc::setfsuid(NO_ID), libc::setfsgid(NO_ID)) };
    let groups = rustix::process::getgroups().unwrap();
    (uid.cast_unsigned(), gid.cast_unsigned(), groups, capabilities(None).unwrap().effective)
}

fn alice() -> Credentials {
    Credentials::new(2001, 3001, &[3002, 3003]).unwrap()
}

#[test]
fn files_belong_to_the_user_and_the_kernel_refuses_what_it_refuses_him() {
    as_root(|| {
        let tree = tempfile::tempdir().unwrap();
        std::fs::set_permissions(tree.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let (secret, shared) = (tree.path().join("secret"), tree.path().join("shared"));
        std::fs::write(&secret, b"s").unwrap();
        std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(&shared, b"s").unwrap();
        std::fs::set_permissions(&shared, PermissionsExt::from_mode(0o640)).unwrap();
        std::os::unix::fs::chown(&shared, None, Some(3003)).unwrap();
        let made = tree.path().join("made");
        as_user(&alice(), || {
            assert_eq!(std::fs::read(&secret).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            assert_eq!(std::fs::read(&shared).unwrap(), b"s");
            assert!(std::fs::write(&shared, b"t").is_err());
            // Looking as the server, and being the user again.
            assert_eq!(as_server(|| std::fs::read(&secret)).unwrap(), b"s");
            assert!(std::fs::read(&secret).is_err());
            std::fs::write(&made, b"").unwrap();
        })
        .unwrap();
        let meta = std::fs::metadata(&made).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (2001, 3001));
        std::fs::read(&secret).unwrap();
    });
}

#[test]
fn the_thread_is_itself_again_whatever_happens() {
    as_root(|| {
        // As the server does at its start; the kernel would return this capability with the user.
        let sets = capabilities(None).unwrap();
        let effective = sets.effective - CapabilitySet::FSETID;
        set_capabilities(None, CapabilitySets { effective, ..sets }).unwrap();
        let before = identity();
        let seen = as_user(&alice(), identity).unwrap();
        assert_eq!((seen.0, seen.1), (2001, 3001));
        assert_eq!(seen.2, [3002, 3003].map(Gid::from_raw));
        assert!(!seen.3.intersects(OF_FILES));
        assert_eq!(identity(), before);
        as_user(&alice(), || {
            as_server(|| {
                let now = identity();
                assert_eq!((now.0, now.3), (before.0, before.3));
                assert!(!is_another());
            });
            assert_eq!(identity(), seen);
            assert!(is_another());
        })
        .unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| as_user(&alice(), || panic!("a bug"))));
        assert!(panicked.is_err());
        assert_eq!(identity(), before);
        let panicked = catch_unwind(AssertUnwindSafe(|| as_user(&alice(), || as_server(|| panic!("a bug")))));
        assert!(panicked.is_err());
        assert_eq!(identity(), before);
        assert!(!is_another());
    });
}

#[test]
fn other_threads_keep_their_identity() {
    as_root(|| {
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let (answer, answered) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            while asked.recv().is_ok() {
                answer.send(identity()).unwrap();
            }
        });
        let look = || {
            ask.send(()).unwrap();
            answered.recv().unwrap()
        };
        let before = look();
        assert_eq!(as_user(&alice(), look).unwrap(), before);
        drop(ask);
        other.join().unwrap();
    });
}

#[test]
fn an_identity_that_the_kernel_refuses_changes_nothing() {
    as_root(|| {
        let before = identity();
        let too_many = vec![5; 65_537];
        as_user(&Credentials::new(2001, 3001, &too_many).unwrap(), || unreachable!("nothing runs"))
            .unwrap_err();
        assert_eq!(identity(), before);
    });
    assert_eq!(Credentials::new(NO_ID, 1, &[]), None);
    assert_eq!(Credentials::new(1, NO_ID, &[]), None);
    assert_eq!(Credentials::new(1, 1, &[2, NO_ID]), None);
}

#[test]
fn root_acts_as_itself_with_the_groups_it_is_given() {
    as_root(|| {
        let before = identity();
        let root = Credentials::new(0, 3001, &[3002]).unwrap();
        let seen = as_user(&root, || (identity(), is_another())).unwrap();
        assert_eq!((seen.0.0, seen.0.1, seen.0.3, seen.1), (0, 3001, before.3, false));
        assert_eq!(identity(), before);
    });
}
