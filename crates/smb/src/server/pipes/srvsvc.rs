//! The server and workstation services: lists shares and sessions, describes the server, and tells the time.
//!
//! Spec: [MS-SRVS] 3.1.4, [MS-WKST] 3.2.4. Shares and sessions cannot be changed: shares are configured, and sessions
//! are ended by their clients. A user sees only his own sessions.

use weft_machine::{clock, rt};
use weft_store::rights::Right;
use weft_wire::dcerpc::FaultStatus;
use weft_wire::dcerpc::srvsvc::{self, Enum, ServerInfo, SessionInfo, ShareInfo};
use weft_wire::dcerpc::wkssvc::{self, WorkstationInfo};

use super::caller::Caller;

/// NET_API_STATUS ([MS-ERREF] 2.2).
const MORE_DATA: u32 = 234;
const INVALID_LEVEL: u32 = 124;
const NET_NAME_NOT_FOUND: u32 = 2310;
/// Entries per answer, so that it fits a pipe.
const MAX_ENTRIES: usize = 1000;
/// A server and workstation of the NT family ([MS-SRVS] 2.2.2.7).
const SERVER_TYPE: u32 = 0x0000_0001 | 0x0000_0002 | 0x0000_1000 | 0x0000_8000;
/// The version that clients take as current.
const VERSION: (u32, u32) = (10, 0);
/// The workgroup of a host without a domain.
const WORKGROUP: &str = "WORKGROUP";

pub(super) fn call(caller: &Caller<'_>, opnum: u16, stub: &[u8]) -> Result<Vec<u8>, FaultStatus> {
    Ok(match opnum {
        srvsvc::SHARE_ENUM | srvsvc::SHARE_ENUM_STICKY => share_enum(caller, &Enum::parse_shares(stub)?),
        srvsvc::SHARE_GET_INFO => {
            let (name, level) = srvsvc::parse_share_get_info(stub)?;
            share_info(caller, &name, level)
        }
        srvsvc::SESSION_ENUM => session_enum(caller, &Enum::parse_sessions(stub)?),
        srvsvc::SERVER_GET_INFO => server_info(caller, srvsvc::parse_server_get_info(stub)?),
        srvsvc::REMOTE_TOD => {
            let now = clock::wall();
            let up = rt::now().since(caller.session.met).as_millis() as u32;
            srvsvc::emit_time_of_day(now.as_secs() as i64, now.subsec_nanos(), up)
        }
        _ => return Err(FaultStatus::OPERATION_OUT_OF_RANGE),
    })
}

/// All shares.
fn shares(caller: &Caller<'_>) -> Vec<ShareInfo> {
    let sessions = caller.server.sessions.all();
    let uses = |name: Option<&str>| sessions.iter().map(|session| session.connected_to(name)).sum::<usize>();
    let disk = |name: &str| ShareInfo {
        name: name.to_owned(),
        kind: srvsvc::TYPE_DISK,
        remark: String::new(),
        // The real path is not for clients; Windows' tools expect a drive letter at the front.
        path: format!("C:\\{name}"),
        current_uses: u32::try_from(uses(Some(name))).unwrap_or(u32::MAX),
    };
    let ipc = ShareInfo {
        name: "IPC$".to_owned(),
        kind: srvsvc::TYPE_IPC,
        remark: "Remote IPC".to_owned(),
        path: String::new(),
        current_uses: u32::try_from(uses(None)).unwrap_or(u32::MAX),
    };
    let directory = caller.server.directory();
    let shares = caller.server.shares.now();
    // Users see the shares that they may use.
    let usable =
        shares.iter().filter(|share| directory.right(caller.session.who(), &share.rules) > Right::None);
    usable.map(|share| disk(&share.name)).chain([ipc]).collect()
}

/// A page of an answer that starts at the resume handle: its first entry, its count, the status, the next handle.
fn page(wish: &Enum, weights: impl Iterator<Item = usize>, total: usize) -> (usize, usize, u32, Option<u32>) {
    let first = (wish.resume.unwrap_or(0) as usize).min(total);
    let mut bytes = 0usize;
    let fits = |weight: &usize| {
        bytes = bytes.saturating_add(*weight);
        bytes <= wish.preferred_bytes as usize
    };
    // At least one entry, or a client would never get further.
    let count = weights.skip(first).take_while(fits).count().clamp(1, MAX_ENTRIES);
    let count = count.min(total.saturating_sub(first));
    let end = first.saturating_add(count);
    let done = end == total;
    let next = if done { 0 } else { end };
    let resume = wish.resume.map(|_| u32::try_from(next).unwrap_or(0));
    (first, count, if done { 0 } else { MORE_DATA }, resume)
}

fn share_enum(caller: &Caller<'_>, wish: &Enum) -> Vec<u8> {
    if !ShareInfo::LEVELS.contains(&wish.level) || wish.level == 1005 {
        return srvsvc::emit_no_enum(wish.level, wish.resume, INVALID_LEVEL);
    }
    let all = shares(caller);
    let weights = all.iter().map(|share| share.weight(wish.level));
    let (first, count, status, resume) = page(wish, weights, all.len());
    let (_, rest) = all.split_at(first);
    srvsvc::emit_shares(wish.level, rest.split_at(count).0, rest.len(), resume, status)
}

fn share_info(caller: &Caller<'_>, name: &str, level: u32) -> Vec<u8> {
    let wanted = name.to_lowercase();
    let all = shares(caller);
    let share = all.iter().find(|share| share.name.to_lowercase() == wanted).ok_or(NET_NAME_NOT_FOUND);
    match ShareInfo::LEVELS.contains(&level) {
        true => srvsvc::emit_share(level, share),
        false => srvsvc::emit_no_info(level, INVALID_LEVEL),
    }
}

fn server_info(caller: &Caller<'_>, level: u32) -> Vec<u8> {
    if !ServerInfo::LEVELS.contains(&level) {
        return srvsvc::emit_no_info(level, INVALID_LEVEL);
    }
    let name = caller.server.directory().accounts.host.name.clone();
    ServerInfo { name, comment: "Weft".to_owned(), version: VERSION, kind: SERVER_TYPE }.emit(level)
}

fn session_enum(caller: &Caller<'_>, wish: &Enum) -> Vec<u8> {
    if !SessionInfo::LEVELS.contains(&wish.level) {
        return srvsvc::emit_no_enum(wish.level, wish.resume, INVALID_LEVEL);
    }
    let is = |a: &str, b: &Option<String>| {
        b.as_deref().is_none_or(|b| b.is_empty() || a.eq_ignore_ascii_case(b.trim_start_matches('\\')))
    };
    let mut all: Vec<_> = caller
        .server
        .sessions
        .all()
        .into_iter()
        .filter(|session| session.user == caller.session.user)
        .map(|session| SessionInfo {
            client: session.client.get().map_or(caller.peer, |client| client).to_owned(),
            user: session.user.to_string(),
            opens: u32::try_from(session.opens.len()).unwrap_or(u32::MAX),
            seconds: u32::try_from(rt::now().since(session.met).as_secs()).unwrap_or(u32::MAX),
        })
        .filter(|session| is(&session.client, &wish.client) && is(&session.user, &wish.user))
        .collect();
    // The table has no order of its own, but a resume handle needs one.
    all.sort_by(|a, b| (&a.client, b.seconds).cmp(&(&b.client, a.seconds)));
    let weight = |session: &SessionInfo| {
        session.client.len().saturating_add(session.user.len()).saturating_mul(2).saturating_add(96)
    };
    let (first, count, status, resume) = page(wish, all.iter().map(weight), all.len());
    let (_, rest) = all.split_at(first);
    srvsvc::emit_sessions(wish.level, rest.split_at(count).0, rest.len(), resume, status)
}

/// The workstation service.
pub(super) fn workstation(caller: &Caller<'_>, opnum: u16, stub: &[u8]) -> Result<Vec<u8>, FaultStatus> {
    if opnum != wkssvc::GET_INFO {
        return Err(FaultStatus::OPERATION_OUT_OF_RANGE);
    }
    let level = wkssvc::parse_get_info(stub)?;
    if !WorkstationInfo::LEVELS.contains(&level) {
        return Ok(srvsvc::emit_no_info(level, INVALID_LEVEL));
    }
    let users = u32::try_from(caller.server.session_count()).unwrap_or(u32::MAX);
    let name = caller.server.directory().accounts.host.name.clone();
    Ok(WorkstationInfo { name, group: WORKGROUP.to_owned(), version: VERSION, users }.emit(level))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_paged_until_its_end() {
        let wish =
            |bytes, resume| Enum { client: None, user: None, level: 1, preferred_bytes: bytes, resume };
        let weights = [40, 40, 40];
        let page = |wish: &Enum| page(wish, weights.into_iter(), weights.len());
        assert_eq!(page(&wish(u32::MAX, Some(0))), (0, 3, 0, Some(0)));
        assert_eq!(page(&wish(80, Some(0))), (0, 2, MORE_DATA, Some(2)));
        assert_eq!(page(&wish(80, Some(2))), (2, 1, 0, Some(0)));
        // Too little room for one entry: it is returned nevertheless.
        assert_eq!(page(&wish(0, Some(1))), (1, 1, MORE_DATA, Some(2)));
        assert_eq!(page(&wish(1, None)), (0, 1, MORE_DATA, None));
        assert_eq!(page(&wish(1, Some(99))), (3, 0, 0, Some(0)));
    }
}
