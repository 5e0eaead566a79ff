//! The context of a call: the caller, its connection, and the parts of the server that it may use.
//!
//! See RFC 5531 section 9. It holds the payload of a call that is still with the client. `dispatch` chooses the
//! procedure; `ops`, `v4`, `mount` and `nlm` carry it out.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, Range};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::lock::Mutex as Queue;
use weft_machine::recorder::{Details, User};
use weft_machine::{Buf, Payload, PayloadSource};
use weft_store::rules::Protection;
use weft_store::{Attr, DirName, Error, NodeId, OpenFile, Share, ShareList};
use weft_transport::{Channel, Kind, Limits, Part, Peer, RemotePayload, Security, To};
use weft_wire::nfs3::{Handle, Status, Xdr};
use weft_wire::nfs4;
use weft_wire::rpc::Reply;
use weft_wire::xdr::{Data, Decoder, Encoder, Malformed};

use super::Server;
use super::answers::Answers;
use super::caller::Caller;
use super::credential::{Credential, Ticket};
use super::familiar::{Beginning, Familiar, Known, Procedure};
use super::file_id::FileId;
use super::handles::{self, Handles, Named};
use super::identity::Origin;
use super::instead::Cut;
use super::line::CallbackLine;
use super::meter::CallMeter;
use super::peer_shares::PeerShares;
use super::watch::Watch;

/// Bytes of an RPC call or reply around the payload of a READ or WRITE, at most.
const HEADER_BYTES: usize = 4096;

/// What the requests of a connection share.
pub(super) struct Connection<'a> {
    pub server: &'a Server,
    pub kind: Kind,
    /// How the connection is protected.
    pub protection: Protection,
    /// The peer's address.
    pub peer: Peer,
    /// The same, as the key of clients' records.
    pub origin: Origin,
    /// The peer's address as text, without the port, which changes when a client reconnects.
    pub host: Rc<str>,
    /// The peer's address as text, for the flight recorder.
    pub client: Arc<str>,
    pub limits: Limits,
    /// Buffers for long replies.
    pub answers: &'a Answers,
    /// The connection for calls from the server to the client.
    pub line: &'a Arc<CallbackLine>,
    /// Publishes the callers seen on this connection.
    pub watch: &'a Watch,
    /// Whether a peer that some share admits has sent a call: see
    /// [`Channel::authenticated`](weft_transport::Channel::authenticated).
    pub admitted: Cell<bool>,
    /// Held while a reply is encrypted or signed, which takes memory of its length.
    pub protecting: Queue<()>,
    /// Callers and files that it knows.
    pub familiar: Familiar,
    /// The file that the last call has written, and its attributes afterwards, as long as nothing else has been done.
    pub written: RefCell<Option<(FileId, Attr)>>,
    /// The shares that the last request used; possibly replaced since.
    last_shares: RefCell<Rc<PeerShares>>,
    /// The same shares, acting for the last callers; the latest first.
    last_acting: RefCell<Vec<(Claimed, Rc<PeerShares>)>>,
}

/// A caller whose shares a connection keeps.
enum Claimed {
    /// AUTH_NONE.
    Nobody,
    /// These ids.
    Ids(u32, u32, Vec<u32>),
    Ticket(Arc<Ticket>),
}

impl Claimed {
    fn of(credential: &Credential) -> Claimed {
        match credential {
            Credential::None => Claimed::Nobody,
            Credential::Sys(sys) => Claimed::Ids(sys.uid, sys.gid, sys.gids().to_vec()),
            Credential::Ticket(_, ticket) => Claimed::Ticket(ticket.clone()),
        }
    }

    fn is(&self, credential: &Credential) -> bool {
        match (self, credential) {
            (Claimed::Nobody, Credential::None) => true,
            (Claimed::Ids(uid, gid, gids), Credential::Sys(sys)) => {
                (*uid, *gid) == (sys.uid, sys.gid) && gids.iter().eq(sys.gids())
            }
            (Claimed::Ticket(known), Credential::Ticket(_, ticket)) => Arc::ptr_eq(known, ticket),
            _ => false,
        }
    }
}

/// Maximum number of callers whose shares a connection keeps.
const MAX_ACTING: usize = 16;

/// One call of a connection.
#[derive(Clone)]
pub(super) struct Context<'a> {
    pub connection: &'a Connection<'a>,
    /// The shares, which stay the same while the call is carried out.
    pub shares: &'a Rc<PeerShares>,
    /// The caller.
    pub caller: Caller,
    /// The caller's credential, if some share has rules that this caller may fail (see `export`).
    pub ruled: Option<Rc<Credential>>,
    /// Payload of the call that is still with the client.
    pub remote: Option<Rc<dyn RemotePayload>>,
    /// What is counted of the call.
    pub meter: &'a CallMeter,
    /// Whether a RENAME has replaced another object, for the audit log.
    pub has_replaced: Cell<bool>,
}

impl<'a> Deref for Context<'a> {
    type Target = Connection<'a>;

    fn deref(&self) -> &Connection<'a> {
        self.connection
    }
}

/// Results that follow the reply's header.
pub(super) enum Results {
    /// One buffer.
    One {
        body: Encoder,
        /// Content of the opaque that `body` ends with.
        payload: Option<Payload>,
        /// Buffer for a long body.
        room: Option<Box<Buf>>,
    },
    /// The results of a compound, the buffer for them, and the error that they become if payload cannot be read.
    Parts(Vec<Part>, Option<Box<Buf>>, Cut),
}

impl Results {
    pub fn new(body: Encoder, payload: Option<Payload>) -> Results {
        Results::One { body, payload, room: None }
    }

    /// Bytes of payload.
    pub fn payload_bytes(&self) -> u64 {
        let of_part = |part: &Part| match part {
            Part::Payload { data, .. } => data.len() as u64,
            Part::Bytes(_) => 0,
        };
        match self {
            Results::One { payload, .. } => payload.as_ref().map_or(0, |payload| payload.len() as u64),
            Results::Parts(parts, ..) => parts.iter().map(of_part).sum(),
        }
    }

    /// The pieces of the reply, the buffer for a long body, and the error that they become if payload cannot be read.
    pub fn into_parts(self) -> (Vec<Part>, Option<Box<Buf>>, Cut) {
        match self {
            Results::One { body, payload, room } => {
                let mut parts = Vec::with_capacity(2);
                parts.push(Part::Bytes(body.into_bytes()));
                parts.extend(payload.map(|data| Part::Payload { data, to: To::Ticket }));
                // Files are read by READ only.
                (parts, room, Cut::Read3)
            }
            Results::Parts(parts, room, cut) => (parts, room, cut),
        }
    }

    /// Adds a buffer for a long body.
    pub fn within(self, room: Option<Box<Buf>>) -> Results {
        match self {
            Results::One { body, payload, .. } => Results::One { body, payload, room },
            Results::Parts(parts, _, cut) => Results::Parts(parts, room, cut),
        }
    }
}

/// The node of a handle.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    pub share: &'a Arc<Share>,
    pub id: NodeId,
}

impl Node<'_> {
    /// Its share and node id.
    pub fn file(&self) -> FileId {
        FileId { share: self.share.key(), node: self.id }
    }

    /// This name in the directory.
    pub fn at<'n>(&self, name: &'n [u8]) -> DirName<&'n [u8]> {
        DirName { dir: self.id, name }
    }
}

impl<'a> Connection<'a> {
    /// A connection of this peer, which begins with the current shares.
    pub fn new(
        server: &'a Server,
        channel: &dyn Channel,
        answers: &'a Answers,
        line: &'a Arc<CallbackLine>,
        watch: &'a Watch,
    ) -> Connection<'a> {
        let peer = channel.peer();
        let protection = match channel.security() {
            None => Protection::None,
            Some(Security { holder: None }) => Protection::Tls,
            Some(Security { holder: Some(_) }) => Protection::Mutual,
        };
        let host = peer.ip().map_or_else(|| "local".to_owned(), |ip| ip.to_string());
        let shares = PeerShares::new(server.shares.now(), server.policy, peer, protection);
        Connection {
            server,
            kind: channel.kind(),
            protection,
            peer,
            origin: Origin::of(peer, channel.security()),
            host: host.into(),
            client: peer.to_string().into(),
            limits: channel.limits(),
            answers,
            line,
            watch,
            admitted: Cell::new(false),
            protecting: Queue::default(),
            familiar: Familiar::default(),
            written: RefCell::default(),
            last_shares: RefCell::new(Rc::new(shares)),
            last_acting: RefCell::default(),
        }
    }

    /// A call of this caller, for the flight recorder.
    pub fn details(&self, credential: &Credential) -> Details {
        let user = match credential {
            Credential::None => User::None,
            Credential::Sys(sys) => User::Id(sys.uid),
            Credential::Ticket(_, ticket) => ticket.ids.as_ref().map_or(User::None, |ids| User::Id(ids.uid)),
        };
        Details { client: Some(self.client.clone()), user, file: String::new() }
    }

    /// The current shares.
    pub fn shares(&self) -> Rc<PeerShares> {
        let last = self.last_shares.borrow().clone();
        if self.server.shares.is_current(&last.list) {
            return last;
        }
        let new = PeerShares::new(self.server.shares.now(), self.server.policy, self.peer, self.protection);
        let new = Rc::new(new);
        self.last_shares.replace(new.clone());
        self.last_acting.take();
        self.familiar.clear();
        new
    }

    /// The current shares, which act for a caller where they act for their callers.
    pub fn shares_for(&self, credential: &Credential) -> Rc<PeerShares> {
        let shares = self.shares();
        if !shares.act {
            return shares;
        }
        let mut last = self.last_acting.borrow_mut();
        match last.iter().position(|(known, _)| known.is(credential)) {
            Some(0) => {}
            Some(at) => last.swap(0, at),
            None => {
                last.truncate(MAX_ACTING - 1);
                let acting = Rc::new(shares.acting_for(credential, self.server.policy));
                last.insert(0, (Claimed::of(credential), acting));
            }
        }
        last.first().map_or(shares, |(_, acting)| acting.clone())
    }

    /// The number of the list that it keeps.
    pub fn shares_number(&self) -> u64 {
        self.last_shares.borrow().list.number()
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

impl<'a> Context<'a> {
    /// The shares that the call sees.
    pub fn list(&self) -> &'a ShareList {
        &self.shares.list
    }

    /// Resolves a handle.
    pub async fn node(&self, handle: &Handle) -> Result<Node<'a>, Status> {
        let named = self.server.handles.open(self.list(), handle).await?;
        // Only version 4 has the root of all shares and named attributes.
        let Named::Node(FileId { share, node: id }) = named else { return Err(Status::STALE) };
        let share = self.list().of(share).ok_or(Status::STALE)?;
        if share.vfs.stream_of(id).is_some() {
            return Err(Status::STALE);
        }
        self.meter.concerns(share.meter);
        Ok(Node { share, id })
    }

    /// Lets the connection know this call, a READ or WRITE of the file whose handle is `ahead` bytes from where `d` is. `behind`:
    /// bytes that follow the handle and are the same in each such call; `hole`: where bytes ahead of it are not, from where `d` is.
    pub fn meet(
        &self,
        credential: &Credential,
        d: &Decoder,
        (ahead, behind): (usize, usize),
        hole: Range<usize>,
        procedure: impl FnOnce() -> Procedure,
    ) {
        let is_plain = !matches!(credential, Credential::Ticket(..)) && !d.is_reduced();
        if !is_plain || self.kind == Kind::Datagram {
            return;
        }
        let to_handle = ahead.saturating_add(4 + handles::BYTES);
        let whole = d.beginning(d.position().saturating_add(to_handle).saturating_add(behind));
        let arguments = d.peek(to_handle);
        let (Some(bytes), Some((length, handle))) =
            (whole.get(4..), arguments.get(ahead..).and_then(<[u8]>::split_first_chunk::<4>))
        else {
            return;
        };
        // From the second word.
        let from = d.position().saturating_sub(4);
        let hole = from.saturating_add(hole.start)..from.saturating_add(hole.end);
        let beginning = Beginning { bytes, hole };
        if u32::from_be_bytes(*length) as usize != handles::BYTES || !self.familiar.is_wanted(&beginning) {
            return;
        }
        let admitted = Handles::share_of(handle).is_some_and(|share| self.judge(share).is_ok());
        if !admitted {
            return;
        }
        // The first READ of a file finds its node, which may have to wait.
        let node = Handle::new(handle).and_then(|handle| self.node(&handle).now_or_never());
        let Some(Ok(node)) = node else { return };
        self.familiar.enter(Known {
            beginning: Beginning { bytes: bytes.into(), hole: beginning.hole },
            procedure: procedure(),
            shares: self.shares.clone(),
            share: node.share.clone(),
            node: node.id,
            caller: self.caller_in(node.share.id),
            user: self.details(credential).user,
        });
    }

    /// The handle of a file.
    pub async fn handle(&self, file: FileId) -> Result<Handle, Error> {
        self.server.handles.make(self.list(), file).await
    }

    /// The origin that keys the clients' records of this caller; an error if no share admits it.
    pub fn origin(&self) -> Result<&Origin, nfs4::Status> {
        let let_in = self.shares.let_in || (self.shares.lets_tickets_in && self.has_ticket());
        if let_in { Ok(&self.origin) } else { Err(nfs4::Status::ACCESS) }
    }

    /// Whether the caller has proved a principal.
    pub fn has_ticket(&self) -> bool {
        self.ruled.as_ref().is_some_and(|credential| credential.ticket().is_some())
    }

    /// The call's payload; fetches it if it is still with the client.
    pub async fn fetch(&self) -> Result<Bytes, Error> {
        let Some(payload) = &self.remote else { return Err(Error::Invalid) };
        payload.fetch().await.map_err(Error::Payload)
    }

    /// Writes the data of a WRITE into a file, as [`OpenFile::write_from`]. Returns the file that was written: `again` opens it
    /// anew if the payload had to travel, and what that open counts as unflushed must be what a COMMIT flushes.
    pub async fn write_data<E: From<Error>>(
        &self,
        file: OpenFile,
        offset: u64,
        data: Data,
        again: impl AsyncFnOnce() -> Result<OpenFile, E>,
    ) -> Result<OpenFile, E> {
        let here;
        let bytes = data.len();
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
        let reopened = file.write_from(offset, source, async || again().await.map(Some)).await?;
        self.meter.wrote(bytes);
        Ok(reopened.unwrap_or(file))
    }
}

/// The arguments of a call.
pub(super) fn args<A: Xdr>(d: &mut Decoder) -> Result<A, Reply> {
    A::parse(d).map_err(|Malformed(why)| {
        tracing::debug!(why, "cannot parse the arguments");
        Reply::GarbageArgs
    })
}
