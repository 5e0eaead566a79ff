//! Whom and what a request concerns, by ids, for the flight recorder (`weft_machine::recorder`): most requests are fast, and
//! nobody asks for the names.

use weft_wire::smb2::FileId;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Concerned {
    pub session_id: u64,
    pub tree_id: u32,
    /// As far as it is known.
    pub file: Option<FileId>,
}
