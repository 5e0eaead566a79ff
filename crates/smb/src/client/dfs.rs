//! DFS referrals: resolves a path of a DFS namespace.
//!
//! Spec: [MS-DFSC] 3.1.5.4, 3.1.5.4.5 (links); [MS-SMB2] 3.2.4.20.3 (requests). Referrals are not cached. It neither
//! connects to the targets nor asks domain controllers: the server's own referrals are enough for stand-alone
//! namespaces and for the links of others.

use weft_wire::smb2::NtStatus;
use weft_wire::smb2::dfs::{NEWEST, Request, Response};
use weft_wire::smb2::ioctl::CtlCode;

use super::error::Error;
use super::session::Session;

/// A link in a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referral {
    /// The path within its share up to and including the link; `/` separates the names.
    pub link: String,
    /// Its targets, best first; at least one.
    pub targets: Vec<Target>,
}

/// A target of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Server name, as the namespace gives it.
    pub host: String,
    /// Share.
    pub share: String,
    /// Folder in the share; empty for its root.
    pub path: String,
}

impl Target {
    fn parse(address: &str) -> Option<Target> {
        let mut names = address.split('\\').filter(|name| !name.is_empty());
        let (host, share) = (names.next()?.to_owned(), names.next()?.to_owned());
        Some(Target { host, share, path: names.collect::<Vec<_>>().join("/") })
    }
}

impl Session {
    /// The link that `path` in `share` goes through, if the server knows one.
    ///
    /// # Errors
    /// Those of any request; [`Error::Violation`] for an answer about another path.
    pub async fn referral(&self, share: &str, path: &str) -> Result<Option<Referral>, Error> {
        let inner = path.split(['/', '\\']).filter(|name| !name.is_empty()).collect::<Vec<_>>().join("\\");
        let front = format!(r"\{}\{share}", self.host());
        let whole = format!(r"{front}\{inner}");
        let mut input = Vec::new();
        Request { max_level: NEWEST, path: whole.clone() }.emit(&mut input);
        let output = match self.ioctl(CtlCode::DFS_GET_REFERRALS, input.into()).await {
            Ok(output) => output,
            // No link there, no such namespace, or no DFS on the server.
            Err(e) if e.status().is_some_and(knows_none) => return Ok(None),
            Err(e) => return Err(e),
        };
        let answer = Response::parse(&output)?;
        if answer.root {
            return Ok(None);
        }
        let link = consumed(&whole, answer.path_consumed)
            .and_then(|consumed| consumed.get(front.len()..))
            .ok_or(Error::Violation("DFS: a referral for another path"))?;
        let link = link.trim_matches('\\').replace('\\', "/");
        let targets: Vec<Target> =
            answer.targets.iter().filter_map(|target| Target::parse(&target.address)).collect();
        if targets.is_empty() || link.is_empty() {
            return Err(Error::Violation("DFS: a referral without targets"));
        }
        Ok(Some(Referral { link, targets }))
    }
}

fn knows_none(status: NtStatus) -> bool {
    /// STATUS_FS_DRIVER_REQUIRED: the server has no DFS.
    const NO_DFS: NtStatus = NtStatus(0xC000_019C);
    [
        NtStatus::NOT_FOUND,
        NtStatus::OBJECT_NAME_NOT_FOUND,
        NtStatus::OBJECT_PATH_NOT_FOUND,
        NtStatus::NOT_SUPPORTED,
        NtStatus::INVALID_DEVICE_REQUEST,
        NO_DFS,
    ]
    .contains(&status)
}

/// The first `bytes` of a path, counted in UTF-16; `None` unless they end between two names.
fn consumed(path: &str, bytes: u16) -> Option<&str> {
    let mut left = usize::from(bytes);
    for (at, c) in path.char_indices().chain([(path.len(), '\\')]) {
        if left == 0 {
            let (front, _) = path.split_at(at);
            // At a separator, or right after one.
            return (c == '\\' || front.ends_with('\\')).then_some(front);
        }
        left = left.checked_sub(c.len_utf16().saturating_mul(2))?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_consumed_ends_between_names() {
        let path = r"\h\s\linkü\rest";
        assert_eq!(consumed(path, 20), Some(r"\h\s\linkü"));
        assert_eq!(consumed(path, 22), Some(r"\h\s\linkü\"));
        assert_eq!(consumed(path, 30), Some(path));
        for bytes in [1, 18, 19, 21, 24, 32, u16::MAX] {
            assert_eq!(consumed(path, bytes), None, "{bytes}");
        }
    }

    #[test]
    fn targets() {
        let target = Target::parse(r"\nas\share\a\b").unwrap();
        assert_eq!((&*target.host, &*target.share, &*target.path), ("nas", "share", "a/b"));
        assert_eq!(Target::parse(r"\nas\share").unwrap().path, "");
        assert_eq!(Target::parse(r"\nas"), None);
    }
}
