//! The result of a control code.

use weft_wire::smb2::NtStatus;

/// The result of a control: its bytes, and a status if that is not success but still carries bytes.
pub(super) struct Output {
    pub(super) status: NtStatus,
    pub(super) bytes: Vec<u8>,
}

impl Default for Output {
    fn default() -> Output {
        Vec::new().into()
    }
}

impl From<Vec<u8>> for Output {
    fn from(bytes: Vec<u8>) -> Output {
        Output { status: NtStatus::SUCCESS, bytes }
    }
}
