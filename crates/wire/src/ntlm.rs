//! NTLM messages: NEGOTIATE, CHALLENGE, AUTHENTICATE, their AV pairs, and the NTLMv2 response inside them.
//!
//! Implements [MS-NLMP] 2.2. Names are Unicode (UTF-16LE); of OEM names only ASCII ones are read. `smb::auth` computes
//! keys and decides who may log on.
//!
//! All messages start alike; descriptors (length, room, offset from byte 0) locate the variable fields:
//!
//! ```text
//! 0        8           12
//! "NTLMSSP\0" MessageType  fixed fields and field descriptors ...  payload
//! ```

use std::ops::Range;

/// First bytes of every message.
pub const SIGNATURE: &[u8; 8] = b"NTLMSSP\0";
/// Longest message that is parsed. Clients send about 500 bytes; AV pairs with long names stay far below this.
pub const MAX_MESSAGE: usize = 16 * 1024;
/// Position of the MIC in an AUTHENTICATE message.
pub const MIC: Range<usize> = 72..88;

/// A message that [MS-NLMP] does not allow, with section and violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed NTLM message: {0}")]
pub struct Malformed(pub &'static str);

/// NegotiateFlags, [MS-NLMP] 2.2.2.5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

#[allow(missing_docs, reason = "names of [MS-NLMP] 2.2.2.5 without NTLMSSP_")]
impl Flags {
    pub const NEGOTIATE_UNICODE: Flags = Flags(0x0000_0001);
    pub const NEGOTIATE_OEM: Flags = Flags(0x0000_0002);
    pub const REQUEST_TARGET: Flags = Flags(0x0000_0004);
    pub const NEGOTIATE_SIGN: Flags = Flags(0x0000_0010);
    pub const NEGOTIATE_SEAL: Flags = Flags(0x0000_0020);
    pub const NEGOTIATE_NTLM: Flags = Flags(0x0000_0200);
    pub const ANONYMOUS: Flags = Flags(0x0000_0800);
    pub const NEGOTIATE_ALWAYS_SIGN: Flags = Flags(0x0000_8000);
    pub const TARGET_TYPE_SERVER: Flags = Flags(0x0002_0000);
    pub const NEGOTIATE_EXTENDED_SESSIONSECURITY: Flags = Flags(0x0008_0000);
    pub const NEGOTIATE_TARGET_INFO: Flags = Flags(0x0080_0000);
    pub const NEGOTIATE_VERSION: Flags = Flags(0x0200_0000);
    pub const NEGOTIATE_128: Flags = Flags(0x2000_0000);
    pub const NEGOTIATE_KEY_EXCH: Flags = Flags(0x4000_0000);
    pub const NEGOTIATE_56: Flags = Flags(0x8000_0000);

    /// Whether every flag of `other` is set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether some flag of `other` is set.
    pub const fn intersects(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// The union of both sets.
    pub const fn union(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// The intersection of both sets.
    pub const fn intersection(self, other: Flags) -> Flags {
        Flags(self.0 & other.0)
    }
}

/// VERSION (2.2.2.10) as we send it: 10.0, no build, NTLMSSP_REVISION_W2K3. Informative only.
const VERSION: [u8; 8] = [10, 0, 0, 0, 0, 0, 0, 15];

/// NEGOTIATE_MESSAGE, 2.2.1.1. The OEM domain and workstation names are skipped, since a server has no use for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiate {
    /// The client's capabilities.
    pub flags: Flags,
}

impl Negotiate {
    /// Parses a message. Trailing bytes (names, version) are ignored.
    pub fn parse(bytes: &[u8]) -> Result<Negotiate, Malformed> {
        let message = Message::parse(bytes, 1)?;
        Ok(Negotiate { flags: Flags(message.u32(12)?) })
    }

    /// The message without names.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = start(1);
        out.extend(self.flags.0.to_le_bytes());
        // Neither domain nor workstation: lengths 0, offsets at the end of the fixed part.
        for _ in 0..2 {
            out.extend([0, 0, 0, 0]);
            out.extend(40u32.to_le_bytes());
        }
        out.extend(VERSION);
        out
    }
}

/// CHALLENGE_MESSAGE, 2.2.1.2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The negotiated flags.
    pub flags: Flags,
    /// The server's name.
    pub target_name: String,
    /// The nonce.
    pub server_challenge: [u8; 8],
    /// AV pairs on the wire, end mark included; empty when none were sent. See [`AvPairs`].
    pub target_info: Vec<u8>,
}

impl Challenge {
    /// Parses a message.
    pub fn parse(bytes: &[u8]) -> Result<Challenge, Malformed> {
        let message = Message::parse(bytes, 2)?;
        let flags = Flags(message.u32(20)?);
        let server_challenge = message.array(24)?;
        let target_info = match flags.contains(Flags::NEGOTIATE_TARGET_INFO) {
            true => message.field(40)?.to_vec(),
            false => Vec::new(),
        };
        AvPairs::parse(&target_info)?;
        // The name is informative; an OEM name is no reason to fail.
        let target_name = match flags.contains(Flags::NEGOTIATE_UNICODE) {
            true => text(message.field(12)?)?,
            false => String::new(),
        };
        Ok(Challenge { flags, target_name, server_challenge, target_info })
    }

    /// The message.
    pub fn emit(&self) -> Vec<u8> {
        const FIXED: usize = 56;
        let name = name(self.flags, &self.target_name);
        let mut out = start(2);
        describe(&mut out, &name, FIXED);
        out.extend(self.flags.0.to_le_bytes());
        out.extend(self.server_challenge);
        out.extend([0; 8]);
        describe(&mut out, &self.target_info, FIXED.saturating_add(name.len()));
        out.extend(VERSION);
        out.extend(name);
        out.extend(&self.target_info);
        out
    }
}

/// AUTHENTICATE_MESSAGE, 2.2.1.3.
#[derive(Clone, PartialEq, Eq)]
pub struct Authenticate {
    /// The client's final flags.
    pub flags: Flags,
    /// LmChallengeResponse.
    pub lm_response: Vec<u8>,
    /// NtChallengeResponse: see [`NtlmV2Response`].
    pub nt_response: Vec<u8>,
    /// DomainName.
    pub domain: String,
    /// UserName.
    pub user: String,
    /// Workstation.
    pub workstation: String,
    /// EncryptedRandomSessionKey.
    pub session_key: Vec<u8>,
    /// The MIC field, if the payload leaves room for one. The NTLMv2 response says whether it is valid
    /// ([`AvFlags::MIC`]).
    pub mic: Option<[u8; 16]>,
}

impl std::fmt::Debug for Authenticate {
    /// Names only: responses and keys must not reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticate")
            .field("flags", &self.flags)
            .field("domain", &self.domain)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl Authenticate {
    /// Parses a message.
    pub fn parse(bytes: &[u8]) -> Result<Authenticate, Malformed> {
        /// Offsets of the six descriptors: LM, NT, domain, user, workstation, session key.
        const FIELDS: [usize; 6] = [12, 20, 28, 36, 44, 52];
        let message = Message::parse(bytes, 3)?;
        let flags = Flags(message.u32(60)?);
        let text = |bytes: &[u8]| match bytes {
            // smbj requests an anonymous logon with neither flag set, and sends no names to which either could apply.
            [] => Ok(String::new()),
            _ if flags.contains(Flags::NEGOTIATE_UNICODE) => text(bytes),
            _ if flags.contains(Flags::NEGOTIATE_OEM) => oem(bytes),
            _ => Err(Malformed("2.2.2.5: names without NEGOTIATE_UNICODE and NEGOTIATE_OEM")),
        };
        // Old clients omit version and MIC: their payload starts before the MIC would end.
        let mut payload_start = bytes.len();
        for at in FIELDS {
            if !message.field(at)?.is_empty() {
                payload_start = payload_start.min(message.u32(at.saturating_add(4))? as usize);
            }
        }
        let mic = match payload_start >= MIC.end {
            true => Some(message.array(MIC.start)?),
            false => None,
        };
        Ok(Authenticate {
            flags,
            lm_response: message.field(12)?.to_vec(),
            nt_response: message.field(20)?.to_vec(),
            domain: text(message.field(28)?)?,
            user: text(message.field(36)?)?,
            workstation: text(message.field(44)?)?,
            session_key: message.field(52)?.to_vec(),
            mic,
        })
    }

    /// The message, always with a MIC field (zeros for `None`): see [`MIC`].
    pub fn emit(&self) -> Vec<u8> {
        let [domain, user, workstation] =
            [&self.domain, &self.user, &self.workstation].map(|text| name(self.flags, text));
        let fields = [&self.lm_response, &self.nt_response, &domain, &user, &workstation, &self.session_key];
        let mut out = start(3);
        let mut at = MIC.end;
        for field in fields {
            describe(&mut out, field, at);
            at = at.saturating_add(field.len());
        }
        out.extend(self.flags.0.to_le_bytes());
        out.extend(VERSION);
        out.extend(self.mic.unwrap_or_default());
        for field in fields {
            out.extend(field);
        }
        out
    }
}

/// A name in the encoding that the flags choose. Without Unicode it is in the machine's code page, of which only ASCII
/// is certain.
fn name(flags: Flags, text: &str) -> Vec<u8> {
    if flags.contains(Flags::NEGOTIATE_UNICODE) || !flags.contains(Flags::NEGOTIATE_OEM) {
        return utf16(text);
    }
    text.chars().map(|c| if c.is_ascii() { c as u8 } else { b'?' }).collect()
}

fn oem(bytes: &[u8]) -> Result<String, Malformed> {
    match bytes.is_ascii() {
        true => Ok(bytes.iter().map(|byte| char::from(*byte)).collect()),
        false => Err(Malformed("2.2.2.5: an OEM name beyond ASCII, in an unknown code page")),
    }
}

/// The kind of an AV pair, 2.2.2.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "names of [MS-NLMP] 2.2.2.1 without MsvAv")]
#[repr(u16)]
pub enum AvId {
    Eol = 0,
    NbComputerName = 1,
    NbDomainName = 2,
    DnsComputerName = 3,
    DnsDomainName = 4,
    DnsTreeName = 5,
    Flags = 6,
    Timestamp = 7,
    SingleHost = 8,
    TargetName = 9,
    ChannelBindings = 10,
}

/// Bits of MsvAvFlags.
pub struct AvFlags;

impl AvFlags {
    /// The client provides the MIC field.
    pub const MIC: u32 = 0x2;
    /// The target name comes from an untrusted source.
    pub const UNTRUSTED_TARGET: u32 = 0x4;
}

/// A list of AV pairs, in order, without the end mark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AvPairs<'a>(Vec<(u16, &'a [u8])>);

impl<'a> AvPairs<'a> {
    /// Parses pairs up to the end mark and ignores what follows it; zero bytes are an empty list.
    pub fn parse(bytes: &'a [u8]) -> Result<AvPairs<'a>, Malformed> {
        let mut pairs = Vec::new();
        let mut rest = bytes;
        if rest.is_empty() {
            return Ok(AvPairs(pairs));
        }
        loop {
            let (head, tail) =
                rest.split_first_chunk::<4>().ok_or(Malformed("2.2.2.1: AV pairs without MsvAvEOL"))?;
            let id = u16::from_le_bytes([head[0], head[1]]);
            let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
            if id == AvId::Eol as u16 {
                return Ok(AvPairs(pairs));
            }
            if len > tail.len() {
                return Err(Malformed("2.2.2.1: AvLen beyond the message"));
            }
            let (value, tail) = tail.split_at(len);
            pairs.push((id, value));
            rest = tail;
        }
    }

    /// The value of the first pair of this kind.
    pub fn find(&self, id: AvId) -> Option<&'a [u8]> {
        self.0.iter().find(|(have, _)| *have == id as u16).map(|(_, value)| *value)
    }

    /// MsvAvFlags; 0 when absent.
    pub fn flags(&self) -> u32 {
        self.find(AvId::Flags).and_then(|v| v.first_chunk()).map_or(0, |v| u32::from_le_bytes(*v))
    }

    /// MsvAvTimestamp: 100 ns since 1601.
    pub fn timestamp(&self) -> Option<u64> {
        self.find(AvId::Timestamp).and_then(|v| v.first_chunk()).map(|v| u64::from_le_bytes(*v))
    }

    /// Sets a pair: replaces the first of this kind, else appends.
    pub fn set(&mut self, id: AvId, value: &'a [u8]) {
        match self.0.iter_mut().find(|(have, _)| *have == id as u16) {
            Some(pair) => pair.1 = value,
            None => self.0.push((id as u16, value)),
        }
    }

    /// The list with its end mark.
    ///
    /// # Panics
    /// When a value is longer than 65535 bytes; parsed ones never are.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (id, value) in &self.0 {
            out.extend(id.to_le_bytes());
            out.extend(u16::try_from(value.len()).expect("an AV value fits 16 bits").to_le_bytes());
            out.extend(*value);
        }
        out.extend([0; 4]);
        out
    }
}

/// NTLMv2_RESPONSE, 2.2.2.8: the proof, and the client challenge (`temp`) that it covers.
#[derive(Clone, Copy)]
pub struct NtlmV2Response<'a> {
    /// NTProofStr.
    pub proof: [u8; 16],
    /// NTLMv2_CLIENT_CHALLENGE on the wire, which the proof covers.
    pub temp: &'a [u8],
    /// ChallengeFromClient.
    pub client_challenge: [u8; 8],
    /// TimeStamp: 100 ns since 1601.
    pub timestamp: u64,
    /// The AV pairs at its end, on the wire.
    pub av_pairs: &'a [u8],
}

impl<'a> NtlmV2Response<'a> {
    /// Parses a response. The 24 bytes of an NTLMv1 response are too short.
    pub fn parse(bytes: &'a [u8]) -> Result<NtlmV2Response<'a>, Malformed> {
        let (proof, temp) =
            bytes.split_first_chunk::<16>().ok_or(Malformed("2.2.2.8: NTLMv2 response too short"))?;
        let (fixed, av_pairs) =
            temp.split_first_chunk::<28>().ok_or(Malformed("2.2.2.7: client challenge too short"))?;
        if !fixed.starts_with(&[1, 1]) {
            return Err(Malformed("2.2.2.7: RespType and HiRespType must be 1"));
        }
        if av_pairs.is_empty() {
            return Err(Malformed("2.2.2.7: AV pairs without MsvAvEOL"));
        }
        AvPairs::parse(av_pairs)?;
        let fixed = Message(fixed);
        let timestamp = u64::from_le_bytes(fixed.array(8)?);
        Ok(NtlmV2Response { proof: *proof, temp, client_challenge: fixed.array(16)?, timestamp, av_pairs })
    }

    /// NTLMv2_CLIENT_CHALLENGE, with the four zero bytes that [MS-NLMP] 3.3.2 puts at its end.
    pub fn emit_temp(timestamp: u64, client_challenge: [u8; 8], av_pairs: &[u8]) -> Vec<u8> {
        let mut out = vec![1, 1, 0, 0, 0, 0, 0, 0];
        out.extend(timestamp.to_le_bytes());
        out.extend(client_challenge);
        out.extend([0; 4]);
        out.extend(av_pairs);
        out.extend([0; 4]);
        out
    }
}

/// UTF-16LE of a string.
pub fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

fn text(bytes: &[u8]) -> Result<String, Malformed> {
    let (units, odd) = bytes.as_chunks::<2>();
    if !odd.is_empty() {
        return Err(Malformed("2.2.2: Unicode string of odd length"));
    }
    String::from_utf16(&units.iter().map(|u| u16::from_le_bytes(*u)).collect::<Vec<_>>())
        .map_err(|_| Malformed("2.2.2: string is not UTF-16"))
}

fn start(kind: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.extend(SIGNATURE);
    out.extend(kind.to_le_bytes());
    out
}

/// A field descriptor: length, room, offset.
fn describe(out: &mut Vec<u8>, field: &[u8], at: usize) {
    let len = u16::try_from(field.len()).expect("a field that we emit fits 16 bits");
    out.extend(len.to_le_bytes());
    out.extend(len.to_le_bytes());
    out.extend(u32::try_from(at).expect("an offset that we emit fits 32 bits").to_le_bytes());
}

/// Checked access to a message.
struct Message<'a>(&'a [u8]);

impl<'a> Message<'a> {
    fn parse(bytes: &'a [u8], kind: u32) -> Result<Message<'a>, Malformed> {
        if bytes.len() > MAX_MESSAGE {
            return Err(Malformed("message longer than the limit"));
        }
        if !bytes.starts_with(SIGNATURE) {
            return Err(Malformed("2.2.1: no NTLMSSP signature"));
        }
        let message = Message(bytes);
        match message.u32(8)? == kind {
            true => Ok(message),
            false => Err(Malformed("2.2.1: not the MessageType that is expected here")),
        }
    }

    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], Malformed> {
        let bytes = self.0.get(at..).and_then(|b| b.first_chunk()).ok_or(Malformed("2.2.1: truncated"))?;
        Ok(*bytes)
    }

    fn u32(&self, at: usize) -> Result<u32, Malformed> {
        self.array(at).map(u32::from_le_bytes)
    }

    /// The bytes to which the descriptor at `at` points.
    fn field(&self, at: usize) -> Result<&'a [u8], Malformed> {
        let len = usize::from(u16::from_le_bytes(self.array(at)?));
        let offset = self.u32(at.saturating_add(4))? as usize;
        if len == 0 {
            return Ok(&[]);
        }
        offset
            .checked_add(len)
            .and_then(|end| self.0.get(offset..end))
            .ok_or(Malformed("2.2.1: field beyond the message"))
    }
}

#[cfg(test)]
mod tests;
