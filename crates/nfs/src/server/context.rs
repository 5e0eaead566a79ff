//! What a procedure is given: who calls, over which connection, and what it may use of the server.
//!
//! Spec: RFC 5531 section 9. Owns: the payload of a call that is still with the client. Does not: choose the procedure
//! (`dispatch`) or carry it out (`ops`, `v4`, `mount`, `nlm`).

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weft_machine::{Buf, Payload, PayloadSource};
use weft_store::rules::Way;
use weft_store::{DirName, Error, NodeId, OpenFile, Share};
use weft_transport::{Kind, Limits, Part, Peer, RemotePayload};
use weft_wire::nfs3::{Handle, Status, Xdr};
use weft_wire::nfs4;
use weft_wire::rpc::{Credential, Reply};
use weft_wire::xdr::{Data, Decoder, Encoder, Malformed};

use super::Server;
use super::answers::Answers;
use super::caller::Caller;
use super::file_id::FileId;
use super::handles::Named;
use super::identity::Origin;
use super::line::Line;
use super::watch::Watch;

/// Bytes of an RPC call or reply around the payload of a READ or WRITE, at most.
const HEADER_BYTES: usize = 4096;

/// What the requests of a connection share.
#[derive(Clone)]
pub(super) struct Context<'a> {
    pub server: &'a Server,
    pub kind: Kind,
    /// What protects it.
    pub way: Way,
    /// Who is at the other end.
    pub peer: Peer,
    /// The same as what clients' records are kept by.
    pub origin: Origin,
    /// Whether some share lets in who comes from there. Who is let into none has nothing to do with what clients have.
    pub let_in: bool,
    /// The same without its port, in words: a client that connects again has another port.
    pub host: Rc<str>,
    pub limits: Limits,
    /// Where long replies lie.
    pub answers: &'a Answers,
    /// Who asks; each call has a copy of all this with its own.
    pub caller: Caller,
    /// Whether some share has rules that this peer may fail.
    pub rules: bool,
    /// In what words it calls, where there are such rules (see `export`).
    pub ruled: Option<Rc<Credential>>,
    /// By which the server calls the client.
    pub line: &'a Arc<Line>,
    /// Where it is shown who calls.
    pub watch: &'a Watch,
    /// Whether a call of a peer that some share lets in has come: see [`Channel::authenticated`](weft_transport::Channel::authenticated).
    pub admitted: &'a Cell<bool>,
    /// Payload of the call that is still with the client.
    pub remote: Option<Rc<dyn RemotePayload>>,
}

/// Results behind their header.
pub(super) enum Results {
    /// One buffer.
    One {
        body: Encoder,
        /// Content of the opaque that `body` ends with.
        payload: Option<Payload>,
        /// For a long body.
        room: Option<Box<Buf>>,
    },
    /// What a compound gives, and the room for it.
    Parts(Vec<Part>, Option<Box<Buf>>),
}

impl Results {
    pub fn new(body: Encoder, payload: Option<Payload>) -> Results {
        Results::One { body, payload, room: None }
    }

    /// With room for a long body.
    pub fn within(self, room: Option<Box<Buf>>) -> Results {
        match self {
            Results::One { body, payload, .. } => Results::One { body, payload, room },
            Results::Parts(parts, _) => Results::Parts(parts, room),
        }
    }
}

/// A node that a handle named.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    pub share: &'a Share,
    pub id: NodeId,
}

impl Node<'_> {
    /// Its share and its id.
    pub fn file(&self) -> FileId {
        FileId { share: self.share.id, node: self.id }
    }

    /// This name in it.
    pub fn at<'n>(&self, name: &'n [u8]) -> DirName<&'n [u8]> {
        DirName { dir: self.id, name }
    }
}

impl<'a> Context<'a> {
    /// What a handle names.
    pub async fn node(&self, handle: &Handle) -> Result<Node<'a>, Status> {
        let named = self.server.handles.open(&self.server.shares, handle).await?;
        // The root of all shares and named attributes are for version 4 alone.
        let Named::Node(FileId { share, node: id }) = named else { return Err(Status::STALE) };
        let share = self.server.shares.get(share).ok_or(Status::STALE)?;
        if share.vfs.stream_of(id).is_some() {
            return Err(Status::STALE);
        }
        Ok(Node { share, id })
    }

    /// The handle of a file.
    pub async fn handle(&self, file: FileId) -> Result<Handle, Error> {
        self.server.handles.make(&self.server.shares, file).await
    }

    /// Where clients' records that this caller has to do with come from: nowhere, unless some share lets it in.
    pub fn origin(&self) -> Result<&Origin, nfs4::Status> {
        if self.let_in { Ok(&self.origin) } else { Err(nfs4::Status::ACCESS) }
    }

    /// The call's payload: what is still with the client comes now.
    pub async fn fetch(&self) -> Result<Bytes, Error> {
        let Some(payload) = &self.remote else { return Err(Error::Invalid) };
        payload.fetch().await.map_err(Error::Payload)
    }

    /// Writes the data of a WRITE into a file, as [`OpenFile::write_from`].
    pub async fn write_data<E: From<Error>>(
        &self,
        file: &OpenFile,
        offset: u64,
        data: Data,
        admit: impl AsyncFnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let here;
        let source = match data {
            Data::Here(bytes) => {
                here = [bytes];
                PayloadSource::Memory(&here)
            }
            Data::There(len) => {
                let payload = &**self.remote.as_ref().ok_or(Error::Invalid)?;
                PayloadSource::Remote { payload, len }
            }
        };
        file.write_from(offset, source, admit).await
    }

    /// Largest READ and WRITE on this connection.
    pub fn max_payload(&self) -> u32 {
        let carried = match self.limits.placed_payload() {
            Some(placed) => placed,
            None => self.limits.max_message.saturating_sub(HEADER_BYTES),
        };
        self.server.limits.max_payload.min(u32::try_from(carried).unwrap_or(u32::MAX))
    }
}

/// The arguments of a call.
pub(super) fn args<A: Xdr>(d: &mut Decoder) -> Result<A, Reply> {
    A::parse(d).map_err(|Malformed(why)| {
        tracing::debug!(why, "arguments do not parse");
        Reply::GarbageArgs
    })
}
