//! Messages of Multicast DNS (RFC 6762 18), in the format of DNS (RFC 1035 4): questions and records, with compressed
//! names.
//!
//! ```text
//! | ID | flags | questions | answers | authority | additional |      six 16-bit numbers, big-endian
//! question: name, type, class; the top bit of the class asks for an answer by unicast (RFC 6762 5.4)
//! record:   name, type, class, TTL, length, data; the top bit of the class flushes caches (RFC 6762 10.2)
//! ```
//!
//! Only the types of DNS-SD (RFC 6763) have their data parsed. What an answer should contain is decided elsewhere.

mod malformed;
mod name;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use self::malformed::{MAX_ENTRIES, Malformed};
pub use self::name::Name;
use self::name::{Compressor, Labels};

/// Bytes of the header.
pub const HEADER_LEN: usize = 12;
/// Class IN.
pub const CLASS_IN: u16 = 1;
/// Class ANY, in questions.
pub const CLASS_ANY: u16 = 255;
/// The top bit of a class.
const TOP: u16 = 0x8000;

/// Types of records.
#[allow(missing_docs, reason = "the specification's names")]
pub mod kind {
    pub const A: u16 = 1;
    pub const PTR: u16 = 12;
    pub const TXT: u16 = 16;
    pub const AAAA: u16 = 28;
    pub const SRV: u16 = 33;
    pub const NSEC: u16 = 47;
    /// Only in questions.
    pub const ANY: u16 = 255;
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Message {
    /// Zero, except in questions of resolvers that know nothing of multicast, and their answers.
    pub id: u16,
    /// Whether it answers.
    pub response: bool,
    /// Whether it is of authority (RFC 6762 18.4): every answer is.
    pub authoritative: bool,
    /// Whether more known answers follow (RFC 6762 7.2).
    pub truncated: bool,
    /// Operation and response code: anything but zero is ignored (RFC 6762 18.3, 18.11).
    pub codes: (u8, u8),
    /// What is asked.
    pub questions: Vec<Question>,
    /// Answers; in a question, the answers that are known already.
    pub answers: Vec<Record>,
    /// In a probe, the records that the prober means to have (RFC 6762 8.2).
    pub authority: Vec<Record>,
    /// Records that will be asked for next.
    pub additional: Vec<Record>,
}

/// A question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// The name.
    pub name: Name,
    /// The type.
    pub kind: u16,
    /// The class, without its top bit.
    pub class: u16,
    /// Whether an answer by unicast is wanted.
    pub unicast: bool,
}

/// A record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The name.
    pub name: Name,
    /// The class, without its top bit.
    pub class: u16,
    /// Whether it replaces all other records of its name and type.
    pub flush: bool,
    /// Seconds that it may be cached.
    pub ttl: u32,
    /// Its type and data.
    pub data: Data,
}

/// The data of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Data {
    /// An IPv4 address.
    A(Ipv4Addr),
    /// An IPv6 address.
    Aaaa(Ipv6Addr),
    /// Another name.
    Ptr(Name),
    /// Where a service is (RFC 2782).
    Srv {
        /// The port.
        port: u16,
        /// The host.
        target: Name,
    },
    /// Strings of at most 255 bytes, each after its length.
    Txt(Vec<u8>),
    /// The types that a name has (RFC 6762 6.1), below 256.
    Nsec {
        /// The name itself.
        next: Name,
        /// The types.
        types: Vec<u16>,
    },
    /// Of another type.
    Other(u16, Vec<u8>),
}

impl Data {
    /// The type.
    #[must_use]
    pub fn kind(&self) -> u16 {
        match self {
            Data::A(_) => kind::A,
            Data::Aaaa(_) => kind::AAAA,
            Data::Ptr(_) => kind::PTR,
            Data::Srv { .. } => kind::SRV,
            Data::Txt(_) => kind::TXT,
            Data::Nsec { .. } => kind::NSEC,
            Data::Other(kind, _) => *kind,
        }
    }

    /// The data without compression, by which two probes are compared (RFC 6762 8.2).
    #[must_use]
    pub fn canonical(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.emit(&mut bytes, &mut Compressor::none());
        bytes
    }

    /// Whether both say the same; the case of names does not matter.
    #[must_use]
    pub fn is_same(&self, other: &Data) -> bool {
        match (self, other) {
            (Data::Ptr(a), Data::Ptr(b)) => a.is(b),
            (Data::Srv { port: a, target: at }, Data::Srv { port: b, target: bt }) => a == b && at.is(bt),
            _ => self == other,
        }
    }

    fn emit(&self, out: &mut Vec<u8>, names: &mut Compressor) {
        match self {
            Data::A(ip) => out.extend(ip.octets()),
            Data::Aaaa(ip) => out.extend(ip.octets()),
            Data::Ptr(name) => names.emit(name, out),
            Data::Srv { port, target } => {
                // Priority and weight: there is one host.
                out.extend([0; 4]);
                out.extend(port.to_be_bytes());
                names.emit(target, out);
            }
            // RFC 6763 6.1: no string at all is one empty string.
            Data::Txt(text) if text.is_empty() => out.push(0),
            Data::Txt(text) => out.extend(text),
            Data::Nsec { next, types } => {
                names.emit(next, out);
                let mut bits = [0u8; 32];
                for kind in types {
                    if let Some(byte) = bits.get_mut(usize::from(kind >> 3)) {
                        *byte |= 0x80u8.wrapping_shr(u32::from(kind & 7));
                    }
                }
                let len = bits.iter().rposition(|byte| *byte != 0).map_or(0, |last| last.saturating_add(1));
                out.extend([0, u8::try_from(len).unwrap_or(32)]);
                out.extend(bits.iter().take(len));
            }
            Data::Other(_, bytes) => out.extend(bytes),
        }
    }
}

impl Record {
    /// Whether both are of the same name, class, type and data; the TTL does not matter.
    #[must_use]
    pub fn is_same(&self, other: &Record) -> bool {
        self.class == other.class && self.data.is_same(&other.data) && self.name.is(&other.name)
    }
}

impl Message {
    /// Parses a packet.
    ///
    /// # Errors
    /// It is no message.
    pub fn parse(bytes: &[u8]) -> Result<Message, Malformed> {
        let mut at = Cursor { bytes, position: 0 };
        let (id, flags) = (at.u16()?, at.u16()?);
        let counts = [at.u16()?, at.u16()?, at.u16()?, at.u16()?].map(usize::from);
        if counts.iter().sum::<usize>() > MAX_ENTRIES {
            return Err(Malformed::TooMany);
        }
        let [questions, answers, authority, additional] = counts;
        let [high, low] = flags.to_be_bytes();
        Ok(Message {
            id,
            response: high & 0x80 != 0,
            authoritative: high & 0x04 != 0,
            truncated: high & 0x02 != 0,
            codes: ((high >> 3) & 0xf, low & 0xf),
            questions: (0..questions).map(|_| at.question()).collect::<Result<_, _>>()?,
            answers: (0..answers).map(|_| at.record()).collect::<Result<_, _>>()?,
            authority: (0..authority).map(|_| at.record()).collect::<Result<_, _>>()?,
            additional: (0..additional).map(|_| at.record()).collect::<Result<_, _>>()?,
        })
    }

    /// The packet.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        let bit = |set: bool, value: u8| if set { value } else { 0 };
        out.extend(self.id.to_be_bytes());
        out.push(
            bit(self.response, 0x80)
                | (self.codes.0 & 0xf) << 3
                | bit(self.authoritative, 0x04)
                | bit(self.truncated, 0x02),
        );
        out.push(self.codes.1 & 0xf);
        let lists = [&self.answers, &self.authority, &self.additional];
        let counts = [self.questions.len()].into_iter().chain(lists.iter().map(|list| list.len()));
        for count in counts {
            out.extend(u16::try_from(count).unwrap_or(u16::MAX).to_be_bytes());
        }
        let mut names = Compressor::default();
        for question in &self.questions {
            names.emit(&question.name, &mut out);
            out.extend(question.kind.to_be_bytes());
            out.extend((question.class | if question.unicast { TOP } else { 0 }).to_be_bytes());
        }
        for record in lists.into_iter().flatten() {
            names.emit(&record.name, &mut out);
            out.extend(record.data.kind().to_be_bytes());
            out.extend((record.class | if record.flush { TOP } else { 0 }).to_be_bytes());
            out.extend(record.ttl.to_be_bytes());
            let length_at = out.len();
            out.extend([0; 2]);
            record.data.emit(&mut out, &mut names);
            let len = out.len().saturating_sub(length_at).saturating_sub(2);
            let len = u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
            if let Some(place) = out.get_mut(length_at..).and_then(|rest| rest.first_chunk_mut::<2>()) {
                *place = len;
            }
        }
        out
    }
}

/// A position in a packet.
struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let end = self.position.checked_add(len).ok_or(Malformed::Truncated)?;
        let taken = self.bytes.get(self.position..end).ok_or(Malformed::Truncated)?;
        self.position = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.first_chunk().copied().ok_or(Malformed::Truncated)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    fn name(&mut self) -> Result<Name, Malformed> {
        let (name, after) = Labels { bytes: self.bytes }.parse(self.position)?;
        self.position = after;
        Ok(name)
    }

    fn question(&mut self) -> Result<Question, Malformed> {
        let (name, kind, class) = (self.name()?, self.u16()?, self.u16()?);
        Ok(Question { name, kind, class: class & !TOP, unicast: class & TOP != 0 })
    }

    fn record(&mut self) -> Result<Record, Malformed> {
        let (name, kind, class) = (self.name()?, self.u16()?, self.u16()?);
        let ttl = u32::from_be_bytes(self.array()?);
        let len = usize::from(self.u16()?);
        let start = self.position;
        let raw = self.take(len)?;
        // Names in the data may point to anywhere before.
        let data = Cursor { bytes: self.bytes.get(..self.position).unwrap_or(raw), position: start };
        let data = data.data(kind, raw)?;
        Ok(Record { name, class: class & !TOP, flush: class & TOP != 0, ttl, data })
    }

    fn data(mut self, kind: u16, raw: &[u8]) -> Result<Data, Malformed> {
        let wrong = |_| Malformed::Data(kind);
        let data = match kind {
            kind::A => Data::A(self.array::<4>().map_err(wrong)?.into()),
            kind::AAAA => Data::Aaaa(self.array::<16>().map_err(wrong)?.into()),
            kind::PTR => Data::Ptr(self.name()?),
            kind::SRV => {
                self.take(4).map_err(wrong)?;
                Data::Srv { port: self.u16().map_err(wrong)?, target: self.name()? }
            }
            kind::TXT => Data::Txt(self.take(raw.len())?.to_vec()),
            // Nobody reads those of others.
            _ => Data::Other(kind, self.take(raw.len())?.to_vec()),
        };
        if self.position < self.bytes.len() { Err(Malformed::Data(kind)) } else { Ok(data) }
    }
}

#[cfg(test)]
mod tests;
