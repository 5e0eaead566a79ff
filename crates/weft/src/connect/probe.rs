//! Finds out what a misbehaving TCP port speaks: asks it in several protocols at once.
//!
//! [MS-SMB2] 2.2.3 (NEGOTIATE), RFC 5531 9 and 11 (a NULL call in a record), RFC 5044 7.1 (MPA), the NBD protocol's
//! greeting. It opens a few TCP connections for a second, and does not log on.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use weft_machine::{Stream, rt};
use weft_rdma::iwarp::probe as mpa;
use weft_wire::nfs3;
use weft_wire::rpc::{Call, Credential, Reply};
use weft_wire::xdr::{Decoder, Encoder};

/// Time limit for each question, including connection and answer.
const LIMIT: Duration = Duration::from_millis(1200);
/// How much of an answer is read.
const ANSWER_BYTES: usize = 256;
/// The last-fragment bit in the four bytes before a record (RFC 5531 section 11).
const LAST_FRAGMENT: u32 = 1 << 31;
/// Transaction id of our call.
const XID: u32 = 0x5745_4654;

/// The protocol that a port speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    Smb,
    Nfs,
    /// ONC RPC without NFS: MOUNT, rpcbind, ...
    Rpc,
    /// iWARP.
    Rdma,
    Nbd,
    /// Another protocol that users know by name.
    Other(&'static str),
    /// It accepts connections and never answers.
    Silent,
    /// It accepts connections and closes them.
    Closes,
    /// It accepts no connections.
    Gone,
}

/// The answer to one question.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Heard {
    Bytes(Bytes),
    Silence,
    End,
    Nobody,
}

/// Probes a port.
pub(super) async fn probe(addr: SocketAddr) -> Spoken {
    let (nothing, smb) = (ask(addr, &[]), smb_negotiate());
    let (smb, nfs) = (ask(addr, &smb), nfs_null());
    let (nfs, http) = (ask(addr, &nfs), ask(addr, b"HEAD / HTTP/1.0\r\n\r\n"));
    let question = mpa::Question { crc: true, enhanced: true, peer_to_peer: false, depth: 1, limit: LIMIT };
    let ((nothing, smb), ((nfs, http), mpa)) =
        join(join(nothing, smb), join(join(nfs, http), mpa::probe(addr, question))).await;
    judge(&nothing, &smb, &nfs, &http, mpa.is_ok())
}

fn judge(nothing: &Heard, smb: &Heard, nfs: &Heard, http: &Heard, mpa: bool) -> Spoken {
    if let Heard::Bytes(greeting) = nothing {
        return match () {
            () if greeting.starts_with(b"NBDMAGIC") => Spoken::Nbd,
            () if greeting.starts_with(b"SSH-") => Spoken::Other("SSH"),
            () => Spoken::Other("something that greets its clients"),
        };
    }
    if let Heard::Bytes(answer) = smb
        && matches!(answer.get(4..8), Some([0xfe | 0xff, b'S', b'M', b'B']))
    {
        return Spoken::Smb;
    }
    if let Heard::Bytes(answer) = nfs
        && let Some(reply) = answer.get(4..)
        && let Ok((XID, reply)) = Reply::parse(&mut Decoder::new(Bytes::copy_from_slice(reply)))
    {
        return if reply == Reply::ProgramUnavailable { Spoken::Rpc } else { Spoken::Nfs };
    }
    if mpa {
        return Spoken::Rdma;
    }
    if let Heard::Bytes(answer) = http {
        return match answer.starts_with(b"HTTP/") {
            true => Spoken::Other("HTTP"),
            // An alert (RFC 8446 section 5.1).
            false if answer.starts_with(&[0x15, 3]) => Spoken::Other("TLS"),
            false => Spoken::Other("something else"),
        };
    }
    let asked = [smb, nfs, http];
    match () {
        () if asked.iter().all(|heard| **heard == Heard::Nobody) => Spoken::Gone,
        () if asked.iter().all(|heard| **heard == Heard::End) => Spoken::Closes,
        () => Spoken::Silent,
    }
}

async fn ask(addr: SocketAddr, question: &[u8]) -> Heard {
    let Ok(stream) = Stream::connect_within(addr, LIMIT).await else { return Heard::Nobody };
    let answer = async {
        if !question.is_empty() && stream.send_all(&[Bytes::copy_from_slice(question)]).await.is_err() {
            return Heard::End;
        }
        let mut bytes = [0; ANSWER_BYTES];
        match stream.recv(&mut [IoSliceMut::new(&mut bytes)]).await {
            Ok(0) | Err(_) => Heard::End,
            Ok(len) => Heard::Bytes(Bytes::copy_from_slice(bytes.get(..len).unwrap_or_default())),
        }
    };
    rt::timeout(LIMIT, answer).await.unwrap_or(Heard::Silence)
}

/// A NEGOTIATE for 2.1 to 3.0.2: 3.1.1 would need contexts, and a server that supports only 3.1.1 still answers, with
/// an error.
fn smb_negotiate() -> Vec<u8> {
    let mut message = vec![0; 64 + 36];
    let mut put = |at: usize, bytes: &[u8]| {
        for (to, from) in message.iter_mut().skip(at).zip(bytes) {
            *to = *from;
        }
    };
    put(0, b"\xfeSMB\x40\x00");
    // CreditRequest; StructureSize, DialectCount, SecurityMode of the body.
    put(14, &[1]);
    put(64, &[36, 0, 3, 0, 1]);
    message.extend([0x10, 2, 0, 3, 2, 3]);
    let mut frame = (message.len() as u32).to_be_bytes().to_vec();
    frame.extend(message);
    frame
}

/// NFS's procedure 0, without credentials.
fn nfs_null() -> Vec<u8> {
    let mut e = Encoder::with_capacity(64);
    let (program, version) = (nfs3::PROGRAM, nfs3::VERSION);
    Call { xid: XID, program, version, procedure: 0, credential: Credential::None }.emit(&mut e);
    let call = e.into_bytes();
    let mut record = (LAST_FRAGMENT | call.len() as u32).to_be_bytes().to_vec();
    record.extend(call);
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_questions_are_well_formed() {
        let smb = smb_negotiate();
        assert_eq!(&smb[..8], b"\0\0\0\x6a\xfeSMB");
        let body = Bytes::copy_from_slice(&smb[4..]);
        let request = weft_wire::smb2::negotiate::Request::parse(&body).unwrap();
        assert_eq!(request.dialects.len(), 3);
        let nfs = nfs_null();
        let call = Call::parse(&mut Decoder::new(Bytes::copy_from_slice(&nfs[4..]))).unwrap();
        assert_eq!((call.xid, call.program), (XID, nfs3::PROGRAM));
    }

    #[test]
    fn what_is_heard_is_known() {
        let (end, silence) = (Heard::End, Heard::Silence);
        let bytes = |bytes: &'static [u8]| Heard::Bytes(Bytes::from_static(bytes));
        let smb = bytes(b"\0\0\0\x50\xfeSMB\x40\0");
        assert_eq!(judge(&silence, &smb, &end, &end, false), Spoken::Smb);
        let reply = |reply: Reply| {
            let mut e = Encoder::with_capacity(64);
            reply.emit(XID, &mut e);
            let mut all = vec![0x80, 0, 0, 24];
            all.extend(e.into_bytes());
            Heard::Bytes(all.into())
        };
        let nfs = reply(Reply::Success);
        assert_eq!(judge(&silence, &silence, &nfs, &silence, false), Spoken::Nfs);
        let four = reply(Reply::ProgramMismatch { low: 4, high: 4 });
        assert_eq!(judge(&silence, &silence, &four, &silence, false), Spoken::Nfs);
        let other = reply(Reply::ProgramUnavailable);
        assert_eq!(judge(&silence, &silence, &other, &silence, false), Spoken::Rpc);
        assert_eq!(judge(&silence, &silence, &silence, &silence, true), Spoken::Rdma);
        assert_eq!(judge(&bytes(b"NBDMAGICIHAVEOPT"), &end, &end, &end, false), Spoken::Nbd);
        let http = bytes(b"HTTP/1.1 400 Bad Request");
        assert_eq!(judge(&silence, &end, &end, &http, false), Spoken::Other("HTTP"));
        assert_eq!(judge(&end, &end, &end, &end, false), Spoken::Closes);
        assert_eq!(judge(&silence, &end, &end, &end, false), Spoken::Closes);
        assert_eq!(judge(&silence, &end, &silence, &end, false), Spoken::Silent);
        let nobody = Heard::Nobody;
        assert_eq!(judge(&nobody, &nobody, &nobody, &nobody, false), Spoken::Gone);
        // Arbitrary bytes from a peer do no harm.
        for len in 0..8 {
            let short = Heard::Bytes(Bytes::from(vec![0xff; len]));
            judge(&silence, &short, &short, &short, false);
        }
    }
}
