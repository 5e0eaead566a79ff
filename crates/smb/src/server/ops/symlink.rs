//! Symbolic links: what a client learns about one, and making one. The client may follow it, the server never does.
//!
//! Spec: [MS-SMB2] 2.2.2.2.1 (error data of STATUS_STOPPED_ON_SYMLINK), [MS-FSCC] 2.1.2.4 (reparse data), [MS-FSA]
//! 2.1.5.10.37 (FSCTL_SET_REPARSE_POINT). Owns: nothing.
//! Does not: give away absolute targets of Unix: they name places of this host, not of the share (2.2.2.2.1 says not to);
//! the client then learns only that the name is a link. Other reparse points than links are refused.
//!
//! A relative link of a client is one for everybody, NFS clients and programs of this host too. An absolute one
//! (`\??\UNC\server\share\path`) is kept as it is written: to Unix it leads nowhere, and SMB clients get it back. A
//! target that ends in a separator is that of a link to a directory.

use weft_store::vfs::{Error, Exists, Kind, Make, NodeId, SetAttr, Vfs};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::error::{self, ERROR_ID_DEFAULT, ErrorContext};
use weft_wire::smb2::{Dialect, NtStatus, utf16};

use super::ioctl::Output;
use super::opens::Open;
use super::{path, status};
use crate::server::context::Failure;

/// IO_REPARSE_TAG_SYMLINK.
pub(super) const REPARSE_TAG: u32 = 0xA000_000C;
const ERROR_TAG: u32 = 0x4C4D_5953;
const FLAG_RELATIVE: u32 = 1;
/// How Windows begins an absolute target.
const ABSOLUTE: &str = "\\??\\";
/// The most reparse data ([MS-FSA] 2.1.5.10.37).
const MAX_DATA: usize = 16_384;
/// What says so: ReparseTag, ReparseDataLength, Reserved; then offsets, lengths and flags.
const HEAD: usize = 8;
const FIXED: usize = 12;

/// Where a link leads, as SMB writes paths.
struct Target {
    name: String,
    absolute: bool,
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
    let names: Option<Vec<_>> = target.split(|&b| b == b'/').map(path::from_store).collect();
    Ok(names.map(|names| Target { name: names.join("\\"), absolute: false }))
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

/// The failure of a CREATE whose path goes through the link `node`; `rest` is what follows it in the path.
pub(super) async fn stopped(vfs: &Vfs, node: NodeId, rest: &[Vec<u8>]) -> Failure {
    let mut failure = Failure::from(NtStatus::STOPPED_ON_SYMLINK);
    match target(vfs, node).await {
        Ok(Some(target)) => failure.data = error::Response::Plain(error_data(&target, rest).into()),
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
    let unparsed: usize =
        rest.iter().map(|name| 2 + path::from_store(name).map_or(0, |name| utf16::encoded_len(&name))).sum();
    let names = names(target);
    let len = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_le_bytes();
    let mut data = Vec::with_capacity(16 + names.len());
    data.extend((12 + names.len() as u32).to_le_bytes());
    data.extend(ERROR_TAG.to_le_bytes());
    data.extend(REPARSE_TAG.to_le_bytes());
    data.extend(len(names.len()));
    data.extend(len(unparsed));
    data.extend(names);
    data
}

/// The answer to FSCTL_GET_REPARSE_POINT; `None` for an absolute target of Unix.
pub(super) async fn reparse_data(vfs: &Vfs, node: NodeId) -> Result<Option<Vec<u8>>, Error> {
    let Some(target) = target(vfs, node).await? else { return Ok(None) };
    let names = names(&target);
    let mut data = REPARSE_TAG.to_le_bytes().to_vec();
    data.extend(u16::try_from(names.len()).unwrap_or(u16::MAX).to_le_bytes());
    data.extend([0, 0]);
    data.extend(names);
    Ok(Some(data))
}

/// FSCTL_SET_REPARSE_POINT: an empty file or directory becomes a link.
pub(super) async fn set(open: &Open, input: &[u8]) -> Result<Output, Failure> {
    open.require_any(AccessMask::FILE_WRITE_DATA | AccessMask::FILE_WRITE_ATTRIBUTES)?;
    let vfs = &open.vfs;
    if open.node == NodeId::ROOT {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if vfs.stream_of(open.node).is_some() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let wish = parse(input)?;
    let attr = vfs.getattr(open.node).await?;
    match attr.kind {
        Kind::Dir if !vfs.readdir(open.node, 0, 1).await?.0.is_empty() => {
            return Err(NtStatus::DIRECTORY_NOT_EMPTY.into());
        }
        Kind::File if attr.size > 0 => return Err(status::IO_REPARSE_DATA_INVALID.into()),
        Kind::Special(_) => return Err(NtStatus::NOT_SUPPORTED.into()),
        Kind::File | Kind::Dir | Kind::Symlink => {}
    }
    let to_directory = match attr.kind {
        Kind::Symlink => is_to_directory(vfs, open.node).await?,
        kind => kind == Kind::Dir,
    };
    let (dir, name) = open.place().await?;
    let target = to_store(vfs, &wish, dir, to_directory).await?;
    match attr.kind {
        Kind::Dir => vfs.rmdir(dir, &name).await?,
        _ => vfs.remove(dir, &name).await?,
    }
    let make = Make::Symlink(target);
    match vfs.create(dir, &name, make, Exists::Fail, SetAttr::default()).await {
        Ok(_) => Ok(Output::default()),
        Err(e) => {
            // A file system without links: what was there comes back as empty as it was.
            let make = if attr.kind == Kind::Dir { Make::Dir } else { Make::File };
            if let Err(e) = vfs.create(dir, &name, make, Exists::Fail, SetAttr::default()).await {
                tracing::warn!("an empty file that should become a link is lost: {e}");
            }
            Err(e.into())
        }
    }
}

/// FSCTL_DELETE_REPARSE_POINT ([MS-FSA] 2.1.5.10.3): a link becomes an empty file or directory.
pub(super) async fn delete(open: &Open, input: &[u8]) -> Result<Output, Failure> {
    open.require_any(AccessMask::FILE_WRITE_DATA | AccessMask::FILE_WRITE_ATTRIBUTES)?;
    let Some((tag, _)) = input.split_first_chunk::<4>().filter(|_| input.len() >= HEAD) else {
        return Err(status::IO_REPARSE_DATA_INVALID.into());
    };
    let tag = u32::from_le_bytes(*tag);
    if tag <= 1 {
        // Reserved.
        return Err(status::IO_REPARSE_TAG_INVALID.into());
    }
    if open.kind != Kind::Symlink {
        return Err(NtStatus::NOT_A_REPARSE_POINT.into());
    }
    if tag != REPARSE_TAG {
        return Err(status::IO_REPARSE_TAG_MISMATCH.into());
    }
    let vfs = &open.vfs;
    let make = if is_to_directory(vfs, open.node).await? { Make::Dir } else { Make::File };
    let (dir, name) = open.place().await?;
    vfs.remove(dir, &name).await?;
    vfs.create(dir, &name, make, Exists::Fail, SetAttr::default()).await?;
    Ok(Output::default())
}

/// The target that reparse data names.
fn parse(input: &[u8]) -> Result<Target, NtStatus> {
    let invalid = status::IO_REPARSE_DATA_INVALID;
    let u16_at = |at: usize| {
        input.get(at..at + 2).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]]))).ok_or(invalid)
    };
    if !(HEAD..=MAX_DATA).contains(&input.len()) || u16_at(4)? != input.len() - HEAD {
        return Err(invalid);
    }
    if input[..4] != REPARSE_TAG.to_le_bytes() {
        return Err(status::IO_REPARSE_TAG_INVALID);
    }
    let (offset, len) = (u16_at(HEAD)?, u16_at(HEAD + 2)?);
    let relative = u16_at(HEAD + 8)? as u32 & FLAG_RELATIVE != 0;
    let name = input.get(HEAD + FIXED + offset..).and_then(|rest| rest.get(..len)).ok_or(invalid)?;
    let name = utf16::decode(name).map_err(|_| invalid)?;
    match (relative, name.starts_with(ABSOLUTE)) {
        _ if name.is_empty() || name.contains('\0') => Err(invalid),
        (true, false) if !name.starts_with('\\') => Ok(Target { name, absolute: false }),
        (false, true) => Ok(Target { name, absolute: true }),
        // From the root of the volume, which is not the share's: it could not be told what it means.
        _ => Err(invalid),
    }
}

/// A target as the store keeps it. One that leads out of the share is refused: who follows it on this host would find
/// what is not the client's.
async fn to_store(vfs: &Vfs, target: &Target, dir: NodeId, to_directory: bool) -> Result<Vec<u8>, Failure> {
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
            ".." if below > 0 => below -= 1,
            ".." if at == NodeId::ROOT => return Err(NtStatus::ACCESS_DENIED.into()),
            ".." => at = vfs.place(at).await?.0,
            _ => below += 1,
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

    fn data(target: &Target) -> Vec<u8> {
        let names = names(target);
        let mut data = REPARSE_TAG.to_le_bytes().to_vec();
        data.extend((names.len() as u16).to_le_bytes());
        data.extend([0, 0]);
        data.extend(names);
        data
    }

    #[test]
    fn reparse_data_comes_back_and_no_part_of_it_does() {
        let absolute = Target { name: "\\??\\UNC\\server\\share\\f".into(), absolute: true };
        for target in [relative("..\\a b"), absolute] {
            let data = data(&target);
            let parsed = parse(&data).unwrap();
            assert_eq!((parsed.name, parsed.absolute), (target.name, target.absolute));
            for len in 0..data.len() {
                assert!(parse(&data[..len]).is_err(), "{len}");
            }
        }
        for wrong in ["", "\\rooted", "\\??\\C:\\x"] {
            assert_eq!(
                parse(&data(&relative(wrong))).err(),
                Some(status::IO_REPARSE_DATA_INVALID),
                "{wrong}"
            );
        }
        let mut other = data(&relative("x"));
        other[0] = 3;
        assert_eq!(parse(&other).err(), Some(status::IO_REPARSE_TAG_INVALID));
    }
}
