//! The server service: shares, sessions, server information and clock ([MS-SRVS] 2.2.4 structures, 3.1.4 calls).
//!
//! The caller supplies the lists and bounds their length, because an answer is built whole.

use super::ndr::{Reader, Writer};
use super::{Malformed, Syntax};

/// 4b324fc8-1670-01d3-1278-5a47bf6ee188, version 3.0.
pub const INTERFACE: Syntax =
    Syntax::new(0x4b32_4fc8, 0x1670, 0x01d3, [0x12, 0x78, 0x5a, 0x47, 0xbf, 0x6e, 0xe1, 0x88], 3);

/// NetrSessionEnum.
pub const SESSION_ENUM: u16 = 12;
/// NetrShareEnum.
pub const SHARE_ENUM: u16 = 15;
/// NetrShareGetInfo.
pub const SHARE_GET_INFO: u16 = 16;
/// NetrServerGetInfo.
pub const SERVER_GET_INFO: u16 = 21;
/// NetrRemoteTOD.
pub const REMOTE_TOD: u16 = 28;
/// NetrShareEnumSticky: the shares that persist across restarts, in the form of NetrShareEnum.
pub const SHARE_ENUM_STICKY: u16 = 36;

/// A disk share ([MS-SRVS] 2.2.2.4).
pub const TYPE_DISK: u32 = 0;
/// Named pipes, hidden from users.
pub const TYPE_IPC: u32 = 0x8000_0003;
/// No limit on the length of an answer (2.2.2.2).
pub const MAX_PREFERRED_LENGTH: u32 = u32::MAX;

/// The input of the enumerations: level, preferred length, and the position at which to resume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enum {
    /// For NetrSessionEnum: only sessions of this client.
    pub client: Option<String>,
    /// For NetrSessionEnum: only sessions of this user.
    pub user: Option<String>,
    /// Level.
    pub level: u32,
    /// Approximate limit of the answer in bytes.
    pub preferred_bytes: u32,
    /// Position at which the last answer ended; `None`: no handle was passed.
    pub resume: Option<u32>,
}

impl Enum {
    /// Parses the input of NetrShareEnum.
    pub fn parse_shares(stub: &[u8]) -> Result<Enum, Malformed> {
        let mut r = Reader::new(stub);
        r.optional(Reader::wide_string)?;
        Enum::parse_tail(r, None, None)
    }

    /// Parses the input of NetrSessionEnum.
    pub fn parse_sessions(stub: &[u8]) -> Result<Enum, Malformed> {
        let mut r = Reader::new(stub);
        r.optional(Reader::wide_string)?;
        let client = r.optional(Reader::wide_string)?;
        let user = r.optional(Reader::wide_string)?;
        Enum::parse_tail(r, client, user)
    }

    fn parse_tail(
        mut r: Reader<'_>,
        client: Option<String>,
        user: Option<String>,
    ) -> Result<Enum, Malformed> {
        let (level, tag) = (r.u32()?, r.u32()?);
        if level != tag {
            return Err(Malformed("level of an enumeration"));
        }
        // The container is for the answer; clients send it empty.
        if r.pointer()? {
            let (count, buffer) = (r.u32()?, r.pointer()?);
            let elements = if buffer { r.u32()? } else { 0 };
            if count != 0 || elements != 0 {
                return Err(Malformed("the container of an enumeration is not empty"));
            }
        }
        let preferred_bytes = r.u32()?;
        let resume = r.optional(Reader::u32)?;
        Ok(Enum { client, user, level, preferred_bytes, resume })
    }
}

/// A share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareInfo {
    /// Name.
    pub name: String,
    /// [`TYPE_DISK`] or [`TYPE_IPC`].
    pub kind: u32,
    /// Comment.
    pub remark: String,
    /// Path on the server, as far as it is disclosed.
    pub path: String,
    /// Current number of users.
    pub current_uses: u32,
}

impl ShareInfo {
    /// The levels that this server answers.
    pub const LEVELS: [u32; 6] = [0, 1, 2, 501, 502, 1005];

    /// Approximate length of the share in an answer, in bytes.
    pub fn weight(&self, level: u32) -> usize {
        let text = |text: &str| text.len().saturating_mul(2).saturating_add(20);
        match level {
            0 => text(&self.name),
            1 | 501 => [12, text(&self.name), text(&self.remark)].iter().sum(),
            _ => [40, text(&self.name), text(&self.remark), text(&self.path)].iter().sum(),
        }
    }

    /// Appends SHARE_INFO_0, 1, 2, 501, 502 or 1005; false for any other level.
    fn emit<'a>(&'a self, level: u32, w: &mut Writer<'a>) {
        if level == 1005 {
            return w.u32(0);
        }
        w.string_pointer(&self.name);
        if level == 0 {
            return;
        }
        w.u32(self.kind);
        w.string_pointer(&self.remark);
        if level == 501 {
            w.u32(0);
        }
        if level == 2 || level == 502 {
            // Permissions belong to share-level security, which is obsolete.
            w.u32(0);
            w.u32(u32::MAX);
            w.u32(self.current_uses);
            w.string_pointer(&self.path);
            w.null();
        }
        if level == 502 {
            // The share has no descriptor of its own; the files' descriptors apply.
            w.u32(0);
            w.null();
        }
    }
}

/// The answer of an enumeration whose level is unsupported, or which is refused.
pub fn emit_no_enum(level: u32, resume: Option<u32>, status: u32) -> Vec<u8> {
    let mut w = Writer::new();
    w.u32(level);
    w.u32(level);
    w.null();
    w.u32(0);
    emit_resume(&mut w, resume);
    w.u32(status);
    w.finish()
}

fn emit_resume(w: &mut Writer<'_>, resume: Option<u32>) {
    match resume {
        Some(resume) => w.parameter(|w| w.u32(resume)),
        None => w.null(),
    }
}

/// The container, the total, the position at which to resume, and the status; `element` writes the fixed part of each
/// entry.
fn emit_enum<'a, T>(
    level: u32,
    elements: &'a [T],
    total: usize,
    resume: Option<u32>,
    status: u32,
    element: impl Fn(&'a T, &mut Writer<'a>) + 'a,
) -> Vec<u8> {
    let mut w = Writer::new();
    w.u32(level);
    w.u32(level);
    w.parameter(|w| {
        w.count(elements.len());
        w.pointer(move |w| {
            w.count(elements.len());
            elements.iter().for_each(|one| element(one, w));
        });
    });
    w.count(total);
    emit_resume(&mut w, resume);
    w.u32(status);
    w.finish()
}

/// The answer of NetrShareEnum at one of the levels 0, 1, 2, 501, 502.
pub fn emit_shares(
    level: u32,
    shares: &[ShareInfo],
    total: usize,
    resume: Option<u32>,
    status: u32,
) -> Vec<u8> {
    emit_enum(level, shares, total, resume, status, move |share, w| share.emit(level, w))
}

/// The input of NetrShareGetInfo: the share's name and the level.
pub fn parse_share_get_info(stub: &[u8]) -> Result<(String, u32), Malformed> {
    let mut r = Reader::new(stub);
    r.optional(Reader::wide_string)?;
    let name = r.wide_string()?;
    Ok((name, r.u32()?))
}

/// The input of NetrServerGetInfo: the level.
pub fn parse_server_get_info(stub: &[u8]) -> Result<u32, Malformed> {
    let mut r = Reader::new(stub);
    r.optional(Reader::wide_string)?;
    r.u32()
}

/// A union that a level selects: a pointer, or a null pointer with the status.
fn emit_union<'a>(level: u32, something: Option<impl FnOnce(&mut Writer<'a>)>, status: u32) -> Vec<u8> {
    let mut w = Writer::new();
    w.u32(level);
    match something {
        Some(write) => w.parameter(write),
        None => w.null(),
    }
    w.u32(status);
    w.finish()
}

/// The answer of NetrShareGetInfo.
pub fn emit_share<'a>(level: u32, share: Result<&'a ShareInfo, u32>) -> Vec<u8> {
    let status = share.err().unwrap_or(0);
    let write = share.ok().map(|share| move |w: &mut Writer<'a>| share.emit(level, w));
    emit_union(level, write, status)
}

/// Server information: SERVER_INFO_100 to 102.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// Name.
    pub name: String,
    /// Comment.
    pub comment: String,
    /// The Windows version to which it corresponds.
    pub version: (u32, u32),
    /// SV_TYPE flags ([MS-SRVS] 2.2.2.7).
    pub kind: u32,
}

impl ServerInfo {
    /// PLATFORM_ID_NT.
    pub const PLATFORM: u32 = 500;
    /// The levels that [`ServerInfo::emit`] supports.
    pub const LEVELS: [u32; 3] = [100, 101, 102];

    /// The answer of NetrServerGetInfo at one of those levels.
    pub fn emit(&self, level: u32) -> Vec<u8> {
        let mut w = Writer::new();
        w.u32(level);
        w.parameter(|w| {
            w.u32(ServerInfo::PLATFORM);
            w.string_pointer(&self.name);
            if level > 100 {
                w.u32(self.version.0);
                w.u32(self.version.1);
                w.u32(self.kind);
                w.string_pointer(&self.comment);
            }
            if level > 101 {
                // Unlimited users, no automatic disconnection (-1), not hidden, default announcement.
                for value in [u32::MAX, u32::MAX, 0, 240, 3000, 0] {
                    w.u32(value);
                }
                w.string_pointer("C:\\");
            }
        });
        w.u32(0);
        w.finish()
    }
}

/// An answer of NetrServerGetInfo or NetrWkstaGetInfo without data.
pub fn emit_no_info(level: u32, status: u32) -> Vec<u8> {
    emit_union(level, None::<fn(&mut Writer<'_>)>, status)
}

/// A session in NetrSessionEnum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// The client's address.
    pub client: String,
    /// User who logged on.
    pub user: String,
    /// Number of open files.
    pub opens: u32,
    /// Seconds since log-on.
    pub seconds: u32,
}

impl SessionInfo {
    /// The levels that [`emit_sessions`] supports.
    pub const LEVELS: [u32; 5] = [0, 1, 2, 10, 502];

    fn emit<'a>(&'a self, level: u32, w: &mut Writer<'a>) {
        w.string_pointer(&self.client);
        if level == 0 {
            return;
        }
        w.string_pointer(&self.user);
        if level != 10 {
            w.u32(self.opens);
        }
        w.u32(self.seconds);
        // Idle time is not measured and reported as 0.
        w.u32(0);
        if level != 10 {
            w.u32(0);
        }
        if level == 2 || level == 502 {
            w.string_pointer("");
        }
        if level == 502 {
            w.string_pointer("");
        }
    }
}

/// The answer of NetrSessionEnum.
pub fn emit_sessions(
    level: u32,
    sessions: &[SessionInfo],
    total: usize,
    resume: Option<u32>,
    status: u32,
) -> Vec<u8> {
    emit_enum(level, sessions, total, resume, status, move |session, w| session.emit(level, w))
}

/// The answer of NetrRemoteTOD: the time as seconds and nanoseconds since 1970.
pub fn emit_time_of_day(secs: i64, nanos: u32, up_ms: u32) -> Vec<u8> {
    let secs = secs.max(0);
    let (days, rest) = (secs / 86_400, (secs % 86_400) as u32);
    let (year, month, day) = civil(days);
    let mut w = Writer::new();
    w.parameter(|w| {
        w.u32(u32::try_from(secs).unwrap_or(u32::MAX));
        w.u32(up_ms);
        for value in [rest / 3600, rest / 60 % 60, rest % 60, nanos / 10_000_000] {
            w.u32(value);
        }
        // Times are UTC; the clock ticks every 10 ms (in tenths of milliseconds).
        w.u32(0);
        w.u32(310);
        // 1970 began on a Thursday.
        for value in [day, month, year, (days.saturating_add(4) % 7) as u32] {
            w.u32(value);
        }
    });
    w.u32(0);
    w.finish()
}

/// Year, month and day of the Gregorian calendar, from a number of days since 1970.
#[expect(clippy::arithmetic_side_effects, reason = "days of an i64 of seconds are far from overflowing")]
fn civil(days: i64) -> (u32, u32, u32) {
    // Days are counted from 1 March of year 0, so that leap days come last. A cycle of 400 years has 146,097 days.
    let z = days + 719_468;
    let cycle = z / 146_097;
    let of_cycle = z % 146_097;
    let year = (of_cycle - of_cycle / 1460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year + cycle * 400 + i64::from(month <= 2);
    (year as u32, month as u32, day as u32)
}

/// The client's side of listing shares.
pub mod client {
    use super::*;

    /// The stub of NetrShareEnum at level 1, for everything from `resume` on.
    pub fn share_enum(server: &str, resume: u32) -> Vec<u8> {
        let mut w = Writer::new();
        w.parameter(|w| w.wide_string(server));
        w.u32(1);
        w.u32(1);
        w.parameter(|w| {
            w.u32(0);
            w.null();
        });
        w.u32(MAX_PREFERRED_LENGTH);
        w.parameter(|w| w.u32(resume));
        w.finish()
    }

    /// A share: name, type, remark.
    pub type Listed = (String, u32, String);

    /// Parses the answer: shares, position at which to resume, status.
    pub fn parse_shares(stub: &[u8]) -> Result<(Vec<Listed>, u32, u32), Malformed> {
        let mut r = Reader::new(stub);
        if (r.u32()?, r.u32()?) != (1, 1) {
            return Err(Malformed("unexpected level of a share list"));
        }
        let mut shares = Vec::new();
        if r.pointer()? {
            r.u32()?;
            if r.pointer()? {
                let count = r.count(12)?;
                let mut heads = Vec::with_capacity(count);
                for _ in 0..count {
                    heads.push((r.pointer()?, r.u32()?, r.pointer()?));
                }
                for (name, kind, remark) in heads {
                    let name = if name { r.wide_string()? } else { String::new() };
                    let remark = if remark { r.wide_string()? } else { String::new() };
                    shares.push((name, kind, remark));
                }
            }
        }
        r.u32()?;
        let resume = r.optional(Reader::u32)?.unwrap_or(0);
        Ok((shares, resume, r.u32()?))
    }
}
