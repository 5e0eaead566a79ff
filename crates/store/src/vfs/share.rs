//! A named share. Its file system is shared; [`Rules`] decide who may use it.

use std::sync::Arc;

use weft_machine::meter::Subject;

use super::share_key::ShareKey;
use super::{ShareId, Vfs};
use crate::rules::Rules;
use crate::snapshots::Snapshots;

/// A named share.
#[derive(Clone)]
pub struct Share {
    /// The id of its name.
    pub id: ShareId,
    /// What clients call it.
    pub name: Arc<str>,
    /// Its files.
    pub vfs: Vfs,
    /// The rules for its users.
    pub rules: Rules,
    /// Its snapshots, if its host keeps any.
    pub snapshots: Option<Arc<Snapshots>>,
    /// What its operations are counted under; none, unless the share was made to be counted.
    pub meter: Subject,
}

impl Share {
    /// A share without restrictions.
    pub fn new(name: impl Into<Arc<str>>, vfs: Vfs) -> Share {
        let name = name.into();
        Share {
            id: ShareId::of_name(&name),
            name,
            vfs,
            rules: Rules::default(),
            snapshots: None,
            meter: Subject::NONE,
        }
    }

    /// What identifies it in the tables of a running server.
    pub fn key(&self) -> ShareKey {
        ShareKey { id: self.id, vfs: self.vfs.id() }
    }
}
