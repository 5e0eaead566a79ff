//! The 16-byte message that both sides of rping send: it tells the peer where a buffer lies.
//!
//! No specification exists but the program: rping(1) of rdma-core describes its rounds, and every message of a round is
//! this structure in network byte order. `load::verbs::ping` knows whose turn it is.
//!
//! ```text
//! 0                               8               12              16
//! +-------------------------------+---------------+---------------+
//! | address of the buffer         | rkey (STag)   | size in bytes |
//! +-------------------------------+---------------+---------------+
//! ```
//!
//! A round: the client advertises its source; the server RDMA-Reads it and answers; the client advertises its sink; the
//! server RDMA-Writes the data there and answers. The fields of an answer are ignored.

/// Bytes of every message.
pub const ADVERT_LEN: usize = 16;

/// Location of one of the sender's buffers; all zeros in answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Advert {
    /// Tagged offset of the first byte.
    pub address: u64,
    /// Steering tag.
    pub rkey: u32,
    /// Length in bytes.
    pub size: u32,
}

/// The message does not have the fixed length; carries its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("message has {0} bytes, but rping sends {ADVERT_LEN}")]
pub struct Malformed(pub usize);

impl Advert {
    /// Parses a whole message.
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

    /// The message's bytes.
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
