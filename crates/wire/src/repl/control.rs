//! What a source asks of a destination besides storing bytes, and what it is answered.
//!
//! What: [`Request`] and [`Response`]. Spec: this file; version 1, little-endian.
//! Does not: decide anything (see `replica::destination`).
//!
//! ```text
//! message:  4 "WfRq" or "WfRs" | 2 version | 1 kind | 1 zero | 4 bytes of the body | body | 4 CRC32C of all before
//! era:      8 epoch | 8 tag | 8 after
//! lists:    2 count | items
//! ```
//!
//! One request is one exchange: the answer is there when the deed is done, durable where the deed says so. Every request but
//! a hello names the session that the hello was given; a later hello ends the earlier session, so that a source that was
//! taken for dead and comes back is fenced at its next request, whatever that is.

use super::record::MAX_MEMBERS;
use super::{Malformed, Reader};

/// What this module speaks.
pub const VERSION: u16 = 1;
/// No message is longer: a full list of digests.
pub const MAX_MESSAGE: usize = HEAD + MAX_DIGESTS * DIGEST + 64;
/// Digests of one answer.
pub const MAX_DIGESTS: usize = 4096;
/// Ranges of one answer.
pub const MAX_RANGES: usize = 4096;
/// Eras that a side remembers; the oldest are forgotten.
pub const MAX_ERAS: usize = 32;
/// Bytes of a digest.
pub const DIGEST: usize = 16;

const HEAD: usize = 12;
const ASK: [u8; 4] = *b"WfRq";
const TELL: [u8; 4] = *b"WfRs";

/// A stretch of a history that one source wrote: since `after`, under this epoch. The tag, random, tells it from that of
/// somebody who took the same number at the same time, and from what the same source wrote before it lost the end of its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Era {
    /// Counts the sources.
    pub epoch: u64,
    /// Random.
    pub tag: u64,
    /// The last sequence of what went before.
    pub after: u64,
}

/// How a destination is to become equal when its log cannot be gone on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// What the source's bitmap says.
    Changed,
    /// Everything, and the destination's own content does not count.
    Initial,
    /// Everything whose checksums differ.
    Seeded,
}

/// Who comes, and with what history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Which partnership.
    pub partnership: [u8; 16],
    /// The first sequence in the source's log; one more than the last when the log is empty.
    pub first: u64,
    /// The last sequence that is durable there.
    pub last: u64,
    /// Whether writes are answered only when they are durable at the destination; for its status alone.
    pub synchronous: bool,
    /// The destination may give up what only it has, and take the partnership on.
    pub adopt: bool,
    /// Bytes of each volume of the group, in its order.
    pub sizes: Vec<u64>,
    /// Oldest first; the last is the source's own.
    pub eras: Vec<Era>,
}

/// Asked by a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Claims the destination for the source's epoch: [`Response::Welcome`].
    Hello(Hello),
    /// A resync begins: the destination applies what it has, is no consistent copy from now on, and its log goes on behind
    /// `base`. Durable.
    Begin {
        /// The session.
        session: u64,
        /// The last sequence that the blocks to come contain all of.
        base: u64,
        /// For its status.
        sync: Sync,
    },
    /// These bytes of a volume are zeros. Like blocks that are copied: durable after a barrier.
    Zero {
        /// The session.
        session: u64,
        /// The volume.
        member: u16,
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// Everything that was stored past the log is durable.
    Barrier {
        /// The session.
        session: u64,
    },
    /// The resync is over: the destination is consistent when it has everything up to `at`, which it has. Durable.
    Finish {
        /// The session.
        session: u64,
        /// A sequence that the destination's log holds.
        at: u64,
    },
    /// Digests of pieces of a range, the last of them shorter where the range ends: [`Response::Digests`].
    Checksums {
        /// The session.
        session: u64,
        /// The volume.
        member: u16,
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
        /// Bytes of a piece.
        piece: u32,
        /// What was logged up to here is applied first.
        after: u64,
    },
    /// What the destination has changed since the histories parted: [`Response::Ranges`].
    Diverged {
        /// The session.
        session: u64,
        /// The volume.
        member: u16,
        /// Ranges from here on.
        from: u64,
    },
    /// The source goes away on purpose, and will be back.
    Suspend {
        /// The session.
        session: u64,
    },
    /// The roles are about to be exchanged: everything that the destination has logged is in its volumes when it answers, durable,
    /// and its journal could be written. It stays what it is. Older versions do not know this request.
    Prepare {
        /// The session.
        session: u64,
    },
    /// The destination is the source from now on, under this era. Durable.
    TakeOver {
        /// The session.
        session: u64,
        /// Its own era.
        era: Era,
    },
    /// How it is doing: [`Response::Report`]. Needs no session.
    Status,
    /// The same, where the session still counts: what an idle source asks now and then.
    Beat {
        /// The session.
        session: u64,
    },
}

/// Answers to a hello.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// Names this claim.
    pub session: u64,
    /// The last sequence of the source's own history that the destination has, durable.
    pub last: u64,
    /// Whether its volumes, with its log applied, are what the source's were at `last`.
    pub consistent: bool,
    /// Whether it has never held anything of this partnership.
    pub fresh: bool,
    /// Whether it has changed something that is not of the source's history: ask which.
    pub diverged: bool,
    /// Bytes of its volumes.
    pub sizes: Vec<u64>,
}

/// How a destination is doing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The epoch that it follows, or, as a source, its own.
    pub epoch: u64,
    /// Whether it is a source itself.
    pub source: bool,
    /// Whether it could be promoted.
    pub consistent: bool,
    /// Last sequence in its log.
    pub last: u64,
    /// Last sequence in its volumes.
    pub applied: u64,
    /// Bytes of its log.
    pub log_bytes: u64,
    /// Of these in use.
    pub log_used: u64,
    /// When `applied` was written, by the source's clock, milliseconds of Unix time; 0 where nothing was.
    pub applied_ms: u64,
}

/// Why a destination does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Somebody else is the source.
    #[error("another source, of epoch {}, has taken over", .0.epoch)]
    Fenced(Era),
    /// Two histories, each with something that the other lacks.
    #[error("both sides have been written to since epoch {}: `weft replica resolve` says which one counts", .0.epoch)]
    SplitBrain(Era),
    /// The session is over: say hello again.
    #[error("the session is over")]
    Session,
    /// Replicates something else: nobody is left there who knows the partnership.
    #[error("the other side has removed this partnership, or has lost its state directory")]
    Partnership,
    /// Not the same number of volumes, or one that is too small.
    #[error("its volumes are {0} in number or too small")]
    Sizes(u16),
    /// Not what follows what it has; it has everything up to here.
    #[error("its log ends at {0}")]
    Gap(u64),
    /// Not now: it is in the middle of a resync.
    #[error("it is in the middle of a resync")]
    Inconsistent,
    /// The payload is not what its sum says.
    #[error("a payload was damaged on its way")]
    Damaged,
    /// A range that is not inside, or another mistake of the source's.
    #[error("the request makes no sense there")]
    Invalid,
    /// Its medium has failed.
    #[error("its disk has failed")]
    Io,
    /// Its medium is full.
    #[error("its disk is full")]
    NoSpace,
    /// Both sides were written to, and nobody has decided yet: who is refused goes on, and may be told otherwise.
    #[error("both sides have been written to: `weft replica resolve` on either says which one counts")]
    Undecided,
    /// Its group is stopped: somebody has to decide or mend something there.
    #[error("it is stopped there: `weft replica status` on that host says why, and what to type")]
    Stopped,
    /// The source was set back: what the destination has behind `both` the source has had, durable, and has no more.
    #[error("both sides have the same up to record {both}, the copy goes on to record {copy}")]
    SetBack {
        /// The last sequence that both have.
        both: u64,
        /// The last that the destination has.
        copy: u64,
    },
    /// The destination was a source that was set back, and knows of a copy that has more than this source.
    #[error(
        "it follows no source that lacks records up to {copy}, which another copy had: `weft replica status` there says what to type"
    )]
    Lacks {
        /// The last record of that copy.
        copy: u64,
    },
    /// The partnership is over: its source has told the other side so.
    #[error("this partnership was ended by its source, which told the other side so")]
    Ended,
    /// It speaks this version.
    #[error("it speaks version {0}")]
    Version(u16),
}

/// Answered by a destination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// To a hello.
    Welcome(Welcome),
    /// To what asks for no more.
    Done,
    /// To checksums.
    Digests(Vec<[u8; DIGEST]>),
    /// To "diverged": offset and length, in order; there may be more behind `next`.
    Ranges {
        /// Ranges.
        ranges: Vec<(u64, u64)>,
        /// Where to ask on from.
        next: Option<u64>,
    },
    /// To status and beat.
    Report(Report),
    /// No.
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
    // A journal has no volume without bytes.
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
    /// The request as it travels.
    ///
    /// # Panics
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
        seal(ASK, kind, &body)
    }

    /// Reads a request.
    pub fn parse(bytes: &[u8]) -> Result<Request, Malformed> {
        let (kind, mut r) = open(ASK, bytes)?;
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
    /// The response as it travels.
    ///
    /// # Panics
    /// With more in a list than the limits allow.
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
        seal(TELL, kind, &body)
    }

    /// Reads a response.
    pub fn parse(bytes: &[u8]) -> Result<Response, Malformed> {
        let (kind, mut r) = open(TELL, bytes)?;
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
