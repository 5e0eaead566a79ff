//! Messages between the two sides of `weft rdma perf`: a plan in the private data, then a few messages.
//!
//! [`Plan`], [`Welcome`] and [`Refusal`] are exchanged at connection set-up, [`Message`] by Send. The format is our
//! own, big-endian. The server checks a plan against its limits. Payload does not pass through this module.
//!
//! ```text
//! private data:    8 "WeftPerf" | 2 version | then, in a
//!   Plan           1 operation | 1 mode | 2 flags (1: check, 2: both ways) | 2 depth | 4 size
//!   Welcome        nothing
//!   Refusal        2 reason | 2 largest depth | 4 largest size
//! message:         1 kind | 1 zero | 2 number of addresses | 8 a | 8 b | 8 c | addresses
//!   address        4 STag | 8 tagged offset
//! ```
//!
//! One connection measures one plan, so receive buffers have one size from the start. The version comes first:
//! everything after it may change with it, and a server of another version can say so.

/// The protocol version of this module.
pub const VERSION: u16 = 2;
/// Most regions that one message can name.
pub const MAX_ADDRESSES: usize = 128;
/// Largest message, in bytes.
pub const MAX_MESSAGE: usize = HEAD_LEN + MAX_ADDRESSES * ADDRESS_LEN;

const MAGIC: [u8; 8] = *b"WeftPerf";
const HEAD_LEN: usize = 28;
const ADDRESS_LEN: usize = 12;
const FLAG_CHECK: u16 = 1;
const FLAG_BOTH_WAYS: u16 = 2;

/// The measured operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Messages into posted buffers.
    Send,
    /// RDMA Writes into the server's memory.
    Write,
    /// RDMA Reads from the server's memory.
    Read,
}

/// How the operation is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// One operation at a time, round trip.
    Latency,
    /// As many concurrent operations as `depth` says, one way.
    Bandwidth,
    /// No operations: the connection stays idle.
    Idle,
}

/// The client's request for this connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The operation.
    pub op: Op,
    /// The mode.
    pub mode: Mode,
    /// Whether every byte is compared.
    pub check: bool,
    /// Whether the server runs the same operations against the client at the same time: only Writes and Reads, for
    /// bandwidth.
    pub both_ways: bool,
    /// Concurrent operations.
    pub depth: u16,
    /// Bytes per operation.
    pub size: u32,
}

/// The server's acceptance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Welcome;

/// The server's refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The server's version.
    pub version: u16,
    /// The cause.
    pub reason: Reason,
    /// The server's limit on `depth`.
    pub max_depth: u16,
    /// The server's limit on `size`.
    pub max_size: u32,
}

/// Why a plan is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The server speaks another version.
    Version,
    /// The plan does not parse.
    Malformed,
    /// Size, depth or their product exceeds the server's limits.
    Limits,
    /// The server has no memory or connections left.
    Busy,
    /// A reason of a later version.
    Other(u16),
}

/// The address of a registered region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionAddress {
    /// Steering tag.
    pub stag: u32,
    /// Tagged offset of its first byte.
    pub offset: u64,
}

/// A message during a measurement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// From the client, first: its own regions.
    Begin {
        /// One per slot if the server is to write or read, else none.
        addresses: Vec<RegionAddress>,
    },
    /// From the server: it is ready.
    Ready {
        /// One per slot.
        addresses: Vec<RegionAddress>,
    },
    /// From the client: a batch of operations follows.
    Batch {
        /// Number of operations.
        operations: u64,
        /// Number of the first operation.
        first: u64,
        /// The client's regions from now on, if checking has replaced them.
        addresses: Vec<RegionAddress>,
    },
    /// From the server: go ahead.
    Go,
    /// From the client: that was the last operation of the batch.
    Finish,
    /// From the server: the batch is over.
    Done {
        /// Operations that the server saw (Sends) or was told of (all others).
        operations: u64,
        /// How many of them had wrong bytes.
        mismatches: u64,
        /// CPU time of the server process, in nanoseconds.
        cpu_ns: u64,
        /// The server's regions from now on, if checking has replaced them.
        addresses: Vec<RegionAddress>,
    },
    /// From the server: Sends of this batch that it has consumed; their receive buffers are posted again.
    Consumed {
        /// Total since the batch began.
        operations: u64,
    },
}

/// Why bytes are not a message of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Other private data, or none: the peer speaks another protocol.
    #[error("the private data is not that of weft rdma perf")]
    Magic,
    /// The peer speaks this other version.
    #[error("the peer speaks version {0} of the protocol")]
    Version(u16),
    /// Shorter or longer than its header announces.
    #[error("the message has a wrong length of {0} bytes")]
    Length(usize),
    /// An operation, mode, flag or kind that this version does not define.
    #[error("unknown {0}")]
    Unknown(&'static str),
}

/// Takes `N` bytes off the front.
fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (head, rest) = bytes.split_first_chunk::<N>().ok_or(Malformed::Length(bytes.len()))?;
    *bytes = rest;
    Ok(*head)
}

fn end(bytes: &[u8]) -> Result<(), Malformed> {
    if bytes.is_empty() { Ok(()) } else { Err(Malformed::Length(bytes.len())) }
}

/// The version, and the bytes after it; the caller checks the version.
fn versioned(mut bytes: &[u8]) -> Result<(u16, &[u8]), Malformed> {
    match take::<8>(&mut bytes) {
        Ok(MAGIC) => Ok((u16::from_be_bytes(take(&mut bytes)?), bytes)),
        _ => Err(Malformed::Magic),
    }
}

fn ours(bytes: &[u8]) -> Result<&[u8], Malformed> {
    match versioned(bytes)? {
        (VERSION, rest) => Ok(rest),
        (other, _) => Err(Malformed::Version(other)),
    }
}

fn opening() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_be_bytes()].concat()
}

impl Plan {
    /// Parses the private data of a request.
    pub fn parse(bytes: &[u8]) -> Result<Plan, Malformed> {
        let mut rest = ours(bytes)?;
        let [op, mode] = take(&mut rest)?;
        let flags = u16::from_be_bytes(take(&mut rest)?);
        let plan = Plan {
            op: match op {
                1 => Op::Send,
                2 => Op::Write,
                3 => Op::Read,
                _ => return Err(Malformed::Unknown("operation")),
            },
            mode: match mode {
                1 => Mode::Latency,
                2 => Mode::Bandwidth,
                3 => Mode::Idle,
                _ => return Err(Malformed::Unknown("mode")),
            },
            check: flags & FLAG_CHECK != 0,
            both_ways: flags & FLAG_BOTH_WAYS != 0,
            depth: u16::from_be_bytes(take(&mut rest)?),
            size: u32::from_be_bytes(take(&mut rest)?),
        };
        if flags & !(FLAG_CHECK | FLAG_BOTH_WAYS) != 0 {
            return Err(Malformed::Unknown("flag"));
        }
        end(rest)?;
        Ok(plan)
    }

    /// The private data.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = opening();
        bytes.push(match self.op {
            Op::Send => 1,
            Op::Write => 2,
            Op::Read => 3,
        });
        bytes.push(match self.mode {
            Mode::Latency => 1,
            Mode::Bandwidth => 2,
            Mode::Idle => 3,
        });
        let flag = |on: bool, bit: u16| if on { bit } else { 0 };
        let flags = flag(self.check, FLAG_CHECK) | flag(self.both_ways, FLAG_BOTH_WAYS);
        bytes.extend(flags.to_be_bytes());
        bytes.extend(self.depth.to_be_bytes());
        bytes.extend(self.size.to_be_bytes());
        bytes
    }
}

impl Welcome {
    /// Parses the private data of an acceptance.
    pub fn parse(bytes: &[u8]) -> Result<Welcome, Malformed> {
        end(ours(bytes)?).map(|()| Welcome)
    }

    /// The private data.
    pub fn emit(&self) -> Vec<u8> {
        opening()
    }
}

impl Refusal {
    /// Parses the private data of a rejection of any version: its fields have been there since the first.
    pub fn parse(bytes: &[u8]) -> Result<Refusal, Malformed> {
        let (version, mut rest) = versioned(bytes)?;
        let reason = match u16::from_be_bytes(take(&mut rest)?) {
            1 => Reason::Version,
            2 => Reason::Malformed,
            3 => Reason::Limits,
            4 => Reason::Busy,
            other => Reason::Other(other),
        };
        let max_depth = u16::from_be_bytes(take(&mut rest)?);
        Ok(Refusal { version, reason, max_depth, max_size: u32::from_be_bytes(take(&mut rest)?) })
    }

    /// The private data.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &self.version.to_be_bytes()].concat();
        let reason: u16 = match self.reason {
            Reason::Version => 1,
            Reason::Malformed => 2,
            Reason::Limits => 3,
            Reason::Busy => 4,
            Reason::Other(other) => other,
        };
        bytes.extend(reason.to_be_bytes());
        bytes.extend(self.max_depth.to_be_bytes());
        bytes.extend(self.max_size.to_be_bytes());
        bytes
    }
}

impl Message {
    /// Parses a whole message.
    pub fn parse(bytes: &[u8]) -> Result<Message, Malformed> {
        let mut rest = bytes;
        let [kind, zero] = take(&mut rest)?;
        let count = usize::from(u16::from_be_bytes(take(&mut rest)?));
        let [a, b, c] = [take(&mut rest)?, take(&mut rest)?, take(&mut rest)?].map(u64::from_be_bytes);
        if zero != 0 {
            return Err(Malformed::Unknown("flag"));
        }
        if count > MAX_ADDRESSES || rest.len() != count * ADDRESS_LEN {
            return Err(Malformed::Length(bytes.len()));
        }
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            let stag = u32::from_be_bytes(take(&mut rest)?);
            addresses.push(RegionAddress { stag, offset: u64::from_be_bytes(take(&mut rest)?) });
        }
        let message = match kind {
            1 => Message::Begin { addresses },
            2 => Message::Ready { addresses },
            3 => Message::Batch { operations: a, first: b, addresses },
            4 => Message::Go,
            5 => Message::Finish,
            6 => Message::Done { operations: a, mismatches: b, cpu_ns: c, addresses },
            7 => Message::Consumed { operations: a },
            _ => return Err(Malformed::Unknown("kind of message")),
        };
        Ok(message)
    }

    /// The message's bytes.
    ///
    /// # Panics
    ///
    /// With more than [`MAX_ADDRESSES`] addresses.
    pub fn emit(&self) -> Vec<u8> {
        let (kind, words, addresses): (u8, [u64; 3], &[RegionAddress]) = match self {
            Message::Begin { addresses } => (1, [0; 3], addresses),
            Message::Ready { addresses } => (2, [0; 3], addresses),
            Message::Batch { operations, first, addresses } => (3, [*operations, *first, 0], addresses),
            Message::Go => (4, [0; 3], &[]),
            Message::Finish => (5, [0; 3], &[]),
            Message::Done { operations, mismatches, cpu_ns, addresses } => {
                (6, [*operations, *mismatches, *cpu_ns], addresses)
            }
            Message::Consumed { operations } => (7, [*operations, 0, 0], &[]),
        };
        assert!(addresses.len() <= MAX_ADDRESSES);
        let mut bytes =
            Vec::with_capacity(HEAD_LEN.saturating_add(addresses.len().saturating_mul(ADDRESS_LEN)));
        bytes.extend([kind, 0]);
        bytes.extend((addresses.len() as u16).to_be_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_be_bytes()));
        for address in addresses {
            bytes.extend(address.stag.to_be_bytes());
            bytes.extend(address.offset.to_be_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests;
