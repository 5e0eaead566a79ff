//! Confines single threads of the test process, and tries what shall fail.

use std::fs::{self, File as OsFile};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::calls::{Keyrings, install};
use super::paths::{Reach, Use, is_outside_of, restrict};
use crate::File;

/// Runs a story on a thread of its own, because nothing ends a confinement but the end of its thread.
fn apart<T: Send>(story: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(story).join()).unwrap_or_else(|e| std::panic::resume_unwind(e))
}

fn errno<T>(done: io::Result<T>) -> Option<i32> {
    done.err().and_then(|e| e.raw_os_error())
}

/// A folder with the folders `share`, `other` and `shown`, each with a file `f`.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        for name in ["share", "other", "shown"] {
            fs::create_dir(tree.at(name)).unwrap();
            fs::write(tree.at(name).join("f"), name).unwrap();
        }
        tree
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    /// Only `share` and, for reading, `shown`.
    fn reach(&self) -> Reach {
        let mut reach = Reach::default();
        reach.keep(self.at("share"), Use::Change);
        reach.keep(self.at("shown"), Use::Read);
        reach.keep(self.at("missing"), Use::Change);
        reach.keep("/usr", Use::Read);
        reach
    }
}

#[test]
fn a_thread_reaches_its_paths_and_nothing_else() {
    let tree = Tree::new();
    let at = |path: &str| tree.at(path);
    std::os::unix::fs::symlink(at("other/f"), at("share/link")).unwrap();
    let held = OsFile::open(at("other")).unwrap();
    apart(|| {
        assert!(restrict(&tree.reach()).unwrap().0 >= 2);
        // Everything in the share, and renames between its folders.
        fs::create_dir(at("share/d")).unwrap();
        fs::write(at("share/d/new"), "x").unwrap();
        fs::rename(at("share/d/new"), at("share/new")).unwrap();
        fs::hard_link(at("share/new"), at("share/d/again")).unwrap();
        OsFile::options().write(true).open(at("share/f")).unwrap().set_len(0).unwrap();
        fs::remove_file(at("share/new")).unwrap();
        // Reading alone.
        assert_eq!(fs::read_to_string(at("shown/f")).unwrap(), "shown");
        assert_eq!(errno(fs::write(at("shown/f"), "x")), Some(libc::EACCES));
        assert_eq!(errno(fs::remove_file(at("shown/f"))), Some(libc::EACCES));
        // Nothing.
        for outside in ["other/f", "other", "share/link"] {
            assert_eq!(errno(OsFile::open(at(outside))), Some(libc::EACCES), "{outside}");
        }
        assert_eq!(errno(fs::create_dir(at("other/d"))), Some(libc::EACCES));
        assert_eq!(errno(fs::rename(at("share/f"), at("other/g"))), Some(libc::EACCES));
        // A folder that is open already is judged by its place, too.
        let flags = rustix::fs::OFlags::RDONLY;
        let opened = rustix::fs::openat(&held, "f", flags, rustix::fs::Mode::empty());
        assert_eq!(opened.err(), Some(rustix::io::Errno::ACCESS));
        // No program runs, also none that could be read.
        assert_eq!(errno(Command::new("/usr/bin/true").spawn()), Some(libc::EACCES));
        // A thread that starts now is confined as well.
        let child = std::thread::spawn({
            let path = at("other/f");
            move || errno(OsFile::open(path))
        });
        assert_eq!(child.join().unwrap(), Some(libc::EACCES));
        // Memory is no path.
        File::in_memory("test").unwrap().set_len(1 << 20).unwrap();
    });
    fs::read(at("other/f")).unwrap();
}

/// A folder that an unconfined thread opens later stays out of reach, so a reload cannot add it.
#[test]
fn no_other_thread_can_widen_what_a_thread_reaches() {
    let tree = Tree::new();
    let (folders, opened) = std::sync::mpsc::channel::<OsFile>();
    std::thread::scope(|scope| {
        let tree = &tree;
        let confined = scope.spawn(move || {
            restrict(&tree.reach()).unwrap();
            let folder = opened.recv().unwrap();
            let flags = rustix::fs::OFlags::RDONLY;
            rustix::fs::openat(&folder, "f", flags, rustix::fs::Mode::empty()).map(drop)
        });
        folders.send(OsFile::open(tree.at("other")).unwrap()).unwrap();
        assert_eq!(confined.join().unwrap(), Err(rustix::io::Errno::ACCESS));
    });
}

#[test]
fn a_folder_is_outside_if_no_rule_covers_it_as_it_is_now() {
    let tree = Tree::new();
    let at = |path: &str| tree.at(path);
    fs::create_dir(at("share/d")).unwrap();
    apart(|| {
        let rules = restrict(&tree.reach()).unwrap().1;
        let outside = |path: &str, wanted| is_outside_of(&rules, &at(path), wanted);
        assert!(!outside("share", Use::Change) && !outside("share/d", Use::Change));
        assert!(!outside("shown", Use::Read) && outside("shown", Use::Change));
        assert!(outside("other", Use::Read) && outside("missing", Use::Read));
    });
    // Another folder at the same path.
    let replace = || {
        fs::rename(at("share"), at("old")).unwrap();
        fs::create_dir(at("share")).unwrap();
    };
    let ((ready, is_ready), (ask, asked)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    std::thread::scope(|scope| {
        let tree = &tree;
        let confined = scope.spawn(move || {
            let rules = restrict(&tree.reach()).unwrap().1;
            ready.send(()).unwrap();
            asked.recv().unwrap();
            let outside = |path: &str| is_outside_of(&rules, &tree.at(path), Use::Change);
            (outside("share"), outside("old"))
        });
        is_ready.recv().unwrap();
        replace();
        ask.send(()).unwrap();
        assert_eq!(confined.join().unwrap(), (true, false));
    });
}

#[test]
fn files_in_large_pages_are_made_by_a_confined_thread() {
    if let Err(e) = File::in_large_pages() {
        return eprintln!("this process may not have them: {e}");
    }
    let tree = Tree::new();
    let make = |keep: bool| {
        apart(|| {
            let mut reach = tree.reach();
            if keep {
                reach.keep_large_pages();
            }
            restrict(&reach).unwrap();
            install(Keyrings::Refused, 0).unwrap();
            File::in_large_pages().and_then(|file| file.set_len(4 << 20))
        })
    };
    make(true).unwrap();
    assert_eq!(errno(make(false)), Some(libc::EACCES));
}

/// Calls with arguments that the kernel would refuse in another way.
fn call(number: libc::c_long, first: libc::c_long, second: libc::c_long) -> i32 {
    // SAFETY: the arguments name no memory: a null pointer is answered with EFAULT.
    let done = unsafe { libc::syscall(number, first, second, 0_usize, 0_usize, 0_usize) };
    if done == -1 { io::Error::last_os_error().raw_os_error().unwrap_or_default() } else { 0 }
}

#[test]
fn a_thread_makes_no_call_that_a_server_does_not_need() {
    let before = [libc::SYS_execve, libc::SYS_mount, libc::SYS_bpf].map(|number| call(number, -1, 0));
    assert!(!before.contains(&libc::EPERM) || !rustix::process::geteuid().is_root(), "{before:?}");
    apart(|| {
        let number = install(Keyrings::Refused, 0).unwrap();
        assert!(number > 50, "{number}");
        for refused in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_ptrace,
            libc::SYS_process_vm_writev,
            libc::SYS_mount,
            libc::SYS_fsopen,
            libc::SYS_setns,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_keyctl,
            libc::SYS_open_by_handle_at,
        ] {
            assert_eq!(call(refused, -1, 0), libc::EPERM, "{refused}");
        }
        assert_eq!(errno(Command::new("true").spawn()), Some(libc::EPERM));
        // Namespaces, also by a call whose flags cannot be seen.
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, 0x80] {
            assert_eq!(call(libc::SYS_unshare, flag.into(), 0), libc::EPERM, "{flag:x}");
        }
        // The kernel would refuse this combination with EINVAL.
        assert_eq!(call(libc::SYS_clone, (libc::CLONE_NEWUSER | libc::CLONE_FS).into(), 0), libc::EPERM);
        assert_eq!(call(libc::SYS_clone3, 0, 0), libc::ENOSYS);
        // Sockets of other families, and typing into a terminal.
        for family in [libc::AF_PACKET, libc::AF_ALG, libc::AF_VSOCK] {
            assert_eq!(call(libc::SYS_socket, family.into(), libc::SOCK_RAW.into()), libc::EPERM, "{family}");
        }
        assert_eq!(call(libc::SYS_ioctl, -1, 0x5412), libc::EPERM);
    });
}

#[test]
fn a_thread_makes_the_calls_that_a_server_needs() {
    apart(|| {
        install(Keyrings::Usable, 0).unwrap();
        assert_ne!(call(libc::SYS_keyctl, -1, 0), libc::EPERM);
        assert_eq!(call(libc::SYS_unshare, libc::CLONE_FS.into(), 0), 0);
        assert_eq!(call(libc::SYS_ioctl, -1, 0x5411), libc::EBADF);
        for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
            assert_eq!(call(libc::SYS_socket, family.into(), libc::SOCK_STREAM.into()), 0, "{family}");
        }
        assert_eq!(call(libc::SYS_socket, libc::AF_NETLINK.into(), libc::SOCK_RAW.into()), 0);
        // Threads start, and libraries are loaded.
        assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
        let file = OsFile::open(Path::new("/proc/self/status")).unwrap();
        assert!(file.as_fd().try_clone_to_owned().is_ok());
        assert!(crate::nss::gid_of("daemon").unwrap().is_some());
    });
}

/// The second set of numbers of x86-64 would make a call that is refused under its usual number.
#[cfg(target_arch = "x86_64")]
#[test]
fn no_call_escapes_by_another_number() {
    apart(|| {
        install(Keyrings::Refused, 0).unwrap();
        for number in [0x4000_0000 | 101, 0x4000_0000 | 520] {
            assert_eq!(call(number, -1, 0), libc::EPERM);
        }
    });
}
