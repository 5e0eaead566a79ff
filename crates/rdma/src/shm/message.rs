//! The messages on the connection's socket: set-up, and slabs passed later.
//!
//! Each is one datagram with little-endian integers, and carries descriptors.
//!
//! ```text
//! magic "weft-shm" | version:32 | kind:32 | ird:16 | ord:16 | number:32 | private data ...
//!
//! kind 1 request   private data          control segment, what rings the connecting side's bell
//!      2 accept    private data          what rings the accepting side's bell
//!      3 reject    private data          -
//!      4 slab      number of the slab    slab
//! ```
//!
//! It does not check the descriptors; `weft_machine::shm::adopt` does.

use bytes::Bytes;

/// Incremented with any change of this layout, of the control segment's, or of the rules between the two sides.
const VERSION: u32 = 2;
const MAGIC: &[u8; 8] = b"weft-shm";
const HEADER: usize = 24;
/// Private data of a request or its answer (`ConnectParams::private_data`).
pub(super) const MAX_PRIVATE: usize = 508;
/// The longest message.
pub(super) const MAX_MESSAGE: usize = HEADER + MAX_PRIVATE;

/// A message without its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Request { ird: u16, ord: u16, private_data: Bytes },
    Accept { ird: u16, ord: u16, private_data: Bytes },
    Reject { private_data: Bytes },
    Slab { number: u32 },
}

/// Takes a field of the header off the front.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], &'static str> {
    let (field, behind) = rest.split_first_chunk().ok_or("set-up message too short")?;
    *rest = behind;
    Ok(*field)
}

impl Message {
    pub(super) fn emit(&self) -> Vec<u8> {
        let (kind, ird, ord, number, private) = match self {
            Message::Request { ird, ord, private_data } => (1u32, *ird, *ord, 0, &private_data[..]),
            Message::Accept { ird, ord, private_data } => (2, *ird, *ord, 0, &private_data[..]),
            Message::Reject { private_data } => (3, 0, 0, 0, &private_data[..]),
            Message::Slab { number } => (4, 0, 0, *number, &[][..]),
        };
        let mut out = Vec::with_capacity(HEADER.saturating_add(private.len()));
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&ird.to_le_bytes());
        out.extend_from_slice(&ord.to_le_bytes());
        out.extend_from_slice(&u32::to_le_bytes(number));
        out.extend_from_slice(private);
        out
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Message, &'static str> {
        let mut private = bytes;
        let magic = take::<8>(&mut private)?;
        let version = u32::from_le_bytes(take(&mut private)?);
        let kind = u32::from_le_bytes(take(&mut private)?);
        let ird = u16::from_le_bytes(take(&mut private)?);
        let ord = u16::from_le_bytes(take(&mut private)?);
        let number = u32::from_le_bytes(take(&mut private)?);
        if magic != *MAGIC {
            return Err("not a Weft shared memory peer");
        }
        if version != VERSION {
            return Err("a different version of the shared memory protocol");
        }
        if private.len() > MAX_PRIVATE {
            return Err("private data too long");
        }
        let private_data = Bytes::copy_from_slice(private);
        Ok(match kind {
            1 => Message::Request { ird, ord, private_data },
            2 => Message::Accept { ird, ord, private_data },
            3 => Message::Reject { private_data },
            4 => Message::Slab { number },
            _ => return Err("unknown set-up message"),
        })
    }
}
