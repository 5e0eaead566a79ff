//! Lookups against the host's own /etc/passwd and /etc/group, and the growth of buffers against calls made for it.

use std::ffi::{c_char, c_int};
use std::fs;
use std::io;

use super::{
    Account, MAX_BYTES, MAX_NAME_BYTES, NO_ID, account_of, account_of_uid, entry, gid_of, group_name,
    group_of, group_of_gid,
};

/// The fields of a line of passwd(5) or group(5).
fn lines(path: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).expect("the host has accounts");
    text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect()
}

fn no_account(name: &str) {
    assert_eq!(account_of(name).expect("files answer"), None, "{name:?}");
}

#[test]
fn accounts_are_those_of_the_file() {
    let groups = lines("/etc/group");
    for line in lines("/etc/passwd") {
        let [name, _, uid, gid, ..] = &line[..] else { panic!("a line of passwd: {line:?}") };
        let (uid, gid): (u32, u32) = (uid.parse().expect("a uid"), gid.parse().expect("a gid"));
        let mut expected: Vec<u32> = groups
            .iter()
            .filter(|group| group[3].split(',').any(|member| member == name))
            .map(|group| group[2].parse().expect("a gid"))
            .chain([gid])
            .collect();
        expected.sort_unstable();
        expected.dedup();
        let account = account_of(name).expect("files answer").expect("an account of the file");
        assert_eq!(account, Account { name: name.clone(), uid, gid, groups: expected });
        let by_id = account_of_uid(uid).expect("files answer").expect("an account of the file");
        assert_eq!(by_id.uid, uid);
    }
}

#[test]
fn groups_are_those_of_the_file() {
    for line in lines("/etc/group") {
        let gid: u32 = line[2].parse().expect("a gid");
        assert_eq!(gid_of(&line[0]).expect("files answer"), Some(gid));
        let group = group_of_gid(gid).expect("files answer").expect("a group of the file");
        assert_eq!(group.gid, gid);
        assert_eq!(group_name(gid).expect("files answer"), Some(group.name));
    }
}

#[test]
fn root_has_the_id_zero_in_both_directions() {
    let root = account_of("root").expect("files answer").expect("every host has root");
    assert_eq!((root.uid, root.gid), (0, 0));
    assert!(root.groups.contains(&0));
    assert_eq!(account_of_uid(0).expect("files answer").expect("every host has root").uid, 0);
    assert_eq!(group_of("root").expect("files answer").expect("every host has the group").gid, 0);
}

#[test]
fn a_name_that_nobody_can_have_is_unknown() {
    no_account("");
    no_account("no such account");
    no_account("root\0");
    no_account("root:x:0:0");
    no_account("root\n");
    no_account(" root");
    no_account("ROOT");
    no_account("0");
    no_account(&"a".repeat(MAX_NAME_BYTES));
    no_account(&"a".repeat(MAX_NAME_BYTES + 1));
    assert_eq!(gid_of("").expect("files answer"), None);
    assert_eq!(gid_of("0").expect("files answer"), None);
}

/// -1 means "leave as it is" where ids are set, so it must never come out of a lookup.
#[test]
fn the_id_that_stands_for_none_is_nobody() {
    assert_eq!(account_of_uid(NO_ID).expect("no question is asked"), None);
    assert_eq!(group_name(NO_ID).expect("no question is asked"), None);
}

#[test]
fn a_buffer_grows_until_the_entry_fits() {
    let needed = 1 << 20;
    let call = |place: *mut u32, _: *mut c_char, len: usize, found: *mut *mut u32| -> c_int {
        if len < needed {
            return libc::ERANGE;
        }
        // SAFETY: `entry` passes places for both.
        unsafe {
            place.write(7);
            found.write(place);
        }
        0
    };
    assert_eq!(entry(call, |&value| Ok(value)).expect("it fits"), Some(7));
}

#[test]
fn an_entry_beyond_the_limit_is_an_error_and_not_nobody() {
    let largest = std::cell::Cell::new(0);
    let call = |_: *mut u32, _: *mut c_char, len: usize, _: *mut *mut u32| -> c_int {
        largest.set(largest.get().max(len));
        libc::ERANGE
    };
    let error = entry(call, |&value| Ok(value)).expect_err("it never fits");
    assert_eq!((error.raw_os_error(), largest.get()), (Some(libc::ERANGE), MAX_BYTES));
}

#[test]
fn a_service_that_fails_is_an_error_and_not_nobody() {
    for errno in [libc::ECONNREFUSED, libc::ENOENT, libc::EIO, libc::EINTR] {
        let call = |_: *mut u32, _: *mut c_char, _: usize, _: *mut *mut u32| errno;
        let error: io::Error = entry(call, |&value| Ok(value)).expect_err("the service failed");
        assert_eq!(error.raw_os_error(), Some(errno));
    }
}
