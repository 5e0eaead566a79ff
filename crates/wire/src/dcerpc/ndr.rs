//! NDR, the 32-bit little-endian transfer syntax of stubs (C706 14.2 primitive types, 14.3 constructed types, pointers,
//! strings; [MS-DTYP] 2.3.10, 2.4.2.3).
//!
//! A stated length is checked against the remaining bytes before anything is allocated for it.
//!
//! A pointer is encoded as a referent id in its place; its referents follow the outermost structure, in the order of
//! the pointers. [`Writer::pointer`] defers a referent, [`Writer::flush`] writes the deferred ones.

use super::Malformed;
use crate::smb2::fscc::security::Sid;
use crate::smb2::utf16;

const TRUNCATED: Malformed = Malformed("truncated stub");

/// Reads values from a stub, aligned relative to its start.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads from the start of a stub.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(len).ok_or(TRUNCATED)?;
        let taken = self.bytes.get(self.at..end).ok_or(TRUNCATED)?;
        self.at = end;
        Ok(taken)
    }

    fn aligned<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.at = self.at.next_multiple_of(N.min(8));
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| TRUNCATED)
    }

    /// A byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.aligned::<1>().map(|b| b[0])
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.aligned().map(u16::from_le_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.aligned().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.aligned().map(u64::from_le_bytes)
    }

    /// Whether a pointer is not null.
    pub fn pointer(&mut self) -> Result<bool, Malformed> {
        Ok(self.u32()? != 0)
    }

    /// The referent of a unique pointer that is itself a parameter, which follows immediately.
    pub fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.pointer()? { read(self).map(Some) } else { Ok(None) }
    }

    /// A count of elements of at least `least` bytes each; refused if the stub is too short for them.
    pub fn count(&mut self, least: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count.saturating_mul(least.max(1)) > self.bytes.len().saturating_sub(self.at) {
            return Err(TRUNCATED);
        }
        Ok(count)
    }

    /// A `[string] wchar_t *`: conformant and varying, with a NUL, which is removed.
    pub fn wide_string(&mut self) -> Result<String, Malformed> {
        let units = self.varying_units()?;
        Ok(utf16::decode(units.strip_suffix(&[0, 0]).unwrap_or(units))?)
    }

    /// The buffer of an RPC_UNICODE_STRING: conformant and varying, without a NUL.
    pub fn counted_buffer(&mut self) -> Result<String, Malformed> {
        Ok(utf16::decode(self.varying_units()?)?)
    }

    fn varying_units(&mut self) -> Result<&'a [u8], Malformed> {
        let (most, offset, units) = (self.u32()?, self.u32()?, self.u32()?);
        if offset != 0 || units > most {
            return Err(Malformed("varying string"));
        }
        self.take((units as usize).checked_mul(2).ok_or(TRUNCATED)?)
    }

    /// The fixed part of an RPC_UNICODE_STRING: whether [`Reader::counted_buffer`] follows.
    pub fn counted_head(&mut self) -> Result<bool, Malformed> {
        let (_len, _most) = (self.u16()?, self.u16()?);
        self.pointer()
    }

    /// An RPC_SID: its count as a conformance, then the SID.
    pub fn sid(&mut self) -> Result<Sid, Malformed> {
        let count = self.count(4)?;
        let body = self.take(count.checked_mul(4).and_then(|len| len.checked_add(8)).ok_or(TRUNCATED)?)?;
        if body.get(1).map(|count| usize::from(*count)) != Some(count) {
            return Err(Malformed("wrong sub-authority count of a SID"));
        }
        Ok(Sid::parse(body)?)
    }

    /// A context handle.
    pub fn handle(&mut self) -> Result<Handle, Malformed> {
        self.at = self.at.next_multiple_of(4);
        let taken = self.take(20)?;
        taken.try_into().map(Handle).map_err(|_| TRUNCATED)
    }
}

/// A context handle, whose content is up to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Handle(pub [u8; 20]);

type Deferred<'a> = Box<dyn FnOnce(&mut Writer<'a>) + 'a>;

/// Builds a stub.
#[derive(Default)]
pub struct Writer<'a> {
    out: Vec<u8>,
    referents: u32,
    deferred: Vec<Deferred<'a>>,
}

impl<'a> Writer<'a> {
    /// An empty stub.
    pub fn new() -> Writer<'a> {
        Writer::default()
    }

    /// The stub, after the deferred referents.
    pub fn finish(mut self) -> Vec<u8> {
        self.flush();
        self.out
    }

    fn aligned(&mut self, bytes: &[u8]) {
        self.align(bytes.len());
        self.out.extend_from_slice(bytes);
    }

    /// Pads to a multiple of `to` bytes.
    pub fn align(&mut self, to: usize) {
        self.out.resize(self.out.len().next_multiple_of(to), 0);
    }

    /// Appends raw bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// A byte.
    pub fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) {
        self.aligned(&value.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.aligned(&value.to_le_bytes());
    }

    /// Eight bytes, aligned as a hyper.
    pub fn u64(&mut self, value: u64) {
        self.aligned(&value.to_le_bytes());
    }

    /// Eight bytes, aligned like two words ([MS-DTYP] OLD_LARGE_INTEGER).
    pub fn old_u64(&mut self, value: u64) {
        self.u32(value as u32);
        self.u32((value >> 32) as u32);
    }

    /// A count or a length in elements.
    pub fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// A null pointer.
    pub fn null(&mut self) {
        self.u32(0);
    }

    /// A pointer inside a structure; the next [`Writer::flush`] writes its referent.
    pub fn pointer(&mut self, write: impl FnOnce(&mut Writer<'a>) + 'a) {
        self.referent();
        self.deferred.push(Box::new(write));
    }

    /// A pointer that is itself a parameter; its referent follows immediately.
    pub fn parameter(&mut self, write: impl FnOnce(&mut Writer<'a>)) {
        self.referent();
        write(self);
        self.flush();
    }

    fn referent(&mut self) {
        self.referents = self.referents.wrapping_add(1);
        // Any number but 0; Windows uses these.
        self.u32(0x0002_0000 | self.referents.wrapping_mul(4));
    }

    /// Writes the deferred referents, and those that they defer, in order.
    pub fn flush(&mut self) {
        for write in std::mem::take(&mut self.deferred) {
            write(self);
            self.flush();
        }
    }

    /// A `[string] wchar_t *` without its pointer.
    pub fn wide_string(&mut self, text: &str) {
        let units = text.encode_utf16().count().saturating_add(1);
        self.count(units);
        self.count(0);
        self.count(units);
        utf16::encode(text, &mut self.out);
        self.bytes(&[0, 0]);
    }

    /// A pointer to such a string inside a structure.
    pub fn string_pointer(&mut self, text: &'a str) {
        self.pointer(move |w| w.wide_string(text));
    }

    /// An RPC_UNICODE_STRING inside a structure. It holds at most 32,767 units; longer strings are truncated.
    pub fn counted_string(&mut self, text: &'a str) {
        let mut encoded = Vec::with_capacity(text.len().saturating_mul(2));
        utf16::encode(text, &mut encoded);
        encoded.truncate(usize::from(u16::MAX) & !1);
        let len = encoded.len() as u16;
        self.align(4);
        self.u16(len);
        self.u16(len);
        self.pointer(move |w| {
            let units = encoded.len() / 2;
            w.count(units);
            w.count(0);
            w.count(units);
            w.bytes(&encoded);
        });
    }

    /// An RPC_SID without its pointer.
    pub fn sid(&mut self, sid: &Sid) {
        self.count(sid.sub_authorities.len());
        sid.emit(&mut self.out);
    }

    /// A context handle.
    pub fn handle(&mut self, handle: Handle) {
        self.align(4);
        self.bytes(&handle.0);
    }
}
