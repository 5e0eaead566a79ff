//! Memory that a stopped peer may still write: kept from reuse until the peer is known to be gone.
//!
//! What: a peer that was stopped (a debugger, a frozen container) in the middle of a copy holds up neither us nor the
//! buffers' safety: its connection is given up, and what it could reach waits here.
//! Owns: those windows, and a descriptor of the connection's socket, whose hang-up frees them.
//! Does not: wake up by itself; it is swept when connections come and go.

use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use weft_machine::Window;
use weft_machine::shm::Socket;

struct Kept {
    socket: Socket,
    _windows: Vec<Window>,
}

/// Bounded by the connections that were given up and whose peers have not died: each is a stopped process.
static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// Keeps `windows` until the peer of `socket` hangs up.
pub(super) fn keep(socket: &Socket, windows: Vec<Window>) {
    tracing::warn!(
        buffers = windows.len(),
        "a shared memory peer is stopped inside our memory: giving it up"
    );
    match socket.as_fd().try_clone_to_owned() {
        Ok(fd) => {
            let kept = Kept { socket: Socket::from_connected(fd), _windows: windows };
            KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
        }
        // Without a descriptor nobody can tell when the peer is gone: the memory is never used again.
        Err(e) => {
            tracing::error!("no descriptor to watch that peer, its memory stays lost: {e}");
            std::mem::forget(windows);
        }
    }
    sweep();
}

/// Frees what can be freed.
pub(super) fn sweep() {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).retain(|kept| !kept.socket.hung_up());
}

/// Connections whose memory is kept.
#[cfg(test)]
pub(super) fn kept() -> usize {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).len()
}
