//! What an iWARP provider is told at its making.
//!
//! Spec: RFC 5044 4.4 (CRC), 4.5 (FPDU size), 7.1.2 (time-outs); RFC 6581 9 (IRD, ORD, peer-to-peer).
//! Does not: change after the provider was made.

use std::time::Duration;

use weft_machine::net::SourcePort;

/// Settings of a [`super::Provider`]. The default is what RFC 5044 asks for: CRC on.
#[derive(Clone, Debug)]
pub struct Config {
    /// Ask for CRC32C on every FPDU. It is used when either side asks (RFC 5044 7.1.1).
    pub crc: bool,
    /// Require markers in what the peer sends (RFC 5044 4.3). They help nobody who receives from a socket, and cost a
    /// copy; a peer that requires them gets them without being asked here.
    pub markers: bool,
    /// Inbound RDMA Reads at a time that we offer; at most 16,382 (14 bits, all ones is special).
    pub ird: u16,
    /// Outbound RDMA Reads at a time that we ask for; at most 16,382.
    pub ord: u16,
    /// Sends, Writes and Reads posted and not completed.
    pub max_send_work: usize,
    /// Receive buffers posted.
    pub max_recv_work: usize,
    /// Regions registered at a time; at most 4,096.
    pub max_regions: usize,
    /// Payload bytes in one FPDU; bounded by what the 16-bit length field leaves (65,517). Large ones cost fewer system
    /// calls at the receiver: 65,408 was 3 percent better than 61,440 without CRCs, and 14 than 32,768.
    pub fpdu_payload: usize,
    /// Ask for the peer-to-peer model as initiator (RFC 6581 9.2), so that the responder may send first.
    pub peer_to_peer: bool,
    /// How long set-up may take: as initiator in all, with the TCP connection and a second request in the older form; as responder
    /// each MPA frame.
    pub setup_timeout: Duration,
    /// How long a closing connection may take to hand its last bytes to the peer.
    pub close_timeout: Duration,
    /// The TCP congestion control to use, for example `reno`; `None` leaves the system's.
    pub congestion: Option<String>,
    /// Which TCP port connections go out from.
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
