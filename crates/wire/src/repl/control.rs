//! Control messages: a source's requests to a destination, other than storing bytes, and the responses.
//!
//! [`Request`] and [`Response`] are our own format, version 1, little-endian. `replica::destination` decides how to
//! respond.
//!
//! ```text
//! message:  4 "WfRq" or "WfRs" | 2 version | 1 kind | 1 zero | 4 bytes of the body | body | 4 CRC32C of all before
//! era:      8 epoch | 8 tag | 8 after
//! lists:    2 count | items
//! ```
//!
//! One request is one exchange: the destination responds once the action is complete, and once it is durable for
//! requests that are marked so below. Every request but a hello names the session that a hello established. A later
//! hello ends the earlier session, so that a source that was taken for dead and returns is fenced at its next request
//! of any kind.

use super::record::MAX_MEMBERS;
use super::{Malformed, Reader};

/// The version of this module.
pub const VERSION: u16 = 1;
/// Largest message: a full list of digests.
pub const MAX_MESSAGE: usize = HEAD + MAX_DIGESTS * DIGEST + 64;
/// Most digests of one answer.
pub const MAX_DIGESTS: usize = 4096;
/// Most ranges of one answer.
pub const MAX_RANGES: usize = 4096;
/// Most eras that a side remembers; the oldest are forgotten.
pub const MAX_ERAS: usize = 32;
/// Bytes of a digest.
pub const DIGEST: usize = 16;

const HEAD: usize = 12;
const REQUEST_MAGIC: [u8; 4] = *b"WfRq";
const RESPONSE_MAGIC: [u8; 4] = *b"WfRs";

/// A stretch of a history that one source wrote: the records after `after`, under this epoch. The random tag
/// distinguishes it from the era of another source that took the same number at the same time, and from what the same
/// source wrote before it lost the end of its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Era {
    /// Number of the source in the order of succession.
    pub epoch: u64,
    /// A random number.
    pub tag: u64,
    /// The last sequence of the history before this era.
    pub after: u64,
}

/// The kind of resync, used when the destination cannot continue its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// The blocks in the source's bitmap.
    Changed,
    /// All blocks; the destination's own content does not count.
    Initial,
    /// All blocks whose checksums differ.
    Seeded,
}

/// The identity and history of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The partnership's id.
    pub partnership: [u8; 16],
    /// The first sequence in the source's log; one more than the last when the log is empty.
    pub first: u64,
    /// The last sequence that is durable at the source.
    pub last: u64,
    /// Whether writes are answered only when they are durable at the destination; only for its status.
    pub synchronous: bool,
    /// Allows the destination to discard changes that only it has, and to take up the partnership.
    pub adopt: bool,
    /// Size of each volume of the group in bytes, in the group's order.
    pub sizes: Vec<u64>,
    /// Oldest first; the last is the source's own.
    pub eras: Vec<Era>,
}

/// A request of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Claims the destination for the source's epoch; answered by [`Response::Welcome`].
    Hello(Hello),
    /// Begins a resync: the destination applies its log, is inconsistent from now on, and continues its log after
    /// `base`. Durable.
    Begin {
        /// The session.
        session: u64,
        /// The blocks to come contain all writes up to this sequence.
        base: u64,
        /// The kind, for the destination's status.
        sync: Sync,
    },
    /// Fills a range of a volume with zeros. Durable after a barrier, like copied blocks.
    Zero {
        /// The session.
        session: u64,
        /// Number of the volume.
        member: u16,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Makes everything durable that was stored without the log.
    Barrier {
        /// The session.
        session: u64,
    },
    /// Ends the resync: the destination is consistent once it has everything up to `at`, which it has. Durable.
    Finish {
        /// The session.
        session: u64,
        /// A sequence in the destination's log.
        at: u64,
    },
    /// Requests digests of the pieces of a range, of which the last may be shorter; answered by [`Response::Digests`].
    Checksums {
        /// The session.
        session: u64,
        /// Number of the volume.
        member: u16,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Length of a piece in bytes.
        piece: u32,
        /// The destination first applies its log up to this sequence.
        after: u64,
    },
    /// Requests the ranges that the destination has changed since the histories diverged; answered by
    /// [`Response::Ranges`].
    Diverged {
        /// The session.
        session: u64,
        /// Number of the volume.
        member: u16,
        /// The offset from which on ranges are wanted.
        from: u64,
    },
    /// The source disconnects on purpose and will return.
    Suspend {
        /// The session.
        session: u64,
    },
    /// Prepares the exchange of roles. When the destination responds, everything in its log is durable in its volumes,
    /// and its journal proved writable. It remains a destination. Older versions do not know this request.
    Prepare {
        /// The session.
        session: u64,
    },
    /// Makes the destination the source from now on, under this era. Durable.
    TakeOver {
        /// The session.
        session: u64,
        /// The new source's era.
        era: Era,
    },
    /// Requests the destination's state, without a session; answered by [`Response::Report`].
    Status,
    /// Requests the same within a session: an idle source sends it now and then.
    Beat {
        /// The session.
        session: u64,
    },
}

/// The answer to a hello.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The new session.
    pub session: u64,
    /// The last sequence of the source's own history that is durable at the destination.
    pub last: u64,
    /// Whether the destination's volumes, with its log applied, equal the source's at `last`.
    pub consistent: bool,
    /// Whether the destination has never held data of this partnership.
    pub fresh: bool,
    /// Whether the destination has changes outside the source's history: [`Request::Diverged`] lists them.
    pub diverged: bool,
    /// Sizes of its volumes in bytes.
    pub sizes: Vec<u64>,
}

/// The state of a destination.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The epoch that it follows or, if it is a source, its own.
    pub epoch: u64,
    /// Whether it is a source itself.
    pub source: bool,
    /// Whether it could be promoted.
    pub consistent: bool,
    /// The last sequence in its log.
    pub last: u64,
    /// The last sequence in its volumes.
    pub applied: u64,
    /// Size of its log in bytes.
    pub log_bytes: u64,
    /// Bytes of the log in use.
    pub log_used: u64,
    /// When `applied` was written, by the source's clock, in milliseconds of Unix time; 0 if nothing was.
    pub applied_ms: u64,
}

/// Why a destination refuses a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Another host is the source.
    #[error("another source, of epoch {}, has taken over", .0.epoch)]
    Fenced(Era),
    /// Both sides have changes that the other lacks.
    #[error("both sides have been written to since epoch {}: `weft replica resolve` says which one counts", .0.epoch)]
    SplitBrain(Era),
    /// The session is over; the source has to send a new hello.
    #[error("the session is over")]
    Session,
    /// The destination does not know this partnership.
    #[error("the other side has removed this partnership, or has lost its state directory")]
    Partnership,
    /// The number of volumes differs, or one is too small.
    #[error("it has {0} volumes, or one that is too small")]
    Sizes(u16),
    /// The record does not follow the destination's last one, which is this.
    #[error("its log ends at {0}")]
    Gap(u64),
    /// The destination is in the middle of a resync.
    #[error("it is in the middle of a resync")]
    Inconsistent,
    /// The payload does not match its checksum.
    #[error("a payload was damaged in transit")]
    Damaged,
    /// A range outside the volume, or another mistake of the source.
    #[error("the destination finds the request invalid")]
    Invalid,
    /// The destination's medium has failed.
    #[error("its disk has failed")]
    Io,
    /// The destination's medium is full.
    #[error("its disk is full")]
    NoSpace,
    /// Both sides were written to, and nobody has decided yet: the refused source keeps serving, and may be overruled
    /// later.
    #[error("both sides have been written to: `weft replica resolve` on either says which one counts")]
    Undecided,
    /// The destination's group is stopped: somebody has to make a decision or a repair there.
    #[error("it is stopped there: `weft replica status` on that host says why, and what to type")]
    Stopped,
    /// The source was set back: it once had, durable, the records that the destination has after `both`, and has lost
    /// them.
    #[error("both sides have the same up to record {both}, the copy goes on to record {copy}")]
    SetBack {
        /// The last sequence that both sides have.
        both: u64,
        /// The last sequence that the destination has.
        copy: u64,
    },
    /// The destination is a former source that was set back, and knows of a copy that has more records than this
    /// source.
    #[error(
        "it follows no source that lacks records up to {copy}, which another copy had: `weft replica status` there says what to type"
    )]
    Lacks {
        /// The last record of that copy.
        copy: u64,
    },
    /// The partnership is over: its source told the other side to end it.
    #[error("this partnership was ended by its source, which told the other side so")]
    Ended,
    /// The destination speaks this version.
    #[error("it speaks version {0}")]
    Version(u16),
}

/// A response of a destination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// The answer to a hello.
    Welcome(Welcome),
    /// The answer to requests that ask for no data.
    Done,
    /// The answer to [`Request::Checksums`].
    Digests(Vec<[u8; DIGEST]>),
    /// The answer to [`Request::Diverged`]: offset and length, in order.
    Ranges {
        /// Ranges.
        ranges: Vec<(u64, u64)>,
        /// The offset at which to continue, if there may be more ranges.
        next: Option<u64>,
    },
    /// The answer to [`Request::Status`] and [`Request::Beat`].
    Report(Report),
    /// The request is refused.
    Refused(Refusal),
}

impl Era {
    const LEN: usize = 24;

    fn put(&self, out: &mut Vec<u8>) {
        [self.epoch, self.tag, self.after].iter().for_each(|word| out.extend(word.to_le_bytes()));
    }

    fn take(r: &mut Reader<'_>) -> Result<Era, Malformed> {
        Ok(Era { epoch: r.epoch()?, tag: r.u64()?, after: r.sequence()? })
    }
}

fn put_words(out: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| out.extend(word.to_le_bytes()));
}

fn put_sizes(out: &mut Vec<u8>, sizes: &[u64]) {
    assert!(sizes.len() <= MAX_MEMBERS);
    out.extend((sizes.len() as u16).to_le_bytes());
    put_words(out, sizes);
}

fn take_sizes(r: &mut Reader<'_>) -> Result<Vec<u64>, Malformed> {
    let count = r.count(MAX_MEMBERS, 8)?;
    let sizes: Vec<u64> = (0..count).map(|_| r.u64()).collect::<Result<_, _>>()?;
    // A journal has no volume of size zero.
    if sizes.contains(&0) { Err(Malformed::Field("the size of a volume")) } else { Ok(sizes) }
}

fn seal(magic: [u8; 4], kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len().saturating_add(HEAD + 4));
    out.extend(magic);
    out.extend(VERSION.to_le_bytes());
    out.extend([kind, 0]);
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(body);
    let sum = crc32c::crc32c(&out);
    out.extend(sum.to_le_bytes());
    out
}

fn open(magic: [u8; 4], bytes: &[u8]) -> Result<(u8, Reader<'_>), Malformed> {
    let length = Malformed::Length(bytes.len());
    if bytes.len() > MAX_MESSAGE {
        return Err(length);
    }
    if bytes.first_chunk() != Some(&magic) {
        return Err(Malformed::Magic);
    }
    let (covered, sum) = bytes.split_last_chunk::<4>().ok_or(length)?;
    let (_, content) = covered.split_first_chunk::<4>().ok_or(length)?;
    if crc32c::crc32c(covered) != u32::from_le_bytes(*sum) {
        return Err(Malformed::Sum);
    }
    let mut r = Reader(content);
    let version = r.u16()?;
    if version != VERSION {
        return Err(Malformed::Version(version));
    }
    let (kind, zero, len) = (r.u8()?, r.u8()?, r.u32()?);
    if zero != 0 || len as usize != r.0.len() {
        return Err(length);
    }
    Ok((kind, r))
}

impl Request {
    /// The message's bytes.
    ///
    /// # Panics
    ///
    /// With more volumes or eras than the limits allow.
    pub fn emit(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let kind = match self {
            Request::Hello(hello) => {
                assert!(hello.eras.len() <= MAX_ERAS);
                body.extend(hello.partnership);
                put_words(&mut body, &[hello.first, hello.last]);
                body.extend([hello.synchronous, hello.adopt].map(u8::from));
                put_sizes(&mut body, &hello.sizes);
                body.extend((hello.eras.len() as u16).to_le_bytes());
                hello.eras.iter().for_each(|era| era.put(&mut body));
                1
            }
            Request::Begin { session, base, sync } => {
                put_words(&mut body, &[*session, *base]);
                body.push(match sync {
                    Sync::Changed => 0,
                    Sync::Initial => 1,
                    Sync::Seeded => 2,
                });
                2
            }
            Request::Zero { session, member, offset, len } => {
                put_words(&mut body, &[*session, *offset, *len]);
                body.extend(member.to_le_bytes());
                3
            }
            Request::Barrier { session } => {
                put_words(&mut body, &[*session]);
                4
            }
            Request::Finish { session, at } => {
                put_words(&mut body, &[*session, *at]);
                5
            }
            Request::Checksums { session, member, offset, len, piece, after } => {
                put_words(&mut body, &[*session, *offset, *len, *after]);
                body.extend(piece.to_le_bytes());
                body.extend(member.to_le_bytes());
                6
            }
            Request::Diverged { session, member, from } => {
                put_words(&mut body, &[*session, *from]);
                body.extend(member.to_le_bytes());
                7
            }
            Request::Suspend { session } => {
                put_words(&mut body, &[*session]);
                8
            }
            Request::TakeOver { session, era } => {
                put_words(&mut body, &[*session]);
                era.put(&mut body);
                9
            }
            Request::Status => 10,
            Request::Prepare { session } => {
                put_words(&mut body, &[*session]);
                12
            }
            Request::Beat { session } => {
                put_words(&mut body, &[*session]);
                11
            }
        };
        seal(REQUEST_MAGIC, kind, &body)
    }

    /// Parses a request.
    pub fn parse(bytes: &[u8]) -> Result<Request, Malformed> {
        let (kind, mut r) = open(REQUEST_MAGIC, bytes)?;
        let r = &mut r;
        let request = match kind {
            1 => {
                let (partnership, first, last) = (r.take()?, r.u64()?, r.sequence()?);
                let (synchronous, adopt, sizes) = (r.flag()?, r.flag()?, take_sizes(r)?);
                let count = r.count(MAX_ERAS, Era::LEN)?;
                let eras: Vec<Era> = (0..count).map(|_| Era::take(r)).collect::<Result<_, _>>()?;
                if eras.is_empty() || !eras.is_sorted_by(|a, b| a.epoch <= b.epoch && a.after <= b.after) {
                    return Err(Malformed::Field("the history"));
                }
                Request::Hello(Hello { partnership, first, last, synchronous, adopt, sizes, eras })
            }
            2 => Request::Begin {
                session: r.u64()?,
                base: r.sequence()?,
                sync: match r.u8()? {
                    0 => Sync::Changed,
                    1 => Sync::Initial,
                    2 => Sync::Seeded,
                    _ => return Err(Malformed::Field("the kind of resync")),
                },
            },
            3 => {
                let (session, offset, len) = (r.u64()?, r.u64()?, r.u64()?);
                Request::Zero { session, member: r.u16()?, offset, len }
            }
            4 => Request::Barrier { session: r.u64()? },
            5 => Request::Finish { session: r.u64()?, at: r.sequence()? },
            6 => {
                let (session, offset, len, after) = (r.u64()?, r.u64()?, r.u64()?, r.sequence()?);
                let (piece, member) = (r.u32()?, r.u16()?);
                if piece == 0 || len.div_ceil(piece.into()) > MAX_DIGESTS as u64 {
                    return Err(Malformed::Field("the number of checksums"));
                }
                Request::Checksums { session, member, offset, len, piece, after }
            }
            7 => {
                let (session, from) = (r.u64()?, r.u64()?);
                Request::Diverged { session, member: r.u16()?, from }
            }
            8 => Request::Suspend { session: r.u64()? },
            9 => Request::TakeOver { session: r.u64()?, era: Era::take(r)? },
            10 => Request::Status,
            11 => Request::Beat { session: r.u64()? },
            12 => Request::Prepare { session: r.u64()? },
            _ => return Err(Malformed::Field("the kind of request")),
        };
        r.end()?;
        Ok(request)
    }
}

impl Refusal {
    fn emit(self) -> (u8, Era) {
        let number = |n: u64| Era { epoch: n, tag: 0, after: 0 };
        match self {
            Refusal::Fenced(era) => (1, era),
            Refusal::SplitBrain(era) => (2, era),
            Refusal::Session => (3, number(0)),
            Refusal::Partnership => (4, number(0)),
            Refusal::Sizes(n) => (5, number(n.into())),
            Refusal::Gap(n) => (6, number(n)),
            Refusal::Inconsistent => (7, number(0)),
            Refusal::Damaged => (8, number(0)),
            Refusal::Invalid => (9, number(0)),
            Refusal::Io => (10, number(0)),
            Refusal::NoSpace => (11, number(0)),
            Refusal::Version(n) => (12, number(n.into())),
            Refusal::Undecided => (13, number(0)),
            Refusal::Stopped => (14, number(0)),
            Refusal::SetBack { both, copy } => (15, Era { epoch: copy, tag: 0, after: both }),
            Refusal::Lacks { copy } => (16, number(copy)),
            Refusal::Ended => (17, number(0)),
        }
    }

    fn parse(code: u8, era: Era) -> Result<Refusal, Malformed> {
        let small = u16::try_from(era.epoch).map_err(|_| Malformed::Field("the reason"));
        Ok(match code {
            1 => Refusal::Fenced(era),
            2 => Refusal::SplitBrain(era),
            3 => Refusal::Session,
            4 => Refusal::Partnership,
            5 => Refusal::Sizes(small?),
            6 => Refusal::Gap(era.epoch),
            7 => Refusal::Inconsistent,
            8 => Refusal::Damaged,
            9 => Refusal::Invalid,
            10 => Refusal::Io,
            11 => Refusal::NoSpace,
            12 => Refusal::Version(small?),
            13 => Refusal::Undecided,
            14 => Refusal::Stopped,
            15 => Refusal::SetBack { both: era.after, copy: era.epoch },
            16 => Refusal::Lacks { copy: era.epoch },
            17 => Refusal::Ended,
            _ => return Err(Malformed::Field("the reason")),
        })
    }
}

impl Response {
    /// The message's bytes.
    ///
    /// # Panics
    ///
    /// With more items in a list than the limits allow.
    pub fn emit(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let kind = match self {
            Response::Welcome(welcome) => {
                put_words(&mut body, &[welcome.session, welcome.last]);
                body.extend([welcome.consistent, welcome.fresh, welcome.diverged].map(u8::from));
                put_sizes(&mut body, &welcome.sizes);
                1
            }
            Response::Done => 2,
            Response::Digests(digests) => {
                assert!(digests.len() <= MAX_DIGESTS);
                body.extend((digests.len() as u16).to_le_bytes());
                digests.iter().for_each(|digest| body.extend(digest));
                3
            }
            Response::Ranges { ranges, next } => {
                assert!(ranges.len() <= MAX_RANGES);
                body.push(next.is_some().into());
                put_words(&mut body, &[next.unwrap_or(0)]);
                body.extend((ranges.len() as u16).to_le_bytes());
                ranges.iter().for_each(|(offset, len)| put_words(&mut body, &[*offset, *len]));
                4
            }
            Response::Report(report) => {
                let Report { epoch, last, applied, log_bytes, log_used, applied_ms, .. } = *report;
                put_words(&mut body, &[epoch, last, applied, log_bytes, log_used, applied_ms]);
                body.extend([report.source, report.consistent].map(u8::from));
                5
            }
            Response::Refused(refusal) => {
                let (code, era) = refusal.emit();
                body.push(code);
                era.put(&mut body);
                6
            }
        };
        seal(RESPONSE_MAGIC, kind, &body)
    }

    /// Parses a response.
    pub fn parse(bytes: &[u8]) -> Result<Response, Malformed> {
        let (kind, mut r) = open(RESPONSE_MAGIC, bytes)?;
        let r = &mut r;
        let response = match kind {
            1 => {
                let (session, last) = (r.u64()?, r.u64()?);
                let (consistent, fresh, diverged) = (r.flag()?, r.flag()?, r.flag()?);
                let sizes = take_sizes(r)?;
                Response::Welcome(Welcome { session, last, consistent, fresh, diverged, sizes })
            }
            2 => Response::Done,
            3 => {
                let count = r.count(MAX_DIGESTS, DIGEST)?;
                Response::Digests((0..count).map(|_| r.take()).collect::<Result<_, _>>()?)
            }
            4 => {
                let (more, next) = (r.flag()?, r.u64()?);
                let count = r.count(MAX_RANGES, 16)?;
                let ranges = (0..count).map(|_| Ok((r.u64()?, r.u64()?))).collect::<Result<_, _>>()?;
                Response::Ranges { ranges, next: more.then_some(next) }
            }
            5 => {
                let (epoch, last, applied) = (r.u64()?, r.u64()?, r.u64()?);
                let (log_bytes, log_used, applied_ms) = (r.u64()?, r.u64()?, r.u64()?);
                let (source, consistent) = (r.flag()?, r.flag()?);
                Response::Report(Report {
                    epoch,
                    source,
                    consistent,
                    last,
                    applied,
                    log_bytes,
                    log_used,
                    applied_ms,
                })
            }
            6 => {
                let code = r.u8()?;
                Response::Refused(Refusal::parse(code, Era::take(r)?)?)
            }
            _ => return Err(Malformed::Field("the kind of response")),
        };
        r.end()?;
        Ok(response)
    }
}
