//! A COMPOUND while it runs: its current file handle, its identity, and its results so far.
//!
//! See RFC 7530 15.2, RFC 8881 16.2 and 16.2.3.1.2 (current and saved state id). [`Compound`] owns the current and
//! the saved file handle; `dispatch` chooses the operations and `ops` carries them out.

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;
use weft_machine::{Payload, Time};
use weft_wire::nfs4::{Stateid, Status, Xdr};
use weft_wire::xdr::fill;

use super::fs_object::FsObject;
use super::reply::Body;
use super::state::{Client, Lease, Session, Speaker};
use crate::server::context::{Context, Node};
use crate::server::credential::Credential;
use crate::server::export::Views;
use crate::server::file_id::FileId;
use crate::server::identity::{Identity, Principal};

/// A running compound.
pub(super) struct Compound<'a> {
    /// The context for the share of the current file handle.
    pub cx: &'a Context<'a>,
    /// The context for each share that has rules, and the one without rules.
    pub views: &'a Views<'a>,
    pub minor: u32,
    pub now: Time,
    pub credential: &'a Credential,
    pub current: Option<FsObject<'a>>,
    pub saved: Option<FsObject<'a>>,
    /// The current state id and the saved one (RFC 8881 16.2.3.1.2).
    pub stateid: Option<Stateid>,
    pub saved_stateid: Option<Stateid>,
    pub turn: Option<SlotTurn>,
    /// The payload of the running operation was lost with its connection.
    pub payload_lost: bool,
    /// Whether the running RENAME has replaced another object, for the audit log.
    pub has_replaced: Cell<bool>,
    /// Bytes of the whole request.
    pub request_bytes: usize,
    /// Operations that the client announced.
    pub announced: u32,
    /// Index of the running operation.
    pub index: u32,
    pub reply: Body,
}

/// The slot that carries the compound.
pub(super) struct SlotTurn {
    pub session: Arc<Session>,
    pub slot: u32,
    pub sequence: u32,
    /// Whether the reply is cached.
    pub keep: bool,
}

impl<'a> Compound<'a> {
    /// Appends a result.
    pub fn put<T: Xdr>(&mut self, number: u32, result: Result<T, Status>) -> Status {
        let tail = &mut self.reply.tail;
        tail.u32(number);
        match result {
            Ok(value) => {
                tail.u32(Status::OK.0);
                value.emit(tail);
                Status::OK
            }
            Err(status) => {
                tail.u32(status.0);
                status
            }
        }
    }

    /// Appends a result that ends with payload.
    pub async fn put_payload<T: Xdr>(&mut self, number: u32, result: Result<(T, Payload), Status>) -> Status {
        let (head, payload) = match result {
            Ok(ok) => ok,
            Err(status) => return self.put::<()>(number, Err(status)),
        };
        let status = self.put(number, Ok(head));
        let Some(turn) = self.turn.as_ref().filter(|turn| turn.keep) else {
            self.reply.payload(payload);
            return status;
        };
        // A cached reply contains its payload bytes.
        let room = turn.session.fore.max_response_cached as usize;
        if payload.len() > room {
            self.reply.payload(payload);
            return status;
        }
        match payload.into_chain(&self.cx.server.pool).await {
            Ok(chain) => {
                let len: usize = chain.iter().map(Bytes::len).sum();
                chain.iter().for_each(|bytes| self.reply.tail.raw(bytes));
                self.reply.tail.raw(fill(len));
                status
            }
            Err(e) => {
                tracing::warn!("file system error: {e}");
                self.reply.tail.truncate(self.reply.tail.len().saturating_sub(8));
                self.put::<()>(number, Err(Status::IO))
            }
        }
    }

    /// LOCK and LOCKT: a lock of another owner conflicts.
    pub fn denied(&mut self, number: u32, denied: &weft_wire::nfs4::LockDenied) -> Status {
        let status = self.put::<()>(number, Err(Status::DENIED));
        denied.emit(&mut self.reply.tail);
        status
    }

    /// The current file handle's object.
    pub fn object(&self) -> Result<FsObject<'a>, Status> {
        self.current.ok_or(Status::NOFILEHANDLE)
    }

    /// The current node; an error at the root of the pseudo file system.
    pub fn node(&self) -> Result<Node<'a>, Status> {
        match self.object()? {
            FsObject::Root | FsObject::Attributes(_) => Err(Status::ISDIR),
            FsObject::Node(node) => Ok(node),
        }
    }

    /// Changes the current file handle, which clears the current state id (RFC 8881 16.2.3.1.2).
    pub fn set_current(&mut self, object: FsObject<'a>) {
        self.set_current_keeping_stateid(object);
        self.stateid = None;
    }

    /// The same, without changing the state id.
    pub fn set_current_keeping_stateid(&mut self, object: FsObject<'a>) {
        if let FsObject::Node(node) | FsObject::Attributes(node) = object {
            self.cx.meter.concerns(node.share.meter);
        }
        self.current = Some(object);
        self.cx = self.view(object);
    }

    /// The context for the share of this object.
    pub fn view(&self, object: FsObject<'a>) -> &'a Context<'a> {
        match object {
            FsObject::Node(node) | FsObject::Attributes(node) => self.views.get(node.share.id),
            FsObject::Root => self.views.plain,
        }
    }

    /// A file with its share.
    pub fn node_of(&self, file: FileId) -> Option<Node<'a>> {
        let share = self.cx.list().of(file.share)?;
        Some(Node { share, id: file.node })
    }

    /// The caller's identity for access to clients' state; an error if no share admits it.
    pub fn identity(&self) -> Result<Identity, Status> {
        let origin = self.cx.origin()?;
        Ok(Identity { principal: Principal::of(self.credential), origin: *origin })
    }

    /// The client for which it acts.
    pub fn speaker(&self) -> Result<Speaker<'_>, Status> {
        match &self.turn {
            Some(turn) => Ok(Speaker::Session(&turn.session)),
            None => Ok(Speaker::Alone(self.cx.origin()?)),
        }
    }

    /// Whether it acts for the client of this lease.
    pub fn is_of(&self, lease: &Lease) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.session.lease.client == lease.client)
    }

    /// The client for which a request acts: the session's, or the one that it names (minor version 0).
    pub fn client(&self, named: u64) -> Result<Arc<Client>, Status> {
        let client = self.cx.server.states.client(self.speaker()?, named)?;
        client.lease.renew(self.now);
        Ok(client)
    }
}
