//! XDR (RFC 4506 section 4): a bounds-checked cursor and an emitter.
//!
//! [`Decoder`] reads a received stream, [`Encoder`] appends to a vector. [`Decoder::payload`] takes an opaque's content
//! from the stream, or from the place where the transport put it beside the stream (RFC 8166 3.4.1). Protocols declare
//! their own types.
//!
//! Variable-length items are slices of the received buffer, never copies. Every length is checked against its limit and
//! against the remaining stream before it is used; failures are [`Malformed`].

mod item;

use std::fmt;

use bytes::Bytes;

pub(crate) use item::xdr_struct;
pub use item::{Xdr, emit_list, list};

/// Bytes that their specification forbids, with the rule that they break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed: {0}")]
pub struct Malformed(pub &'static str);

/// Bytes of fill after an opaque of `len` bytes (RFC 4506 4.10).
pub const fn pad(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// The fill after an opaque of `len` bytes.
pub const fn fill(len: usize) -> &'static [u8] {
    match pad(len) {
        0 => &[],
        1 => &[0],
        2 => &[0; 2],
        _ => &[0; 3],
    }
}

/// Payload of a call: already received, or still with the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// The bytes.
    Here(Bytes),
    /// The number of bytes; the transport can fetch them.
    There(usize),
}

impl Data {
    /// Length in bytes, received or not.
    pub fn len(&self) -> usize {
        match self {
            Data::Here(bytes) => bytes.len(),
            Data::There(len) => *len,
        }
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The received bytes; empty while the sender still has them.
    pub fn here(&self) -> &[u8] {
        match self {
            Data::Here(bytes) => bytes,
            Data::There(_) => &[],
        }
    }
}

impl From<Bytes> for Data {
    fn from(bytes: Bytes) -> Data {
        Data::Here(bytes)
    }
}

/// Reads the items of a stream in order. A clone starts at the same position.
#[derive(Clone)]
pub struct Decoder {
    stream: Bytes,
    /// `at <= stream.len()`.
    at: usize,
    /// The content of the one DDP-eligible item when it is not in the stream.
    detached: Option<Data>,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Decoder({}/{})", self.at, self.stream.len())
    }
}

impl Decoder {
    /// A cursor at the start of `stream`.
    pub fn new(stream: Bytes) -> Decoder {
        Decoder { stream, at: 0, detached: None }
    }

    /// A cursor over a reduced stream: the content of its one DDP-eligible item is `detached`.
    pub fn reduced(stream: Bytes, detached: Option<Bytes>) -> Decoder {
        Decoder { stream, at: 0, detached: detached.map(Data::Here) }
    }

    /// A cursor over a reduced stream whose detached content, of `len` bytes, has not been fetched.
    pub fn distant(stream: Bytes, len: usize) -> Decoder {
        Decoder { stream, at: 0, detached: Some(Data::There(len)) }
    }

    /// Whether the content of an item still has to be fetched.
    pub fn is_distant(&self) -> bool {
        matches!(self.detached, Some(Data::There(_)))
    }

    /// Supplies the fetched content.
    pub fn arrived(&mut self, content: Bytes) {
        self.detached = Some(Data::Here(content));
    }

    /// Position of the cursor, in bytes.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Bytes left in the stream.
    pub fn remaining(&self) -> usize {
        self.stream.len().saturating_sub(self.at)
    }

    /// The first bytes of the stream, wherever the cursor is; at most `len`.
    pub fn beginning(&self, len: usize) -> Bytes {
        self.stream.slice(..len.min(self.stream.len()))
    }

    /// Whether the content of an item is not in the stream.
    pub fn is_reduced(&self) -> bool {
        self.detached.is_some()
    }

    /// The next bytes, at most `max`, without consuming them.
    pub fn peek(&self, max: usize) -> &[u8] {
        let rest = self.stream.get(self.at..).unwrap_or_default();
        rest.get(..max).unwrap_or(rest)
    }

    /// The detached content as far as it has been received, until it is taken.
    pub fn peek_detached(&self) -> &[u8] {
        self.detached.as_ref().map_or(&[], Data::here)
    }

    /// Bytes of the whole stream plus those detached from it.
    pub fn total(&self) -> usize {
        self.stream.len().saturating_add(self.detached.as_ref().map_or(0, Data::len))
    }

    /// The remainder of the stream.
    pub fn rest(self) -> Bytes {
        self.stream.slice(self.at..)
    }

    /// Checks that nothing remains.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.remaining() == 0 { Ok(()) } else { Err(Malformed("bytes behind the last item")) }
    }

    fn take(&mut self, len: usize) -> Result<std::ops::Range<usize>, Malformed> {
        if len > self.remaining() {
            return Err(Malformed("stream ends inside an item"));
        }
        let start = self.at;
        self.at = self.at.saturating_add(len);
        Ok(start..self.at)
    }

    /// `N` bytes of fixed-length opaque data; `N` is a multiple of 4 in every protocol here.
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let range = self.take(N)?;
        let bytes = self.stream.get(range).and_then(<[u8]>::first_chunk);
        bytes.copied().ok_or(Malformed("fixed opaque"))
    }

    /// unsigned int (RFC 4506 4.2).
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.fixed()?))
    }

    /// unsigned hyper (RFC 4506 4.5).
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.fixed()?))
    }

    /// bool (RFC 4506 4.4).
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("bool is neither 0 nor 1")),
        }
    }

    /// Optional-data (RFC 4506 4.19).
    pub fn optional<T>(
        &mut self,
        item: impl FnOnce(&mut Decoder) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.bool()? { item(self).map(Some) } else { Ok(None) }
    }

    /// `opaque<limit>` (RFC 4506 4.10), or a string, as a slice of the stream.
    ///
    /// The fill must be present, but its value is ignored because some implementations leave it unset.
    pub fn opaque(&mut self, limit: usize) -> Result<Bytes, Malformed> {
        let range = self.opaque_range(limit)?;
        Ok(self.stream.slice(range))
    }

    /// `opaque<N>`, copied out: for handles.
    pub fn short_opaque<const N: usize>(&mut self) -> Result<(usize, [u8; N]), Malformed> {
        let range = self.opaque_range(N)?;
        let mut bytes = [0; N];
        let len = range.len();
        let from = self.stream.get(range).unwrap_or_default();
        bytes.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        Ok((len, bytes))
    }

    fn opaque_range(&mut self, limit: usize) -> Result<std::ops::Range<usize>, Malformed> {
        let len = self.length(limit)?;
        let range = self.take(len)?;
        self.take(pad(len))?;
        Ok(range)
    }

    /// The length word of a counted item, at most `limit`.
    pub fn length(&mut self, limit: usize) -> Result<usize, Malformed> {
        let len = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        if len > limit { Err(Malformed("length above its limit")) } else { Ok(len) }
    }

    /// `opaque<limit>` that is payload. When the transport moved the content beside the stream, the stream holds only
    /// its length (neither content nor fill), and the content must have that length; a Read chunk may include the fill
    /// (RFC 8166 3.4.5.2).
    pub fn payload(&mut self, limit: usize) -> Result<Bytes, Malformed> {
        match self.data(limit)? {
            Data::Here(bytes) => Ok(bytes),
            Data::There(_) => Err(Malformed("payload has not been fetched")),
        }
    }

    /// Like [`Decoder::payload`], but the content may still be with its sender.
    pub fn data(&mut self, limit: usize) -> Result<Data, Malformed> {
        let Some(detached) = self.detached.take() else { return self.opaque(limit).map(Data::Here) };
        let len = self.length(limit)?;
        if detached.is_empty() && len > 0 {
            // An unused Write chunk: the responder chose to answer inline (RFC 8166 4.3.2.2).
            let range = self.take(len)?;
            self.take(pad(len))?;
            return Ok(Data::Here(self.stream.slice(range)));
        }
        if detached.len() != len && detached.len() != len.saturating_add(pad(len)) {
            return Err(Malformed("detached payload and its length differ"));
        }
        Ok(match detached {
            Data::Here(bytes) => Data::Here(bytes.slice(..len)),
            Data::There(_) => Data::There(len),
        })
    }
}

/// Appends items to a vector.
#[derive(Debug, Default)]
pub struct Encoder(Vec<u8>);

impl Encoder {
    /// An empty stream with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Encoder {
        Encoder(Vec::with_capacity(capacity))
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The stream.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from(self.0)
    }

    /// Everything after the first `at` bytes.
    pub fn after(&self, at: usize) -> &[u8] {
        self.0.get(at..).unwrap_or_default()
    }

    /// A copy of everything after the first `at` bytes.
    pub fn copy_from(&self, at: usize) -> Bytes {
        Bytes::copy_from_slice(self.after(at))
    }

    /// Appends bytes without length and fill: a piece of an opaque.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Removes everything after the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Overwrites the unsigned int that was appended at `at`, for a count or a status that becomes known later.
    ///
    /// # Panics
    ///
    /// When no unsigned int lies there.
    pub fn patch_u32(&mut self, at: usize, value: u32) {
        let place = self.0.get_mut(at..).and_then(<[u8]>::first_chunk_mut);
        *place.expect("an unsigned int that was appended") = value.to_be_bytes();
    }

    /// unsigned int.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    /// unsigned hyper.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    /// bool.
    pub fn bool(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// Optional-data.
    pub fn optional<T>(&mut self, value: Option<&T>, item: impl FnOnce(&mut Encoder, &T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            item(self, value);
        }
    }

    /// Fixed-length opaque data of a multiple of 4 bytes.
    pub fn fixed(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len().is_multiple_of(4));
        self.0.extend_from_slice(bytes);
    }

    /// opaque<>, string<>: length, content, fill.
    ///
    /// # Panics
    ///
    /// When `bytes` is 4 GiB or longer, which no caller can hold.
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("an opaque below 4 GiB"));
        self.0.extend_from_slice(bytes);
        self.0.extend(std::iter::repeat_n(0, pad(bytes.len())));
    }
}

#[cfg(test)]
mod tests;
