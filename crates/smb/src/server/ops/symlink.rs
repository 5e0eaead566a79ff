//! What a client learns about a symbolic link: it may follow it, the server never does.
//!
//! Spec: [MS-SMB2] 2.2.2.2.1 (error data of STATUS_STOPPED_ON_SYMLINK), [MS-FSCC] 2.1.2.4 (reparse data).
//! Owns: nothing. Does not: give away absolute targets: they name places of this host, not of the share (2.2.2.2.1
//! says not to); the client then learns only that the name is a link.

use weft_store::vfs::{Error, NodeId, Vfs};
use weft_wire::smb2::error::{self, ERROR_ID_DEFAULT, ErrorContext};
use weft_wire::smb2::{Dialect, NtStatus, utf16};

use super::path;
use crate::server::context::Failure;

/// IO_REPARSE_TAG_SYMLINK.
pub(super) const REPARSE_TAG: u32 = 0xA000_000C;
const ERROR_TAG: u32 = 0x4C4D_5953;
const FLAG_RELATIVE: u32 = 1;

/// The target of a link as SMB writes paths; `None` when it cannot be said.
async fn target(vfs: &Vfs, node: NodeId) -> Result<Option<String>, Error> {
    let target = vfs.readlink(node).await?;
    if target.first() == Some(&b'/') {
        return Ok(None);
    }
    let names: Option<Vec<_>> = target.split(|&b| b == b'/').map(path::from_store).collect();
    Ok(names.map(|names| names.join("\\")))
}

/// SubstituteNameOffset to PathBuffer: what both structures share.
fn names(target: &str) -> Vec<u8> {
    let mut out = Vec::new();
    // A target has at most 4,095 bytes, so its length in UTF-16 fits.
    let len = u16::try_from(utf16::encoded_len(target)).unwrap_or(u16::MAX);
    for field in [0, len, 0, len] {
        out.extend(field.to_le_bytes());
    }
    out.extend(FLAG_RELATIVE.to_le_bytes());
    utf16::encode(target, &mut out);
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

fn error_data(target: &str, rest: &[Vec<u8>]) -> Vec<u8> {
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

/// The answer to FSCTL_GET_REPARSE_POINT; `None` for an absolute target.
pub(super) async fn reparse_data(vfs: &Vfs, node: NodeId) -> Result<Option<Vec<u8>>, Error> {
    let Some(target) = target(vfs, node).await? else { return Ok(None) };
    let names = names(&target);
    let mut data = REPARSE_TAG.to_le_bytes().to_vec();
    data.extend(u16::try_from(names.len()).unwrap_or(u16::MAX).to_le_bytes());
    data.extend([0, 0]);
    data.extend(names);
    Ok(Some(data))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The relative example of [MS-SMB2] 2.2.2.2.1.1.
    #[test]
    fn the_example_of_the_specification() {
        let data =
            error_data("..\\DonHall\\Documents\\PDocs", &[b"DailyDocs".to_vec(), b"[MS-SMB].doc".to_vec()]);
        let u16_at = |at: usize| u16::from_le_bytes([data[at], data[at + 1]]);
        assert_eq!(u32::from_le_bytes(data[..4].try_into().unwrap()) as usize, data.len() - 4);
        assert_eq!(&data[4..12], b"SYML\x0c\0\0\xa0");
        assert_eq!(usize::from(u16_at(12)), data.len() - 16);
        assert_eq!(u16_at(14), 0x2e);
        assert_eq!((u16_at(16), u16_at(18)), (0, 0x34));
        assert_eq!(data[24..28], [1, 0, 0, 0]);
        assert_eq!(utf16::decode(&data[28..]).unwrap(), "..\\DonHall\\Documents\\PDocs");
    }
}
