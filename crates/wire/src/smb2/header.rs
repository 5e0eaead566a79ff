//! The 64-byte header of every message, asynchronous ([MS-SMB2] 2.2.1.1) or synchronous (2.2.1.2).
//!
//! Constants give the offsets of credits and signature, so that other modules patch them in place.
//!
//! ```text
//!  0 FE 'S' 'M' 'B' | 4 StructureSize=64 | 6 CreditCharge | 8 Status, or ChannelSequence and Reserved
//! 12 Command        | 14 Credits         | 16 Flags       | 20 NextCommand | 24 MessageId
//! 32 AsyncId, or Reserved and TreeId     | 40 SessionId   | 48 Signature
//! ```

use super::field::{self, array_at, bits, u16_at, u32_at, u64_at};
use super::{Command, Malformed, NtStatus};

pub use super::HEADER_LEN;

/// First bytes of a plain SMB2 message.
pub const MAGIC: [u8; 4] = [0xFE, b'S', b'M', b'B'];
/// First bytes of an SMB1 message, allowed only for a negotiate (see [`super::negotiate::Smb1Negotiate`]).
pub const MAGIC_SMB1: [u8; 4] = [0xFF, b'S', b'M', b'B'];
/// First bytes of a compressed message (see [`super::compression`]).
pub const MAGIC_COMPRESSED: [u8; 4] = [0xFC, b'S', b'M', b'B'];
/// Offset of CreditRequest/CreditResponse.
pub const CREDITS_AT: usize = 14;
/// Offset of Flags.
pub const FLAGS_AT: usize = 16;
/// Offset of NextCommand.
pub const NEXT_COMMAND_AT: usize = 20;
/// Offset of MessageId.
pub const MESSAGE_ID_AT: usize = 24;
/// Offset of the signature.
pub const SIGNATURE_AT: usize = 48;

bits! {
    /// Header flags.
    Flags: u32 {
        /// Set in responses.
        SERVER_TO_REDIR = 0x0000_0001;
        /// The header carries an AsyncId.
        ASYNC_COMMAND = 0x0000_0002;
        /// Takes session, tree and file from the previous request of the compound.
        RELATED_OPERATIONS = 0x0000_0004;
        /// The message is signed.
        SIGNED = 0x0000_0008;
        /// Bits 4 to 6: priority (3.1.1).
        PRIORITY_MASK = 0x0000_0070;
        /// DFS path.
        DFS_OPERATIONS = 0x1000_0000;
        /// The request is repeated after a reconnect.
        REPLAY_OPERATION = 0x2000_0000;
    }
}

/// The tree or asynchronous operation of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Id {
    /// A tree. `reserved` descends from SMB1's process id: clients send any value, and servers echo it.
    Sync {
        /// Echoed.
        reserved: u32,
        /// Tree id; 0 for none.
        tree: u32,
    },
    /// A request for which the server sent an interim response.
    Async(u64),
}

impl Id {
    /// No tree.
    pub const NONE: Id = Id::Sync { reserved: 0, tree: 0 };

    /// A tree.
    pub const fn tree(tree: u32) -> Id {
        Id::Sync { reserved: 0, tree }
    }
}

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Credits that the request consumes; 0 means 1.
    pub credit_charge: u16,
    /// The status in responses. ChannelSequence in requests (see [`Header::channel_sequence`]).
    pub status: NtStatus,
    /// The command.
    pub command: Command,
    /// Credits requested or granted.
    pub credits: u16,
    /// Flags. `emit` derives `ASYNC_COMMAND` from `id`.
    pub flags: Flags,
    /// Bytes from this header to the next one in the compound; 0 in the last.
    pub next_command: u32,
    /// Matches a response to its request; `u64::MAX` in unsolicited notifications.
    pub message_id: u64,
    /// Tree or asynchronous operation.
    pub id: Id,
    /// Session id; 0 before a session exists.
    pub session_id: u64,
    /// Signature; zeros if unsigned.
    pub signature: [u8; 16],
}

impl Header {
    /// The header of a request with one credit charged, one requested, no session and no tree.
    pub fn request(command: Command, message_id: u64) -> Header {
        Header {
            credit_charge: 1,
            status: NtStatus::SUCCESS,
            command,
            credits: 1,
            flags: Flags::NONE,
            next_command: 0,
            message_id,
            id: Id::NONE,
            session_id: 0,
            signature: [0; 16],
        }
    }

    /// The header of the response: same command, ids and charge, `status` and `credits` as given, unsigned.
    pub fn reply(&self, status: NtStatus, credits: u16) -> Header {
        Header {
            status,
            credits,
            flags: (self.flags & (Flags::RELATED_OPERATIONS | Flags::PRIORITY_MASK)) | Flags::SERVER_TO_REDIR,
            next_command: 0,
            signature: [0; 16],
            ..*self
        }
    }

    /// Parses the first 64 bytes.
    #[inline]
    pub fn parse(message: &[u8]) -> Result<Header, Malformed> {
        let h = message.first_chunk::<HEADER_LEN>().ok_or(Malformed("shorter than a header"))?;
        if array_at::<4>(h, 0) != MAGIC {
            return Err(Malformed("ProtocolId is not SMB2"));
        }
        if u16_at(h, 4) != HEADER_LEN as u16 {
            return Err(Malformed("header StructureSize is not 64"));
        }
        let flags = Flags(u32_at(h, FLAGS_AT));
        let id = if flags.contains(Flags::ASYNC_COMMAND) {
            Id::Async(u64_at(h, 32))
        } else {
            Id::Sync { reserved: u32_at(h, 32), tree: u32_at(h, 36) }
        };
        Ok(Header {
            credit_charge: u16_at(h, 6),
            status: NtStatus(u32_at(h, 8)),
            command: Command::from_code(u16_at(h, 12)),
            credits: u16_at(h, CREDITS_AT),
            flags,
            next_command: u32_at(h, NEXT_COMMAND_AT),
            message_id: u64_at(h, MESSAGE_ID_AT),
            id,
            session_id: u64_at(h, 40),
            signature: array_at(h, SIGNATURE_AT),
        })
    }

    /// The 64 bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut h = [0; HEADER_LEN];
        h[..4].copy_from_slice(&MAGIC);
        h[4..6].copy_from_slice(&(HEADER_LEN as u16).to_le_bytes());
        h[6..8].copy_from_slice(&self.credit_charge.to_le_bytes());
        h[8..12].copy_from_slice(&self.status.0.to_le_bytes());
        h[12..14].copy_from_slice(&self.command.code().to_le_bytes());
        h[14..16].copy_from_slice(&self.credits.to_le_bytes());
        let flags = match self.id {
            Id::Async(id) => {
                h[32..40].copy_from_slice(&id.to_le_bytes());
                self.flags | Flags::ASYNC_COMMAND
            }
            Id::Sync { reserved, tree } => {
                h[32..36].copy_from_slice(&reserved.to_le_bytes());
                h[36..40].copy_from_slice(&tree.to_le_bytes());
                self.flags.without(Flags::ASYNC_COMMAND)
            }
        };
        h[16..20].copy_from_slice(&flags.0.to_le_bytes());
        h[20..24].copy_from_slice(&self.next_command.to_le_bytes());
        h[24..32].copy_from_slice(&self.message_id.to_le_bytes());
        h[40..48].copy_from_slice(&self.session_id.to_le_bytes());
        h[48..64].copy_from_slice(&self.signature);
        h
    }

    /// Appends the 64 bytes.
    #[inline]
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes());
    }

    /// Whether this is a response.
    pub fn is_response(&self) -> bool {
        self.flags.contains(Flags::SERVER_TO_REDIR)
    }

    /// The tree id, if the header has one.
    pub fn tree_id(&self) -> Option<u32> {
        match self.id {
            Id::Sync { tree, .. } => Some(tree),
            Id::Async(_) => None,
        }
    }

    /// The id of the asynchronous operation, if the header has one.
    pub fn async_id(&self) -> Option<u64> {
        match self.id {
            Id::Async(id) => Some(id),
            Id::Sync { .. } => None,
        }
    }

    /// In a request of dialect 3.x: the incarnation of the channel that sent it (3.3.5.2.10).
    pub fn channel_sequence(&self) -> u16 {
        self.status.0 as u16
    }

    /// Sets [`Header::channel_sequence`].
    pub fn set_channel_sequence(&mut self, sequence: u16) {
        self.status = NtStatus(u32::from(sequence));
    }
}

/// Overwrites the credits of the message that starts `message`.
///
/// # Panics
///
/// When `message` is shorter than a header. Only our own code can cause this, since we emitted the message.
pub fn patch_credits(message: &mut [u8], credits: u16) {
    field::patch_u16(message, CREDITS_AT, credits);
}

/// Overwrites NextCommand of the message that starts `message`.
///
/// # Panics
///
/// When `message` is shorter than a header. Only our own code can cause this, since we emitted the message.
pub fn patch_next_command(message: &mut [u8], next: u32) {
    field::patch_u32(message, NEXT_COMMAND_AT, next);
}

/// Overwrites the flags of the message that starts `message`.
///
/// # Panics
///
/// When `message` is shorter than a header. Only our own code can cause this, since we emitted the message.
pub fn patch_flags(message: &mut [u8], flags: Flags) {
    field::patch_u32(message, FLAGS_AT, flags.0);
}

/// Overwrites the signature of the message that starts `message`.
///
/// # Panics
///
/// When `message` is shorter than a header. Only our own code can cause this, since we emitted the message.
pub fn patch_signature(message: &mut [u8], signature: &[u8; 16]) {
    field::patch(message, SIGNATURE_AT, *signature);
}
