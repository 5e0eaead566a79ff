//! The passive side of a measurement.
//!
//! It owns the regions that the client writes and reads, and measures only its own CPU time.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use bytes::Bytes;
use weft_machine::Pool;
use weft_rdma::{Access, ConnectError, ConnectParams, Disconnect, QueuePair, Request, Segment, Work};
use weft_wire::perf::{Malformed, Message, Mode, Op, Plan, Reason, Refusal, RegionAddress, VERSION, Welcome};

use super::exchange::{Slots, address_of, compare, control, of_operation, open_slot, segment, tell};
use super::{
    ECHO, MAX_DEPTH, MAX_SIZE, Side, allowed, has_way_back, pattern, recv_bytes, recvs, report_every, slots,
};
use crate::cpu;
use crate::verbs::end::{End, EndError};

/// Why serving a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// Set-up failed.
    #[error("{0}")]
    Connect(#[from] ConnectError),
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

/// Answers a request whose private data is a plan, and serves it until the client disconnects. Returns the number of
/// batches.
pub async fn serve(request: Box<dyn Request>, pool: Pool) -> Result<u64, PerfError> {
    let plan = match Plan::parse(request.private_data()) {
        Ok(plan) if allowed(&plan) => plan,
        Ok(_) => return refuse(request, Reason::Limits).await,
        Err(Malformed::Version(_)) => return refuse(request, Reason::Version).await,
        Err(_) => return refuse(request, Reason::Malformed).await,
    };
    let bufs: Option<Vec<Work>> = (0..recvs(&plan, Side::Server))
        .map(|_| pool.try_alloc(recv_bytes(&plan, Side::Server)).map(|buf| Work::Recv { id: 0, buf }))
        .collect();
    let Some(bufs) = bufs else { return refuse(request, Reason::Busy).await };
    let peer = request.peer();
    let params = ConnectParams { private_data: Welcome.emit().into(), ..ConnectParams::default() };
    let qp = request.accept(params, bufs).await?;
    tracing::debug!("{peer}: {plan:?}");
    let mut server = Server::new(plan, qp, pool);
    match server.run().await {
        Err(PerfError::End(EndError::Ended(Disconnect::Peer))) => Ok(server.batches),
        Err(e) => Err(e),
        Ok(never) => match never {},
    }
}

async fn refuse(request: Box<dyn Request>, reason: Reason) -> Result<u64, PerfError> {
    tracing::warn!("{}: refused a measurement: {reason:?}", request.peer());
    let refusal = Refusal { version: VERSION, reason, max_depth: MAX_DEPTH, max_size: MAX_SIZE };
    request.reject(refusal.emit().into()).await?;
    Ok(0)
}

struct Server {
    plan: Plan,
    end: End,
    /// The regions of the slots.
    regions: Vec<Segment>,
    /// The client's slots, for the way back.
    theirs: Vec<Segment>,
    /// The bytes sent back, if nobody compares them.
    echo: Bytes,
    /// Buffers of a run both ways.
    own_slots: Option<Slots>,
    batches: u64,
}

impl Server {
    fn new(plan: Plan, qp: std::rc::Rc<dyn QueuePair>, pool: Pool) -> Server {
        let end = End::new(qp, pool);
        Server {
            plan,
            end,
            regions: Vec::new(),
            theirs: Vec::new(),
            echo: Bytes::new(),
            own_slots: None,
            batches: 0,
        }
    }

    /// Ends only with the connection.
    async fn run(&mut self) -> Result<std::convert::Infallible, PerfError> {
        let Message::Begin { addresses } = control::<PerfError>(&mut self.end).await? else {
            return Err(EndError::Peer("it did not begin").into());
        };
        let plan = self.plan;
        self.know(addresses)?;
        self.echo = self.bytes_of(ECHO)?;
        if plan.op != Op::Send && plan.mode != Mode::Idle {
            for slot in 0..u64::from(slots(&plan)) {
                self.regions.push(open_slot(&self.end, &plan, slot, 0, Access::RemoteFill)?);
            }
        }
        if plan.both_ways {
            self.own_slots = Some(Slots::new(&self.end, &plan, ECHO)?);
        }
        tell(&self.end, &Message::Ready { addresses: self.regions.iter().map(address_of).collect() })?;
        loop {
            let Message::Batch { operations, first, addresses } = control::<PerfError>(&mut self.end).await?
            else {
                return Err(EndError::Peer("no batch").into());
            };
            if first.checked_add(operations).is_none_or(|last| last >= ECHO) {
                return Err(EndError::Peer("a batch without end").into());
            }
            if !addresses.is_empty() {
                self.know(addresses)?;
            }
            if plan.check && plan.op == Op::Write && operations > u64::from(slots(&plan)) {
                return Err(EndError::Peer("a checked batch writes no slot twice").into());
            }
            let before = self.cpu()?;
            tell(&self.end, &Message::Go)?;
            self.end.set_busy(plan.mode == Mode::Latency);
            let mismatches = self.batch(operations, first).await?;
            self.end.set_busy(false);
            let Message::Finish = control::<PerfError>(&mut self.end).await? else {
                return Err(EndError::Peer("it did not finish its batch").into());
            };
            let cpu_ns = self.cpu()?.saturating_sub(before);
            let (mismatches, addresses) = match (plan.op, plan.check) {
                (Op::Write, true) => {
                    let (wrong, addresses) = self.compare(operations, first)?;
                    (mismatches.saturating_add(wrong), addresses)
                }
                _ => (mismatches, Vec::new()),
            };
            tell(&self.end, &Message::Done { operations, mismatches, cpu_ns, addresses })?;
            self.batches = self.batches.saturating_add(1);
        }
    }

    /// Stores the client's slots, which only a way back needs.
    fn know(&mut self, addresses: Vec<RegionAddress>) -> Result<(), EndError> {
        let back = if has_way_back(&self.plan) { usize::from(slots(&self.plan)) } else { 0 };
        if addresses.len() != back {
            return Err(EndError::Peer("the wrong number of regions"));
        }
        self.theirs = addresses.into_iter().map(|address| segment(address, self.plan.size)).collect();
        Ok(())
    }

    /// The server's part of a batch; returns how many messages had wrong bytes.
    async fn batch(&mut self, operations: u64, first: u64) -> Result<u64, PerfError> {
        let (plan, size) = (self.plan, self.plan.size as usize);
        let mut mismatches = 0u64;
        match (plan.op, plan.mode) {
            (Op::Send, Mode::Bandwidth | Mode::Latency) => {
                let every = report_every(&plan);
                for n in 0..operations {
                    // `run` has checked that the last number of a batch is below ECHO.
                    let (number, consumed) = (first.wrapping_add(n), n.saturating_add(1));
                    let buf = self.end.message().await?;
                    if buf.len() != size {
                        return Err(EndError::Peer("a message of another size").into());
                    }
                    let wrong = plan.check && !pattern::matches(&buf, number);
                    mismatches = mismatches.saturating_add(wrong.into());
                    self.end.recv(buf)?;
                    if plan.mode == Mode::Latency {
                        self.end.send(self.echo_of(number)?)?;
                    } else if consumed.is_multiple_of(every) {
                        tell(&self.end, &Message::Consumed { operations: consumed })?;
                    }
                }
            }
            (Op::Write, Mode::Latency) => {
                for n in 0..operations {
                    let bell = self.end.message().await?;
                    if !bell.is_empty() {
                        return Err(EndError::Peer("a message where a Write is told of").into());
                    }
                    self.end.recv(bell)?;
                    let number = first.wrapping_add(n);
                    let to = *of_operation(&self.theirs, number)?;
                    let data = self.echo_of(number)?.into();
                    self.end.post(Work::Write { id: 0, data, to, signalled: false })?;
                    self.end.send(Bytes::new())?;
                }
            }
            (Op::Write | Op::Read, Mode::Bandwidth) => {
                // One-sided: the server only runs its own operations.
                if let Some(own) = &mut self.own_slots {
                    let from = ECHO.saturating_add(first);
                    let numbers = from..from.saturating_add(operations);
                    let wrong = own.run(&mut self.end, &plan, &self.theirs, numbers, ECHO).await?;
                    mismatches = mismatches.saturating_add(wrong);
                }
            }
            (Op::Read, Mode::Latency) | (_, Mode::Idle) => {}
        }
        Ok(mismatches)
    }

    /// Invalidates every slot of the batch, compares it with what was written last, and registers it again.
    fn compare(&mut self, operations: u64, first: u64) -> Result<(u64, Vec<RegionAddress>), PerfError> {
        let batch = first..first.saturating_add(operations);
        let mismatches = compare(&self.end, &mut self.regions, Access::RemoteFill, batch, 0)?;
        Ok((mismatches, self.regions.iter().map(address_of).collect()))
    }

    fn bytes_of(&self, n: u64) -> Result<Bytes, EndError> {
        if self.plan.mode != Mode::Latency {
            return Ok(Bytes::new());
        }
        let mut buf = self.end.buffer(self.plan.size as usize)?;
        pattern::fill(&mut buf, n);
        Ok(buf.freeze())
    }

    /// The bytes sent back for operation `n`.
    fn echo_of(&self, n: u64) -> Result<Bytes, EndError> {
        if self.plan.check { self.bytes_of(ECHO.saturating_add(n)) } else { Ok(self.echo.clone()) }
    }

    fn cpu(&self) -> Result<u64, PerfError> {
        let time = cpu::time_of(std::process::id()).map_err(PerfError::Cpu)?;
        Ok(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}
