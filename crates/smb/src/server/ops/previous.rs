//! Previous versions: a share as it was when a snapshot was taken.
//!
//! Spec: [MS-SMB2] 2.2.32.2 (the list), 3.3.5.15.1 (listing), 3.3.5.9.4 (opening); the @GMT token is in its glossary.
//! The store owns the snapshots; their file systems are read-only.

use std::sync::OnceLock;

use time::format_description::{self, OwnedFormatItem};
use time::{OffsetDateTime, PrimitiveDateTime};
use weft_store::vfs::Share;
use weft_wire::smb2::create::Request;
use weft_wire::smb2::create_context::RequestContext;
use weft_wire::smb2::{Filetime, NtStatus, ioctl};

use crate::server::answer::Failure;
use crate::server::context::OpContext;

/// Size of: number of snapshots, number returned, bytes of the list.
const HEAD_BYTES: usize = 12;

fn format() -> &'static OwnedFormatItem {
    static FORMAT: OnceLock<OwnedFormatItem> = OnceLock::new();
    FORMAT.get_or_init(|| {
        format_description::parse_strftime_owned("@GMT-%Y.%m.%d-%H.%M.%S").expect("a valid strftime format")
    })
}

/// A time in clients' notation; `None` if its year does not have four digits.
fn token(time: i64) -> Option<String> {
    OffsetDateTime::from_unix_timestamp(time).ok()?.format(format()).ok()
}

fn time_of(token: &str) -> Option<i64> {
    let time = token.starts_with("@GMT-").then(|| PrimitiveDateTime::parse(token, format()).ok())??;
    Some(time.assume_utc().unix_timestamp())
}

/// Converts a name with a token among its components: removes the token and adds a context with its time.
pub(super) fn take_token(request: &mut Request) {
    let mut found = None;
    let rest: Vec<&str> = request
        .name
        .split('\\')
        .filter(|part| match time_of(part) {
            Some(time) if found.is_none() => {
                found = Some(time);
                false
            }
            _ => true,
        })
        .collect();
    if let Some(time) = found {
        request.name = rest.join("\\");
        request.contexts.push(RequestContext::Timewarp(Filetime::from_unix(time, 0)));
    }
}

/// The share at the time that a CREATE names; `None` if it names none.
pub(super) async fn of(share: &Share, request: &Request) -> Result<Option<Share>, Failure> {
    let asked = request.contexts.iter().find_map(|context| match context {
        RequestContext::Timewarp(time) => Some(*time),
        _ => None,
    });
    // Samba's clients express "now" as a time of zero.
    let Some(asked) = asked.filter(|time| *time != Filetime::ZERO) else { return Ok(None) };
    let snapshots = share.snapshots.as_ref().ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
    let (time, _) = asked.to_unix();
    let vfs = snapshots.at(time).await.map_err(weft_store::Error::from)?;
    let vfs = vfs.ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
    let vfs = vfs.acting_as(share.vfs.caller().clone());
    // Another name: its opens are not persistent, and are not on the share's volume.
    let name = format!("{}@{time}", share.name);
    Ok(Some(Share { rules: share.rules.clone(), meter: share.meter, ..Share::new(name, vfs) }))
}

/// FSCTL_SRV_ENUMERATE_SNAPSHOTS.
pub(super) async fn enumerate(cx: &OpContext, request: &ioctl::Request) -> Result<Vec<u8>, Failure> {
    if request.max_output_response < 16 {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let times = match cx.tree().share.as_ref().and_then(|share| share.snapshots.as_ref()) {
        Some(snapshots) => snapshots.list().await.map_err(weft_store::Error::from)?,
        None => Vec::new(),
    };
    Ok(array(&times, request.max_output_response as usize))
}

/// SRV_SNAPSHOT_ARRAY in `room` bytes: entries that do not all fit are counted, but left out.
fn array(times: &[i64], room: usize) -> Vec<u8> {
    let tokens: Vec<String> = times.iter().copied().filter_map(token).collect();
    let mut names: Vec<u8> = Vec::new();
    for unit in tokens.iter().flat_map(|token| token.encode_utf16().chain([0])) {
        names.extend_from_slice(&unit.to_le_bytes());
    }
    names.extend_from_slice(&[0; 2]);
    let len = names.len().saturating_add(HEAD_BYTES);
    let fits = !tokens.is_empty() && len <= room;
    let mut output = Vec::with_capacity(len);
    for word in [tokens.len(), if fits { tokens.len() } else { 0 }, names.len()] {
        // The store's limit on snapshots bounds it.
        output.extend_from_slice(&(word as u32).to_le_bytes());
    }
    if fits {
        output.extend_from_slice(&names);
    } else {
        // Padded, as Windows does (note 383).
        output.extend_from_slice(&[0; 4]);
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_say_times() {
        assert_eq!(token(1_767_312_000).as_deref(), Some("@GMT-2026.01.02-00.00.00"));
        assert_eq!(time_of("@GMT-2026.01.02-00.00.00"), Some(1_767_312_000));
        for other in
            ["@GMT-", "@GMT-2026.13.02-00.00.00", "@GMT-2026.01.02-00.00.00x", "2026.01.02-00.00.00", ""]
        {
            assert_eq!(time_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_list_that_does_not_fit_is_counted() {
        let words = |bytes: &[u8]| -> Vec<u32> {
            bytes[..12].chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
        };
        let all = array(&[0, 1_767_312_000], 4096);
        // Twice 24 characters with their terminators, and the terminator of the list.
        assert_eq!(words(&all), [2, 2, 102]);
        assert_eq!(all.len(), 12 + 102);
        let short = array(&[0, 1_767_312_000], 113);
        assert_eq!((words(&short), short.len()), (vec![2, 0, 102], 16));
        let none = array(&[], 4096);
        assert_eq!((words(&none), none.len()), (vec![0, 0, 2], 16));
    }
}
