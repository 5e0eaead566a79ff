//! Diagnoses how a peer answers an MPA request: sends one, reads the reply, disconnects.
//!
//! Follows RFC 5044 7.1 (set-up) and RFC 6581 9 (enhanced set-up). It creates no queue pair, and does not judge the
//! answer.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::net::Path;
use weft_machine::{Stream, Time, rt};
use weft_wire::mpa::{self, Enhanced, FRAME_LEN, Frame, Kind, Malformed, REPLY_KEY, Rtr};

/// How to ask.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Ask for a CRC on every FPDU.
    pub crc: bool,
    /// Ask in the form of RFC 6581; otherwise in that of RFC 5044, for peers that hang up on the newer form.
    pub enhanced: bool,
    /// Offer the peer-to-peer model, which only the enhanced form can express.
    pub peer_to_peer: bool,
    /// Inbound and outbound RDMA Reads at a time to request.
    pub depth: u16,
    /// Time limit for the TCP connection, and again for the reply.
    pub limit: Duration,
}

/// The peer's reply, as sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 1 (RFC 5044) or 2 (RFC 6581).
    pub revision: u8,
    /// It requests a CRC. CRCs are used if either side requests them.
    pub crc: bool,
    /// It wants markers in what it receives.
    pub markers: bool,
    /// It refuses the connection.
    pub rejected: bool,
    /// Its inbound and outbound RDMA Reads at a time, if it states them.
    pub depths: Option<(u16, u16)>,
    /// The first messages of the peer-to-peer model that it accepts, in words; `None` if it does not support the model.
    pub peer_to_peer: Option<Vec<&'static str>>,
    /// Private data.
    pub private_data: Bytes,
    /// The path of the TCP connection, if the kernel reports it.
    pub path: Option<Path>,
    /// TCP congestion control on our side.
    pub congestion: String,
    /// Our address on that path.
    pub local: Option<SocketAddr>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// No TCP connection.
    #[error("no TCP connection: {0}")]
    Tcp(io::Error),
    /// A TCP connection, but not a single byte.
    #[error("connected, but silent")]
    Silent,
    /// The peer closed the TCP connection instead.
    #[error("closed the connection without an MPA reply")]
    Closed,
    /// The peer speaks another protocol; its first bytes.
    #[error("speaks a protocol other than MPA")]
    Foreign(Bytes),
    /// A reply that breaks the specification.
    #[error("a broken MPA reply: {0}")]
    Malformed(Malformed),
    /// The connection failed while waiting for the reply.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// Asks the peer at `addr`.
pub async fn probe(addr: SocketAddr, question: Question) -> Result<Answer, NoAnswer> {
    let stream = Stream::connect_within(addr, question.limit).await.map_err(NoAnswer::Tcp)?;
    let request = Frame {
        kind: Kind::Request,
        markers: false,
        crc: question.crc,
        rejected: false,
        revision: if question.enhanced { 2 } else { 1 },
        enhanced: question.enhanced.then_some(Enhanced {
            ird: question.depth,
            ord: question.depth,
            peer_to_peer: question.peer_to_peer.then_some(Rtr {
                send: true,
                write: true,
                read: question.depth > 0,
            }),
        }),
        private_data: Bytes::new(),
    };
    let mut bytes = Vec::with_capacity(FRAME_LEN + mpa::MAX_PRIVATE_DATA);
    request.emit(&mut bytes);
    stream.send_all(&[bytes.into()]).await?;
    let frame = reply(&stream, rt::now() + question.limit).await?;
    let answer = Answer {
        revision: frame.revision,
        crc: frame.crc,
        markers: frame.markers,
        rejected: frame.rejected,
        depths: frame.enhanced.map(|word| (word.ird, word.ord)),
        peer_to_peer: frame.enhanced.and_then(|word| word.peer_to_peer).map(openings),
        private_data: frame.private_data,
        path: stream.path()?,
        congestion: stream.congestion()?,
        local: stream.local_addr(),
    };
    stream.shutdown();
    Ok(answer)
}

async fn reply(stream: &Stream, deadline: Time) -> Result<Frame, NoAnswer> {
    let mut bytes = Vec::new();
    let mut wanted = FRAME_LEN;
    loop {
        let start = bytes.len();
        bytes.resize(wanted, 0);
        let received = {
            let mut into = [IoSliceMut::new(bytes.split_at_mut(start).1)];
            rt::timeout(deadline.since(rt::now()), stream.recv(&mut into)).await
        };
        let (ended, came) = match received {
            Ok(Ok(0)) => (Some(NoAnswer::Closed), 0),
            Ok(Ok(came)) => (None, came),
            Ok(Err(e)) if e.kind() == io::ErrorKind::ConnectionReset => (Some(NoAnswer::Closed), 0),
            Ok(Err(e)) => (Some(e.into()), 0),
            Err(rt::Elapsed) => (Some(NoAnswer::Silent), 0),
        };
        bytes.truncate(start.saturating_add(came));
        // The first byte that differs from the key decides.
        if bytes.iter().zip(&REPLY_KEY).any(|(byte, key)| byte != key) {
            return Err(NoAnswer::Foreign(bytes.into()));
        }
        if let Some(ended) = ended {
            return Err(if bytes.is_empty() { ended } else { NoAnswer::Malformed(Malformed::Truncated) });
        }
        if let Some(head) = bytes.first_chunk() {
            wanted = Frame::len_of(head).map_err(NoAnswer::Malformed)?;
            if bytes.len() >= wanted {
                return Frame::parse(&bytes).map_err(NoAnswer::Malformed);
            }
        }
    }
}

fn openings(rtr: Rtr) -> Vec<&'static str> {
    [(rtr.send, "Send"), (rtr.write, "Write"), (rtr.read, "Read")]
        .into_iter()
        .filter_map(|(offered, name)| offered.then_some(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Provider as _;
    use crate::iwarp::{Config, Provider};
    use weft_machine::{Listener, Pool};

    const QUESTION: Question =
        Question { crc: false, enhanced: true, peer_to_peer: true, depth: 8, limit: Duration::from_secs(20) };

    /// Probes a peer that answers `bytes` and closes.
    fn answered(bytes: &'static [u8]) -> Result<Answer, NoAnswer> {
        rt::block_on(async {
            let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let addr = listener.local_addr();
            let _peer = rt::spawn(async move {
                let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
                let mut request = [0; FRAME_LEN + 4];
                let mut into = [IoSliceMut::new(&mut request)];
                assert_eq!(stream.recv(&mut into).await.unwrap(), FRAME_LEN + 4);
                stream.send_all(&[Bytes::from_static(bytes)]).await.unwrap();
                stream.shutdown_write();
                // Waits until the other side has read it.
                let _ = stream.recv(&mut [IoSliceMut::new(&mut [0])]).await;
            });
            probe(addr, QUESTION).await
        })
        .unwrap()
    }

    #[test]
    fn our_own_provider_answers() {
        let answer = rt::block_on(async {
            let pool = Pool::new(16 << 20);
            let provider = Provider::new(pool, Config { ird: 5, ..Config::default() });
            let listener = provider.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
            let addr = listener.local_addr();
            rt::spawn(async move {
                let request = listener.accept().await.unwrap().request().await.unwrap();
                let _qp = request.accept(crate::ConnectParams::default(), Vec::new()).await;
            })
            .detach();
            probe(addr, QUESTION).await.unwrap()
        })
        .unwrap();
        assert_eq!((answer.revision, answer.crc, answer.markers, answer.rejected), (2, true, false, false));
        assert_eq!(answer.depths, Some((5, 8)));
        assert_eq!(answer.peer_to_peer, Some(vec!["Send", "Write", "Read"]));
        assert!(answer.path.is_some());
    }

    #[test]
    fn a_rejection_is_an_answer() {
        let answer = answered(b"MPA ID Rep Frame\x20\x01\x00\x02no").unwrap();
        assert!(answer.rejected);
        assert_eq!((answer.revision, &answer.private_data[..]), (1, &b"no"[..]));
        assert_eq!((answer.depths, answer.peer_to_peer), (None, None));
    }

    #[test]
    fn what_is_no_answer_is_told_apart() {
        assert!(matches!(answered(b""), Err(NoAnswer::Closed)));
        assert!(
            matches!(answered(b"HTTP/1.1 400 Bad Request\r\n\r\n"), Err(NoAnswer::Foreign(b)) if b.starts_with(b"HTTP"))
        );
        assert!(matches!(answered(b"no"), Err(NoAnswer::Foreign(_))));
        assert!(matches!(answered(b"MPA ID Rep"), Err(NoAnswer::Malformed(Malformed::Truncated))));
        assert!(matches!(answered(b"MPA ID Rep Frame\x00\x09\x00\x00"), Err(NoAnswer::Malformed(_))));
        assert!(matches!(answered(b"MPA ID Rep Frame\x00\x02\x7f\x00"), Err(NoAnswer::Malformed(_))));
    }

    #[test]
    fn a_closed_port_and_a_silent_one_are_told_apart() {
        rt::block_on(async {
            let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let question = Question { limit: Duration::from_millis(20), ..QUESTION };
            assert!(matches!(probe(listener.local_addr(), question).await, Err(NoAnswer::Silent)));
            let addr = listener.local_addr();
            drop(listener);
            assert!(matches!(probe(addr, question).await, Err(NoAnswer::Tcp(_))));
        })
        .unwrap();
    }
}
