//! A request on an open, from its arrival to its answer.
//!
//! Spec: [MS-SMB2] 3.3.5.2.10, 3.3.4.1 (counting answers).

use std::sync::Arc;

use weft_wire::smb2::header::Flags;
use weft_wire::smb2::{Command, Dialect, Header, NtStatus};

use super::channel_sequence::Entry;
use super::opens::Open;

/// Counts a request as outstanding on an open until dropped.
pub(crate) struct Outstanding {
    open: Arc<Open>,
    sequence: u16,
}

impl Outstanding {
    /// Counts a request. `Ok(None)`: it is not counted. STATUS_FILE_NOT_AVAILABLE: it must not be carried out.
    pub(in crate::server) fn enter(
        open: &Arc<Open>,
        dialect: Dialect,
        header: &Header,
    ) -> Result<Option<Outstanding>, NtStatus> {
        if dialect < Dialect::V3_0 {
            return Ok(None);
        }
        let sequence = header.channel_sequence();
        let replay = header.flags.contains(Flags::REPLAY_OPERATION);
        match open.sequence.count(sequence, replay) {
            Entry::Counted => Ok(Some(Outstanding { open: open.clone(), sequence })),
            Entry::Stale => match header.command {
                Command::Write | Command::SetInfo | Command::Ioctl => Err(NtStatus::FILE_NOT_AVAILABLE),
                _ => Ok(None),
            },
        }
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.open.sequence.answered(self.sequence);
    }
}
