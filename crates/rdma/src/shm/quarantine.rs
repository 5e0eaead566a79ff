//! Memory that a stopped peer may still write: kept from reuse until the peer is known to be gone.
//!
//! What: a peer that was stopped (a debugger, a frozen container) in the middle of a copy holds up neither us nor the
//! buffers' safety: its connection is given up, and what it could reach waits here.
//! Owns: that memory, and a descriptor of the connection's socket, whose hang-up frees them.
//! Does not: wake up by itself; it is swept when connections come and go.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use weft_machine::shm::Socket;

use super::message::MAX_MESSAGE;
use super::regions::Held;

/// Messages thrown away in one sweep; more than a socket holds.
const MAX_UNREAD: usize = 1024;

struct Kept {
    socket: Socket,
    _held: Vec<Held>,
}

/// Bounded by the connections that were given up and whose peers have not died: each is a stopped process.
static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// Keeps `held` until the peer of `socket` hangs up.
pub(super) fn keep(socket: &Socket, held: Vec<Held>) {
    tracing::warn!(buffers = held.len(), "a shared memory peer is stopped inside our memory: giving it up");
    match socket.as_fd().try_clone_to_owned() {
        Ok(fd) => {
            let kept = Kept { socket: Socket::from_connected(fd), _held: held };
            KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
        }
        // Without a descriptor nobody can tell when the peer is gone: the memory is never used again.
        Err(e) => {
            tracing::error!("no descriptor to watch that peer, its memory stays lost: {e}");
            std::mem::forget(held);
        }
    }
    sweep();
}

/// Frees what can be freed.
pub(super) fn sweep() {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).retain(|kept| {
        discard(&kept.socket);
        !kept.socket.hung_up()
    });
}

/// Throws away what the peer has said and nobody will read: it may have passed its own end of the socket, which then
/// stays open as long as the message lies here, whether the peer lives or not.
fn discard(socket: &Socket) {
    for _ in 0..MAX_UNREAD {
        match socket.try_recv(&mut [0; MAX_MESSAGE]) {
            Ok(received) if received.len > 0 => {}
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {}
            _ => return,
        }
    }
}

/// Connections whose memory is kept.
#[cfg(test)]
pub(super) fn kept() -> usize {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).len()
}
