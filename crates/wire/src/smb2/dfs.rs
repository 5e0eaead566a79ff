//! DFS referrals ([MS-DFSC] 2.2.2 to 2.2.5): the data of FSCTL_DFS_GET_REFERRALS and its newer form.
//!
//! Referrals to domains and domain controllers (lists of names) are unsupported.
//!
//! ```text
//! PathConsumed 2 | NumberOfReferrals 2 | flags 4 | entries, all of one version | strings to which they point
//! entry, V1:     version 2, size 2, server type 2, flags 2, target
//!        V2:     as V1, proximity 4, seconds 4, offsets of path 2, alternate path 2, target 2
//!        V3, V4: as V1, seconds 4, the same offsets, 16 zeros
//! ```

use super::field::{Put, Reader, array_at, bits, len16, patch_u16, since, u16_at, u32_at};
use super::{Malformed, utf16};

/// Most targets in a response that is parsed.
pub const MAX_TARGETS: usize = 64;
/// The newest supported version of an entry.
pub const NEWEST: u16 = 4;

bits! {
    /// Flags of a whole response.
    Flags: u32 {
        /// All targets answer referral requests.
        REFERRAL_SERVERS = 0x0000_0001;
        /// All targets can be used without further referrals.
        STORAGE_SERVERS = 0x0000_0002;
        /// Clients return to a better target when it is available again.
        TARGET_FAILBACK = 0x0000_0004;
    }
}

const SET_BOUNDARY: u16 = 0x0004;
const NAME_LIST: u16 = 0x0002;
const SITE_NAME: u16 = 0x0001;

/// REQ_GET_DFS_REFERRAL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The newest version of an entry that the client supports.
    pub max_level: u16,
    /// `\server\share\path`.
    pub path: String,
}

impl Request {
    /// Parses the older form.
    pub fn parse(input: &[u8]) -> Result<Request, Malformed> {
        let mut r = Reader::new(input);
        let max_level = r.u16()?;
        Ok(Request { max_level, path: terminated(r.rest())? })
    }

    /// Parses the newer form, which may also name the client's site.
    pub fn parse_ex(input: &[u8]) -> Result<Request, Malformed> {
        let mut r = Reader::new(input);
        let (max_level, flags, len) = (r.u16()?, r.u16()?, r.u32()? as usize);
        let mut data = Reader::new(r.take(len)?);
        let path_len = usize::from(data.u16()?);
        let path = string(data.take(path_len)?)?;
        if flags & SITE_NAME != 0 {
            let site_len = usize::from(data.u16()?);
            data.take(site_len)?;
        }
        Ok(Request { max_level, path })
    }

    /// Appends the older form.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(self.max_level);
        utf16::encode(&self.path, out);
        out.put_u16(0);
    }
}

/// A target of a referral.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `\server\share\path`.
    pub address: String,
    /// The target begins a set of equally good targets (version 4).
    pub set_boundary: bool,
}

/// RESP_GET_DFS_REFERRAL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Version of the entries: 1 to 4.
    pub version: u16,
    /// Length of the part of the request's path that the response covers, in bytes.
    pub path_consumed: u16,
    /// Flags.
    pub flags: Flags,
    /// Whether the targets are DFS roots.
    pub root: bool,
    /// How long the client may cache the response, in seconds.
    pub seconds: u32,
    /// The beginning of the request's path for which the targets stand. Version 1 omits it.
    pub path: String,
    /// The targets, best first.
    pub targets: Vec<Target>,
}

impl Response {
    /// The response with as many targets as fit into `limit` bytes; `None` if not even one fits.
    pub fn emit(&self, limit: usize) -> Option<Vec<u8>> {
        (1..=self.targets.len()).rev().find_map(|count| {
            let bytes = self.emit_first(count)?;
            (bytes.len() <= limit).then_some(bytes)
        })
    }

    /// The response with the first `count` targets; `None` if an offset does not fit its field.
    fn emit_first(&self, count: usize) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        out.put_u16(self.path_consumed);
        out.put_u16(len16(count));
        out.put_u32(self.flags.0);
        let mut starts = Vec::with_capacity(count);
        for target in self.targets.iter().take(count) {
            let start = out.len();
            starts.push(start);
            out.put_u16(self.version);
            out.put_u16(0);
            out.put_u16(u16::from(self.root));
            out.put_u16(if self.version >= 4 && target.set_boundary { SET_BOUNDARY } else { 0 });
            match self.version {
                1 => put_terminated(&target.address, &mut out),
                2 => {
                    out.put_u32(0);
                    out.put_u32(self.seconds);
                    out.put_zeros(6);
                }
                _ => {
                    out.put_u32(self.seconds);
                    out.put_zeros(6 + 16);
                }
            }
            let size = u16::try_from(since(&out, start)).ok()?;
            patch_u16(&mut out, start.saturating_add(2), size);
        }
        if self.version == 1 {
            return Some(out);
        }
        let offsets_at = if self.version == 2 { 16 } else { 12 };
        let path_at = out.len();
        put_terminated(&self.path, &mut out);
        for (start, target) in starts.into_iter().zip(&self.targets) {
            let target_at = out.len();
            put_terminated(&target.address, &mut out);
            for (field, at) in [(0, path_at), (2, path_at), (4, target_at)] {
                let offset = u16::try_from(at.checked_sub(start)?).ok()?;
                patch_u16(&mut out, start.saturating_add(offsets_at).saturating_add(field), offset);
            }
        }
        Some(out)
    }

    /// Parses a response about a root or a link.
    pub fn parse(output: &[u8]) -> Result<Response, Malformed> {
        const STRUCTURE: &str = "DFS referral";
        let mut r = Reader::new(output);
        let (path_consumed, count, flags) = (r.u16()?, usize::from(r.u16()?), Flags(r.u32()?));
        if count > MAX_TARGETS {
            return Err(Malformed("too many DFS targets"));
        }
        let mut answer = Response {
            version: NEWEST,
            path_consumed,
            flags,
            root: false,
            seconds: 0,
            path: String::new(),
            targets: Vec::with_capacity(count),
        };
        let mut rest = r.rest();
        for _ in 0..count {
            let head: [u8; 8] = array_at(rest.get(..8).ok_or(Malformed(STRUCTURE))?, 0);
            let (version, size, entry_flags) =
                (u16_at(&head, 0), usize::from(u16_at(&head, 2)), u16_at(&head, 6));
            let fixed = match version {
                1 => 8,
                2 => 22,
                3 | 4 => 18,
                _ => return Err(Malformed("unknown version of a DFS referral")),
            };
            let Some((entry, behind)) = rest.split_at_checked(size).filter(|_| size >= fixed) else {
                return Err(Malformed(STRUCTURE));
            };
            if version >= 3 && entry_flags & NAME_LIST != 0 {
                return Err(Malformed(STRUCTURE));
            }
            answer.version = version;
            answer.root = u16_at(&head, 4) == 1;
            let at = |offset: usize| rest.get(offset..).ok_or(Malformed(STRUCTURE)).and_then(terminated);
            let address = if version == 1 {
                terminated(entry.get(8..).unwrap_or_default())?
            } else {
                let (seconds_at, path_at, address_at) = if version == 2 { (12, 16, 20) } else { (8, 12, 16) };
                answer.seconds = u32_at(rest, seconds_at);
                answer.path = at(u16_at(rest, path_at).into())?;
                at(u16_at(rest, address_at).into())?
            };
            answer.targets.push(Target { address, set_boundary: entry_flags & SET_BOUNDARY != 0 });
            rest = behind;
        }
        Ok(answer)
    }
}

fn put_terminated(text: &str, out: &mut Vec<u8>) {
    utf16::encode(text, out);
    out.put_u16(0);
}

/// A string up to its terminator, or up to the end without one.
fn terminated(bytes: &[u8]) -> Result<String, Malformed> {
    let units = bytes.chunks_exact(2).take_while(|unit| *unit != [0, 0]).count();
    utf16::decode(bytes.get(..units.saturating_mul(2)).unwrap_or_default())
}

/// A counted string; some clients also count its terminator.
fn string(bytes: &[u8]) -> Result<String, Malformed> {
    utf16::decode(bytes.strip_suffix(&[0, 0]).filter(|_| bytes.len().is_multiple_of(2)).unwrap_or(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(version: u16) -> Response {
        let target = |address: &str| Target { address: address.into(), set_boundary: version == 4 };
        Response {
            version,
            path_consumed: 26,
            flags: Flags::STORAGE_SERVERS,
            root: false,
            seconds: if version == 1 { 0 } else { 300 },
            path: if version == 1 { String::new() } else { r"\srv\dfs\link".into() },
            targets: vec![target(r"\one\share"), target(r"\two\share\sub")],
        }
    }

    #[test]
    fn every_version_is_read_back_and_no_part_of_it_is() {
        for version in 1..=4 {
            let bytes = answer(version).emit(4096).unwrap();
            assert_eq!(Response::parse(&bytes), Ok(answer(version)), "version {version}");
            for len in 0..bytes.len() {
                // A cut inside a string gives a shorter one. Only the last terminator may be missing.
                let cut = Response::parse(&bytes[..len - len % 2]);
                assert!(
                    len + 2 >= bytes.len() || cut != Ok(answer(version)),
                    "version {version} cut to {len}"
                );
            }
            // As many as fit.
            let one = answer(version).emit(bytes.len() - 1).unwrap();
            assert_eq!(Response::parse(&one).unwrap().targets.len(), 1);
            assert_eq!(answer(version).emit(20), None);
        }
    }

    /// [MS-DFSC] 4.6: the example entry of a root has version 3 and 34 bytes.
    #[test]
    fn an_entry_has_the_size_of_its_version() {
        for (version, size) in [(1, 8 + 22), (2, 22), (3, 34), (4, 34)] {
            let bytes = answer(version).emit(4096).unwrap();
            assert_eq!(u16_at(&bytes, 10), size, "version {version}");
        }
    }

    #[test]
    fn both_forms_of_a_request() {
        let request = Request { max_level: 4, path: r"\srv\dfs\a b".into() };
        let mut bytes = Vec::new();
        request.emit(&mut bytes);
        assert_eq!(Request::parse(&bytes), Ok(request.clone()));
        let name = &bytes[2..bytes.len() - 2];
        let mut newer = vec![4, 0, 1, 0];
        newer.put_u32(len16(2 + name.len() + 2 + 4).into());
        newer.put_u16(len16(name.len()));
        newer.put(name);
        newer.put(&[4, 0, b'x', 0, b'y', 0]);
        assert_eq!(Request::parse_ex(&newer), Ok(request));
        for len in 0..newer.len() {
            assert!(Request::parse_ex(&newer[..len]).is_err());
        }
        assert!(Request::parse(&[4]).is_err());
    }
}
