//! Operations: one file per command.

use super::context::{Answer, OpContext};

/// Open table of a session.
#[derive(Default)]
pub(crate) struct Opens;

impl Opens {
    /// Ends the opens of one tree, delete-on-close included.
    pub(crate) async fn close_tree(&self, _tree: u32) {}

    /// Ends every open.
    pub(crate) async fn close_all(&self) {}
}

/// Carries out CREATE to SET_INFO and IOCTL.
pub(crate) async fn dispatch(_cx: &OpContext) -> Answer {
    Err(weft_wire::smb2::NtStatus::NOT_IMPLEMENTED.into())
}
