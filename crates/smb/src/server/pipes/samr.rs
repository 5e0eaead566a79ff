//! The account manager: lists domains and users.
//!
//! Spec: [MS-SAMR] 3.1.5. Accounts and passwords cannot be changed. The only group in the sense of Windows is the one of
//! all users; the server's groups are aliases.

use weft_machine::nss::Query;
use weft_wire::dcerpc::FaultStatus;
use weft_wire::dcerpc::lsarpc::{self, SidUse};
use weft_wire::dcerpc::ndr::{Handle, Reader};
use weft_wire::dcerpc::samr::{self, Account, PRIMARY_GROUP};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::fscc::security::Sid;

use super::caller::Caller;
use super::handles::{Handles, Object};
use crate::server::accounts::{Accounts, NONE, builtin, unix_domains};
use crate::server::directory::Directory;

/// The names and ids of the system that a call may need; the domain is known by a handle only, so both kinds are asked
/// for.
pub(super) fn queries(opnum: u16, stub: &[u8]) -> Vec<Query> {
    match opnum {
        samr::LOOKUP_NAMES => {
            let names = samr::parse_lookup_names(stub).map_or_else(|_| Vec::new(), |(_, names)| names);
            names.into_iter().flat_map(|name| [Query::User(name.clone()), Query::Group(name)]).collect()
        }
        samr::LOOKUP_IDS => {
            let ids = samr::parse_lookup_ids(stub).map_or_else(|_| Vec::new(), |(_, ids)| ids);
            ids.into_iter().flat_map(|id| [Query::Uid(id), Query::Gid(id)]).collect()
        }
        _ => Vec::new(),
    }
}

/// What members of a domain of the system are, and how they are asked for; `None` for another domain.
type UnixKind = (SidUse, fn(String) -> Query, fn(u32) -> Query);

fn unix_kind(sid: &Sid) -> Option<UnixKind> {
    let [users, groups] = unix_domains();
    match () {
        () if *sid == users.sid => Some((SidUse::User, Query::User, Query::Uid)),
        () if *sid == groups.sid => Some((SidUse::Group, Query::Group, Query::Gid)),
        () => None,
    }
}

/// The domain of a handle: the host's own, or one without members.
fn domain<'a>(
    accounts: &Accounts,
    handles: &'a Handles,
    handle: Handle,
) -> Result<(bool, &'a Sid), FaultStatus> {
    match handles.find(handle)? {
        Object::Domain(sid) => Ok((*sid == accounts.host.sid, sid)),
        _ => Err(FaultStatus::CONTEXT_MISMATCH),
    }
}

fn user<'a>(accounts: &'a Accounts, handles: &Handles, handle: Handle) -> Result<&'a Account, FaultStatus> {
    let account = match handles.find(handle)? {
        Object::User(rid) => accounts.users.iter().find(|account| account.rid == *rid),
        _ => None,
    };
    account.ok_or(FaultStatus::CONTEXT_MISMATCH)
}

fn everybody(handles: &Handles, handle: Handle) -> Result<(), FaultStatus> {
    match handles.find(handle)? {
        Object::Everybody => Ok(()),
        _ => Err(FaultStatus::CONTEXT_MISMATCH),
    }
}

/// A name of a domain: what it is, and its number there. `own`: the domain is this host. `kind`: of a domain of the system.
fn id_of(directory: &Directory, own: bool, kind: Option<UnixKind>, name: &str) -> Option<(u32, SidUse)> {
    let Directory { accounts, system, .. } = directory;
    if let Some((kind, named, _)) = kind {
        return Some((system.known(&named(name.to_owned()))?.id, kind));
    }
    match accounts.find(name) {
        _ if !own => None,
        Some(account) => Some((account.rid, SidUse::User)),
        None => match accounts.find_group(name) {
            Some(group) => Some((group.rid, SidUse::Alias)),
            None => name.eq_ignore_ascii_case(NONE).then_some((PRIMARY_GROUP, SidUse::Group)),
        },
    }
}

/// The reverse of [`id_of`].
fn name_of(directory: &Directory, own: bool, kind: Option<UnixKind>, rid: u32) -> Option<(String, SidUse)> {
    let Directory { accounts, system, .. } = directory;
    if let Some((kind, _, numbered)) = kind {
        return Some((system.known(&numbered(rid))?.name.clone(), kind));
    }
    match accounts.users.iter().find(|account| account.rid == rid) {
        _ if !own => None,
        Some(account) => Some((account.name.clone(), SidUse::User)),
        None => match accounts.groups.iter().find(|group| group.rid == rid) {
            Some(group) => Some((group.name.clone(), SidUse::Alias)),
            None => (rid == PRIMARY_GROUP).then(|| (NONE.to_owned(), SidUse::Group)),
        },
    }
}

pub(super) fn call(
    caller: &Caller<'_>,
    handles: &mut Handles,
    opnum: u16,
    stub: &[u8],
) -> Result<Vec<u8>, FaultStatus> {
    let directory = caller.server.directory();
    let (accounts, system) = (&directory.accounts, &directory.system);
    let unix = unix_domains().into_iter().filter(|_| system.is_used());
    Ok(match opnum {
        samr::CONNECT | samr::CONNECT2 | samr::CONNECT4 => {
            lsarpc::emit_handle(handles.open(Object::SamServer)?, NtStatus::SUCCESS)
        }
        samr::CONNECT5 => samr::emit_connect5(handles.open(Object::SamServer)?),
        samr::CLOSE_HANDLE => {
            handles.close(Reader::new(stub).handle()?)?;
            lsarpc::emit_handle(Handle::default(), NtStatus::SUCCESS)
        }
        samr::LOOKUP_DOMAIN => {
            let (handle, name) = samr::parse_lookup_domain(stub)?;
            handles.find(handle)?;
            let mut known = [accounts.host.clone(), builtin()].into_iter().chain(unix);
            let found = known.find(|domain| domain.name.eq_ignore_ascii_case(&name));
            samr::emit_domain_sid(found.as_ref().map(|domain| &domain.sid))
        }
        samr::ENUMERATE_DOMAINS => {
            handles.find(samr::parse_handle_and_word(stub)?.0)?;
            let domain = |name: String| Account { name, rid: 0 };
            samr::emit_enumeration(&[domain(accounts.host.name.clone()), domain(builtin().name)])
        }
        samr::OPEN_DOMAIN => {
            let (handle, sid) = samr::parse_open_domain(stub)?;
            handles.find(handle)?;
            let mut unix = unix;
            let is_unix = unix.any(|domain| domain.sid == sid);
            match is_unix || sid == accounts.host.sid || sid == builtin().sid {
                true => lsarpc::emit_handle(handles.open(Object::Domain(sid))?, NtStatus::SUCCESS),
                false => lsarpc::emit_handle(Handle::default(), samr::NO_SUCH_DOMAIN),
            }
        }
        samr::QUERY_DOMAIN | samr::QUERY_DOMAIN2 => {
            let (handle, class) = samr::parse_query(stub)?;
            let (own, sid) = domain(accounts, handles, handle)?;
            let other = unix_domains().into_iter().find(|domain| domain.sid == *sid).unwrap_or_else(builtin);
            match own {
                true => samr::emit_domain(class, &accounts.host.name, accounts.users.len()),
                // Nobody counts the members of the system's domains.
                false => samr::emit_domain(class, &other.name, 0),
            }
        }
        samr::ENUMERATE_USERS => {
            let (own, _) = domain(accounts, handles, samr::parse_handle_and_word(stub)?.0)?;
            samr::emit_enumeration(if own { &accounts.users } else { &[] })
        }
        samr::ENUMERATE_GROUPS => {
            let (own, _) = domain(accounts, handles, samr::parse_handle_and_word(stub)?.0)?;
            let none = [Account { name: NONE.into(), rid: PRIMARY_GROUP }];
            samr::emit_enumeration(if own { &none } else { &[] })
        }
        samr::ENUMERATE_ALIASES => {
            let (own, _) = domain(accounts, handles, samr::parse_handle_and_word(stub)?.0)?;
            samr::emit_enumeration(if own { &accounts.groups } else { &[] })
        }
        samr::GET_ALIAS_MEMBERSHIP => {
            domain(accounts, handles, samr::parse_handle_and_word(stub)?.0)?;
            samr::emit_no_aliases()
        }
        samr::LOOKUP_NAMES => {
            let (handle, names) = samr::parse_lookup_names(stub)?;
            let (own, sid) = domain(accounts, handles, handle)?;
            let kind = unix_kind(sid);
            samr::emit_ids(&names.iter().map(|name| id_of(&directory, own, kind, name)).collect::<Vec<_>>())
        }
        samr::LOOKUP_IDS => {
            let (handle, ids) = samr::parse_lookup_ids(stub)?;
            let (own, sid) = domain(accounts, handles, handle)?;
            let kind = unix_kind(sid);
            samr::emit_names(&ids.iter().map(|rid| name_of(&directory, own, kind, *rid)).collect::<Vec<_>>())
        }
        samr::OPEN_GROUP => {
            let (handle, rid) = samr::parse_open_account(stub)?;
            let (own, _) = domain(accounts, handles, handle)?;
            match own && rid == PRIMARY_GROUP {
                true => lsarpc::emit_handle(handles.open(Object::Everybody)?, NtStatus::SUCCESS),
                false => lsarpc::emit_handle(Handle::default(), samr::NO_SUCH_GROUP),
            }
        }
        samr::QUERY_GROUP => {
            let (handle, class) = samr::parse_query(stub)?;
            everybody(handles, handle)?;
            samr::emit_group(class, NONE, accounts.users.len())
        }
        samr::GET_MEMBERS_IN_GROUP => {
            everybody(handles, Reader::new(stub).handle()?)?;
            samr::emit_members(&accounts.users)
        }
        samr::OPEN_ALIAS => {
            domain(accounts, handles, samr::parse_open_account(stub)?.0)?;
            lsarpc::emit_handle(Handle::default(), samr::NO_SUCH_ALIAS)
        }
        samr::OPEN_USER => {
            let (handle, rid) = samr::parse_open_account(stub)?;
            let (own, _) = domain(accounts, handles, handle)?;
            match own && accounts.users.iter().any(|account| account.rid == rid) {
                true => lsarpc::emit_handle(handles.open(Object::User(rid))?, NtStatus::SUCCESS),
                false => lsarpc::emit_handle(Handle::default(), samr::NO_SUCH_USER),
            }
        }
        samr::QUERY_USER | samr::QUERY_USER2 => {
            let (handle, class) = samr::parse_query(stub)?;
            samr::emit_user(class, user(accounts, handles, handle)?)
        }
        samr::GET_GROUPS_FOR_USER => {
            user(accounts, handles, Reader::new(stub).handle()?)?;
            samr::emit_groups()
        }
        samr::GET_USER_PASSWORD_RULES => {
            user(accounts, handles, Reader::new(stub).handle()?)?;
            samr::emit_password_rules()
        }
        // [MS-SAMR] 3.1.5.13.3: there is no handle, and the server name in its place is ignored.
        samr::GET_PASSWORD_RULES => samr::emit_password_rules(),
        samr::RID_TO_SID => {
            let (handle, rid) = samr::parse_handle_and_word(stub)?;
            let domain = match handles.find(handle)? {
                Object::Domain(sid) => sid,
                Object::User(_) | Object::Everybody => &accounts.host.sid,
                Object::SamServer | Object::Policy => return Err(FaultStatus::CONTEXT_MISMATCH),
            };
            let mut sid = domain.clone();
            sid.sub_authorities.push(rid);
            samr::emit_sid(&sid)
        }
        samr::QUERY_DISPLAY => {
            let (handle, class, first, most) = samr::parse_query_display(stub)?;
            let (own, _) = domain(accounts, handles, handle)?;
            let users = if own { &accounts.users[..] } else { &[] };
            let (before, rest) = users.split_at((first as usize).min(users.len()));
            let (page, _) = rest.split_at((most as usize).min(rest.len()));
            samr::emit_display(class, page, before.len())
        }
        _ => return Err(FaultStatus::OPERATION_OUT_OF_RANGE),
    })
}
