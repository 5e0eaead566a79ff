//! The byte stream of a connection: plain, or under TLS.
//!
//! TLS is RFC 8446 and RFC 5246 by rustls; NBD's doc/proto.md and RFC 9289 say when it begins. It owns the stream, and
//! the bytes that TLS holds back. Certificates are chosen by [`Tls`]; messages are the caller's.
//!
//! Both directions are used at once by one task. Under TLS they share one state, which is borrowed only during a call
//! and never while a task waits; TLS's own messages (alerts, key updates) are sent with the next send.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use super::{Holder, Stream};

/// Encrypted bytes that are received at a time: a TLS record and its frame.
const RECEIVED_BYTES: usize = 17 << 10;
/// Bytes that may wait to be sent before more are encrypted.
const UNSENT_BYTES: usize = 256 << 10;
/// How much of that buffer is kept when everything is sent.
const KEPT_BYTES: usize = 16 << 10;

/// What a server needs for TLS: its certificate, and which clients it accepts. Clones share it.
#[derive(Clone, Debug)]
pub struct Tls(Arc<ServerConfig>);

/// Why TLS is not possible with these files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The input is not a certificate or key in PEM.
    #[error("{0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// It contains no certificate.
    #[error("there is no certificate in it")]
    Empty,
    /// The certificate and the key do not match, or TLS cannot use them.
    #[error("{0}")]
    Refused(#[from] rustls::Error),
    /// No client could be verified.
    #[error("{0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// The authorities of the clients cannot be used; the certificate and the key are not the cause.
    #[error("{0}")]
    Authorities(Box<TlsError>),
}

impl Tls {
    /// Uses a chain of certificates and a key, in PEM. With `clients`, only clients with a certificate signed by one of
    /// these authorities are accepted.
    ///
    /// # Errors
    /// Something is not PEM, or does not match.
    pub fn from_pem(chain: &[u8], key: &[u8], clients: Option<&[u8]>) -> Result<Tls, TlsError> {
        Tls::build(chain, key, clients, true, rustls::DEFAULT_VERSIONS).map(|config| Tls(Arc::new(config)))
    }

    /// The same for RPC (RFC 9289 5): requires TLS 1.3 and RPC's protocol name. Clients are asked for a certificate if
    /// there are authorities to verify it, and accepted without one: see [`Link::holder`].
    ///
    /// # Errors
    /// As above.
    pub fn for_rpc(chain: &[u8], key: &[u8], clients: Option<&[u8]>) -> Result<Tls, TlsError> {
        let mut config = Tls::build(chain, key, clients, false, &[&rustls::version::TLS13])?;
        config.alpn_protocols = vec![b"sunrpc".to_vec()];
        Ok(Tls(Arc::new(config)))
    }

    /// The same for HTTP/1.1. With `clients`, only clients with a certificate signed by one of these authorities are
    /// accepted.
    ///
    /// # Errors
    /// As above.
    pub fn for_http(chain: &[u8], key: &[u8], clients: Option<&[u8]>) -> Result<Tls, TlsError> {
        let mut config = Tls::build(chain, key, clients, true, rustls::DEFAULT_VERSIONS)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls(Arc::new(config)))
    }

    /// For a server whose streams are not those of this crate.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.0.clone()
    }

    fn build(
        chain: &[u8],
        key: &[u8],
        clients: Option<&[u8]>,
        required: bool,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Result<ServerConfig, TlsError> {
        let certificates = |pem| CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let chain = certificates(chain)?;
        if chain.is_empty() {
            return Err(TlsError::Empty);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions)?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let verifier = || {
                    let authorities = certificates(authorities)?;
                    if authorities.is_empty() {
                        return Err(TlsError::Empty);
                    }
                    let mut roots = RootCertStore::empty();
                    for authority in authorities {
                        roots.add(authority)?;
                    }
                    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                    let verifier = if required { verifier } else { verifier.allow_unauthenticated() };
                    Ok(verifier.build()?)
                };
                builder.with_client_cert_verifier(verifier().map_err(|e| TlsError::Authorities(Box::new(e)))?)
            }
        };
        let mut config = builder.with_single_cert(chain, PrivateKeyDer::from_pem_slice(key)?)?;
        if clients.is_some() {
            // A resumed session is not verified again: whose certificate has expired meanwhile would still get in.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(config)
    }
}

/// The received stream's position in the current TLS record (RFC 8446 5.1): a header of five bytes, the last two of
/// them the length.
#[derive(Default)]
struct Records {
    received_bytes: u64,
    head: [u8; 5],
    head_bytes: usize,
    /// Missing bytes of the record after the header.
    missing: usize,
}

impl Records {
    fn pass(&mut self, mut bytes: &[u8]) {
        self.received_bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let taken = if self.missing > 0 {
                let taken = self.missing.min(bytes.len());
                self.missing -= taken;
                taken
            } else {
                let room = &mut self.head[self.head_bytes..];
                let taken = room.len().min(bytes.len());
                room[..taken].copy_from_slice(&bytes[..taken]);
                self.head_bytes += taken;
                if self.head_bytes == self.head.len() {
                    self.head_bytes = 0;
                    self.missing = usize::from(u16::from_be_bytes([self.head[3], self.head[4]]));
                }
                taken
            };
            bytes = &bytes[taken..];
        }
    }

    fn is_inside(&self) -> bool {
        self.head_bytes > 0 || self.missing > 0
    }
}

/// See the module.
pub struct Link {
    stream: Stream,
    tls: Option<RefCell<Session>>,
}

struct Session {
    tls: ServerConnection,
    records: Records,
    /// Received and not yet decrypted: `received[start..end]`. `None` while nothing arrives, so that an idle connection
    /// costs little: this memory is not from the pool.
    received: Option<Box<[u8; RECEIVED_BYTES]>>,
    start: usize,
    end: usize,
    /// Encrypted and not yet sent, from `sent` on.
    unsent: Vec<u8>,
    sent: usize,
}

impl Link {
    /// A plain stream.
    pub fn new(stream: Stream) -> Link {
        Link { stream, tls: None }
    }

    /// The stream, if it carries the messages unencrypted; then file ranges may be spliced into it.
    pub fn plain(&self) -> Option<&Stream> {
        if self.tls.is_none() { Some(&self.stream) } else { None }
    }

    /// Continues under TLS; returns when the handshake is complete.
    ///
    /// # Errors
    /// The handshake failed, or the connection broke.
    pub async fn start_tls(&mut self, tls: &Tls) -> io::Result<()> {
        let tls = ServerConnection::new(tls.0.clone()).map_err(io::Error::other)?;
        let records = Records::default();
        let session = Session { tls, records, received: None, start: 0, end: 0, unsent: Vec::new(), sent: 0 };
        self.tls = Some(RefCell::new(session));
        std::future::poll_fn(|cx| {
            let Some(session) = &self.tls else { return Poll::Ready(Ok(())) };
            let mut session = session.borrow_mut();
            loop {
                ready!(session.poll_flush(cx, &self.stream))?;
                if !session.tls.is_handshaking() {
                    return Poll::Ready(Ok(()));
                }
                if let Err(e) = ready!(session.poll_more(cx, &self.stream)) {
                    // The alert gives the reason; the client may not be listening any more.
                    let _ = session.poll_flush(cx, &self.stream);
                    return Poll::Ready(Err(e));
                }
            }
        })
        .await
    }

    /// The holder of the peer's verified certificate; `None` if it has shown none.
    pub fn holder(&self) -> Option<Holder> {
        let session = self.tls.as_ref()?.borrow();
        session.tls.peer_certificates()?.first().map(|certificate| Holder::of(certificate))
    }

    /// Whether a TLS record has begun and is incomplete: none of it can be decrypted before. False without TLS.
    pub fn is_inside_record(&self) -> bool {
        self.tls.as_ref().is_some_and(|session| session.borrow().records.is_inside())
    }

    /// Bytes received under TLS, before decryption.
    pub fn received_bytes(&self) -> u64 {
        self.tls.as_ref().map_or(0, |session| session.borrow().records.received_bytes)
    }

    /// Receives some bytes; 0 at the end of the stream.
    pub async fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        let Some(session) = &self.tls else { return self.stream.recv(&mut [IoSliceMut::new(into)]).await };
        std::future::poll_fn(|cx| {
            let mut session = session.borrow_mut();
            loop {
                match session.tls.reader().read(into) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    // Closed without close_notify: every message states its length, so a cut message is not mistaken
                    // for a complete one.
                    Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Poll::Ready(Ok(0)),
                    other => return Poll::Ready(other),
                }
                ready!(session.poll_more(cx, &self.stream))?;
            }
        })
        .await
    }

    /// Sends all of `chain`.
    pub async fn send_all(&self, chain: &[Bytes]) -> io::Result<()> {
        let Some(session) = &self.tls else { return self.stream.send_all(chain).await };
        for bytes in chain {
            let mut done = 0;
            while done < bytes.len() {
                done += session.borrow_mut().tls.writer().write(&bytes[done..])?;
                std::future::poll_fn(|cx| {
                    let mut session = session.borrow_mut();
                    let unsent = session.gather()?;
                    if unsent < UNSENT_BYTES {
                        Poll::Ready(Ok(()))
                    } else {
                        session.poll_flush(cx, &self.stream)
                    }
                })
                .await?;
            }
        }
        std::future::poll_fn(|cx| session.borrow_mut().poll_flush(cx, &self.stream)).await
    }

    /// Announces that nothing more will be sent.
    pub async fn finish(&self) -> io::Result<()> {
        if let Some(session) = &self.tls {
            session.borrow_mut().tls.send_close_notify();
            std::future::poll_fn(|cx| session.borrow_mut().poll_flush(cx, &self.stream)).await?;
        }
        self.stream.shutdown_write();
        Ok(())
    }
}

impl Session {
    /// Decrypts what has been received, or receives more.
    fn poll_more(&mut self, cx: &mut Context<'_>, stream: &Stream) -> Poll<io::Result<()>> {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            let received = self.received.get_or_insert_with(|| Box::new([0; RECEIVED_BYTES]));
            match stream.poll_recv(cx, &mut [IoSliceMut::new(&mut received[..])]) {
                Poll::Ready(received) => self.end = received?,
                Poll::Pending => {
                    self.received = None;
                    return Poll::Pending;
                }
            }
        }
        let received = self.received.as_ref().map_or(&[][..], |received| &received[..]);
        let mut rest = received.get(self.start..self.end).unwrap_or_default();
        let took = self.tls.read_tls(&mut rest)?;
        self.records.pass(&received[self.start..self.start + took]);
        self.start += took;
        let state =
            self.tls.process_new_packets().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        // During a handshake there is no end to wait for.
        if took == 0 && self.tls.is_handshaking() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        debug_assert!(took > 0 || state.plaintext_bytes_to_read() == 0);
        Poll::Ready(Ok(()))
    }

    /// Collects what TLS wants to send; returns how many bytes wait.
    fn gather(&mut self) -> io::Result<usize> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.unsent)?;
        }
        Ok(self.unsent.len() - self.sent)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, stream: &Stream) -> Poll<io::Result<()>> {
        while self.gather()? > 0 {
            match ready!(stream.poll_send(cx, &[IoSlice::new(&self.unsent[self.sent..])]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.sent += n,
            }
        }
        self.unsent.clear();
        self.unsent.shrink_to(KEPT_BYTES);
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::Records;

    #[test]
    fn a_record_is_inside_until_its_last_byte_has_come_however_the_stream_is_cut() {
        // Two TLS records, of 3 bytes and of none.
        let stream = [0x17, 3, 3, 0, 3, 7, 7, 7, 0x17, 3, 3, 0, 0];
        for step in 1..=stream.len() {
            let (mut records, mut passed) = (Records::default(), 0);
            for piece in stream.chunks(step) {
                records.pass(piece);
                passed += piece.len();
                assert_eq!(records.is_inside(), ![8, 13].contains(&passed), "{passed} bytes by {step}");
                assert_eq!(records.received_bytes, passed as u64);
            }
        }
    }
}
