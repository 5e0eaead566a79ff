//! Symbolic links: converts their targets between SMB and the store. Clients may follow links, the server never does.
//!
//! Spec: [MS-SMB2] 2.2.2.2.1 (error data of STATUS_STOPPED_ON_SYMLINK), [MS-FSCC] 2.1.2.4 (reparse data). Absolute Unix
//! targets are not revealed: they name paths on this host, not in the share (2.2.2.2.1 forbids it); the client then
//! learns only that the name is a link. Links are created in [`super::reparse`].
//!
//! A relative link that a client creates works for everybody, including NFS clients and local programs. An absolute one
//! (`\??\UNC\server\share\path`) is stored as written: it dangles on Unix, and SMB clients get it back. A target that
//! ends in a separator marks a link to a directory.

use weft_store::vfs::{Error, NodeId, Vfs};
use weft_wire::smb2::error::{self, ERROR_ID_DEFAULT, ErrorContext};
use weft_wire::smb2::{Dialect, NtStatus, reparse, utf16};

use super::{path, status};
use crate::server::answer::Failure;

const ERROR_TAG: u32 = 0x4C4D_5953;
const FLAG_RELATIVE: u32 = 1;
/// The prefix of Windows' absolute targets.
const ABSOLUTE: &str = "\\??\\";
/// Offsets, lengths and flags.
const FIXED: usize = 12;

/// The target of a link, in SMB's notation.
pub(super) struct Target {
    name: String,
    absolute: bool,
}

impl Target {
    /// With the separators that a POSIX client expects, or SMB's.
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

/// The target of a link; `None` if it must not be revealed.
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

/// Whether a link was created as a link to a directory.
pub(super) async fn is_to_directory(vfs: &Vfs, node: NodeId) -> Result<bool, Error> {
    Ok(matches!(vfs.readlink(node).await?.last(), Some(b'/' | b'\\')))
}

/// SubstituteNameOffset to PathBuffer: the part that both structures share.
fn names(target: &Target) -> Vec<u8> {
    let mut out = Vec::new();
    // The print name: `\??\UNC\server` becomes `\\server`, `\??\C:` becomes `C:`.
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

/// The failure of a CREATE whose path goes through the link `node`; `rest` is the remainder of the path. With `posix`
/// the target has `/` between its names.
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

/// In dialect 3.1.1 error data is in a context (2.2.2); no other operation that resolves paths returns any.
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

/// The reparse data of a link; `None` for an absolute Unix target. For `posix` see [`stopped`].
pub(super) async fn reparse_data(vfs: &Vfs, node: NodeId, posix: bool) -> Result<Option<Vec<u8>>, Error> {
    Ok(target(vfs, node).await?.map(|target| names(&target.separated(posix))))
}

/// Parses the target from reparse data.
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

/// A target as a client writes it. Unix clients write `/` between names.
pub(super) fn from_client(name: String, relative: bool) -> Result<Target, NtStatus> {
    let invalid = status::IO_REPARSE_DATA_INVALID;
    if name.starts_with('/') {
        // It leaves the share, wherever that is.
        return Err(NtStatus::ACCESS_DENIED);
    }
    let name = if relative { name.replace('/', "\\") } else { name };
    match (relative, name.starts_with(ABSOLUTE)) {
        _ if name.is_empty() || name.contains('\0') => Err(invalid),
        (true, false) if !name.starts_with('\\') => Ok(Target { name, absolute: false }),
        (false, true) => Ok(Target { name, absolute: true }),
        // Linux writes absolute targets like this.
        (false, false) => Err(NtStatus::ACCESS_DENIED),
        // Relative to the volume's root, which is not the share's: its meaning would be unclear.
        _ => Err(invalid),
    }
}

/// A target in the store's notation. One that leaves the share is refused: a local program that follows it would reach
/// files that are not the client's.
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
    // Number of names below the directory that the leading `..` components reach.
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
            // The print name is ignored.
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
        // Linux writes them like this.
        assert_eq!(parse(&names(&relative("../a b"))).unwrap().name, "..\\a b");
        assert_eq!(parse(&names(&relative("/etc/passwd"))).err(), Some(NtStatus::ACCESS_DENIED));
    }
}
