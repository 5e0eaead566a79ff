//! The extended attributes of one node of a memory disk.
//!
//! Their space is charged to the share. Limits: those of Linux for a value and for the list of names; the share's
//! space for all. Only the attributes shown in listings are interpreted.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::quota::Usage;
use crate::vfs::{Dos, Error, MAX_XATTR_VALUE, OWN_XATTRS, STREAM_XATTRS, SetXattr, XattrSummary};

/// Maximum total bytes of the names of one node (Linux's XATTR_LIST_MAX).
const MAX_NAMES_BYTES: usize = 65_536;

/// Names and values.
#[derive(Default)]
pub(super) struct Xattrs {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    names_bytes: usize,
    /// The bytes of names and values charged to the share.
    charged: Option<(Arc<Usage>, u64)>,
}

impl Xattrs {
    pub(super) fn get(&self, name: &[u8]) -> Result<Vec<u8>, Error> {
        self.values.get(name).cloned().ok_or(Error::NoXattr)
    }

    pub(super) fn names(&self) -> Vec<Vec<u8>> {
        self.values.keys().cloned().collect()
    }

    pub(super) fn set(
        &mut self,
        name: Vec<u8>,
        value: Vec<u8>,
        how: SetXattr,
        usage: &Arc<Usage>,
    ) -> Result<(), Error> {
        let old = self.values.get(&name);
        match (how, old) {
            (SetXattr::Create, Some(_)) => return Err(Error::Exists),
            (SetXattr::Replace, None) => return Err(Error::NoXattr),
            _ => {}
        }
        let names_bytes = if old.is_some() { self.names_bytes } else { self.names_bytes + name.len() + 1 };
        if value.len() > MAX_XATTR_VALUE || names_bytes > MAX_NAMES_BYTES {
            return Err(Error::XattrTooBig);
        }
        let before = old.map_or(0, |old| name.len() + old.len()) as u64;
        let after = (name.len() + value.len()) as u64;
        usage.take(after)?;
        usage.give(before);
        let (_, charged) = self.charged.get_or_insert_with(|| (usage.clone(), 0));
        *charged = *charged + after - before;
        self.names_bytes = names_bytes;
        self.values.insert(name, value);
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Result<(), Error> {
        let value = self.values.remove(name).ok_or(Error::NoXattr)?;
        self.names_bytes -= name.len() + 1;
        if let Some((usage, charged)) = &mut self.charged {
            let bytes = (name.len() + value.len()) as u64;
            usage.give(bytes);
            *charged -= bytes;
        }
        Ok(())
    }

    pub(super) fn summary(&self) -> XattrSummary {
        let shown = || self.values.iter().filter(|(name, _)| !name.starts_with(OWN_XATTRS));
        XattrSummary {
            dos: self.values.get(crate::vfs::DOS_XATTR).and_then(|value| Dos::parse(value)),
            count: u32::try_from(shown().count()).unwrap_or(u32::MAX),
            // Bounded by the limits on names and by the share's space.
            bytes: u32::try_from(shown().map(|(name, value)| name.len() + value.len()).sum::<usize>())
                .unwrap_or(u32::MAX),
            streams: self.values.keys().any(|name| name.starts_with(STREAM_XATTRS)),
        }
    }
}

impl Drop for Xattrs {
    fn drop(&mut self) {
        if let Some((usage, charged)) = &self.charged {
            usage.give(*charged);
        }
    }
}
