//! Extended attributes of files.
//!
//! Spec: [MS-FSA] 2.1.5.12.10 (query), 2.1.5.15.6 (set); [MS-FSCC] 2.4.16.
//! These are the `user.` extended attributes that Linux programs and NFS also see, under the same names; SMB ignores
//! their case. Weft's own attributes are hidden, and the flag FILE_NEED_EA is not kept.

use weft_store::vfs::{Error, MAX_XATTR_NAME, NodeId, OWN_XATTRS, SetXattr, Vfs};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::fscc::ea::{FullEa, parse_names};

use crate::server::answer::Failure;

/// All names but those of weft's own attributes.
async fn foreign(vfs: &Vfs, node: NodeId) -> Result<Vec<Vec<u8>>, Error> {
    let mut names = vfs.list_xattrs(node).await?;
    names.retain(|name| !name.starts_with(OWN_XATTRS));
    Ok(names)
}

/// All attributes of a file, whatever their names; none on a file system without them.
pub(super) async fn all(vfs: &Vfs, node: NodeId) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
    let names = match foreign(vfs, node).await {
        Err(Error::NotSupported) => return Ok(Vec::new()),
        names => names?,
    };
    let mut all = Vec::new();
    for name in names {
        match vfs.get_xattr(node, &name).await {
            Ok(value) => all.push((name, value)),
            // Removed meanwhile.
            Err(Error::NoXattr) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// The visible names, as the store spells them.
async fn names(vfs: &Vfs, node: NodeId) -> Result<Vec<Vec<u8>>, Failure> {
    let mut names = foreign(vfs, node).await?;
    names.retain(|name| name.is_ascii());
    names.sort_unstable();
    Ok(names)
}

/// Whether a file or directory has any.
pub(super) async fn has_any(vfs: &Vfs, node: NodeId) -> Result<bool, Failure> {
    match foreign(vfs, node).await {
        Ok(names) => Ok(!names.is_empty()),
        // A file system without them.
        Err(Error::NotSupported) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Lists a file's attributes: all, or those that `asked` names; missing ones have no value.
pub(super) async fn list(vfs: &Vfs, node: NodeId, asked: &[u8]) -> Result<Vec<FullEa>, Failure> {
    let asked = parse_names(asked).map_err(|_| NtStatus::EA_LIST_INCONSISTENT)?;
    let names = names(vfs, node).await?;
    let mut list = Vec::new();
    let value = async |name: &[u8]| match vfs.get_xattr(node, name).await {
        // Removed meanwhile, or longer than SMB can express.
        Ok(value) if u16::try_from(value.len()).is_ok() => Ok(value),
        Ok(_) | Err(Error::NoXattr) => Ok(Vec::new()),
        Err(e) => Err(Failure::from(e)),
    };
    if asked.is_empty() {
        for name in names {
            let value = value(&name).await?;
            list.push(FullEa { flags: 0, name, value });
        }
        if list.is_empty() {
            return Err(NtStatus::NO_EAS_ON_FILE.into());
        }
        return Ok(list);
    }
    for name in asked {
        check(&name)?;
        let value = match names.iter().find(|known| known.eq_ignore_ascii_case(&name)) {
            Some(known) => value(known).await?,
            None => Vec::new(),
        };
        list.push(FullEa { flags: 0, name, value });
    }
    Ok(list)
}

/// [MS-FSCC] 2.4.16: refuses names that extended attributes cannot have.
fn check(name: &[u8]) -> Result<(), NtStatus> {
    let bad = |b: &u8| !(0x20..0x7f).contains(b) || b"\\/:*?\"<>|,+=[];".contains(b);
    let ours = name.to_ascii_lowercase().starts_with(OWN_XATTRS);
    let fits = (1..=MAX_XATTR_NAME).contains(&name.len());
    if !fits || ours || name.iter().any(bad) { Err(NtStatus::INVALID_EA_NAME) } else { Ok(()) }
}

/// Parses a list to set; an error anywhere refuses the whole list.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<FullEa>, NtStatus> {
    let list = FullEa::parse_list(bytes).map_err(|_| NtStatus::EA_LIST_INCONSISTENT)?;
    list.iter().try_for_each(|ea| check(&ea.name))?;
    // [MS-FSA] 2.1.5.15.6.
    if list.iter().any(|ea| ea.flags & !FullEa::NEED_EA != 0) {
        return Err(NtStatus::INVALID_EA_NAME);
    }
    Ok(list)
}

/// Sets and removes attributes.
pub(super) async fn set(vfs: &Vfs, node: NodeId, list: &[FullEa]) -> Result<(), Failure> {
    if list.is_empty() {
        return Ok(());
    }
    let names = names(vfs, node).await?;
    for ea in list {
        let known = names.iter().find(|known| known.eq_ignore_ascii_case(&ea.name));
        let name = known.unwrap_or(&ea.name);
        let outcome = match ea.value.is_empty() {
            false => vfs.set_xattr(node, name, &ea.value, SetXattr::Either).await,
            true => match vfs.remove_xattr(node, name).await {
                Err(Error::NoXattr) => Ok(()),
                other => other,
            },
        };
        match outcome {
            Err(Error::NotSupported) => return Err(NtStatus::EAS_NOT_SUPPORTED.into()),
            Err(Error::NoSpace | Error::XattrTooBig) => return Err(NtStatus::EA_TOO_LARGE.into()),
            other => other?,
        }
    }
    Ok(())
}
