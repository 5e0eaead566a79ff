//! Symbolic links: where one leads, as SMB and as the store write it. The client may follow it, the server never does.
//!
//! Spec: [MS-SMB2] 2.2.2.2.1 (error data of STATUS_STOPPED_ON_SYMLINK), [MS-FSCC] 2.1.2.4 (reparse data).
//! Does not: give away absolute targets of Unix: they name places of this host, not of the share (2.2.2.2.1 says not to);
//! the client then learns only that the name is a link. Nor make links: see [`super::reparse`].
//!
//! A relative link of a client is one for everybody, NFS clients and programs of this host too. An absolute one
//! (`\??\UNC\server\share\path`) is kept as it is written: to Unix it leads nowhere, and SMB clients get it back. A
//! target that ends in a separator is that of a link to a directory.

use weft_store::vfs::{Error, NodeId, Vfs};
use weft_wire::smb2::error::{self, ERROR_ID_DEFAULT, ErrorContext};
use weft_wire::smb2::{Dialect, NtStatus, reparse, utf16};

use super::{path, status};
use crate::server::context::Failure;

const ERROR_TAG: u32 = 0x4C4D_5953;
const FLAG_RELATIVE: u32 = 1;
/// How Windows begins an absolute target.
const ABSOLUTE: &str = "\\??\\";
/// Offsets, lengths and flags.
const FIXED: usize = 12;

/// Where a link leads, as SMB writes paths.
pub(super) struct Target {
    name: String,
    absolute: bool,
}

impl Target {
    /// As a client of POSIX wants it, or another.
    fn separated(self, posix: bool) -> Target {
        match posix && !self.absolute {
            true => Target { name: self.name.replace('\\', "/"), ..self },
            false => self,
        }
    }

    #[cfg(test)]
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// The target of a link; `None` when it cannot be said.
async fn target(vfs: &Vfs, node: NodeId) -> Result<Option<Target>, Error> {
    let target = vfs.readlink(node).await?;
    if target.starts_with(ABSOLUTE.as_bytes()) {
        let name = String::from_utf8(target).ok();
        return Ok(name.map(|name| Target { name: name.trim_end_matches('\\').to_owned(), absolute: true }));
    }
    if target.first() == Some(&b'/') {
        return Ok(None);
    }
    let target = target.strip_suffix(b"/").unwrap_or(&target);
    let names: Vec<_> = target.split(|&b| b == b'/').map(path::from_store).collect();
    Ok(Some(Target { name: names.join("\\"), absolute: false }))
}

/// Whether a link is one to a directory, as its maker said.
pub(super) async fn is_to_directory(vfs: &Vfs, node: NodeId) -> Result<bool, Error> {
    Ok(matches!(vfs.readlink(node).await?.last(), Some(b'/' | b'\\')))
}

/// SubstituteNameOffset to PathBuffer: what both structures share.
fn names(target: &Target) -> Vec<u8> {
    let mut out = Vec::new();
    // What people are shown: `\??\UNC\server` is `\\server`, `\??\C:` is `C:`.
    let shown = match target.name.strip_prefix(ABSOLUTE) {
        Some(rest) => rest.strip_prefix("UNC\\").map_or(rest.to_owned(), |rest| format!("\\\\{rest}")),
        None => target.name.clone(),
    };
    // A target has at most 4,095 bytes, so its length in UTF-16 fits.
    let len = |name: &str| u16::try_from(utf16::encoded_len(name)).unwrap_or(u16::MAX);
    let (substitute, print) = (len(&target.name), len(&shown));
    let print_at = if target.absolute { substitute } else { 0 };
    for field in [0, substitute, print_at, print] {
        out.extend(field.to_le_bytes());
    }
    out.extend(if target.absolute { 0 } else { FLAG_RELATIVE }.to_le_bytes());
    utf16::encode(&target.name, &mut out);
    if target.absolute {
        utf16::encode(&shown, &mut out);
    }
    out
}

/// The failure of a CREATE whose path goes through the link `node`; `rest` is what follows it in the path. To `posix` a target
/// has `/` between its names.
pub(super) async fn stopped(vfs: &Vfs, node: NodeId, rest: &[Vec<u8>], posix: bool) -> Failure {
    let mut failure = Failure::from(NtStatus::STOPPED_ON_SYMLINK);
    match target(vfs, node).await {
        Ok(Some(target)) => {
            let data = error_data(&target.separated(posix), rest);
            failure.data = error::Response::Plain(data.into());
        }
        Ok(None) => {}
        Err(e) => return e.into(),
    }
    failure
}

/// Dialect 3.1.1 wants error data in a context (2.2.2); the other operations that walk paths have none.
pub(super) fn in_context(failure: Failure, dialect: Dialect) -> Failure {
    match failure.data {
        error::Response::Plain(data) if dialect >= Dialect::V3_1_1 && !data.is_empty() => {
            let context = ErrorContext { id: ERROR_ID_DEFAULT, data };
            Failure { data: error::Response::Contexts(vec![context]), ..failure }
        }
        data => Failure { data, ..failure },
    }
}

fn error_data(target: &Target, rest: &[Vec<u8>]) -> Vec<u8> {
    let with_separator = |name: &Vec<u8>| utf16::encoded_len(&path::from_store(name)).saturating_add(2);
    let unparsed: usize = rest.iter().map(with_separator).sum();
    let names = names(target);
    let len = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_le_bytes();
    let mut data = Vec::with_capacity(names.len().saturating_add(16));
    data.extend((names.len().saturating_add(12) as u32).to_le_bytes());
    data.extend(ERROR_TAG.to_le_bytes());
    data.extend(reparse::SYMLINK.to_le_bytes());
    data.extend(len(names.len()));
    data.extend(len(unparsed));
    data.extend(names);
    data
}

/// The data of the reparse point that a link is; `None` for an absolute target of Unix. For `posix` see [`stopped`].
pub(super) async fn reparse_data(vfs: &Vfs, node: NodeId, posix: bool) -> Result<Option<Vec<u8>>, Error> {
    Ok(target(vfs, node).await?.map(|target| names(&target.separated(posix))))
}

/// The target that the data of a reparse point names.
pub(super) fn parse(data: &[u8]) -> Result<Target, NtStatus> {
    let invalid = status::IO_REPARSE_DATA_INVALID;
    let u16_at = |at: usize| {
        let field = data.get(at..).and_then(<[u8]>::first_chunk);
        field.map(|field| usize::from(u16::from_le_bytes(*field))).ok_or(invalid)
    };
    let (offset, len) = (u16_at(0)?, u16_at(2)?);
    let relative = u16_at(8)? as u32 & FLAG_RELATIVE != 0;
    let name = data.get(FIXED.saturating_add(offset)..).and_then(|rest| rest.get(..len)).ok_or(invalid)?;
    from_client(utf16::decode(name).map_err(|_| invalid)?, relative)
}

/// The target that a client writes like this. Unix clients write `/` between names.
pub(super) fn from_client(name: String, relative: bool) -> Result<Target, NtStatus> {
    let invalid = status::IO_REPARSE_DATA_INVALID;
    if name.starts_with('/') {
        // It leads out of the share, wherever that is.
        return Err(NtStatus::ACCESS_DENIED);
    }
    let name = if relative { name.replace('/', "\\") } else { name };
    match (relative, name.starts_with(ABSOLUTE)) {
        _ if name.is_empty() || name.contains('\0') => Err(invalid),
        (true, false) if !name.starts_with('\\') => Ok(Target { name, absolute: false }),
        (false, true) => Ok(Target { name, absolute: true }),
        // How Linux writes an absolute one.
        (false, false) => Err(NtStatus::ACCESS_DENIED),
        // From the root of the volume, which is not the share's: it could not be told what it means.
        _ => Err(invalid),
    }
}

/// A target as the store keeps it. One that leads out of the share is refused: who follows it on this host would find
/// what is not the client's.
pub(super) async fn to_store(
    vfs: &Vfs,
    target: &Target,
    dir: NodeId,
    to_directory: bool,
) -> Result<Vec<u8>, Failure> {
    let name = target.name.trim_end_matches('\\');
    if target.absolute {
        return Ok(format!("{name}{}", if to_directory { "\\" } else { "" }).into_bytes());
    }
    let mut names = Vec::new();
    let mut at = dir;
    // Names below the directory where `..` has led.
    let mut below = 0usize;
    for name in name.split('\\').filter(|name| !name.is_empty()) {
        match name {
            "." => {}
            ".." if below > 0 => below = below.saturating_sub(1),
            ".." if at == NodeId::ROOT => return Err(NtStatus::ACCESS_DENIED.into()),
            ".." => at = vfs.place(at).await?.dir,
            _ => below = below.saturating_add(1),
        }
        names.push(match name {
            "." | ".." => name.as_bytes().to_vec(),
            name => path::to_store(name)?,
        });
    }
    let mut target = names.join(&b'/');
    if to_directory {
        target.push(b'/');
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relative(name: &str) -> Target {
        Target { name: name.to_owned(), absolute: false }
    }

    /// The relative example of [MS-SMB2] 2.2.2.2.1.1.
    #[test]
    fn the_example_of_the_specification() {
        let target = relative("..\\DonHall\\Documents\\PDocs");
        let data = error_data(&target, &[b"DailyDocs".to_vec(), b"[MS-SMB].doc".to_vec()]);
        let u16_at = |at: usize| u16::from_le_bytes([data[at], data[at + 1]]);
        assert_eq!(u32::from_le_bytes(data[..4].try_into().unwrap()) as usize, data.len() - 4);
        assert_eq!(&data[4..12], b"SYML\x0c\0\0\xa0");
        assert_eq!(usize::from(u16_at(12)), data.len() - 16);
        assert_eq!(u16_at(14), 0x2e);
        assert_eq!((u16_at(16), u16_at(18)), (0, 0x34));
        assert_eq!(data[24..28], [1, 0, 0, 0]);
        assert_eq!(utf16::decode(&data[28..]).unwrap(), "..\\DonHall\\Documents\\PDocs");
    }

    #[test]
    fn reparse_data_comes_back_and_no_part_of_it_does() {
        let absolute = Target { name: "\\??\\UNC\\server\\share\\f".into(), absolute: true };
        for target in [relative("..\\a b"), absolute] {
            let data = names(&target);
            let parsed = parse(&data).unwrap();
            assert_eq!((&parsed.name, parsed.absolute), (&target.name, target.absolute));
            // What people are shown is not looked at.
            for len in 0..FIXED + 2 * target.name.len() {
                assert!(parse(&data[..len]).is_err(), "{len}");
            }
        }
        for wrong in ["", "\\rooted", "\\??\\C:\\x"] {
            assert_eq!(
                parse(&names(&relative(wrong))).err(),
                Some(status::IO_REPARSE_DATA_INVALID),
                "{wrong}"
            );
        }
        // As Linux writes them.
        assert_eq!(parse(&names(&relative("../a b"))).unwrap().name, "..\\a b");
        assert_eq!(parse(&names(&relative("/etc/passwd"))).err(), Some(NtStatus::ACCESS_DENIED));
    }
}
