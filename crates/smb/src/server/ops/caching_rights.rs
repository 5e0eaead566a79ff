//! Caching rights in SMB's terms: lease states and oplock levels.
//!
//! Spec: [MS-SMB2] 2.2.13.2.8 (lease states), 2.2.13 (oplock levels); [MS-FSA] 2.1.5.18.

use weft_store::opens::Caching as Rights;
use weft_wire::smb2::create::OplockLevel;
use weft_wire::smb2::create_context::LeaseState;

/// A lease state as rights. An illegal combination counts as none ([MS-FSA] 2.1.5.18).
pub(super) fn rights_of(state: LeaseState) -> Rights {
    let rights = Rights {
        read: state.contains(LeaseState::READ_CACHING),
        write: state.contains(LeaseState::WRITE_CACHING),
        handle: state.contains(LeaseState::HANDLE_CACHING),
    };
    if rights.read { rights } else { Rights::NONE }
}

/// Rights as a lease state.
pub(super) fn state_of(rights: Rights) -> LeaseState {
    let mut state = LeaseState::NONE;
    if rights.read {
        state |= LeaseState::READ_CACHING;
    }
    if rights.write {
        state |= LeaseState::WRITE_CACHING;
    }
    if rights.handle {
        state |= LeaseState::HANDLE_CACHING;
    }
    state
}

/// The level of an oplock with these rights.
pub(super) fn level_of(rights: Rights) -> OplockLevel {
    match rights {
        Rights { write: true, handle: true, .. } => OplockLevel::BATCH,
        Rights { write: true, .. } => OplockLevel::EXCLUSIVE,
        Rights { read: true, .. } => OplockLevel::II,
        _ => OplockLevel::NONE,
    }
}
