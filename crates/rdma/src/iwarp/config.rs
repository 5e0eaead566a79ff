//! The settings of an iWARP provider, fixed when it is made.
//!
//! The defaults and limits follow RFC 5044 4.4 (CRC), 4.5 (FPDU size), 7.1.2 (time-outs) and RFC 6581 9 (IRD, ORD,
//! peer-to-peer).

use std::time::Duration;

use weft_machine::net::SourcePort;

/// Settings of a [`super::Provider`]. The default is what RFC 5044 asks for: CRC on.
#[derive(Clone, Debug)]
pub struct Config {
    /// Ask for CRC32C on every FPDU. It is used when either side asks (RFC 5044 7.1.1).
    pub crc: bool,
    /// Require markers in what the peer sends (RFC 5044 4.3). They do not help a receiver on a socket, and cost a copy;
    /// a peer that requires them gets them whatever this says.
    pub markers: bool,
    /// Inbound RDMA Reads at a time that we offer; at most 16,382 (14 bits; all ones is reserved).
    pub ird: u16,
    /// Outbound RDMA Reads at a time that we ask for; at most 16,382.
    pub ord: u16,
    /// Sends, Writes and Reads posted and not completed.
    pub max_send_work: usize,
    /// Receive buffers posted.
    pub max_recv_work: usize,
    /// Regions registered at a time; at most 4,096.
    pub max_regions: usize,
    /// Payload bytes in one FPDU; at most 65,517, which is what the 16-bit length field leaves. Large FPDUs cost the
    /// receiver fewer system calls: without CRCs, 65,408 was 3 percent faster than 61,440 and 14 percent faster than
    /// 32,768.
    pub fpdu_payload: usize,
    /// Ask for the peer-to-peer model as initiator (RFC 6581 9.2), so that the responder may send first.
    pub peer_to_peer: bool,
    /// Time limit for set-up: as initiator for all of it, including the TCP connection and a second request in the
    /// older form; as responder for each MPA frame.
    pub setup_timeout: Duration,
    /// How long a closing connection may take to deliver its last bytes to the peer.
    pub close_timeout: Duration,
    /// The TCP congestion control to use, for example `reno`; `None` keeps the system's default.
    pub congestion: Option<String>,
    /// The local TCP ports that connections use.
    pub source_port: SourcePort,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            crc: true,
            markers: false,
            ird: 64,
            ord: 64,
            max_send_work: 1024,
            max_recv_work: 1024,
            max_regions: 4096,
            fpdu_payload: 65_408,
            peer_to_peer: false,
            setup_timeout: crate::SETUP_LIMIT,
            close_timeout: Duration::from_secs(5),
            congestion: None,
            source_port: SourcePort::Any,
        }
    }
}
