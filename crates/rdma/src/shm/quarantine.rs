//! Memory that a stopped peer may still write, kept from reuse until the peer is known to be gone.
//!
//! A peer stopped in the middle of a copy (by a debugger, in a frozen container) must neither hold us up nor write into
//! reused buffers: its connection is given up, and the memory that it could reach waits here. Each entry keeps that
//! memory, and a descriptor of the connection's socket, whose hang-up frees it. The quarantine has no timer; it is
//! swept when connections are made and end.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use weft_machine::shm::Socket;

use super::message::MAX_MESSAGE;
use super::regions::Held;

/// Messages discarded in one sweep; more than a socket holds.
const MAX_UNREAD: usize = 1024;

struct Kept {
    socket: Socket,
    _held: Vec<Held>,
}

/// Bounded by the number of given-up connections whose peer has not died: each is a stopped process.
static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// Keeps `held` until the peer of `socket` hangs up.
pub(super) fn keep(socket: &Socket, held: Vec<Held>) {
    tracing::warn!(
        buffers = held.len(),
        "a shared memory peer is stopped inside our memory: giving up its connection"
    );
    match socket.as_fd().try_clone_to_owned() {
        Ok(fd) => {
            let kept = Kept { socket: Socket::from_connected(fd), _held: held };
            KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
        }
        // Without a descriptor nobody can tell when the peer is gone, so the memory is never used again.
        Err(e) => {
            tracing::error!("no descriptor to watch that peer; its memory stays reserved: {e}");
            std::mem::forget(held);
        }
    }
    sweep();
}

/// Frees the memory of peers that are gone.
pub(super) fn sweep() {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).retain(|kept| {
        discard(&kept.socket);
        !kept.socket.hung_up()
    });
}

/// Discards unread messages of the peer: one may carry the peer's own end of the socket, which would stay open as long
/// as the message lies here, whether the peer lives or not.
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
