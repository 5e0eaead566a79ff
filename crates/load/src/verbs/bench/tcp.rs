//! A plain program on one TCP connection: the reference for iWARP.
//!
//! [`serve`] receives bytes or echoes messages, [`Client`] sends them and measures the time. It uses blocking sockets
//! for bandwidth and polled sockets for latency, with the buffers, sizes and socket options of Weft, but not Weft's
//! reactor. 32 bytes announce each batch: kind, size, slots, operations, as big-endian words.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use weft_machine::{Buf, Pool};

use crate::verbs::pace::Pace;
use crate::verbs::perf::{MAX_DEPTH, MAX_SIZE};
use crate::verbs::times::{Quantiles, Times};

/// Messages are echoed, one at a time.
const ECHO: u64 = 1;
/// Bytes are received; one message confirms them all.
const SINK: u64 = 2;
/// Bytes of the announcement of a batch.
const HEAD: usize = 32;
/// The message that ends a batch of bytes.
const END: [u8; 8] = *b"all here";
const MAX_BATCH: u64 = 1 << 24;

/// Buffers of one size, of the same kind of memory as the buffers of verbs.
struct Ring(Vec<Buf>);

impl Ring {
    fn new(pool: &Pool, size: usize, slots: usize) -> io::Result<Ring> {
        (0..slots)
            .map(|_| {
                let mut buf = pool.try_alloc(size).ok_or(ErrorKind::OutOfMemory)?;
                buf.set_len(size);
                buf.fill(1);
                Ok(buf)
            })
            .collect::<io::Result<_>>()
            .map(Ring)
    }

    fn get(&mut self, n: u64) -> &mut Buf {
        let slots = self.0.len() as u64;
        &mut self.0[(n % slots) as usize]
    }
}

/// The congestion control is set before the connection is made, because one that began under bbr stays paced.
fn connect(addr: SocketAddr, congestion: &str) -> io::Result<TcpStream> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_tcp_congestion(&socket, congestion)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    rustix::net::connect(&socket, &addr)?;
    Ok(socket.into())
}

/// Serves one connection after another, forever.
pub fn serve(listener: &TcpListener, congestion: &str, pool: &Pool) -> io::Result<()> {
    sockopt::set_tcp_congestion(listener, congestion)?;
    loop {
        let (socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        match connection(socket, pool) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => {}
            Err(e) => tracing::warn!("a connection ended: {e}"),
            Ok(never) => match never {},
        }
    }
}

fn connection(mut socket: TcpStream, pool: &Pool) -> io::Result<std::convert::Infallible> {
    loop {
        socket.set_nonblocking(false)?;
        let mut head = [0; HEAD];
        socket.read_exact(&mut head)?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&head[at..at + 8]);
            u64::from_be_bytes(word)
        };
        let (kind, size, slots, operations) = (word(0), word(8), word(16), word(24));
        if !(1..=u64::from(MAX_SIZE)).contains(&size) || !(1..=u64::from(MAX_DEPTH)).contains(&slots) {
            return Err(io::Error::new(ErrorKind::InvalidData, "a batch that exceeds the limits"));
        }
        let mut ring = Ring::new(pool, size as usize, slots as usize)?;
        match kind {
            SINK => {
                for n in 0..operations {
                    socket.read_exact(ring.get(n))?;
                }
                socket.write_all(&END)?;
            }
            ECHO => {
                socket.set_nonblocking(true)?;
                for n in 0..operations {
                    busy_read(&mut socket, ring.get(n))?;
                    busy_write(&mut socket, ring.get(n))?;
                }
            }
            _ => return Err(io::Error::new(ErrorKind::InvalidData, "an unknown kind of batch")),
        }
    }
}

/// Fills `into`, polling the socket.
fn busy_read(socket: &mut TcpStream, into: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        match socket.read(&mut into[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => filled += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Sends all of `from`, polling the socket.
fn busy_write(socket: &mut TcpStream, from: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < from.len() {
        match socket.write(&from[sent..]) {
            Ok(n) => sent += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The measuring side, on a connection of its own.
pub struct Client {
    socket: TcpStream,
    pool: Pool,
    pace: Pace,
}

impl Client {
    /// Connects to [`serve`].
    pub fn connect(addr: SocketAddr, congestion: &str, pool: &Pool) -> io::Result<Client> {
        let socket = connect(addr, congestion)?;
        Ok(Client { socket, pool: pool.clone(), pace: Pace::default() })
    }

    fn announce(&mut self, kind: u64, size: usize, slots: usize, operations: u64) -> io::Result<()> {
        let words = [kind, size as u64, slots as u64, operations];
        self.socket.write_all(&words.map(u64::to_be_bytes).concat())
    }

    /// Bytes per second of writes of `size` bytes from `slots` buffers, for `time`, until the other side has received
    /// all.
    pub fn bandwidth(mut self, size: usize, slots: usize, time: Duration) -> io::Result<f64> {
        let mut ring = Ring::new(&self.pool, size, slots)?;
        let mut warm = Duration::ZERO;
        while warm < Pace::warm_up(time) {
            warm += self.sink(&mut ring, size, Pace::slice(Pace::warm_up(time), warm))?.1;
        }
        let (mut operations, mut elapsed) = (0, Duration::ZERO);
        while elapsed < time {
            let (n, took) = self.sink(&mut ring, size, Pace::slice(time, elapsed))?;
            operations += n;
            elapsed += took;
        }
        Ok((operations * size as u64) as f64 / elapsed.as_secs_f64())
    }

    fn sink(&mut self, ring: &mut Ring, size: usize, slice: Duration) -> io::Result<(u64, Duration)> {
        let operations = self.pace.batch_for(slice, MAX_BATCH);
        self.announce(SINK, size, ring.0.len(), operations)?;
        let started = Instant::now();
        for n in 0..operations {
            self.socket.write_all(ring.get(n))?;
        }
        let mut end = [0; END.len()];
        self.socket.read_exact(&mut end)?;
        let elapsed = started.elapsed();
        if end != END {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "the batch did not end with the agreed message",
            ));
        }
        self.pace.took(operations, elapsed);
        Ok((operations, elapsed))
    }

    /// Round trips of messages of `size` bytes for `time`; both sides poll.
    pub fn round_trips(mut self, size: usize, time: Duration) -> io::Result<Option<Quantiles>> {
        let mut ring = Ring::new(&self.pool, size, 1)?;
        let mut times = Times::default();
        let mut warm = Duration::ZERO;
        while warm < Pace::warm_up(time) {
            warm += self.echo(&mut ring, size, Pace::slice(Pace::warm_up(time), warm), &mut times)?;
        }
        times = Times::default();
        let mut elapsed = Duration::ZERO;
        while elapsed < time {
            elapsed += self.echo(&mut ring, size, Pace::slice(time, elapsed), &mut times)?;
        }
        Ok(times.quantiles())
    }

    fn echo(
        &mut self,
        ring: &mut Ring,
        size: usize,
        slice: Duration,
        times: &mut Times,
    ) -> io::Result<Duration> {
        let operations = self.pace.batch_for(slice, MAX_BATCH);
        self.socket.set_nonblocking(false)?;
        self.announce(ECHO, size, 1, operations)?;
        self.socket.set_nonblocking(true)?;
        let started = Instant::now();
        let mut last = started;
        for n in 0..operations {
            busy_write(&mut self.socket, ring.get(n))?;
            busy_read(&mut self.socket, ring.get(n))?;
            let now = Instant::now();
            times.record(now - last);
            last = now;
        }
        self.pace.took(operations, last - started);
        Ok(last - started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_messages_have_a_speed() {
        let pool = Pool::new(64 << 20);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let theirs = pool.clone();
        // Ends with the test's process.
        std::thread::spawn(move || serve(&listener, "reno", &theirs));
        let time = Duration::from_millis(20);
        for size in [1, 65_536, 1 << 20] {
            let rate = Client::connect(addr, "reno", &pool).unwrap().bandwidth(size, 8, time).unwrap();
            assert!(rate > 0.0);
        }
        let seen = Client::connect(addr, "reno", &pool).unwrap().round_trips(8, time).unwrap().unwrap();
        assert!(seen.min_us > 0.0 && seen.p50_us <= seen.max_us);
    }
}
