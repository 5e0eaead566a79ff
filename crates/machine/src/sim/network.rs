//! The state of a simulated network: listeners by address, connections as two pipes.
//!
//! It owns the bytes in flight. `net` moves them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::faults::{CutHow, Faults, Side};
use crate::clock::Time;

/// The first port given to a caller that asks for any port.
const FIRST_FREE_PORT: u16 = 49152;

/// The network of a world.
#[derive(Default)]
pub(crate) struct Network {
    pub(super) faults: Faults,
    pub(super) listeners: BTreeMap<SocketAddr, Arc<Mutex<Backlog>>>,
    /// Both pipes of every connection, for cuts; ended ones are removed when a connection is made.
    pub(super) connections: Vec<[std::sync::Weak<Mutex<Pipe>>; 2]>,
    pub(super) made: u64,
    /// Bytes that went into each pipe, by its number.
    pub(super) sent: BTreeMap<u64, u64>,
    ports_given: u16,
}

impl Network {
    /// Takes out everything that holds memory or sockets; the rules and the numbering stay.
    pub(super) fn take_contents(&mut self) -> Network {
        Network {
            listeners: std::mem::take(&mut self.listeners),
            connections: std::mem::take(&mut self.connections),
            ..Network::default()
        }
    }

    /// See `Sim::bytes_sent`.
    pub(super) fn sent(&self, connection: u64, side: Side) -> u64 {
        self.sent.get(&(connection * 2 + u64::from(side == Side::Acceptor))).copied().unwrap_or(0)
    }

    pub(super) fn free_port(&mut self) -> io::Result<u16> {
        for _ in FIRST_FREE_PORT..=u16::MAX {
            let port = FIRST_FREE_PORT + self.ports_given % (u16::MAX - FIRST_FREE_PORT);
            self.ports_given = self.ports_given.wrapping_add(1);
            if self.listeners.keys().all(|addr| addr.port() != port) {
                return Ok(port);
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// The listener that a connection to `addr` reaches: that address, or the wildcard with that port.
    pub(super) fn listener(&self, addr: SocketAddr) -> Option<Arc<Mutex<Backlog>>> {
        let exact = self.listeners.get(&addr);
        let wild =
            || self.listeners.iter().find(|(at, _)| at.port() == addr.port() && at.ip().is_unspecified());
        exact.or_else(|| wild().map(|(_, backlog)| backlog)).cloned()
    }
}

/// One direction of a connection.
pub(super) struct Pipe {
    pub(super) id: u64,
    pub(super) capacity: usize,
    /// Pieces in order, each with the time at which it reaches the reader.
    pub(super) pieces: VecDeque<(Time, VecDeque<u8>)>,
    /// Bytes in `pieces`, plus those lost on a silent line: these fill the socket buffers.
    pub(super) held: usize,
    pub(super) sent: u64,
    pub(super) last_arrival: Time,
    /// When the end of the stream reaches the reader.
    pub(super) end: Option<Time>,
    /// When a reset reaches the reader.
    pub(super) reset: Option<Time>,
    /// The error for a sender from this time on.
    pub(super) send_error: Option<(Time, io::ErrorKind)>,
    /// The reader is gone: bytes are lost, and the sender gets an error.
    pub(super) deaf: bool,
    /// Nothing arrives any more.
    pub(super) silent: bool,
    /// The reader has shut down its receiving direction.
    pub(super) read_shut: bool,
    pub(super) cut: Option<(u64, CutHow)>,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
}

/// A pipe as alarms hold it.
pub(super) struct SharedPipe(pub(super) Arc<Mutex<Pipe>>);

impl SharedPipe {
    pub(super) fn wake_reader(&self) {
        let mut pipe = lock(&self.0);
        // A send error may have come into force with the same alarm.
        wake(&mut pipe.reader);
        wake(&mut pipe.writer);
    }
}

impl Pipe {
    pub(super) fn new(id: u64, capacity: usize, cut: Option<(u64, CutHow)>) -> Pipe {
        Pipe {
            id,
            capacity: capacity.max(1),
            pieces: VecDeque::new(),
            held: 0,
            sent: 0,
            last_arrival: Time::ZERO,
            end: None,
            reset: None,
            send_error: None,
            deaf: false,
            silent: false,
            read_shut: false,
            cut,
            reader: None,
            writer: None,
        }
    }
}

/// One end of a simulated connection.
pub(crate) struct Stream {
    pub(super) rx: Arc<Mutex<Pipe>>,
    pub(super) tx: Arc<Mutex<Pipe>>,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

#[derive(Default)]
pub(super) struct Backlog {
    pub(super) pending: VecDeque<Stream>,
    pub(super) acceptor: Option<Waker>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}
