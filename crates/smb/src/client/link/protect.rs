//! Signs and encrypts outgoing messages; decrypts and verifies incoming ones.
//!
//! Spec: [MS-SMB2] 3.2.4.1.1, 3.2.4.1.8, 3.2.5.1.1, 3.2.5.1.3; compression: 3.1.4.3, 3.2.5.1.1.2. The keys belong to
//! the session. An encrypted or decrypted message is in a buffer of the pool, or on the heap while the pool is empty.

use bytes::Bytes;
use weft_machine::{Buf, Pool, buf};
use weft_transport::{Outgoing, Part, To};
use weft_wire::smb2::header::Flags;
use weft_wire::smb2::{Command, Header, NtStatus};

use crate::client::error::Error;
use crate::compression::Agreed;
use crate::crypto::{self, Sender, SessionKeys, TRANSFORM_LEN};

/// How a request is protected; its response must have the same protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Protection {
    /// Unprotected.
    None,
    /// Signed.
    Signed,
    /// Encrypted.
    Sealed,
}

/// The tree connect that a request names (3.2.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) struct TreeConnect {
    pub id: u32,
    /// Whether the share requires encryption (TreeConnect.EncryptData).
    pub sealed: bool,
}

impl TreeConnect {
    /// For requests that name no tree.
    pub const NONE: TreeConnect = TreeConnect { id: 0, sealed: false };
}

/// What a session requires of all its requests (3.2.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) struct Policy {
    /// Session.EncryptData, or our own wish.
    pub sealed: bool,
    /// Session.SigningRequired.
    pub signed: bool,
}

impl Policy {
    /// The protection of a request in this tree, and of its payload by RDMA (3.2.4.1.1, 3.2.4.1.8). Every request of an
    /// established session passes here, because [`super::Call::new`] takes no protection.
    pub fn of(self, tree: TreeConnect) -> Protection {
        match () {
            () if self.sealed || tree.sealed => Protection::Sealed,
            () if self.signed => Protection::Signed,
            () => Protection::None,
        }
    }
}

/// The keys of the connection's session.
pub(in crate::client) struct Security {
    pub session_id: u64,
    pub keys: SessionKeys,
}

/// Signs or encrypts.
pub(super) fn protect(
    pool: &Pool,
    security: Option<&Security>,
    protection: Protection,
    mut message: Vec<u8>,
    payload: Bytes,
    compression: Option<&Agreed>,
) -> Result<Outgoing, Error> {
    match (protection, security) {
        (Protection::None, _) => {}
        (Protection::Signed, Some(security)) => {
            security.keys.signing.sign_parts(Sender::Client, &mut message, &[&payload]);
        }
        (Protection::Sealed, Some(security)) => {
            // 3.1.4.3: compression comes first.
            return match compression.and_then(|agreed| squeezed(agreed, &message, &payload)) {
                Some(short) => seal(pool, security, &short, &Bytes::new()),
                None => seal(pool, security, &message, &payload),
            };
        }
        _ => return Err(Error::Misuse("protection before a session is established")),
    }
    if let Some(short) = compression.and_then(|agreed| squeezed(agreed, &message, &payload)) {
        return Ok(Outgoing::bytes(short));
    }
    let mut parts = Vec::with_capacity(2);
    parts.push(Part::Bytes(message.into()));
    if !payload.is_empty() {
        parts.push(Part::Payload { data: payload.into(), to: To::Inline });
    }
    Ok(Outgoing { parts, ..Outgoing::default() })
}

fn seal(pool: &Pool, security: &Security, message: &[u8], payload: &Bytes) -> Result<Outgoing, Error> {
    let sealer = security.keys.sealer.as_ref().ok_or(Error::Misuse("no cipher was negotiated"))?;
    let len = TRANSFORM_LEN.saturating_add(message.len()).saturating_add(payload.len());
    let mut sealed = Room::new(pool, len);
    let (_, body) = sealed.split_at_mut(TRANSFORM_LEN);
    let (to_message, to_payload) = body.split_at_mut(message.len());
    to_message.copy_from_slice(message);
    if !payload.is_empty() {
        buf::copy(to_payload, payload);
    }
    sealer
        .seal(security.session_id, &mut sealed)
        .map_err(|_| Error::Misuse("the session's nonces are used up; connect again"))?;
    Ok(Outgoing::bytes(sealed.freeze()))
}

/// Decrypts a frame (3.2.5.1.1.1).
pub(super) fn open(pool: &Pool, security: Option<&Security>, frame: &Bytes) -> Result<Bytes, Error> {
    let header = crypto::transform(frame)?;
    // 3.2.5.1.1.1: refuses a session that is not ours or has no key.
    let opener = security
        .filter(|s| s.session_id == header.session_id)
        .and_then(|s| s.keys.opener.as_ref())
        .ok_or(Error::Tampered("encrypted for a session that is not ours"))?;
    let mut plain = Room::new(pool, header.original_message_size as usize);
    opener.open(frame, &mut plain).map_err(|_| Error::Tampered("decryption failed"))?;
    Ok(plain.freeze())
}

/// Decompresses a frame (3.2.5.1.1.2).
pub(super) fn decompress(pool: &Pool, agreed: Option<&Agreed>, frame: &Bytes) -> Result<Bytes, Error> {
    let agreed =
        agreed.ok_or(Error::Violation("a compressed message, but compression was not negotiated"))?;
    // No response is longer than the largest buffer.
    let len = agreed.original_len(frame, buf::MAX_BUF).map_err(|corrupt| Error::Violation(corrupt.0))?;
    let mut plain = Room::new(pool, len);
    agreed.decompress(frame, &mut plain).map_err(|corrupt| Error::Violation(corrupt.0))?;
    Ok(plain.freeze())
}

/// Compresses a message and its payload, if that makes them shorter.
fn squeezed(agreed: &Agreed, message: &[u8], payload: &[u8]) -> Option<Vec<u8>> {
    let len = message.len().saturating_add(payload.len());
    let mut whole = Vec::with_capacity(len);
    whole.extend_from_slice(message);
    whole.resize(len, 0);
    buf::copy(whole.split_at_mut(message.len()).1, payload);
    agreed.compress(&whole, message.len())
}

/// 3.2.5.1.3 and 3.2.5.1.1: the response to a protected request must be protected too.
pub(super) fn check(
    security: Option<&Security>,
    asked: Protection,
    header: &Header,
    message: &[u8],
    sealed: bool,
    interim: bool,
) -> Result<(), Error> {
    match asked {
        // The tag covers everything and has been verified; the signature field is unused.
        _ if sealed => return Ok(()),
        Protection::Sealed => return Err(Error::Tampered("an unencrypted answer to an encrypted request")),
        // A server that does not know the session that a connection should bind to has no key to sign with.
        Protection::Signed if header.command == Command::SessionSetup && header.status.is_error() => {}
        // 3.2.5.1.3: interim responses may be unsigned; they carry only credits and an AsyncId.
        Protection::Signed if !interim && !header.flags.contains(Flags::SIGNED) => {
            return Err(Error::Tampered("an unsigned answer to a signed request"));
        }
        _ => {}
    }
    match security {
        // Binding a connection verifies it with that connection's key, which is not known here yet.
        _ if header.command == Command::SessionSetup && header.status == NtStatus::SUCCESS => Ok(()),
        Some(security) if header.flags.contains(Flags::SIGNED) => {
            match security.keys.signing.verify(Sender::Server, message) {
                true => Ok(()),
                false => Err(Error::Tampered("wrong signature")),
            }
        }
        // Until the session is established nothing can be verified; session setup verifies its last response itself.
        _ => Ok(()),
    }
}

/// Memory for an encrypted or decrypted message: from the pool, or from the heap while the pool is empty, because the
/// receiver must not wait for buffers that are held by the tasks waiting for it.
enum Room {
    Pool(Buf),
    Heap(Vec<u8>),
}

impl Room {
    fn new(pool: &Pool, len: usize) -> Room {
        match (len <= buf::MAX_BUF).then(|| pool.try_alloc(len)).flatten() {
            Some(mut buf) => {
                buf.set_len(len);
                Room::Pool(buf)
            }
            None => Room::Heap(vec![0; len]),
        }
    }

    fn freeze(self) -> Bytes {
        match self {
            Room::Pool(buf) => buf.freeze(),
            Room::Heap(vec) => vec.into(),
        }
    }
}

impl std::ops::Deref for Room {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Room::Pool(buf) => buf,
            Room::Heap(vec) => vec,
        }
    }
}

impl std::ops::DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Room::Pool(buf) => buf,
            Room::Heap(vec) => vec,
        }
    }
}
