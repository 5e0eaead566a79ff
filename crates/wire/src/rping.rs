//! The 16 bytes that rping's two sides send each other: where a buffer lies.
//!
//! What: [`Advert`], parse and emit. Spec: none but the program: rping(1) of rdma-core describes its rounds, and every
//! message of a round is this one structure in network byte order.
//! Does not: know whose turn it is (see `load::verbs::ping`).
//!
//! ```text
//! 0                               8               12              16
//! +-------------------------------+---------------+---------------+
//! | address of the buffer         | rkey (STag)   | size in bytes |
//! +-------------------------------+---------------+---------------+
//! ```
//!
//! A round: the client advertises its source; the server RDMA-Reads it and answers; the client advertises its sink; the
//! server RDMA-Writes what it read there and answers. Nobody looks at the fields of an answer.

/// Bytes of every message.
pub const ADVERT_LEN: usize = 16;

/// Where a buffer of the sender lies; all zeros in answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Advert {
    /// Tagged offset of the first byte.
    pub address: u64,
    /// Steering tag.
    pub rkey: u32,
    /// Bytes.
    pub size: u32,
}

/// The message is not of the one length that there is; its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a message of {0} bytes where rping sends {ADVERT_LEN}")]
pub struct Malformed(pub usize);

impl Advert {
    /// Reads a whole message.
    pub fn parse(bytes: &[u8]) -> Result<Advert, Malformed> {
        let Ok([a, b, c, d, e, f, g, h, rkey @ .., i, j, k, l]) = <[u8; ADVERT_LEN]>::try_from(bytes) else {
            return Err(Malformed(bytes.len()));
        };
        Ok(Advert {
            address: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: u32::from_be_bytes(rkey),
            size: u32::from_be_bytes([i, j, k, l]),
        })
    }

    /// The message as it travels.
    pub fn emit(&self) -> [u8; ADVERT_LEN] {
        let mut bytes = [0; ADVERT_LEN];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advert_is_big_endian() {
        let advert = Advert { address: 0x0000_7f01_0203_0405, rkey: 0xa0b0_c0d0, size: 64 };
        let bytes = b"\x00\x00\x7f\x01\x02\x03\x04\x05\xa0\xb0\xc0\xd0\x00\x00\x00\x40";
        assert_eq!(&advert.emit(), bytes);
        assert_eq!(Advert::parse(bytes), Ok(advert));
    }

    #[test]
    fn any_other_length_is_refused() {
        for len in (0..40).filter(|len| *len != ADVERT_LEN) {
            assert_eq!(Advert::parse(&vec![0; len]), Err(Malformed(len)));
        }
    }
}
