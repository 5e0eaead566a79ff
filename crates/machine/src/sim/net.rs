//! Simulated TCP: what listeners and connections do in the running world.
//!
//! Packets are not simulated; a pipe delivers a stream in order, late, in pieces, and sometimes not at all (see
//! [`super::Faults`]). `network` has the state.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use super::executor::{World, current};
use super::faults::{Cut, CutHow, Side};
pub(crate) use super::network::Stream;
use super::network::{Backlog, Pipe, SharedPipe, lock, wake};
use super::trace::Event;
use crate::clock::Time;

/// Connections that wait for an accept; more are refused.
const BACKLOG: usize = 128;

fn world() -> Rc<World> {
    current().expect("a simulated socket is used outside its simulation")
}

impl Pipe {
    /// When `len` bytes sent now reach the reader.
    fn arrival(&mut self, world: &World, len: usize) -> Time {
        let net = world.net.borrow();
        let (low, high) = (nanos(*net.faults.latency.start()), nanos(*net.faults.latency.end()));
        let delay = world.rng.borrow_mut().within(low..=high);
        let transmission = match net.faults.bytes_per_second {
            Some(rate) => (len as u64).saturating_mul(1_000_000_000) / rate.max(1),
            None => 0,
        };
        let earliest = world.now() + Duration::from_nanos(delay);
        self.last_arrival = self.last_arrival.max(earliest) + Duration::from_nanos(transmission);
        self.last_arrival
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Ends a direction after the bytes sent so far; `how` decides what both ends see.
fn break_pipe(world: &World, shared: &Arc<Mutex<Pipe>>, how: CutHow) {
    let mut pipe = lock(shared);
    let at = pipe.arrival(world, 0);
    world.record(Event::Cut(pipe.id));
    match how {
        CutHow::Silent => {
            pipe.silent = true;
            return;
        }
        CutHow::Reset => {
            pipe.reset.get_or_insert(at);
            pipe.send_error.get_or_insert((world.now(), io::ErrorKind::ConnectionReset));
        }
        CutHow::Close => {
            pipe.end.get_or_insert(at);
            pipe.send_error.get_or_insert((world.now(), io::ErrorKind::BrokenPipe));
        }
    }
    wake(&mut pipe.writer);
    drop(pipe);
    world.announce(at, SharedPipe(shared.clone()));
}

/// Cuts all connections of `world`.
pub(super) fn cut_all(world: &World, how: CutHow) {
    let connections: Vec<_> = world.net.borrow().connections.iter().flatten().cloned().collect();
    for pipe in connections.iter().filter_map(std::sync::Weak::upgrade) {
        break_pipe(world, &pipe, how);
    }
}

/// Ends the connections of `world` that are silent.
pub(super) fn end_silent(world: &World) {
    let connections: Vec<_> = world.net.borrow().connections.clone();
    for pipes in connections {
        let pipes: Vec<_> = pipes.iter().filter_map(std::sync::Weak::upgrade).collect();
        if pipes.iter().any(|pipe| lock(pipe).silent) {
            pipes.iter().for_each(|pipe| break_pipe(world, pipe, CutHow::Reset));
        }
    }
}

impl Stream {
    /// Connects to `addr`: one round trip, then refused or handed to the listener.
    pub(crate) async fn connect(addr: SocketAddr) -> io::Result<Stream> {
        let world = world();
        let round_trip = *world.net.borrow().faults.latency.end() * 2;
        world.clone().sleep_until(world.now() + round_trip).await;
        let backlog = world.net.borrow().listener(addr).ok_or(io::ErrorKind::ConnectionRefused)?;
        if lock(&backlog).pending.len() >= BACKLOG {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = pair(&world, addr)?;
        let mut backlog = lock(&backlog);
        backlog.pending.push_back(theirs);
        wake(&mut backlog.acceptor);
        Ok(ours)
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(crate) fn try_recv(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let world = world();
        let now = world.now();
        let mut pipe = lock(&self.rx);
        let room: usize = into.iter().map(|slice| slice.len()).sum();
        if room == 0 {
            return Ok(0);
        }
        let arrived =
            pipe.pieces.iter().take_while(|(at, _)| *at <= now).map(|(_, b)| b.len()).sum::<usize>();
        if arrived == 0 {
            if pipe.read_shut || (pipe.pieces.is_empty() && pipe.end.is_some_and(|at| at <= now)) {
                return Ok(0);
            }
            if pipe.pieces.is_empty() && pipe.reset.is_some_and(|at| at <= now) {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let most = arrived.min(room);
        let n = fraction(&world, most);
        let mut left = n;
        for slice in into {
            let mut slice = &mut slice[..];
            while left > 0 && !slice.is_empty() {
                let (_, piece) = &mut pipe.pieces[0];
                let (front, _) = piece.as_slices();
                let step = front.len().min(slice.len()).min(left);
                slice[..step].copy_from_slice(&front[..step]);
                piece.drain(..step);
                if piece.is_empty() {
                    pipe.pieces.pop_front();
                }
                slice = &mut slice[step..];
                left -= step;
            }
        }
        pipe.held -= n;
        wake(&mut pipe.writer);
        world.record(Event::Receive(pipe.id, n));
        Ok(n)
    }

    pub(crate) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.try_recv(into) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                lock(&self.rx).reader = Some(cx.waker().clone());
                Poll::Pending
            }
            other => Poll::Ready(other),
        }
    }

    pub(crate) fn poll_hangup(&self, cx: &mut Context<'_>) -> Poll<()> {
        let now = world().now();
        let mut pipe = lock(&self.rx);
        if pipe.read_shut || [pipe.end, pipe.reset].into_iter().flatten().any(|at| at <= now) {
            return Poll::Ready(());
        }
        pipe.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(crate) fn try_send(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let world = world();
        let offered: usize = from.iter().map(|slice| slice.len()).sum();
        let mut pipe = lock(&self.tx);
        if let Some((at, kind)) = pipe.send_error
            && at <= world.now()
        {
            return Err(kind.into());
        }
        if pipe.end.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if offered == 0 {
            return Ok(0);
        }
        let free = pipe.capacity.saturating_sub(pipe.held);
        if free == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = fraction(&world, offered.min(free));
        world.record(Event::Send(pipe.id, taken));
        if pipe.deaf && !pipe.silent {
            // The reader is gone: its answer is a reset, which takes a while to arrive.
            let at = pipe.arrival(&world, 0);
            pipe.send_error.get_or_insert((at, io::ErrorKind::ConnectionReset));
            return Ok(taken);
        }
        // A planned cut lets only this many bytes through.
        let cut = pipe.cut.filter(|(at_byte, _)| pipe.sent + taken as u64 >= *at_byte);
        let arriving = match cut {
            _ if pipe.silent => 0,
            Some((at_byte, _)) => at_byte.saturating_sub(pipe.sent) as usize,
            None => taken,
        };
        pipe.sent += taken as u64;
        *world.net.borrow_mut().sent.entry(pipe.id).or_default() += arriving as u64;
        if arriving > 0 {
            let at = pipe.arrival(&world, arriving);
            let mut piece = VecDeque::with_capacity(arriving);
            for slice in from {
                let n = slice.len().min(arriving - piece.len());
                piece.extend(&slice[..n]);
            }
            pipe.pieces.push_back((at, piece));
            pipe.held += arriving;
            world.announce(at, SharedPipe(self.tx.clone()));
        }
        let lost = if cut.is_some() { 0 } else { taken - arriving };
        pipe.held += lost;
        if let Some((_, how)) = cut {
            pipe.cut = None;
            drop(pipe);
            break_pipe(&world, &self.tx, how);
            break_pipe(&world, &self.rx, how);
        }
        Ok(taken)
    }

    pub(crate) fn poll_send(&self, cx: &mut Context<'_>, from: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self.try_send(from) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                lock(&self.tx).writer = Some(cx.waker().clone());
                Poll::Pending
            }
            other => Poll::Ready(other),
        }
    }

    pub(crate) fn shutdown_write(&self) {
        let Some(world) = current() else { return };
        let mut pipe = lock(&self.tx);
        if pipe.end.is_some() || pipe.reset.is_some() {
            return;
        }
        wake(&mut pipe.writer);
        if pipe.silent {
            // The peer is never told.
            pipe.end = Some(Time::from_nanos(u64::MAX));
            return;
        }
        let at = pipe.arrival(&world, 0);
        pipe.end = Some(at);
        drop(pipe);
        world.announce(at, SharedPipe(self.tx.clone()));
    }

    pub(crate) fn shutdown(&self) {
        self.shutdown_write();
        let mut pipe = lock(&self.rx);
        pipe.read_shut = true;
        wake(&mut pipe.reader);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(world) = current() else { return };
        let unread = {
            let mut pipe = lock(&self.rx);
            pipe.deaf = true;
            // Bytes still in transit have no reader, so they fill no buffer.
            let unread = !pipe.pieces.is_empty();
            pipe.pieces.clear();
            if !pipe.silent {
                pipe.held = 0;
                wake(&mut pipe.writer);
            }
            unread
        };
        let silent = lock(&self.tx).silent;
        if unread && !silent {
            // As in TCP, closing with unread bytes is a reset (RFC 1122 4.2.2.13), which the peer's reader sees after
            // the bytes sent before, and its writer when it arrives.
            let mut pipe = lock(&self.tx);
            let at = pipe.arrival(&world, 0);
            pipe.reset.get_or_insert(at);
            drop(pipe);
            lock(&self.rx).send_error.get_or_insert((at, io::ErrorKind::ConnectionReset));
            world.announce(at, SharedPipe(self.tx.clone()));
            world.announce(at, SharedPipe(self.rx.clone()));
        } else {
            self.shutdown_write();
        }
    }
}

/// All of `most`, or with [`super::Faults::split`] a random part of it that is not empty.
fn fraction(world: &World, most: usize) -> usize {
    if !world.net.borrow().faults.split || most <= 1 {
        return most;
    }
    let mut rng = world.rng.borrow_mut();
    match rng.below(4) {
        0 => most,
        1 => 1 + rng.below(most.min(16)),
        _ => 1 + rng.below(most),
    }
}

fn pair(world: &Rc<World>, addr: SocketAddr) -> io::Result<(Stream, Stream)> {
    let mut net = world.net.borrow_mut();
    let number = net.made;
    net.made += 1;
    let dialer = SocketAddr::new(addr.ip(), net.free_port()?);
    let capacity = net.faults.socket_buffer_bytes;
    let cut = |side: Side| {
        let planned = |cut: &&Cut| cut.connection == number && cut.side == side;
        net.faults.cuts.iter().find(planned).map(|cut| (cut.at_byte, cut.how))
    };
    let there = Arc::new(Mutex::new(Pipe::new(number * 2, capacity, cut(Side::Dialer))));
    let back = Arc::new(Mutex::new(Pipe::new(number * 2 + 1, capacity, cut(Side::Acceptor))));
    net.connections.retain(|pipes| pipes.iter().any(|pipe| pipe.strong_count() > 0));
    net.connections.push([Arc::downgrade(&there), Arc::downgrade(&back)]);
    drop(net);
    world.record(Event::Connect(number));
    let ours = Stream { rx: back.clone(), tx: there.clone(), local: dialer, peer: addr };
    let theirs = Stream { rx: there, tx: back, local: addr, peer: dialer };
    Ok((ours, theirs))
}

/// A simulated listener.
pub(crate) struct Listener {
    local: SocketAddr,
    backlog: Arc<Mutex<Backlog>>,
}

impl Listener {
    pub(crate) fn bind(addr: SocketAddr) -> io::Result<Listener> {
        let world = world();
        let mut net = world.net.borrow_mut();
        let mut local = addr;
        if addr.port() == 0 {
            local.set_port(net.free_port()?);
        }
        let backlog = Arc::<Mutex<Backlog>>::default();
        if net.listeners.contains_key(&local) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        net.listeners.insert(local, backlog.clone());
        Ok(Listener { local, backlog })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        std::future::poll_fn(|cx| {
            let mut backlog = lock(&self.backlog);
            match backlog.pending.pop_front() {
                Some(stream) => Poll::Ready(Ok(stream)),
                None => {
                    backlog.acceptor = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(world) = current() {
            world.net.borrow_mut().listeners.remove(&self.local);
        }
        let pending = std::mem::take(&mut lock(&self.backlog).pending);
        drop(pending);
    }
}
