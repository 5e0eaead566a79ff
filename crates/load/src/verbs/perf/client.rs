//! The active side of a measurement: connects, runs batches of operations, measures the time.
//!
//! It owns one connection at a time and its buffers.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::{Pool, Time, rt};
use weft_rdma::{Access, ConnectError, ConnectParams, Provider, Segment, Work};
use weft_wire::perf::{Malformed, Message, Mode, Op, Plan, Reason, Refusal, RegionAddress, VERSION, Welcome};

use super::exchange::{Slots, address_of, compare, control, open_slot, segment, tell};
use super::{ECHO, Side, has_way_back, pattern, recv_bytes, recvs, report_every, slots, window};
use crate::cpu;
use crate::verbs::end::{End, EndError};
use crate::verbs::pace::Pace;
use crate::verbs::patience::{ANSWER_LIMIT, Heard, LOAD_LIMIT, Silent};
use crate::verbs::times::{Quantiles, Times};

/// A warm-up by count is cut into slices as if it took this long.
const LONGEST_WARM_UP: Duration = Duration::from_secs(10);
/// Most operations in one batch.
const MAX_BATCH: u64 = 1 << 24;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// No connection.
    #[error("{0}")]
    Connect(ConnectError),
    /// No answer to the connection request.
    #[error("{0}")]
    Unanswered(Silent),
    /// The server rejects the plan.
    #[error("{}", refusal(.0))]
    Refused(Refusal),
    /// The peer accepted, but is not a `weft rdma perf` server.
    #[error(
        "the peer accepts connections, but uses another protocol ({0}): start `weft rdma perf server` there"
    )]
    Foreign(Malformed),
    /// The connection or a work request failed.
    #[error("{0}")]
    End(#[from] EndError),
    /// The peer's message is not part of the protocol.
    #[error("the peer violated the protocol: {0}")]
    Malformed(#[from] Malformed),
    /// CPU time could not be read.
    #[error("cannot read the CPU time of this process: {0}")]
    Cpu(std::io::Error),
}

fn refusal(refusal: &Refusal) -> String {
    let Refusal { version, reason, max_depth, max_size } = refusal;
    match reason {
        Reason::Version => {
            format!(
                "the server uses protocol version {version}, this client {VERSION}: use the same Weft on both sides"
            )
        }
        Reason::Limits => {
            format!(
                "the server rejects this size and depth: at most {max_size} bytes, {max_depth} at a time, 256 MiB in all"
            )
        }
        Reason::Busy => {
            "the server has not enough memory for this: try fewer clients, or a smaller size or depth".into()
        }
        Reason::Malformed | Reason::Other(_) => "the server rejects the plan".into(),
    }
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// About this long.
    Time(Duration),
    /// This many operations.
    Count(u64),
}

/// The result of a measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The plan.
    pub plan: Plan,
    /// Operations counted.
    pub operations: u64,
    /// Operations with wrong bytes; only a checked run finds any.
    pub mismatches: u64,
    /// Time of all batches.
    pub elapsed: Duration,
    /// Operations per second of the fastest batch.
    pub peak_rate: f64,
    /// Round trips (for Reads: operations); latency runs only.
    pub times: Option<Quantiles>,
    /// CPU time of this process during the batches.
    pub client_cpu: Duration,
    /// CPU time of the server's process during the batches.
    pub server_cpu: Duration,
}

impl Measured {
    /// Total payload bytes, both ways together.
    pub fn bytes(&self) -> u64 {
        self.operations * u64::from(self.plan.size) * self.ways()
    }

    /// 2 if the server did the same at the same time, otherwise 1.
    pub fn ways(&self) -> u64 {
        if self.plan.both_ways { 2 } else { 1 }
    }

    /// Payload bytes per second over all batches.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Measures `plan` against the server at `addr`. `stopped` is called between batches; a stopped run keeps its
/// results.
pub async fn measure(
    provider: &dyn Provider,
    addr: SocketAddr,
    plan: Plan,
    length: Length,
    pool: &Pool,
    stopped: &dyn Fn() -> bool,
) -> Result<Measured, MeasureError> {
    let end = open(provider, addr, plan, pool).await?;
    let (heard, whom) = (end.heard(), format!("the server at {addr}"));
    let measured = heard.within(LOAD_LIMIT, &whom, run(end, plan, length, stopped)).await;
    measured.map_err(EndError::from)?
}

/// The measurement on an established connection.
async fn run(
    end: End,
    plan: Plan,
    length: Length,
    stopped: &dyn Fn() -> bool,
) -> Result<Measured, MeasureError> {
    let mut client = Client::start(end, plan).await?;
    client.warm_up(length, stopped).await?;
    let mut measured = Measured {
        plan,
        operations: 0,
        mismatches: client.mismatches,
        elapsed: Duration::ZERO,
        peak_rate: 0.0,
        times: None,
        client_cpu: Duration::ZERO,
        server_cpu: Duration::ZERO,
    };
    client.times = Times::default();
    let own_cpu = || cpu::time_of(std::process::id()).map_err(MeasureError::Cpu);
    loop {
        let operations = match length {
            Length::Count(count) => client.largest_batch().min(count - measured.operations),
            Length::Time(time) => {
                client.pace.batch_for(Pace::slice(time, measured.elapsed), client.largest_batch())
            }
        };
        let before = own_cpu()?;
        let batch = client.batch(operations).await?;
        measured.client_cpu += own_cpu()?.saturating_sub(before);
        measured.server_cpu += batch.server_cpu;
        measured.operations += operations;
        measured.mismatches += batch.mismatches;
        measured.elapsed += batch.elapsed;
        measured.peak_rate =
            measured.peak_rate.max(operations as f64 / batch.elapsed.as_secs_f64().max(1e-9));
        let over = match length {
            Length::Count(count) => measured.operations >= count,
            Length::Time(time) => measured.elapsed >= time,
        };
        if over || stopped() {
            break;
        }
    }
    measured.times = client.times.quantiles();
    client.end.close().await;
    Ok(measured)
}

/// Connects with a plan and does nothing more: the server keeps the connection until it is dropped.
pub async fn connect_idle(
    provider: &dyn Provider,
    addr: SocketAddr,
    pool: &Pool,
) -> Result<End, MeasureError> {
    let plan = Plan { op: Op::Send, mode: Mode::Idle, check: false, both_ways: false, depth: 1, size: 1 };
    open(provider, addr, plan, pool).await
}

async fn open(
    provider: &dyn Provider,
    addr: SocketAddr,
    plan: Plan,
    pool: &Pool,
) -> Result<End, MeasureError> {
    let params = ConnectParams { private_data: plan.emit().into(), ..ConnectParams::default() };
    let whom = format!("an answer from {addr} over {}", provider.name());
    let connecting = Heard::default().within(ANSWER_LIMIT, &whom, provider.connect(addr, params)).await;
    let (qp, welcome) = connecting.map_err(MeasureError::Unanswered)?.map_err(|e| match e {
        ConnectError::Rejected(why) => match Refusal::parse(&why) {
            Ok(refusal) => MeasureError::Refused(refusal),
            Err(_) => MeasureError::Connect(ConnectError::Rejected(why)),
        },
        other => MeasureError::Connect(other),
    })?;
    Welcome::parse(&welcome).map_err(MeasureError::Foreign)?;
    let end = End::new(qp, pool.clone());
    for _ in 0..recvs(&plan, Side::Client) {
        let buf = pool.try_alloc(recv_bytes(&plan, Side::Client)).ok_or(EndError::Memory)?;
        end.recv(buf)?;
    }
    Ok(end)
}

/// The result of one batch.
struct Batch {
    elapsed: Duration,
    mismatches: u64,
    server_cpu: Duration,
}

struct Client {
    plan: Plan,
    end: End,
    /// The server's slots.
    theirs: Vec<Segment>,
    /// Our own slots, which the server writes or reads.
    ours: Vec<Segment>,
    slots: Slots,
    /// Number of the next operation.
    next: u64,
    times: Times,
    pace: Pace,
    mismatches: u64,
    /// Our slots with new tags that the server does not know yet.
    moved: Vec<RegionAddress>,
}

impl Client {
    async fn start(end: End, plan: Plan) -> Result<Client, MeasureError> {
        let own_slots = Slots::new(&end, &plan, 0)?;
        let back = if has_way_back(&plan) { u64::from(slots(&plan)) } else { 0 };
        let ours = (0..back).map(|slot| open_slot(&end, &plan, slot, ECHO, Access::RemoteWrite));
        let ours = ours.collect::<Result<_, _>>()?;
        let mut client = Client {
            plan,
            end,
            theirs: Vec::new(),
            ours,
            slots: own_slots,
            next: 0,
            times: Times::default(),
            pace: Pace::default(),
            mismatches: 0,
            moved: Vec::new(),
        };
        tell(&client.end, &Message::Begin { addresses: client.ours.iter().map(address_of).collect() })?;
        let Message::Ready { addresses } = control::<MeasureError>(&mut client.end).await? else {
            return Err(EndError::Peer("it is not ready").into());
        };
        client.know(addresses)?;
        Ok(client)
    }

    /// Stores the server's slots.
    fn know(&mut self, addresses: Vec<RegionAddress>) -> Result<(), MeasureError> {
        let wanted = if self.plan.op == Op::Send { 0 } else { usize::from(slots(&self.plan)) };
        if addresses.len() != wanted {
            return Err(EndError::Peer("the wrong number of regions").into());
        }
        self.theirs = addresses.into_iter().map(|address| segment(address, self.plan.size)).collect();
        Ok(())
    }

    async fn warm_up(&mut self, length: Length, stopped: &dyn Fn() -> bool) -> Result<(), MeasureError> {
        let (time, most) = match length {
            Length::Time(time) => (Pace::warm_up(time), u64::MAX),
            Length::Count(count) => (Duration::MAX, Pace::warm_up_count(count)),
        };
        let (mut elapsed, mut done) = (Duration::ZERO, 0);
        while elapsed < time && done < most && !stopped() {
            let slice = Pace::slice(time.min(LONGEST_WARM_UP), elapsed);
            let operations = self.pace.batch_for(slice, self.largest_batch()).min(most - done);
            let batch = self.batch(operations).await?;
            elapsed += batch.elapsed;
            done += operations;
            self.mismatches += batch.mismatches;
        }
        Ok(())
    }

    fn largest_batch(&self) -> u64 {
        match (self.plan.check, self.plan.op) {
            // Each slot once, so that every byte is compared.
            (true, Op::Write) => u64::from(slots(&self.plan)),
            _ => MAX_BATCH,
        }
    }

    async fn batch(&mut self, operations: u64) -> Result<Batch, MeasureError> {
        let addresses = std::mem::take(&mut self.moved);
        tell(&self.end, &Message::Batch { operations, first: self.next, addresses })?;
        let Message::Go = control::<MeasureError>(&mut self.end).await? else {
            return Err(EndError::Peer("it does not let us go").into());
        };
        self.end.set_busy(self.plan.mode == Mode::Latency);
        let started = rt::now();
        let mut mismatches = match (self.plan.mode, self.plan.op) {
            (Mode::Latency, _) => self.one_at_a_time(operations, started).await?,
            (_, Op::Send) => self.many_sends(operations).await?,
            (_, Op::Write | Op::Read) => {
                let Client { slots, end, plan, theirs, next, .. } = self;
                slots.run(end, plan, theirs, *next..*next + operations, 0).await?
            }
        };
        // A Read is complete when its bytes are here; others when the server has the bytes, or has done its part as
        // well.
        let read_until = rt::now();
        self.end.set_busy(false);
        tell(&self.end, &Message::Finish)?;
        let done = control::<MeasureError>(&mut self.end).await?;
        let until = if self.plan.op == Op::Read && !self.plan.both_ways { read_until } else { rt::now() };
        let Message::Done { mismatches: theirs, cpu_ns, addresses, .. } = done else {
            return Err(EndError::Peer("it is not done").into());
        };
        mismatches += theirs + self.compare_own(operations)?;
        if !addresses.is_empty() {
            self.know(addresses)?;
        }
        self.next += operations;
        let elapsed = until.since(started);
        self.pace.took(operations, elapsed);
        Ok(Batch { elapsed, mismatches, server_cpu: Duration::from_nanos(cpu_ns) })
    }

    /// A latency run: the next operation starts when the previous one has finished.
    async fn one_at_a_time(&mut self, operations: u64, started: Time) -> Result<u64, MeasureError> {
        let (mut mismatches, mut last) = (0, started);
        for n in self.next..self.next + operations {
            match self.plan.op {
                Op::Send => {
                    self.end.send(self.slots.source(&self.end, &self.plan, n)?)?;
                    let echo = self.end.message().await?;
                    if echo.len() != self.plan.size as usize {
                        return Err(EndError::Peer("an echo of another size").into());
                    }
                    mismatches += u64::from(self.plan.check && !pattern::matches(&echo, ECHO + n));
                    self.end.recv(echo)?;
                }
                Op::Write => {
                    let to = self.theirs[(n % self.theirs.len() as u64) as usize];
                    let data = self.slots.source(&self.end, &self.plan, n)?.into();
                    self.end.post(Work::Write { id: n, data, to, signalled: false })?;
                    self.end.send(Bytes::new())?;
                    let bell = self.end.message().await?;
                    self.end.recv(bell)?;
                }
                Op::Read => {
                    let Client { slots, end, plan, theirs, .. } = self;
                    slots.post_read(end, plan, n, theirs)?;
                    mismatches += u64::from(!slots.take_read(end, plan, 0).await?);
                }
            }
            let now = rt::now();
            self.times.record(now.since(last));
            last = now;
        }
        Ok(mismatches)
    }

    /// Sends leave while the server has buffers for them: one without a buffer would end the connection.
    async fn many_sends(&mut self, operations: u64) -> Result<u64, MeasureError> {
        let (mut posted, mut done, mut consumed) = (0, 0, 0);
        while done < operations {
            while posted < operations
                && posted - done < u64::from(self.plan.depth)
                && posted - consumed < window(&self.plan)
            {
                let data = vec![self.slots.source(&self.end, &self.plan, self.next + posted)?];
                self.end.post(Work::Send {
                    id: 1,
                    data,
                    invalidate: None,
                    solicited: false,
                    signalled: true,
                })?;
                posted += 1;
            }
            self.end.poll().await?;
            while self.end.take_finished().is_some() {
                done += 1;
            }
            while let Some(buf) = self.end.take_message() {
                let Message::Consumed { operations } = Message::parse(&buf)? else {
                    return Err(EndError::Peer("a message in the middle of a batch").into());
                };
                consumed = operations;
                self.end.recv(buf)?;
            }
        }
        // The remaining reports, so that the end of the batch is not mistaken for one.
        let every = report_every(&self.plan);
        while consumed < operations / every * every {
            let Message::Consumed { operations } = control::<MeasureError>(&mut self.end).await? else {
                return Err(EndError::Peer("a message in the middle of a batch").into());
            };
            consumed = operations;
        }
        Ok(0)
    }

    /// Compares what the server wrote here; the next batch sends the new tags.
    fn compare_own(&mut self, operations: u64) -> Result<u64, MeasureError> {
        if !self.plan.check || self.ours.is_empty() || self.plan.op == Op::Read {
            return Ok(0);
        }
        let batch = self.next..self.next + operations;
        let mismatches = compare(&self.end, &mut self.ours, Access::RemoteWrite, batch, ECHO)?;
        self.moved = self.ours.iter().map(address_of).collect();
        Ok(mismatches)
    }
}
