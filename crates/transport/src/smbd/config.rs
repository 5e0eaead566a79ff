//! What one side of an SMB Direct connection offers.
//!
//! It follows [MS-SMBD] 3.1.1.1 and 3.1.5.6, and contains the protocol's limits. `engine` negotiates.

use std::time::Duration;

use weft_machine::buf::MAX_BUF;

/// [MS-SMBD] 3.1.5.6, note 6: Windows refuses a PreferredSendSize above this.
pub const MAX_PREFERRED_SEND: u32 = 8136;
/// [MS-SMBD] 3.1.7.2: the minimum size of the buffer for a Negotiate message.
pub const MIN_NEGOTIATE_BUFFER: u32 = 512;
/// [MS-SMBD] 3.1.5.6: the minimum of MaxReceiveSize.
pub(super) const MIN_RECEIVE: u32 = 128;
/// [MS-SMBD] 3.1.5.6: the minimum of MaxFragmentedSize.
pub(super) const MIN_FRAGMENTED: u32 = 131_072;
/// One mebibyte as in Windows, plus SMB's headers: on an encrypted session Linux sends WRITEs of 1 MiB with their
/// headers as one message, whatever the limit, and then fails its own check.
pub(super) const MAX_FRAGMENTED: u32 = (1 << 20) + 4096;

/// What one side of a connection offers. The defaults are those of Windows ([MS-SMBD] notes 3 and 8), with the longest
/// messages that Windows accepts instead of 1364 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The most receives posted at a time: credits for the peer (at least two, and one more for the rule about the last
    /// credit).
    pub receive_credits: u16,
    /// Credits requested from the peer.
    pub send_credits: u16,
    /// Longest message sent, with its header, in bytes; reduced in negotiation to what the peer receives.
    pub max_send_size: u32,
    /// Longest message received, with its header, in bytes; reduced in negotiation to what the peer sends.
    pub max_receive_size: u32,
    /// Longest upper-layer message reassembled, in bytes.
    pub max_fragmented_size: u32,
    /// The same on an accepted connection until its peer is identified ([`crate::Channel::authenticated`]).
    pub max_stranger_size: u32,
    /// Most bytes moved by RDMA for one read or write.
    pub max_read_write_size: u32,
    /// Silence after which a keepalive is sent.
    pub keepalive_interval: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            receive_credits: 255,
            send_credits: 255,
            max_send_size: MAX_PREFERRED_SEND,
            max_receive_size: 8192,
            max_fragmented_size: MAX_FRAGMENTED,
            max_stranger_size: MAX_FRAGMENTED,
            max_read_write_size: 8 << 20,
            keepalive_interval: Duration::from_secs(120),
        }
    }
}

impl Config {
    /// The nearest values that the protocol and the pool allow.
    pub(crate) fn clamped(mut self) -> Config {
        let largest = MAX_BUF as u32;
        self.receive_credits = self.receive_credits.max(1);
        self.send_credits = self.send_credits.max(1);
        self.max_send_size = self.max_send_size.clamp(MIN_RECEIVE, MAX_PREFERRED_SEND);
        self.max_receive_size = self.max_receive_size.clamp(MIN_NEGOTIATE_BUFFER, largest);
        self.max_fragmented_size = self.max_fragmented_size.clamp(MIN_FRAGMENTED, largest);
        self.max_read_write_size = self.max_read_write_size.min(largest);
        self
    }
}
