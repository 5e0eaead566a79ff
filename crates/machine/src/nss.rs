//! Accounts and groups of the system, as its name service switch tells them: files, SSSD, winbind or any other service.
//!
//! See getpwnam_r(3), getgrnam_r(3), getgrouplist(3) and nsswitch.conf(5). Every function blocks, possibly for as long as
//! a directory service takes, so call them on a thread that may wait; [`Lookups`] does so for tasks of a core, with a
//! time-out and a cache.
//!
//! A name that nobody knows is `Ok(None)`. A service that could not be asked is an error, and so is an entry that is
//! larger than the limit (ERANGE). Two failures cannot be seen: libc reports "not found" if a service after the failed
//! one in nsswitch.conf answered so, and getgrouplist leaves out the groups of a service that fails.
//!
//! We call libc instead of using `nix`, which limits an entry to 1 MiB. A group of a large domain exceeds that.

mod lookups;
mod questions;

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::ptr;

pub use lookups::{Lookups, Query, Source, Switch, Unanswered};

/// Bytes that the first attempt offers for the strings of an entry.
const FIRST_BYTES: usize = 4096;

/// The most bytes for the strings of an entry. A group lists its members, some 20 bytes each.
const MAX_BYTES: usize = 16 << 20;

/// Groups that the first attempt has space for.
const FIRST_GROUPS: usize = 64;

/// The most groups of an account: the kernel's limit (NGROUPS_MAX).
const MAX_GROUPS: usize = 65_536;

/// The longest name that is looked up, in bytes.
const MAX_NAME_BYTES: usize = 1024;

/// How often an interrupted lookup is repeated.
const MAX_INTERRUPTIONS: usize = 16;

/// An id that setresuid(2) and chown(2) read as "do not change", so no account or group may have it.
const NO_ID: u32 = u32::MAX;

/// An account of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The name as the system spells it, which may differ from the name that was looked up.
    pub name: String,
    /// The user's id.
    pub uid: u32,
    /// The id of the primary group.
    pub gid: u32,
    /// The ids of all groups, sorted, each once; the primary group is one of them.
    pub groups: Vec<u32>,
}

/// A user or a group of the system: its name and its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name as the system spells it.
    pub name: String,
    /// The uid or the gid.
    pub id: u32,
}

/// The account with this name, and its groups.
///
/// # Errors
/// A service of the switch failed, or the entry is too large (ERANGE) or invalid.
pub fn account_of(name: &str) -> io::Result<Option<Account>> {
    let Some(name) = c_name(name) else { return Ok(None) };
    // SAFETY: the name is a C string, and `entry` passes a place for the entry, its strings and the answer.
    account(|place, bytes, len, found| unsafe { libc::getpwnam_r(name.as_ptr(), place, bytes, len, found) })
}

/// The account with this id, and its groups.
///
/// # Errors
/// As of [`account_of`].
pub fn account_of_uid(uid: u32) -> io::Result<Option<Account>> {
    if uid == NO_ID {
        return Ok(None);
    }
    // SAFETY: `entry` passes a place for the entry, its strings and the answer.
    account(|place, bytes, len, found| unsafe { libc::getpwuid_r(uid, place, bytes, len, found) })
}

/// The user with this name, without groups.
///
/// # Errors
/// As of [`account_of`].
pub fn user_of(name: &str) -> io::Result<Option<Entry>> {
    let Some(name) = c_name(name) else { return Ok(None) };
    // SAFETY: the name is a C string, and `entry` passes a place for the entry, its strings and the answer.
    let call =
        |place, bytes, len, found| unsafe { libc::getpwnam_r(name.as_ptr(), place, bytes, len, found) };
    user(call)
}

/// The user with this id, without groups.
///
/// # Errors
/// As of [`account_of`].
pub fn user_of_uid(uid: u32) -> io::Result<Option<Entry>> {
    if uid == NO_ID {
        return Ok(None);
    }
    // SAFETY: `entry` passes a place for the entry, its strings and the answer.
    user(|place, bytes, len, found| unsafe { libc::getpwuid_r(uid, place, bytes, len, found) })
}

/// The group with this name.
///
/// # Errors
/// As of [`account_of`].
pub fn group_of(name: &str) -> io::Result<Option<Entry>> {
    let Some(name) = c_name(name) else { return Ok(None) };
    // SAFETY: the name is a C string, and `entry` passes a place for the entry, its strings and the answer.
    group(|place, bytes, len, found| unsafe { libc::getgrnam_r(name.as_ptr(), place, bytes, len, found) })
}

/// The group with this id.
///
/// # Errors
/// As of [`account_of`].
pub fn group_of_gid(gid: u32) -> io::Result<Option<Entry>> {
    if gid == NO_ID {
        return Ok(None);
    }
    // SAFETY: `entry` passes a place for the entry, its strings and the answer.
    group(|place, bytes, len, found| unsafe { libc::getgrgid_r(gid, place, bytes, len, found) })
}

/// The id of the group with this name; see [`group_of`].
pub fn gid_of(name: &str) -> io::Result<Option<u32>> {
    Ok(group_of(name)?.map(|group| group.id))
}

/// The name of the group with this id; see [`group_of_gid`].
pub fn group_name(gid: u32) -> io::Result<Option<String>> {
    Ok(group_of_gid(gid)?.map(|group| group.name))
}

/// The name as libc takes it. `None` if no account or group can have it.
fn c_name(name: &str) -> Option<CString> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return None;
    }
    CString::new(name).ok()
}

/// Reads an account by a call of the getpw*_r family, then its groups.
fn account(
    call: impl Fn(*mut libc::passwd, *mut c_char, usize, *mut *mut libc::passwd) -> c_int,
) -> io::Result<Option<Account>> {
    let read = |entry: &libc::passwd| {
        // SAFETY: pw_name is a C string in the buffer that `entry` keeps while this runs.
        let name = unsafe { owned(entry.pw_name) }?;
        Ok((name, valid(entry.pw_uid)?, valid(entry.pw_gid)?))
    };
    let Some((name, uid, gid)) = entry(call, read)? else { return Ok(None) };
    let groups = groups_of(&name, gid)?;
    Ok(Some(Account { name: text(name)?, uid, gid, groups }))
}

/// Reads a user by a call of the getpw*_r family.
fn user(
    call: impl Fn(*mut libc::passwd, *mut c_char, usize, *mut *mut libc::passwd) -> c_int,
) -> io::Result<Option<Entry>> {
    let read = |entry: &libc::passwd| {
        // SAFETY: pw_name is a C string in the buffer that `entry` keeps while this runs.
        let name = unsafe { owned(entry.pw_name) }?;
        Ok(Entry { name: text(name)?, id: valid(entry.pw_uid)? })
    };
    entry(call, read)
}

/// Reads a group by a call of the getgr*_r family.
fn group(
    call: impl Fn(*mut libc::group, *mut c_char, usize, *mut *mut libc::group) -> c_int,
) -> io::Result<Option<Entry>> {
    let read = |entry: &libc::group| {
        // SAFETY: gr_name is a C string in the buffer that `entry` keeps while this runs.
        let name = unsafe { owned(entry.gr_name) }?;
        Ok(Entry { name: text(name)?, id: valid(entry.gr_gid)? })
    };
    entry(call, read)
}

/// Calls `call` with buffers that grow up to the limit until the entry fits, and `read` with the entry.
///
/// `call` writes the entry, its strings and a pointer to the entry (null if there is none) where its arguments say, and
/// returns 0 or an error number.
fn entry<E, T>(
    call: impl Fn(*mut E, *mut c_char, usize, *mut *mut E) -> c_int,
    read: impl FnOnce(&E) -> io::Result<T>,
) -> io::Result<Option<T>> {
    let mut strings: Vec<c_char> = vec![0; FIRST_BYTES];
    let mut interruptions = 0;
    loop {
        let mut place = std::mem::MaybeUninit::<E>::uninit();
        let mut found: *mut E = ptr::null_mut();
        match call(place.as_mut_ptr(), strings.as_mut_ptr(), strings.len(), &mut found) {
            // SAFETY: the call succeeded, so `found` is null or points to `place`, which the call has filled. Its strings
            // are in `strings`. Both outlive the reference.
            0 => return unsafe { found.as_ref() }.map(read).transpose(),
            libc::ERANGE if strings.len() < MAX_BYTES => {
                let larger = strings.len() * 4;
                strings = vec![0; larger.min(MAX_BYTES)];
            }
            libc::EINTR if interruptions < MAX_INTERRUPTIONS => interruptions += 1,
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The groups of the account with this name, with its primary group, sorted, each once.
fn groups_of(name: &CStr, primary: u32) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; FIRST_GROUPS];
    loop {
        let mut count = groups.len() as c_int;
        // SAFETY: the name is a C string, and `groups` has space for `count` ids.
        let told = unsafe { libc::getgrouplist(name.as_ptr(), primary, groups.as_mut_ptr(), &mut count) };
        if let Ok(told) = usize::try_from(told) {
            groups.truncate(told);
            break;
        }
        // `count` is now how many there are; at least double, because musl does not tell.
        let needed = usize::try_from(count).unwrap_or(0).max(groups.len() * 2);
        if groups.len() >= MAX_GROUPS {
            return Err(io::Error::from_raw_os_error(libc::ERANGE));
        }
        groups = vec![0; needed.min(MAX_GROUPS)];
    }
    groups.push(primary);
    groups.retain(|&gid| gid != NO_ID);
    groups.sort_unstable();
    groups.dedup();
    Ok(groups)
}

/// A copy of a C string of an entry.
///
/// # Safety
/// `string` is null or a C string that nothing changes meanwhile.
unsafe fn owned(string: *const c_char) -> io::Result<CString> {
    if string.is_null() {
        return Err(invalid("an entry without a name"));
    }
    // SAFETY: a C string, as the caller promises.
    Ok(unsafe { CStr::from_ptr(string) }.to_owned())
}

fn text(name: CString) -> io::Result<String> {
    match name.into_string() {
        Ok(name) if !name.is_empty() => Ok(name),
        Ok(_) => Err(invalid("an entry without a name")),
        Err(_) => Err(invalid("a name that is not UTF-8")),
    }
}

fn valid(id: u32) -> io::Result<u32> {
    if id == NO_ID { Err(invalid("the id 4294967295, which stands for none")) } else { Ok(id) }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests;
