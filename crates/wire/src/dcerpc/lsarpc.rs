//! The local security authority: the host's account domain, and translation between names and SIDs ([MS-LSAT] 2.2
//! structures, 3.1.4 translation; [MS-LSAD] 3.1.4 policy, account rights).
//!
//! Only queries are supported.

use super::ndr::{Handle, Reader, Writer};
use super::{Malformed, Syntax};
use crate::smb2::NtStatus;
use crate::smb2::fscc::security::Sid;

/// 12345778-1234-abcd-ef00-0123456789ab, version 0.0.
pub const INTERFACE: Syntax =
    Syntax::new(0x1234_5778, 0x1234, 0xabcd, [0xef, 0, 1, 0x23, 0x45, 0x67, 0x89, 0xab], 0);

/// LsarClose.
pub const CLOSE: u16 = 0;
/// LsarOpenPolicy.
pub const OPEN_POLICY: u16 = 6;
/// LsarQueryInformationPolicy.
pub const QUERY_INFORMATION_POLICY: u16 = 7;
/// LsarLookupNames.
pub const LOOKUP_NAMES: u16 = 14;
/// LsarLookupSids.
pub const LOOKUP_SIDS: u16 = 15;
/// LsarEnumerateAccountRights.
pub const ENUMERATE_ACCOUNT_RIGHTS: u16 = 36;
/// LsarOpenPolicy2.
pub const OPEN_POLICY2: u16 = 44;
/// LsarGetUserName.
pub const GET_USER_NAME: u16 = 45;
/// LsarQueryInformationPolicy2.
pub const QUERY_INFORMATION_POLICY2: u16 = 46;
/// LsarLookupSids2.
pub const LOOKUP_SIDS2: u16 = 57;
/// LsarLookupNames2.
pub const LOOKUP_NAMES2: u16 = 58;
/// LsarLookupNames3.
pub const LOOKUP_NAMES3: u16 = 68;

/// Most names or SIDs in one call ([MS-LSAT] 3.1.4.5: range 0 to 1000).
pub const MAX_LOOKUPS: usize = 1000;

/// SID_NAME_USE ([MS-LSAT] 2.2.13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the specification's names")]
pub enum SidUse {
    User = 1,
    Group = 2,
    Domain = 3,
    Alias = 4,
    WellKnownGroup = 5,
    Unknown = 8,
}

/// A domain, to which answers refer by its index in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Name.
    pub name: String,
    /// SID.
    pub sid: Sid,
}

/// The translation of one name or SID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translated {
    /// Kind of the account.
    pub kind: SidUse,
    /// Name within its domain; the SID as text if the SID is unknown.
    pub name: String,
    /// SID; `None` if the name is unknown.
    pub sid: Option<Sid>,
    /// Index in the list of domains.
    pub domain: Option<usize>,
}

/// The input of LsarQueryInformationPolicy: the handle and the class.
pub fn parse_query_policy(stub: &[u8]) -> Result<(Handle, u16), Malformed> {
    let mut r = Reader::new(stub);
    Ok((r.handle()?, r.u16()?))
}

/// The relevant input of the LsarLookupNames family.
pub fn parse_lookup_names(stub: &[u8]) -> Result<(Handle, Vec<String>), Malformed> {
    let mut r = Reader::new(stub);
    let handle = r.handle()?;
    let stated = r.u32()? as usize;
    let count = r.count(8)?;
    if stated != count || count > MAX_LOOKUPS {
        return Err(Malformed("wrong number of names"));
    }
    let heads = (0..count).map(|_| r.counted_head()).collect::<Result<Vec<_>, _>>()?;
    let names = heads.into_iter().map(|there| if there { r.counted_buffer() } else { Ok(String::new()) });
    Ok((handle, names.collect::<Result<_, _>>()?))
}

/// The relevant input of the LsarLookupSids family.
pub fn parse_lookup_sids(stub: &[u8]) -> Result<(Handle, Vec<Sid>), Malformed> {
    let mut r = Reader::new(stub);
    Ok((r.handle()?, parse_sids(&mut r)?))
}

/// LSAPR_SID_ENUM_BUFFER: a count and a pointer to an array of pointers to SIDs.
pub(super) fn parse_sids(r: &mut Reader<'_>) -> Result<Vec<Sid>, Malformed> {
    let stated = r.u32()? as usize;
    if !r.pointer()? {
        return if stated == 0 { Ok(Vec::new()) } else { Err(Malformed("wrong number of SIDs")) };
    }
    let count = r.count(4)?;
    if stated != count || count > MAX_LOOKUPS {
        return Err(Malformed("wrong number of SIDs"));
    }
    for _ in 0..count {
        if !r.pointer()? {
            return Err(Malformed("no SID"));
        }
    }
    (0..count).map(|_| r.sid()).collect()
}

/// The input of LsarEnumerateAccountRights.
pub fn parse_account_rights(stub: &[u8]) -> Result<(Handle, Sid), Malformed> {
    let mut r = Reader::new(stub);
    Ok((r.handle()?, r.sid()?))
}

/// Whether LsarGetUserName also requests the domain.
pub fn parse_get_user_name(stub: &[u8]) -> Result<bool, Malformed> {
    let mut r = Reader::new(stub);
    r.optional(Reader::wide_string)?;
    if r.pointer()? && r.counted_head()? {
        r.counted_buffer()?;
    }
    r.pointer()
}

/// An answer that consists of a handle (all zeros for none) and a status: of opening and closing.
pub fn emit_handle(handle: Handle, status: NtStatus) -> Vec<u8> {
    let mut w = Writer::new();
    w.handle(handle);
    w.u32(status.0);
    w.finish()
}

/// The result of LsarQueryInformationPolicy.
#[derive(Clone, Copy, Debug)]
pub enum Policy<'a> {
    /// PolicyPrimaryDomainInformation: the workgroup, which has no SID.
    PrimaryDomain(&'a str),
    /// PolicyAccountDomainInformation: the host's own accounts.
    AccountDomain(&'a Domain),
    /// PolicyLsaServerRoleInformation: always primary.
    ServerRole,
    /// PolicyDnsDomainInformation: empty except for the workgroup's name.
    DnsDomain(&'a str),
}

impl Policy<'_> {
    fn class(self) -> u16 {
        match self {
            Policy::PrimaryDomain(_) => 3,
            Policy::AccountDomain(_) => 5,
            Policy::ServerRole => 6,
            Policy::DnsDomain(_) => 12,
        }
    }
}

/// The answer of LsarQueryInformationPolicy.
pub fn emit_policy(policy: Result<Policy<'_>, NtStatus>) -> Vec<u8> {
    let mut w = Writer::new();
    match policy {
        Err(_) => w.null(),
        Ok(policy) => w.parameter(|w| {
            w.u16(policy.class());
            w.align(4);
            match policy {
                Policy::PrimaryDomain(name) => {
                    w.counted_string(name);
                    w.null();
                }
                Policy::AccountDomain(domain) => {
                    w.counted_string(&domain.name);
                    w.pointer(|w| w.sid(&domain.sid));
                }
                Policy::ServerRole => w.u16(3),
                Policy::DnsDomain(name) => {
                    w.counted_string(name);
                    w.counted_string("");
                    w.counted_string("");
                    w.align(4);
                    w.bytes(&[0; 16]);
                    w.null();
                }
            }
        }),
    }
    w.u32(policy.err().unwrap_or(NtStatus::SUCCESS).0);
    w.finish()
}

fn emit_domains<'a>(domains: &'a [Domain], w: &mut Writer<'a>) {
    w.parameter(move |w| {
        w.count(domains.len());
        w.pointer(move |w| {
            w.count(domains.len());
            for domain in domains {
                w.counted_string(&domain.name);
                w.pointer(|w| w.sid(&domain.sid));
            }
        });
        w.count(domains.len().max(32));
    });
}

fn domain_index(translated: &Translated) -> u32 {
    translated.domain.and_then(|index| u32::try_from(index).ok()).unwrap_or(u32::MAX)
}

fn mapped(all: &[Translated]) -> (usize, NtStatus) {
    const SOME_NOT_MAPPED: NtStatus = NtStatus(0x0000_0107);
    const NONE_MAPPED: NtStatus = NtStatus(0xC000_0073);
    let count = all.iter().filter(|one| one.kind != SidUse::Unknown).count();
    let status = match count {
        _ if count == all.len() => NtStatus::SUCCESS,
        0 => NONE_MAPPED,
        _ => SOME_NOT_MAPPED,
    };
    (count, status)
}

/// The answer of LsarLookupNames, 2 or 3, as `opnum` says.
pub fn emit_sids(opnum: u16, domains: &[Domain], all: &[Translated]) -> Vec<u8> {
    let mut w = Writer::new();
    emit_domains(domains, &mut w);
    w.count(all.len());
    w.pointer(move |w| {
        w.count(all.len());
        for one in all {
            w.align(4);
            w.u16(one.kind as u16);
            match (&one.sid, opnum) {
                (Some(sid), LOOKUP_NAMES3) => w.pointer(move |w| w.sid(sid)),
                (None, LOOKUP_NAMES3) => w.null(),
                // A domain itself has no relative id.
                (_, _) if one.kind == SidUse::Domain => w.u32(u32::MAX),
                (Some(sid), _) => w.u32(sid.sub_authorities.last().copied().unwrap_or(0)),
                (None, _) => w.u32(0),
            }
            w.u32(domain_index(one));
            if opnum != LOOKUP_NAMES {
                w.u32(0);
            }
        }
    });
    w.flush();
    let (count, status) = mapped(all);
    w.count(count);
    w.u32(status.0);
    w.finish()
}

/// The answer of LsarLookupSids or LsarLookupSids2, as `opnum` says.
pub fn emit_names(opnum: u16, domains: &[Domain], all: &[Translated]) -> Vec<u8> {
    let mut w = Writer::new();
    emit_domains(domains, &mut w);
    w.count(all.len());
    w.pointer(move |w| {
        w.count(all.len());
        for one in all {
            w.align(4);
            w.u16(one.kind as u16);
            w.counted_string(&one.name);
            w.u32(domain_index(one));
            if opnum != LOOKUP_SIDS {
                w.u32(0);
            }
        }
    });
    w.flush();
    let (count, status) = mapped(all);
    w.count(count);
    w.u32(status.0);
    w.finish()
}

/// The answer of LsarEnumerateAccountRights: no account has rights on this host.
pub fn emit_no_rights() -> Vec<u8> {
    let mut w = Writer::new();
    w.u32(0);
    w.null();
    w.u32(NtStatus::OBJECT_NAME_NOT_FOUND.0);
    w.finish()
}

/// The answer of LsarGetUserName.
pub fn emit_user_name(user: &str, domain: Option<&str>) -> Vec<u8> {
    let mut w = Writer::new();
    w.parameter(|w| w.counted_string(user));
    match domain {
        Some(domain) => w.parameter(|w| w.pointer(move |w| w.counted_string(domain))),
        None => w.null(),
    }
    w.u32(0);
    w.finish()
}
