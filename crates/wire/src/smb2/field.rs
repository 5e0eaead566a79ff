//! Little-endian fields: readers, writers, and the one check of an (offset, length) pair.
//!
//! Bytes from a peer never cause a panic: the `*_at` functions take arrays whose length was already checked.

use bytes::Bytes;

use super::{HEADER_LEN, Malformed};

/// A set of flag bits: a newtype with named constants, unions and tests.
macro_rules! bits {
    ($(#[$meta:meta])* $name:ident: $int:ty { $($(#[$doc:meta])* $bit:ident = $value:expr;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct $name(pub $int);

        impl $name {
            /// No bit set.
            pub const NONE: $name = $name(0);
            $($(#[$doc])* pub const $bit: $name = $name($value);)*

            /// Whether all bits of `other` are set here.
            #[inline]
            pub const fn contains(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether any bit of `other` is set here.
            #[inline]
            pub const fn intersects(self, other: $name) -> bool {
                self.0 & other.0 != 0
            }

            /// These bits without those of `other`.
            #[inline]
            #[must_use]
            pub const fn without(self, other: $name) -> $name {
                $name(self.0 & !other.0)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = $name;
            #[inline]
            fn bitor(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }
        }

        impl std::ops::BitOrAssign for $name {
            #[inline]
            fn bitor_assign(&mut self, other: $name) {
                self.0 |= other.0;
            }
        }

        impl std::ops::BitAnd for $name {
            type Output = $name;
            #[inline]
            fn bitand(self, other: $name) -> $name {
                $name(self.0 & other.0)
            }
        }
    };
}

/// A code of an open set: a newtype with named constants that keeps unknown values.
macro_rules! codes {
    ($(#[$meta:meta])* $name:ident: $int:ty { $($(#[$doc:meta])* $code:ident = $value:expr;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$doc])* pub const $code: $name = $name($value);)*

            /// The specification's name of a known code.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($code)),)*
                    _ => None,
                }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({:#x})"), self.0),
                }
            }
        }
    };
}

pub(crate) use {bits, codes};

macro_rules! at {
    ($($name:ident: $int:ty;)*) => {$(
        /// Reads at a constant offset of an array whose length was checked.
        #[inline(always)]
        pub(crate) fn $name(bytes: &[u8], at: usize) -> $int {
            <$int>::from_le_bytes(array_at(bytes, at))
        }
    )*};
}
at! { u16_at: u16; u32_at: u32; u64_at: u64; }

/// Reads sixteen bytes at a constant offset of bytes whose length was checked.
#[inline(always)]
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk::<N>);
    debug_assert!(found.is_some(), "the length was not checked");
    found.copied().unwrap_or([0; N])
}

/// The fixed part of a body: `N` bytes after the header, the first two of which hold `structure_size`.
#[inline(always)]
pub(crate) fn fixed<const N: usize>(message: &[u8], structure_size: u16) -> Result<&[u8; N], Malformed> {
    let body = message.get(HEADER_LEN..).and_then(<[u8]>::first_chunk::<N>).ok_or(TRUNCATED)?;
    if u16_at(body, 0) != structure_size {
        return Err(Malformed("StructureSize is not that of the command"));
    }
    Ok(body)
}

pub(crate) const TRUNCATED: Malformed = Malformed("shorter than its fixed part");

/// The bytes `[offset, offset + len)` of the message, none of them before `floor`. An empty range may lie anywhere.
#[inline]
pub(crate) fn region(
    message: &Bytes,
    offset: usize,
    len: usize,
    floor: usize,
    what: &'static str,
) -> Result<Bytes, Malformed> {
    if len == 0 {
        return Ok(Bytes::new());
    }
    let end = offset.checked_add(len).ok_or(Malformed(what))?;
    if offset < floor || end > message.len() {
        return Err(Malformed(what));
    }
    Ok(message.slice(offset..end))
}

/// The bytes after an entry of a chained list: empty if `next` is 0. Otherwise the bytes from `next` on, at least one,
/// and `next` must lie beyond the entry's fixed part of `fixed_len` bytes.
pub(crate) fn chained<'a>(
    list: &'a [u8],
    next: usize,
    fixed_len: usize,
    what: &'static str,
) -> Result<&'a [u8], Malformed> {
    match next {
        0 => Ok(&[]),
        _ if next >= fixed_len && next < list.len() => list.get(next..).ok_or(Malformed(what)),
        _ => Err(Malformed(what)),
    }
}

/// A command whose body is two 16-bit words (StructureSize 4, reserved) in both directions.
macro_rules! empty_body {
    ($($name:ident: $doc:literal;)*) => {$(
        #[doc = $doc]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name;

        impl $name {
            /// Parses a message.
            pub fn parse(message: &bytes::Bytes) -> Result<$name, $crate::smb2::Malformed> {
                $crate::smb2::field::fixed::<4>(message, 4).map(|_| $name)
            }

            /// Appends the body.
            pub fn emit(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&[4, 0, 0, 0]);
            }
        }
    )*};
}
pub(crate) use empty_body;

/// A response that consists of one output buffer (StructureSize 9): [MS-SMB2] 2.2.34, 2.2.36, 2.2.38.
macro_rules! buffer_response {
    ($what:literal) => {
        /// A response.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Response {
            /// The output buffer.
            pub buffer: bytes::Bytes,
        }

        impl Response {
            /// Parses a message.
            pub fn parse(message: &bytes::Bytes) -> Result<Response, $crate::smb2::Malformed> {
                use $crate::smb2::field::{fixed, region, u16_at, u32_at};
                let b = fixed::<8>(message, 9)?;
                let (at, len) = (usize::from(u16_at(b, 2)), u32_at(b, 4) as usize);
                let floor = $crate::smb2::HEADER_LEN + 8;
                Ok(Response { buffer: region(message, at, len, floor, $what)? })
            }

            /// Appends the body.
            pub fn emit(&self, out: &mut Vec<u8>) {
                $crate::smb2::field::emit_buffer_response(&self.buffer, out);
            }
        }
    };
}
pub(crate) use buffer_response;

/// The body that [`buffer_response`] describes.
pub(crate) fn emit_buffer_response(buffer: &[u8], out: &mut Vec<u8>) {
    out.put_u16(9);
    out.put_u16(if buffer.is_empty() { 0 } else { behind_header(8) });
    out.put_u32(len32(buffer.len()));
    out.put(buffer);
}

/// Reads fields from the front of a slice.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|b| b[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

/// Appends fields.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);

    #[inline(always)]
    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }
    #[inline(always)]
    fn put_u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }
    #[inline(always)]
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }
    #[inline(always)]
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
    fn put_zeros(&mut self, count: usize) {
        const ZEROS: [u8; 64] = [0; 64];
        debug_assert!(count <= ZEROS.len());
        self.put(ZEROS.get(..count).unwrap_or(&ZEROS));
    }
}

impl Put for Vec<u8> {
    #[inline(always)]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Overwrites two bytes that were written earlier.
pub(crate) fn patch_u16(out: &mut [u8], at: usize, value: u16) {
    patch(out, at, value.to_le_bytes());
}

/// Overwrites four bytes that were written earlier.
pub(crate) fn patch_u32(out: &mut [u8], at: usize, value: u32) {
    patch(out, at, value.to_le_bytes());
}

/// Overwrites `N` bytes that were written earlier.
pub(crate) fn patch<const N: usize>(out: &mut [u8], at: usize, value: [u8; N]) {
    let place = out.get_mut(at..).and_then(<[u8]>::first_chunk_mut);
    debug_assert!(place.is_some(), "nothing was written there");
    if let Some(place) = place {
        *place = value;
    }
}

/// Number of bytes written since `start`.
pub(crate) fn since(out: &[u8], start: usize) -> usize {
    out.len().saturating_sub(start)
}

/// The offset, from the header's start, of the bytes after a fixed part of `fixed` bytes.
pub(crate) const fn behind_header(fixed: u16) -> u16 {
    (HEADER_LEN as u16).saturating_add(fixed)
}

/// The bytes `[at, at + len)`; `None` if there are fewer.
pub(crate) fn slice(bytes: &Bytes, at: usize, len: usize) -> Option<Bytes> {
    let end = at.checked_add(len).filter(|end| *end <= bytes.len())?;
    Some(bytes.slice(at..end))
}

/// Pads with zeros until the length counted from `start` is a multiple of `align`.
pub(crate) fn pad(out: &mut Vec<u8>, start: usize, align: usize) {
    let len = since(out, start);
    out.resize(start.saturating_add(len.next_multiple_of(align)), 0);
}

/// The offset, from the header's start, of the next byte of a body that began at `body`.
pub(crate) fn offset(out: &[u8], body: usize) -> usize {
    since(out, body).saturating_add(HEADER_LEN)
}

/// A length as 16 bits. It fits because the callers' limits are below that. Otherwise it saturates, so that the peer
/// refuses the message as malformed instead of misreading it.
pub(crate) fn len16(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

/// Like [`len16`], for 32 bits.
pub(crate) fn len32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
