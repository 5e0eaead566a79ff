//! The security account manager: the host's domains and users, for clients to display ([MS-SAMR] 2.2 structures, 3.1.5
//! calls).
//!
//! Only queries are supported. There are no groups or aliases except one primary group, so the lists of the others are
//! empty.

use super::ndr::{Handle, Reader, Writer};
use super::{Malformed, Syntax, lsarpc};
use crate::smb2::NtStatus;
use crate::smb2::fscc::security::Sid;

/// 12345778-1234-abcd-ef00-0123456789ac, version 1.0.
pub const INTERFACE: Syntax =
    Syntax::new(0x1234_5778, 0x1234, 0xabcd, [0xef, 0, 1, 0x23, 0x45, 0x67, 0x89, 0xac], 1);

macro_rules! opnums {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {$($(#[$doc])* pub const $name: u16 = $value;)*};
}
opnums! {
    /// SamrConnect.
    CONNECT = 0;
    /// SamrCloseHandle.
    CLOSE_HANDLE = 1;
    /// SamrLookupDomainInSamServer.
    LOOKUP_DOMAIN = 5;
    /// SamrEnumerateDomainsInSamServer.
    ENUMERATE_DOMAINS = 6;
    /// SamrOpenDomain.
    OPEN_DOMAIN = 7;
    /// SamrQueryInformationDomain.
    QUERY_DOMAIN = 8;
    /// SamrEnumerateGroupsInDomain.
    ENUMERATE_GROUPS = 11;
    /// SamrEnumerateUsersInDomain.
    ENUMERATE_USERS = 13;
    /// SamrEnumerateAliasesInDomain.
    ENUMERATE_ALIASES = 15;
    /// SamrGetAliasMembership.
    GET_ALIAS_MEMBERSHIP = 16;
    /// SamrLookupNamesInDomain.
    LOOKUP_NAMES = 17;
    /// SamrLookupIdsInDomain.
    LOOKUP_IDS = 18;
    /// SamrOpenGroup.
    OPEN_GROUP = 19;
    /// SamrQueryInformationGroup.
    QUERY_GROUP = 20;
    /// SamrGetMembersInGroup.
    GET_MEMBERS_IN_GROUP = 25;
    /// SamrOpenAlias.
    OPEN_ALIAS = 27;
    /// SamrOpenUser.
    OPEN_USER = 34;
    /// SamrQueryInformationUser.
    QUERY_USER = 36;
    /// SamrGetGroupsForUser.
    GET_GROUPS_FOR_USER = 39;
    /// SamrQueryDisplayInformation.
    QUERY_DISPLAY = 40;
    /// SamrGetUserDomainPasswordInformation.
    GET_USER_PASSWORD_RULES = 44;
    /// SamrQueryInformationDomain2.
    QUERY_DOMAIN2 = 46;
    /// SamrQueryInformationUser2.
    QUERY_USER2 = 47;
    /// SamrGetDomainPasswordInformation.
    GET_PASSWORD_RULES = 56;
    /// SamrConnect2.
    CONNECT2 = 57;
    /// SamrConnect4.
    CONNECT4 = 62;
    /// SamrConnect5.
    CONNECT5 = 64;
    /// SamrRidToSid.
    RID_TO_SID = 65;
}

/// Most names or ids in one call ([MS-SAMR] 3.1.5.11.2: range 0 to 1000).
pub const MAX_LOOKUPS: usize = 1000;
/// A normal account, whose password does not expire ([MS-SAMR] 2.2.1.12).
const ACCOUNT_CONTROL: u32 = 0x0000_0210;
/// Enabled, mandatory, by default ([MS-SAMR] 2.2.1.11).
const GROUP_ATTRIBUTES: u32 = 7;
/// The time that means never ([MS-SAMR] 2.2.1.13).
const NEVER: u64 = 0x7FFF_FFFF_FFFF_FFFF;
/// An infinite time span; spans are negative ([MS-SAMR] 2.2.2.2).
const FOR_EVER: u64 = 1 << 63;
/// "Domain Users", which a standalone host calls None.
pub const PRIMARY_GROUP: u32 = 513;

/// An account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Name.
    pub name: String,
    /// Relative id.
    pub rid: u32,
}

/// A handle and the word after it: a class, an access mask, an id.
pub fn parse_handle_and_word(stub: &[u8]) -> Result<(Handle, u32), Malformed> {
    let mut r = Reader::new(stub);
    Ok((r.handle()?, r.u32()?))
}

/// A handle and a class.
pub fn parse_query(stub: &[u8]) -> Result<(Handle, u16), Malformed> {
    lsarpc::parse_query_policy(stub)
}

/// The input of SamrLookupDomainInSamServer: the name.
pub fn parse_lookup_domain(stub: &[u8]) -> Result<(Handle, String), Malformed> {
    let mut r = Reader::new(stub);
    let handle = r.handle()?;
    let name = if r.counted_head()? { r.counted_buffer()? } else { String::new() };
    Ok((handle, name))
}

/// The input of SamrOpenDomain: the domain's SID.
pub fn parse_open_domain(stub: &[u8]) -> Result<(Handle, Sid), Malformed> {
    let mut r = Reader::new(stub);
    let handle = r.handle()?;
    r.u32()?;
    Ok((handle, r.sid()?))
}

/// The input of SamrOpenUser, SamrOpenGroup and SamrOpenAlias: the id.
pub fn parse_open_account(stub: &[u8]) -> Result<(Handle, u32), Malformed> {
    let mut r = Reader::new(stub);
    let handle = r.handle()?;
    r.u32()?;
    Ok((handle, r.u32()?))
}

/// The number of elements: a count, then the head of a conformant and varying array of that length.
fn lookups(r: &mut Reader<'_>, least: usize) -> Result<usize, Malformed> {
    let stated = r.u32()? as usize;
    let (_most, offset, count) = (r.u32()?, r.u32()?, r.count(least)?);
    if stated != count || offset != 0 || count > MAX_LOOKUPS {
        return Err(Malformed("wrong number of names or ids"));
    }
    Ok(count)
}

/// The input of SamrLookupNamesInDomain.
pub fn parse_lookup_names(stub: &[u8]) -> Result<(Handle, Vec<String>), Malformed> {
    let mut r = Reader::new(stub);
    let handle = r.handle()?;
    let count = lookups(&mut r, 8)?;
    let heads = (0..count).map(|_| r.counted_head()).collect::<Result<Vec<_>, _>>()?;
    let names = heads.into_iter().map(|there| if there { r.counted_buffer() } else { Ok(String::new()) });
    Ok((handle, names.collect::<Result<_, _>>()?))
}

/// The input of SamrLookupIdsInDomain.
pub fn parse_lookup_ids(stub: &[u8]) -> Result<(Handle, Vec<u32>), Malformed> {
    let mut r = Reader::new(stub);
    let handle = r.handle()?;
    let count = lookups(&mut r, 4)?;
    Ok((handle, (0..count).map(|_| r.u32()).collect::<Result<_, _>>()?))
}

/// The input of SamrQueryDisplayInformation: class, first index, most entries.
pub fn parse_query_display(stub: &[u8]) -> Result<(Handle, u16, u32, u32), Malformed> {
    let mut r = Reader::new(stub);
    Ok((r.handle()?, r.u16()?, r.u32()?, r.u32()?))
}

/// The answer of SamrConnect5: revision 3, no features.
pub fn emit_connect5(handle: Handle) -> Vec<u8> {
    let mut w = Writer::new();
    for value in [1, 1, 3, 0] {
        w.u32(value);
    }
    w.handle(handle);
    w.u32(0);
    w.finish()
}

/// The answer of SamrLookupDomainInSamServer.
pub fn emit_domain_sid(sid: Option<&Sid>) -> Vec<u8> {
    let mut w = Writer::new();
    match sid {
        Some(sid) => w.parameter(|w| w.sid(sid)),
        None => w.null(),
    }
    w.u32(if sid.is_some() { NtStatus::SUCCESS } else { NO_SUCH_DOMAIN }.0);
    w.finish()
}

/// The answer of SamrRidToSid.
pub fn emit_sid(sid: &Sid) -> Vec<u8> {
    let mut w = Writer::new();
    w.parameter(|w| w.sid(sid));
    w.u32(0);
    w.finish()
}

/// The answer of the two calls that query password rules: there are none.
pub fn emit_password_rules() -> Vec<u8> {
    let mut w = Writer::new();
    w.u16(0);
    w.align(4);
    w.u32(0);
    w.u32(0);
    w.finish()
}

/// `STATUS_NO_SUCH_DOMAIN`.
pub const NO_SUCH_DOMAIN: NtStatus = NtStatus(0xC000_00DF);
/// `STATUS_NO_SUCH_GROUP`.
pub const NO_SUCH_GROUP: NtStatus = NtStatus(0xC000_0066);
/// `STATUS_NO_SUCH_ALIAS`.
pub const NO_SUCH_ALIAS: NtStatus = NtStatus(0xC000_0151);
/// `STATUS_NO_SUCH_USER`.
pub const NO_SUCH_USER: NtStatus = NtStatus(0xC000_0064);

/// The answer of the enumerations: all entries at once.
pub fn emit_enumeration(all: &[Account]) -> Vec<u8> {
    let mut w = Writer::new();
    w.count(all.len());
    w.parameter(|w| {
        w.count(all.len());
        w.pointer(move |w| {
            w.count(all.len());
            for one in all {
                w.u32(one.rid);
                w.counted_string(&one.name);
            }
        });
    });
    w.count(all.len());
    w.u32(0);
    w.finish()
}

/// A count and a pointer to as many words.
fn emit_words(words: &[u32], w: &mut Writer<'_>) {
    w.count(words.len());
    let words = words.to_vec();
    w.parameter(|w| {
        w.count(words.len());
        words.iter().for_each(|word| w.u32(*word));
    });
}

fn lookup_status(found: usize, of: usize) -> NtStatus {
    match found {
        _ if found == of => NtStatus::SUCCESS,
        0 => NtStatus(0xC000_0073),
        _ => NtStatus(0x0000_0107),
    }
}

/// The answer of SamrLookupNamesInDomain: an id and a use for each name.
pub fn emit_ids(found: &[Option<(u32, lsarpc::SidUse)>]) -> Vec<u8> {
    let mut w = Writer::new();
    let ids: Vec<_> = found.iter().map(|one| one.map_or(0, |(rid, _)| rid)).collect();
    let uses: Vec<_> =
        found.iter().map(|one| one.map_or(lsarpc::SidUse::Unknown, |(_, kind)| kind) as u32).collect();
    emit_words(&ids, &mut w);
    emit_words(&uses, &mut w);
    w.u32(lookup_status(found.iter().flatten().count(), found.len()).0);
    w.finish()
}

/// The answer of SamrLookupIdsInDomain: a name and a use for each id.
pub fn emit_names(found: &[Option<(String, lsarpc::SidUse)>]) -> Vec<u8> {
    let mut w = Writer::new();
    w.count(found.len());
    w.parameter(|w| {
        w.count(found.len());
        for one in found {
            w.counted_string(one.as_ref().map_or("", |(name, _)| name));
        }
    });
    let uses: Vec<_> = found
        .iter()
        .map(|one| one.as_ref().map_or(lsarpc::SidUse::Unknown, |(_, kind)| *kind) as u32)
        .collect();
    emit_words(&uses, &mut w);
    w.u32(lookup_status(found.iter().flatten().count(), found.len()).0);
    w.finish()
}

/// The answer of SamrGetGroupsForUser: the one group of all users.
pub fn emit_groups() -> Vec<u8> {
    let mut w = Writer::new();
    w.parameter(|w| {
        w.count(1);
        w.pointer(|w| {
            w.count(1);
            w.u32(PRIMARY_GROUP);
            w.u32(GROUP_ATTRIBUTES);
        });
    });
    w.u32(0);
    w.finish()
}

/// The answer of SamrGetAliasMembership: none.
pub fn emit_no_aliases() -> Vec<u8> {
    let mut w = Writer::new();
    w.u32(0);
    w.null();
    w.u32(0);
    w.finish()
}

/// A pointer to a union that a 16-bit class selects, or a null pointer with the status.
fn emit_class<'a>(class: u16, status: NtStatus, write: impl FnOnce(&mut Writer<'a>)) -> Vec<u8> {
    let mut w = Writer::new();
    match status {
        NtStatus::SUCCESS => w.parameter(|w| {
            w.u16(class);
            w.align(4);
            write(w);
        }),
        _ => w.null(),
    }
    w.u32(status.0);
    w.finish()
}

/// The answer of SamrQueryInformationDomain ([MS-SAMR] 2.2.3) for a domain with this name and number of users.
pub fn emit_domain(class: u16, name: &str, users: usize) -> Vec<u8> {
    let status = match class {
        1..=9 | 11..=13 => NtStatus::SUCCESS,
        _ => NtStatus::INVALID_INFO_CLASS,
    };
    emit_class(class, status, |w| match class {
        // Password rules: any length, no history, changeable at once, no expiry; the configuration holds the passwords.
        1 => {
            w.u32(0);
            w.u32(0);
            w.old_u64(FOR_EVER);
            w.old_u64(0);
        }
        2 => emit_general(name, users, w),
        // No forced log-off.
        3 => w.old_u64(FOR_EVER),
        // An empty remark, or an empty name of the server that it replicates.
        4 | 6 => w.counted_string(""),
        5 => w.counted_string(name),
        // Role: primary. State: enabled.
        7 => w.u32(PRIMARY),
        9 => w.u32(ENABLED),
        // One change, at a creation time that is not recorded.
        8 => {
            w.old_u64(1);
            w.old_u64(0);
        }
        13 => {
            w.old_u64(1);
            w.old_u64(0);
            w.old_u64(0);
        }
        11 => {
            emit_general(name, users, w);
            emit_lockout(w);
        }
        _ => emit_lockout(w),
    })
}

/// DOMAIN_SERVER_ROLE ([MS-SAMR] 2.2.3.2).
const PRIMARY: u32 = 3;
/// DOMAIN_SERVER_ENABLE_STATE ([MS-SAMR] 2.2.3.1).
const ENABLED: u32 = 1;

/// SAMPR_DOMAIN_GENERAL_INFORMATION ([MS-SAMR] 2.2.3.10).
fn emit_general<'a>(name: &'a str, users: usize, w: &mut Writer<'a>) {
    w.old_u64(FOR_EVER);
    w.counted_string("");
    w.counted_string(name);
    w.counted_string("");
    w.old_u64(1);
    w.u32(ENABLED);
    w.u32(PRIMARY);
    w.u8(0);
    w.count(users);
    // One group, that of all users. No aliases.
    w.u32(1);
    w.u32(0);
}

/// SAMPR_DOMAIN_LOCKOUT_INFORMATION ([MS-SAMR] 2.2.3.15): no lockout.
fn emit_lockout(w: &mut Writer<'_>) {
    w.u64(0);
    w.u64(0);
    w.u16(0);
}

/// The answer of SamrQueryInformationGroup ([MS-SAMR] 2.2.4) for a group with this name and number of members.
pub fn emit_group(class: u16, name: &str, members: usize) -> Vec<u8> {
    let status = if (1..=5).contains(&class) { NtStatus::SUCCESS } else { NtStatus::INVALID_INFO_CLASS };
    emit_class(class, status, |w| match class {
        2 => w.counted_string(name),
        3 => w.u32(GROUP_ATTRIBUTES),
        4 => w.counted_string(""),
        _ => {
            w.counted_string(name);
            w.u32(GROUP_ATTRIBUTES);
            w.count(members);
            w.counted_string("");
        }
    })
}

/// The answer of SamrGetMembersInGroup.
pub fn emit_members(members: &[Account]) -> Vec<u8> {
    let mut w = Writer::new();
    w.parameter(|w| {
        w.count(members.len());
        w.pointer(|w| {
            w.count(members.len());
            members.iter().for_each(|member| w.u32(member.rid));
        });
        w.pointer(|w| {
            w.count(members.len());
            members.iter().for_each(|_| w.u32(GROUP_ATTRIBUTES));
        });
    });
    w.u32(0);
    w.finish()
}

/// The answer of SamrQueryInformationUser.
pub fn emit_user(class: u16, account: &Account) -> Vec<u8> {
    let status = match class {
        7..=9 | 16 | 21 => NtStatus::SUCCESS,
        _ => NtStatus::INVALID_INFO_CLASS,
    };
    emit_class(class, status, |w| match class {
        7 => w.counted_string(&account.name),
        8 => w.counted_string(""),
        9 => w.u32(PRIMARY_GROUP),
        16 => w.u32(ACCOUNT_CONTROL),
        _ => emit_all(account, w),
    })
}

/// SAMPR_USER_ALL_INFORMATION ([MS-SAMR] 2.2.6.6).
fn emit_all<'a>(account: &'a Account, w: &mut Writer<'a>) {
    for time in [0, 0, 0, NEVER, 0, NEVER] {
        w.old_u64(time);
    }
    w.counted_string(&account.name);
    // Full name, home and its drive, script, profile, comments, workstations, parameters.
    for _ in 0..9 {
        w.counted_string("");
    }
    // Password hashes are never disclosed.
    for _ in 0..2 {
        w.u32(0);
        w.null();
    }
    w.counted_string("");
    w.u32(0);
    w.null();
    w.u32(account.rid);
    w.u32(PRIMARY_GROUP);
    w.u32(ACCOUNT_CONTROL);
    // The valid fields: all but the secrets.
    w.u32(0x00FF_FFFF);
    // Log-on is allowed in all 168 hours of a week.
    w.u16(168);
    w.align(4);
    w.pointer(|w| {
        for value in [1260, 0, 21] {
            w.u32(value);
        }
        w.bytes(&[0xff; 21]);
    });
    for _ in 0..4 {
        w.u16(0);
    }
    for _ in 0..4 {
        w.u8(0);
    }
}

/// The answer of SamrQueryDisplayInformation at level 1: users from `first` on.
pub fn emit_display(class: u16, accounts: &[Account], first: usize) -> Vec<u8> {
    const NO_MORE: u32 = 0;
    let mut w = Writer::new();
    let known = class == 1;
    let len = accounts.len().saturating_mul(64);
    w.count(len);
    w.count(len);
    w.u16(class);
    w.align(4);
    w.count(if known { accounts.len() } else { 0 });
    match known && !accounts.is_empty() {
        true => w.pointer(move |w| {
            w.count(accounts.len());
            for (number, account) in (first.saturating_add(1)..).zip(accounts) {
                w.count(number);
                w.u32(account.rid);
                w.u32(ACCOUNT_CONTROL);
                w.counted_string(&account.name);
                w.counted_string("");
                w.counted_string("");
            }
        }),
        false => w.null(),
    }
    w.flush();
    w.u32(if known { NO_MORE } else { NtStatus::INVALID_INFO_CLASS.0 });
    w.finish()
}
