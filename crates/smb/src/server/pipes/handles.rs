//! The handles that an association has given out, and what each of them refers to.
//!
//! Each interface that has handles uses the same ones. A handle is valid only on its own pipe, and ends with it.

use weft_wire::dcerpc::FaultStatus;
use weft_wire::dcerpc::ndr::Handle;
use weft_wire::smb2::fscc::security::Sid;

/// Handles of one association.
const MAX_HANDLES: usize = 256;

/// The object that a handle refers to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Object {
    /// A policy of the local security authority.
    Policy,
    /// The account manager.
    SamServer,
    /// One of its domains.
    Domain(Sid),
    /// A user of the host's domain, by relative id.
    User(u32),
    /// The group of all users.
    Everybody,
}

/// The open handles.
#[derive(Default)]
pub(super) struct Handles {
    serial: u32,
    open: Vec<(u32, Object)>,
}

impl Handles {
    /// Opens a handle.
    pub fn open(&mut self, object: Object) -> Result<Handle, FaultStatus> {
        if self.open.len() >= MAX_HANDLES {
            return Err(FaultStatus::NO_MEMORY);
        }
        // All zeros mean a closed handle.
        self.serial = self.serial.wrapping_add(1).max(1);
        self.open.push((self.serial, object));
        let mut handle = Handle::default();
        handle.0[4..8].copy_from_slice(&self.serial.to_le_bytes());
        // The rest of the UUID is the same for all: a handle is valid only on its own pipe.
        handle.0[12..20].copy_from_slice(b"weft rpc");
        Ok(handle)
    }

    /// The object of a handle.
    pub fn find(&self, handle: Handle) -> Result<&Object, FaultStatus> {
        let object = self.open.iter().find(|(serial, _)| is(handle, *serial)).map(|(_, object)| object);
        object.ok_or(FaultStatus::CONTEXT_MISMATCH)
    }

    /// Closes a handle.
    pub fn close(&mut self, handle: Handle) -> Result<(), FaultStatus> {
        let at = self.open.iter().position(|(serial, _)| is(handle, *serial));
        self.open.swap_remove(at.ok_or(FaultStatus::CONTEXT_MISMATCH)?);
        Ok(())
    }
}

fn is(handle: Handle, serial: u32) -> bool {
    handle.0[..4] == [0; 4] && handle.0[4..8] == serial.to_le_bytes() && handle.0[12..20] == *b"weft rpc"
}
