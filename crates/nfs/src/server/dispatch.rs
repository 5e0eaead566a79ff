//! Dispatches an RPC call to its procedure and builds the reply.
//!
//! See RFC 5531 section 9 (accepted and rejected replies). `ops` and `v4` carry out the procedures.
//!
//! A reply is one buffer with header and results, followed by the payload of READ and READLINK as a part of its own:
//! the transport decides whether it travels inside the message.

use std::cell::Cell;
use std::rc::Rc;

use weft_machine::{Buf, LogLimit, recorder, rt};
use weft_transport::{Detached, Kind, Message, Outgoing, Peer, RemotePayload, SHORT_ANSWER};
use weft_wire::mount::{DirPath, procedure as mnt};
use weft_wire::nfs3::{Outcome, ReaddirArgs, ReaddirplusArgs, Status, Xdr, procedure as nfs};
use weft_wire::rpc::{self, AuthStat, Call, Flavor, NotACall, RPC_VERSION, Reply};
use weft_wire::xdr::{Decoder, Encoder, Malformed};
use weft_wire::{mount, nfs3, nfs4, nlm, nsm, rpcbind};

use super::answers::bytes_in;
use super::audit::Asked;
use super::caller::Caller;
use super::context::{Connection, Context, Results, args};
use super::credential::Credential;
use super::duplicates::MAX_ANSWER;
use super::familiar::Procedure;
use super::header::{Header, NotRpc, header_only};
use super::instead::{Answer, Instead};
use super::meter::CallMeter;
use super::peer_shares::PeerShares;
use super::{audit, export, gss, mount as mountd, nlm as lockd, nsm as statd, ops, rpcbind as binder, v4};

/// Room for the header and the attributes of most replies.
const REPLY_BYTES: usize = 256;

impl Connection<'_> {
    /// Answers one message.
    pub async fn answer(&self, message: Message) -> Result<Answer, NotRpc> {
        let Message { body, detached, ticket } = message;
        let meter = CallMeter::begin(ticket.takes_payload(), detached.is_some());
        let (mut d, remote) = match detached {
            None => (Decoder::new(body), None),
            Some(Detached::Here(content)) => (Decoder::reduced(body, Some(content)), None),
            Some(Detached::There(remote)) => (Decoder::distant(body, remote.len()), Some(remote)),
        };
        let (call, credential) = match Call::parse(&mut d) {
            Ok(call) => Header::of(call),
            Err(NotACall::Malformed(Malformed(why))) => return Err(NotRpc(why)),
            Err(NotACall::RpcVersion { xid }) => {
                let mismatch = Reply::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION };
                return Ok(Answer::from(header_only(xid, mismatch)).with(ticket));
            }
            Err(NotACall::Auth { xid, stat }) => {
                return Ok(Answer::from(header_only(xid, Reply::AuthError(stat))).with(ticket));
            }
        };
        meter.parsed(self.kind, &call);
        let credential = match credential {
            rpc::Credential::None => Credential::None,
            rpc::Credential::Sys(sys) => Credential::Sys(sys),
            // Boxed, so that other calls do not carry the space for it.
            rpc::Credential::Gss(gss) => {
                let answered = Box::pin(gss::answer(self, call, gss, d, remote, &meter)).await;
                return answered.map(|answer| answer.with(ticket));
            }
            rpc::Credential::Other(flavor) => {
                // RFC 9289 4.1: only a probe at the beginning of the connection can switch to TLS.
                let stat = if flavor == Flavor::TLS { AuthStat::BADCRED } else { AuthStat::TOOWEAK };
                return Ok(Answer::from(header_only(call.xid, Reply::AuthError(stat))).with(ticket));
            }
        };
        if let Some(remote) = remote.as_ref().filter(|_| !call.takes_remote()) {
            d.arrived(remote.fetch().await.map_err(|_| NotRpc("the payload did not arrive"))?);
        }
        let shares = self.shares_of(&credential);
        let results = self.results(&call, &credential, d, remote, &shares, &meter);
        let answer = match recorder::described(results, || self.details(&credential)).await {
            Ok(results) => {
                meter.answered(results.payload_bytes());
                recorder::answered(|| self.details(&credential));
                let (mut parts, room, cut) = results.into_parts();
                if bytes_in(&parts) > SHORT_ANSWER {
                    Box::pin(self.answers.settle_in(&mut parts, room)).await;
                }
                let instead = Instead::of(&parts, cut);
                Answer { reply: Outgoing { parts, ..Outgoing::default() }, instead }
            }
            Err(reply) => header_only(call.xid, reply).into(),
        };
        Ok(answer.with(ticket))
    }

    /// The shares as this caller uses them. From the first call of an admitted caller on, the client is no stranger.
    pub fn shares_of(&self, credential: &Credential) -> Rc<PeerShares> {
        let shares = self.shares_for(credential);
        if shares.admits || (shares.admits_tickets && credential.ticket().is_some()) {
            self.admitted.set(true);
        }
        shares
    }

    /// Carries out a call of this caller, whose arguments `d` has.
    pub async fn results(
        &self,
        call: &Header,
        credential: &Credential,
        d: Decoder,
        remote: Option<Rc<dyn RemotePayload>>,
        shares: &Rc<PeerShares>,
        meter: &CallMeter,
    ) -> Result<Results, Reply> {
        if let Peer::Udp(addr) = self.peer
            && matches!(call.program, nfs3::PROGRAM | nlm::PROGRAM)
            && call.procedure != nfs::NULL
            && !self.server.reached.contains(addr.ip())
        {
            // Refused before anything is done: most NFS replies are longer than the call and would not be sent, and
            // locks would be kept for a claimed address.
            static REFUSED: LogLimit = LogLimit::new();
            if let Some(left_out) = REFUSED.pass(rt::now()) {
                tracing::warn!(
                    peer = %addr,
                    "refused an NFS or NLM call over UDP: its address has no TCP connection and may be forged{left_out}"
                );
            }
            return Err(Reply::AuthError(AuthStat::TOOWEAK));
        }
        let mut body = Encoder::with_capacity(REPLY_BYTES);
        Reply::Success.emit(call.xid, &mut body);
        let caller = Caller::of(credential, self.server.policy);
        // Callers with tickets may use only what asks for them.
        let ruled = (shares.ruled || credential.ticket().is_some()).then(|| Rc::new(credential.clone()));
        let mut cx = Context {
            connection: self,
            shares,
            caller,
            ruled,
            remote,
            meter,
            has_replaced: Cell::new(false),
        };
        if cx.ruled.is_some() && (call.program, call.version) == (nfs3::PROGRAM, nfs3::VERSION) {
            cx.caller = match export::gate(&cx, call, &d, &body) {
                Ok(caller) => caller,
                Err(answer) => return Box::pin(cx.refused(call.procedure, d, *answer)).await,
            };
        }
        if (call.program, call.version) == (nfs3::PROGRAM, nfs3::VERSION) {
            self.watch.called(nfs3::VERSION, 0, credential);
        }
        match (call.program, call.version) {
            (nfs3::PROGRAM, nfs3::VERSION) if changes(call.procedure) => {
                Box::pin(cx.once(call, credential, d, body)).await
            }
            (nfs3::PROGRAM, nfs3::VERSION) => {
                cx.meet_v3(call, credential, &d);
                cx.nfs(call.procedure, d, body).await
            }
            (mount::PROGRAM, mount::VERSION) => Box::pin(cx.mount(call.procedure, d, body)).await,
            // RFC 7530 3.1, RFC 8881 2.9: version 4 requires a transport with congestion control.
            (nfs4::PROGRAM, nfs4::VERSION) if self.kind == Kind::Datagram => {
                Err(Reply::ProgramMismatch { low: nfs3::VERSION, high: nfs3::VERSION })
            }
            (nfs4::PROGRAM, nfs4::VERSION) => match call.procedure {
                nfs4::NULL => Ok(Results::new(body, None)),
                // Boxed, so that version 3 calls do not carry the space for compounds.
                nfs4::COMPOUND => Box::pin(v4::compound(&cx, call, credential, d, body)).await,
                _ => Err(Reply::ProcedureUnavailable),
            },
            (nfs3::PROGRAM, _) => Err(Reply::ProgramMismatch { low: nfs3::VERSION, high: nfs4::VERSION }),
            (mount::PROGRAM, _) => Err(Reply::ProgramMismatch { low: mount::VERSION, high: mount::VERSION }),
            (nlm::PROGRAM, nlm::VERSION) => Box::pin(lockd::answer(&cx, call.procedure, d, body)).await,
            (nlm::PROGRAM, _) => Err(Reply::ProgramMismatch { low: nlm::VERSION, high: nlm::VERSION }),
            (nsm::PROGRAM, nsm::VERSION) => Box::pin(statd::answer(&cx, call.procedure, d, body)).await,
            (nsm::PROGRAM, _) => Err(Reply::ProgramMismatch { low: nsm::VERSION, high: nsm::VERSION }),
            (rpcbind::PROGRAM, version @ (rpcbind::PORTMAP | 3 | 4)) => {
                binder::answer(&cx, version, call.procedure, d, body)
            }
            (rpcbind::PROGRAM, _) => Err(Reply::ProgramMismatch { low: rpcbind::PORTMAP, high: 4 }),
            _ => Err(Reply::ProgramUnavailable),
        }
    }
}

impl Context<'_> {
    /// Carries out a request that must not be carried out twice, or returns the cached reply.
    async fn once(
        &self,
        call: &Header,
        credential: &Credential,
        d: Decoder,
        mut body: Encoder,
    ) -> Result<Results, Reply> {
        let duplicates = &self.server.duplicates;
        let number = duplicates.number(&self.origin, call, credential);
        let entry = duplicates.entry(duplicates.question(number, &[], &d));
        // A repetition waits here for the first request's reply.
        let mut kept = entry.lock().await;
        if let Some(answer) = &*kept {
            body.raw(answer);
            return Ok(Results::new(body, None));
        }
        let begins = body.len();
        let results = self.nfs(call.procedure, d, body).await;
        if let Ok(Results::One { body, payload: None, .. }) = &results
            && body.len().saturating_sub(begins) <= MAX_ANSWER
        {
            *kept = Some(body.copy_from(begins));
        }
        results
    }

    /// Lets the connection know a READ or WRITE, whose arguments `d` has.
    fn meet_v3(&self, call: &Header, credential: &Credential, d: &Decoder) {
        let known = match call.procedure {
            nfs::READ => Procedure::Read3,
            nfs::WRITE => Procedure::Write3,
            _ => return,
        };
        self.meet(credential, d, (0, 0), 0..0, || known);
    }

    async fn nfs(&self, procedure: u32, mut d: Decoder, body: Encoder) -> Result<Results, Reply> {
        let asked = self.server.auditing.get().and_then(|auditing| Asked::of(auditing, procedure, &d));
        let begins = body.len();
        let results = match procedure {
            nfs::GETATTR => whole(body, ops::getattr(self, args(&mut d)?).await),
            nfs::READ => Ok(ops::read(self, args(&mut d)?, body).await),
            nfs::WRITE => whole(body, ops::write(self, args(&mut d)?).await),
            // Boxed: otherwise every call's future would have the size of the largest procedure.
            _ => Box::pin(self.rare(procedure, d, body)).await,
        };
        if let Some(asked) = asked
            && let (Some(auditing), Ok(results)) = (self.server.auditing.get(), &results)
            && let Some(status) = audit::status_of(results, begins)
            && asked.is_news(self, auditing, status)
        {
            Box::pin(asked.tell(self, auditing, status)).await;
        }
        results
    }

    /// Tells the audit log that an export refuses the caller.
    async fn refused(
        &self,
        procedure: u32,
        d: Decoder,
        answer: Result<Results, Reply>,
    ) -> Result<Results, Reply> {
        if let Some(auditing) = self.server.auditing.get()
            && let Some(asked) = Asked::of(auditing, procedure, &d)
            && asked.is_news(self, auditing, Status::ACCES)
        {
            asked.tell(self, auditing, Status::ACCES).await;
        }
        answer
    }

    /// The procedures that move no data.
    async fn rare(&self, procedure: u32, mut d: Decoder, body: Encoder) -> Result<Results, Reply> {
        match procedure {
            nfs::NULL => Ok(Results::new(body, None)),
            nfs::SETATTR => whole(body, ops::setattr(self, args(&mut d)?).await),
            nfs::LOOKUP => whole(body, ops::lookup(self, args(&mut d)?).await),
            nfs::ACCESS => whole(body, ops::access(self, args(&mut d)?).await),
            nfs::READLINK => Ok(ops::readlink(self, args(&mut d)?, body).await),
            nfs::CREATE => whole(body, ops::create(self, args(&mut d)?).await),
            nfs::MKDIR => whole(body, ops::mkdir(self, args(&mut d)?).await),
            nfs::SYMLINK => whole(body, ops::symlink(self, args(&mut d)?).await),
            nfs::MKNOD => whole(body, ops::mknod(self, args(&mut d)?).await),
            nfs::REMOVE => whole(body, ops::remove(self, args(&mut d)?).await),
            nfs::RMDIR => whole(body, ops::rmdir(self, args(&mut d)?).await),
            nfs::RENAME => whole(body, ops::rename(self, args(&mut d)?).await),
            nfs::LINK => whole(body, ops::link(self, args(&mut d)?).await),
            nfs::READDIR => {
                let args: ReaddirArgs = args(&mut d)?;
                let room = self.room_for_listing(args.count).await;
                Ok(whole(body, ops::readdir(self, args).await)?.within(room))
            }
            nfs::READDIRPLUS => {
                let args: ReaddirplusArgs = args(&mut d)?;
                let room = self.room_for_listing(args.maxcount).await;
                Ok(whole(body, ops::readdirplus(self, args).await)?.within(room))
            }
            nfs::FSSTAT => whole(body, ops::fsstat(self, args(&mut d)?).await),
            nfs::FSINFO => whole(body, ops::fsinfo(self, args(&mut d)?).await),
            nfs::PATHCONF => whole(body, ops::pathconf(self, args(&mut d)?).await),
            nfs::COMMIT => whole(body, ops::commit(self, args(&mut d)?).await),
            _ => Err(Reply::ProcedureUnavailable),
        }
    }

    /// A buffer for a reply with a listing of `count` bytes.
    async fn room_for_listing(&self, count: u32) -> Option<Box<Buf>> {
        let len = count.min(self.server.limits.max_listing) as usize;
        self.answers.room(len.saturating_add(REPLY_BYTES)).await
    }

    async fn mount(&self, procedure: u32, mut d: Decoder, mut body: Encoder) -> Result<Results, Reply> {
        match procedure {
            mnt::NULL => {}
            mnt::MNT => {
                let path: DirPath = args(&mut d)?;
                let result = mountd::mnt(self, path.clone()).await;
                audit::mounted(self, &path, &result);
                result.emit(&mut body);
            }
            mnt::DUMP => mountd::dump(self).emit(&mut body),
            mnt::UMNT => mountd::umnt(self, args(&mut d)?),
            mnt::UMNTALL => mountd::umntall(self),
            mnt::EXPORT => mountd::exports(self).emit(&mut body),
            _ => return Err(Reply::ProcedureUnavailable),
        }
        Ok(Results::new(body, None))
    }
}

/// Procedures of version 3 that are not idempotent (RFC 1813 4.5).
fn changes(procedure: u32) -> bool {
    matches!(
        procedure,
        nfs::SETATTR
            | nfs::CREATE
            | nfs::MKDIR
            | nfs::SYMLINK
            | nfs::MKNOD
            | nfs::REMOVE
            | nfs::RMDIR
            | nfs::RENAME
            | nfs::LINK
    )
}

fn whole<T: Xdr, F: Xdr>(mut body: Encoder, outcome: Outcome<T, F>) -> Result<Results, Reply> {
    outcome.emit(&mut body);
    Ok(Results::new(body, None))
}
