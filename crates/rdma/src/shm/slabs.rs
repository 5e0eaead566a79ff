//! Tracks which slabs of payload memory each side has shared with the other.
//!
//! A slab is passed over the socket when first needed, before any receive buffer or region names it; when the other
//! side meets the name, the slab is already in its socket. This file owns the mappings of the peer's slabs. It does not
//! limit how many buffers a peer uses in them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use weft_machine::shm::{Socket, adopt};
use weft_machine::{Pool, Window};

use super::message::Message;

/// Slabs that a peer may pass: 64 GiB of 64 MiB slabs.
const MAX_SLABS: usize = 1024;
/// The longest slab, in bytes.
const MAX_SLAB_BYTES: usize = 1 << 30;

/// Puts `value` at `index < MAX_SLABS`; new entries below it count as never passed.
fn put<T: Clone + Default>(table: &mut Vec<T>, index: usize, value: T) {
    if table.len() <= index {
        table.resize(index.saturating_add(1), T::default());
    }
    if let Some(slot) = table.get_mut(index) {
        *slot = value;
    }
}

/// The slabs of ours that the peer has been given.
#[derive(Default)]
pub(super) struct Announced(Vec<bool>);

impl Announced {
    /// Ensures that the peer can map slab `number` of `pool`.
    pub(super) fn ensure(&mut self, number: u32, pool: &Pool, socket: &Socket) -> io::Result<()> {
        let index = number as usize;
        if self.0.get(index) == Some(&true) {
            return Ok(());
        }
        let slab = pool.slab(number).filter(|_| index < MAX_SLABS).ok_or(io::ErrorKind::OutOfMemory)?;
        socket.send(&Message::Slab { number }.emit(), &[slab.as_fd()])?;
        put(&mut self.0, index, true);
        Ok(())
    }
}

/// The peer's slabs, mapped here.
#[derive(Default)]
pub(super) struct PeerSlabs(Vec<Option<Window>>);

impl PeerSlabs {
    /// Maps a slab passed by the peer.
    pub(super) fn add(&mut self, number: u32, fd: OwnedFd) -> Result<(), &'static str> {
        let index = number as usize;
        if index >= MAX_SLABS || matches!(self.0.get(index), Some(Some(_))) {
            return Err("slab number out of range or passed twice");
        }
        let mapping = adopt(fd, 1, MAX_SLAB_BYTES).map_err(|e| {
            tracing::debug!("slab {number} of the peer: {e}");
            "unusable slab"
        })?;
        put(&mut self.0, index, Some(Window::over(Arc::new(mapping))));
        Ok(())
    }

    /// All of slab `number`.
    pub(super) fn slab(&self, number: u32) -> Option<&Window> {
        self.0.get(number as usize)?.as_ref()
    }
}
