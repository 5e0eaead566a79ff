//! Latency and bandwidth of bare verbs between two processes, modelled on perftest.
//!
//! [`client`] measures, [`server`] is the passive side, [`report`] shows the rows. One connection measures one plan:
//! operations of one size, one or several at a time. `wire::perf` defines the control protocol; the columns are those
//! of perftest's ib_{send,write,read}_{lat,bw}. The limits of a plan are here.
//!
//! ```text
//! client                                server
//! request: Plan            ---------->  judged by the limits
//!                          <----------  acceptance: Welcome  (or rejection: Refusal)
//! Begin, own regions       ---------->
//!                          <----------  Ready, its regions
//! Batch, n operations      ---------->
//!                          <----------  Go                        the clock starts here
//! n operations             <--------->
//! Finish                   ---------->  regions compared, where asked for
//!                          <----------  Done                      and stops here (latency: at each operation)
//! ```
//!
//! Buffers: operations cycle through as many slots as there are outstanding operations, on both sides.
//!
//! With a plan for both ways, the server does the same to the client's regions between Go and Done.
//!
//! The latency of a Write includes an empty Send that reports it, because registered memory must not be read.

pub mod client;
mod exchange;
pub mod pattern;
pub mod report;
pub mod server;

pub use weft_wire::perf::{Mode, Op, Plan};

use weft_wire::perf::{MAX_ADDRESSES, MAX_MESSAGE};

/// The largest operation.
pub const MAX_SIZE: u32 = 8 << 20;
/// Most outstanding operations.
pub const MAX_DEPTH: u16 = 128;
/// Regions, or receive buffers, of one connection, in bytes.
pub const MAX_FOOTPRINT: u64 = 256 << 20;
/// Least number of slots in a checked run: each batch fills every slot once, so few slots mean short batches.
const CHECK_SLOTS: u16 = 16;
/// Offset of the numbers of the server's own operations, so that its bytes differ from the client's.
const ECHO: u64 = 1 << 63;
/// Receive buffers besides those for outstanding Sends: for reports of consumed Sends, and for a message at each end
/// of a batch.
const CONTROL_RECVS: usize = REPORTS as usize + 4;
/// Reports of consumed Sends in one window.
const REPORTS: u64 = 4;

const _: () = assert!(MAX_DEPTH as usize <= MAX_ADDRESSES);

/// Whether a plan is within the limits.
pub fn allowed(plan: &Plan) -> bool {
    (1..=MAX_SIZE).contains(&plan.size)
        && (1..=MAX_DEPTH).contains(&plan.depth)
        && u64::from(slots(plan)) * u64::from(plan.size) <= MAX_FOOTPRINT
        && (plan.mode != Mode::Latency || plan.depth == 1)
        // If both sides sent, neither could tell the other's payload from its reports.
        && (!plan.both_ways || plan.mode == Mode::Bandwidth && plan.op != Op::Send)
}

/// The largest depth within the limits for operations of `size` bytes.
pub fn depth_within(size: u32, depth: u16) -> u16 {
    let most = MAX_FOOTPRINT / u64::from(size.max(1));
    depth.min(MAX_DEPTH).min(u16::try_from(most).unwrap_or(MAX_DEPTH)).max(1)
}

/// Number of buffers that operations cycle through.
fn slots(plan: &Plan) -> u16 {
    if plan.check { plan.depth.max(CHECK_SLOTS) } else { plan.depth }
}

/// Sends that may be outstanding before the server reports that it has consumed them.
fn window(plan: &Plan) -> u64 {
    u64::from(plan.depth) * 2
}

/// Number of Sends after which the server reports that it has consumed them.
fn report_every(plan: &Plan) -> u64 {
    (window(plan) / REPORTS).max(1)
}

/// Whether the client has regions for the server.
fn has_way_back(plan: &Plan) -> bool {
    plan.both_ways || plan.op == Op::Write && plan.mode == Mode::Latency
}

/// A side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Client,
    Server,
}

/// Size of every receive buffer of a side.
fn recv_bytes(plan: &Plan, side: Side) -> usize {
    match (plan.op, plan.mode, side) {
        // The client receives payload only if it is echoed.
        (Op::Send, _, Side::Server) | (Op::Send, Mode::Latency, Side::Client) => {
            MAX_MESSAGE.max(plan.size as usize)
        }
        _ => MAX_MESSAGE,
    }
}

/// Number of receive buffers of a side.
fn recvs(plan: &Plan, side: Side) -> usize {
    match (plan.mode, plan.op, side) {
        (Mode::Idle, _, _) => 1,
        (Mode::Bandwidth, Op::Send, Side::Server) => window(plan) as usize + CONTROL_RECVS,
        _ => CONTROL_RECVS,
    }
}

#[cfg(test)]
mod tests;
