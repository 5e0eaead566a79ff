//! The four bytes before every SMB2 message on TCP: a type, which is zero, and a 24-bit length.
//!
//! Direct TCP is [MS-SMB2] 2.1. Some peers also send the session keepalive of RFC 1002 4.3.6 on port 445. The transport
//! limits the length to what it is willing to buffer.
//!
//! ```text
//!  0               1               2               3
//! +---------------+---------------+---------------+---------------+
//! | Zero          | StreamProtocolLength, big-endian              |   then so many bytes of SMB2Message
//! +---------------+---------------+---------------+---------------+
//! ```

/// Bytes of the header.
pub const HEADER_LEN: usize = 4;
/// The longest message that 24 bits can announce.
pub const MAX_MESSAGE: usize = 0x00ff_ffff;

/// RFC 1002 4.3.1: SESSION MESSAGE, the only type of Direct TCP.
const SESSION_MESSAGE: u8 = 0x00;
/// RFC 1002 4.3.1: SESSION KEEP ALIVE, which has no trailer.
const SESSION_KEEP_ALIVE: u8 = 0x85;

/// The transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// A message of `len` bytes.
    Message {
        /// Bytes after the header, at most [`MAX_MESSAGE`].
        len: usize,
    },
    /// No message: the peer shows that it is alive.
    KeepAlive,
}

/// Why four bytes are not a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Fewer than [`HEADER_LEN`] bytes.
    #[error("fewer than 4 bytes of transport header")]
    Truncated,
    /// Neither type zero ([MS-SMB2] 2.1) nor a keepalive.
    #[error("transport header of type {0:#04x}")]
    Type(u8),
    /// A message length that does not fit 24 bits; only [`Header::emit`] returns this.
    #[error("message length exceeds 24 bits")]
    TooLong,
    /// A keepalive that announces a body.
    #[error("keepalive with a body")]
    KeepAliveBody,
}

impl Header {
    /// Parses the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
        let Some(&[kind, high, mid, low]) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(Malformed::Truncated);
        };
        let len = u32::from_be_bytes([0, high, mid, low]) as usize;
        match kind {
            SESSION_MESSAGE => Ok(Header::Message { len }),
            SESSION_KEEP_ALIVE if len == 0 => Ok(Header::KeepAlive),
            SESSION_KEEP_ALIVE => Err(Malformed::KeepAliveBody),
            other => Err(Malformed::Type(other)),
        }
    }

    /// The header on the wire.
    pub fn emit(&self) -> Result<[u8; HEADER_LEN], Malformed> {
        match *self {
            Header::Message { len } if len > MAX_MESSAGE => Err(Malformed::TooLong),
            Header::Message { len } => Ok((len as u32).to_be_bytes()),
            Header::KeepAlive => Ok([SESSION_KEEP_ALIVE, 0, 0, 0]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_header_is_a_zero_and_a_big_endian_length() {
        let header = Header::Message { len: 0x01_02_03 };
        assert_eq!(header.emit(), Ok([0x00, 0x01, 0x02, 0x03]));
        assert_eq!(Header::parse(&[0x00, 0x01, 0x02, 0x03, 0xfe]), Ok(header));
    }

    #[test]
    fn every_length_comes_back() {
        for len in [0, 1, 255, 256, 65_535, 65_536, MAX_MESSAGE - 1, MAX_MESSAGE] {
            let header = Header::Message { len };
            assert_eq!(Header::parse(&header.emit().unwrap()), Ok(header));
        }
        assert_eq!(Header::Message { len: MAX_MESSAGE + 1 }.emit(), Err(Malformed::TooLong));
    }

    #[test]
    fn truncation_at_every_length_is_an_error() {
        for n in 0..HEADER_LEN {
            assert_eq!(Header::parse(&[0; HEADER_LEN][..n]), Err(Malformed::Truncated));
        }
    }

    #[test]
    fn every_type_but_message_and_keepalive_is_refused() {
        for kind in 0..=255u8 {
            let parsed = Header::parse(&[kind, 0, 0, 0]);
            match kind {
                0x00 => assert_eq!(parsed, Ok(Header::Message { len: 0 })),
                0x85 => assert_eq!(parsed, Ok(Header::KeepAlive)),
                _ => assert_eq!(parsed, Err(Malformed::Type(kind))),
            }
        }
    }

    #[test]
    fn a_keepalive_has_no_body() {
        assert_eq!(Header::KeepAlive.emit(), Ok([0x85, 0, 0, 0]));
        assert_eq!(Header::parse(&[0x85, 0, 0, 1]), Err(Malformed::KeepAliveBody));
    }
}
