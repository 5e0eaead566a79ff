//! Stores descriptors with their files.
//!
//! [MS-DTYP] 2.4.6 (the self-relative form). SACLs are not kept. On file systems without extended attributes, setting
//! a descriptor fails.
//!
//! Kept in the extended attribute `user.weft.security`:
//!
//! ```text
//! 0          1              4
//! | layout 1 | 0    0    0  | descriptor, self-relative |
//! ```
//! A value with another layout is not interpreted: until a new descriptor is set, nobody has access except what Unix
//! grants the owner.

use weft_wire::security::{Dacl, SecurityDescriptor};
use weft_wire::smb2::access::AccessMask;

use super::posix::{self, Process};
use super::{Token, XATTR, granted};
use crate::vfs::{Attr, Caller, Error, Kind, NodeId, SetAttr, SetXattr, Vfs};

const LAYOUT: [u8; 4] = [1, 0, 0, 0];

/// The descriptor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Who may do what.
    pub descriptor: SecurityDescriptor,
    /// Whether it was set or inherited; otherwise it was derived from permissions.
    pub stored: bool,
}

impl Guard {
    /// All rights of `token`.
    pub fn grants(&self, token: &Token) -> AccessMask {
        granted(&self.descriptor, token)
    }
}

/// The descriptor that was set or inherited; `None` if the file has only permissions.
pub async fn stored(vfs: &Vfs, attr: &Attr) -> Result<Option<SecurityDescriptor>, Error> {
    // On links and devices, users cannot set extended attributes.
    if !matches!(attr.kind, Kind::File | Kind::Dir) {
        return Ok(None);
    }
    match vfs.get_xattr(attr.node, XATTR).await {
        Ok(value) => Ok(Some(parse(&value, attr))),
        Err(Error::NoXattr | Error::NotSupported) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The descriptor that guards a file against `token`. One that was neither set nor inherited only shows the mode if the
/// kernel judges: its ACLs may grant more or less.
pub async fn look(vfs: &Vfs, attr: &Attr, token: &Token) -> Result<Guard, Error> {
    Ok(match stored(vfs, attr).await? {
        Some(descriptor) => Guard { descriptor, stored: true },
        None => {
            let descriptor = match vfs.caller() {
                Caller::Server => posix::synthesised(attr, token, Process::own()),
                Caller::User(user) => posix::of_mode(attr, token, user.uid()),
            };
            Guard { descriptor, stored: false }
        }
    })
}

fn parse(value: &[u8], attr: &Attr) -> SecurityDescriptor {
    let parsed = value.strip_prefix(&LAYOUT).and_then(|bytes| SecurityDescriptor::parse(bytes).ok());
    parsed.unwrap_or_else(|| {
        tracing::warn!(node = attr.node.0, "a security descriptor of an unknown layout: access denied");
        let owner = Some(weft_wire::security::Sid::unix_user(attr.uid));
        SecurityDescriptor { owner, dacl: Dacl::List(Vec::new()), ..SecurityDescriptor::default() }
    })
}

/// Stores a descriptor with its file.
pub(super) async fn store(vfs: &Vfs, node: NodeId, descriptor: &SecurityDescriptor) -> Result<(), Error> {
    let mut value = LAYOUT.to_vec();
    descriptor.emit(&mut value);
    vfs.set_xattr(node, XATTR, &value, SetXattr::Either).await
}

/// Stores a descriptor, and sets the permissions that come closest to it.
pub async fn keep(vfs: &Vfs, node: NodeId, descriptor: &SecurityDescriptor) -> Result<(), Error> {
    store(vfs, node, descriptor).await?;
    let attr = vfs.getattr(node).await?;
    let mode = posix::mode(descriptor, attr.mode, attr.gid);
    if mode != attr.mode {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        // The file belongs to another Unix user, whose permissions stay; the descriptor decides access over the
        // network.
        if let Err(e) = vfs.setattr(node, set).await
            && !matches!(e, Error::Access)
        {
            return Err(e);
        }
    }
    Ok(())
}
