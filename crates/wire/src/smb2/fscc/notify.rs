//! Changes in a directory ([MS-FSCC] 2.7.1), reported by CHANGE_NOTIFY.

use crate::smb2::field::{Put, Reader, chained, codes, len32, pad, patch_u32, since};
use crate::smb2::{Malformed, utf16};

codes! {
    /// The kind of a change.
    Action: u32 {
        /// The name was added.
        ADDED = 1;
        /// The name was removed.
        REMOVED = 2;
        /// Content or attributes changed.
        MODIFIED = 3;
        /// The old name of a rename.
        RENAMED_OLD_NAME = 4;
        /// The new name of a rename.
        RENAMED_NEW_NAME = 5;
        /// A stream was added.
        ADDED_STREAM = 6;
        /// A stream was removed.
        REMOVED_STREAM = 7;
        /// A stream's content changed.
        MODIFIED_STREAM = 8;
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The kind.
    pub action: Action,
    /// The name, relative to the watched directory.
    pub name: String,
}

impl Change {
    const NAME_AT: usize = 12;

    /// Parses a list.
    pub fn parse_list(bytes: &[u8]) -> Result<Vec<Change>, Malformed> {
        let mut changes = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut r = Reader::new(rest);
            let next = r.u32()? as usize;
            let action = Action(r.u32()?);
            let len = r.u32()? as usize;
            changes.push(Change { action, name: utf16::decode_lossy(r.take(len)?)? });
            rest = chained(rest, next, Change::NAME_AT, "change entry")?;
        }
        Ok(changes)
    }

    /// Appends a list; each entry is 4-byte aligned.
    pub fn emit_list(changes: &[Change], out: &mut Vec<u8>) {
        let start = out.len();
        let mut changes = changes.iter().peekable();
        while let Some(change) = changes.next() {
            let at = out.len();
            out.put_u32(0);
            out.put_u32(change.action.0);
            out.put_u32(len32(utf16::encoded_len(&change.name)));
            utf16::encode(&change.name, out);
            if changes.peek().is_some() {
                pad(out, start, 4);
                let next = len32(since(out, at));
                patch_u32(out, at, next);
            }
        }
    }
}
