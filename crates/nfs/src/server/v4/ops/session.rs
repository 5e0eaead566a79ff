//! EXCHANGE_ID, CREATE_SESSION, SEQUENCE and related operations (RFC 8881 18.33 to 18.37, 18.46, 18.50, 18.51).

use std::sync::atomic::Ordering;

use weft_machine::random;
use weft_wire::nfs4::{
    BackchannelCtl, BindConn, ChannelAttrs, CreateSession, CreateSessionOk, ExchangeId, ExchangeIdOk, ImplId,
    Op, Opaque, ProtectHow, Sequence, SequenceOk, SessionId, Status, Text, Time, UpTo, exchange_flag,
    sequence_flag, session_flag,
};
use weft_wire::rpc::Credential;
use weft_wire::xdr::Decoder;

use super::super::close::give_up;
use super::super::compound::{Compound, SlotTurn};
use super::super::state::back::{Route, credential};
use super::super::state::session::{Highest, Kept};
use super::super::state::{Back, Begun, Session};

/// The smallest useful message size.
const MIN_MESSAGE: u32 = 256;
/// Bytes of SEQUENCE's own result.
const SEQUENCE_BYTES: usize = 44;

/// RFC 8881 2.10.2.1, 18.46.3: the operations that require a session, and those that must be alone in a compound.
pub fn admit(c: &Compound<'_>, op: &Op) -> Result<(), Status> {
    match op {
        Op::Sequence(_) if c.index > 0 => Err(Status::SEQUENCE_POS),
        Op::Sequence(_) => Ok(()),
        Op::BindConnToSession(_) if c.announced > 1 => Err(Status::NOT_ONLY_OP),
        Op::ExchangeId(_) | Op::CreateSession(_) | Op::DestroySession(_) | Op::DestroyClientid(_)
            if c.index == 0 && c.announced > 1 =>
        {
            Err(Status::NOT_ONLY_OP)
        }
        Op::ExchangeId(_)
        | Op::CreateSession(_)
        | Op::BindConnToSession(_)
        | Op::DestroySession(_)
        | Op::DestroyClientid(_) => Ok(()),
        _ if c.index == 0 => Err(Status::OP_NOT_IN_SESSION),
        _ => Ok(()),
    }
}

/// Takes the slot. `Some`: the request is a repetition, and this is its cached reply.
pub fn sequence(
    c: &mut Compound<'_>,
    args: &Sequence,
    rest: &Decoder,
) -> Result<(SequenceOk, Option<Kept>), Status> {
    let states = &c.cx.server.states;
    let session = states.use_session(&args.session, c.cx.origin()?)?;
    fits(&session, args, c.request_bytes, c.announced)?;
    if args.cache && c.reply.len().saturating_add(SEQUENCE_BYTES) > session.fore.max_response_cached as usize
    {
        return Err(Status::REP_TOO_BIG_TO_CACHE);
    }
    c.cx.line.associate(&session.id);
    let question = states.questions.of(c.credential, c.announced, rest);
    let begun = session.begin(args.slot, args.sequence, question)?;
    session.lease.renew(c.now);
    let highest = match &begun {
        Begun::Go => session.resize(args.slot, args.highest_slot),
        Begun::Again(_) => Highest { slot: session.highest_slot(), target: session.highest_slot() },
    };
    let ok = sequence_ok(&session, args, highest);
    match begun {
        Begun::Again(kept) => Ok((ok, Some(kept))),
        Begun::Go => {
            c.turn = Some(SlotTurn { session, slot: args.slot, sequence: args.sequence, keep: args.cache });
            Ok((ok, None))
        }
    }
}

/// Whether the session has this slot, and takes a request of so many bytes and operations.
pub fn fits(session: &Session, args: &Sequence, bytes: usize, operations: u32) -> Result<(), Status> {
    if args.slot > session.highest_slot() {
        return Err(Status::BADSLOT);
    }
    if bytes > session.fore.max_request as usize {
        return Err(Status::REQ_TOO_BIG);
    }
    if operations > session.fore.max_operations {
        return Err(Status::TOO_MANY_OPS);
    }
    Ok(())
}

/// What SEQUENCE tells.
pub fn sequence_ok(session: &Session, args: &Sequence, highest: Highest) -> SequenceOk {
    SequenceOk {
        session: args.session,
        sequence: args.sequence,
        slot: args.slot,
        highest_slot: highest.slot,
        target_highest_slot: highest.target,
        flags: status_flags(session),
    }
}

pub fn exchange_id(c: &Compound<'_>, args: &ExchangeId) -> Result<ExchangeIdOk, Status> {
    use exchange_flag as flag;
    // RFC 7862 14.1 adds a flag to those of RFC 8881 18.35.3.
    let newer = if c.minor > 1 { flag::SUPP_FENCE_OPS } else { 0 };
    let known = newer
        | flag::SUPP_MOVED_REFER
        | flag::SUPP_MOVED_MIGR
        | flag::BIND_PRINC_STATEID
        | flag::MASK_PNFS
        | flag::UPD_CONFIRMED_REC_A;
    if args.flags & !known != 0 {
        return Err(Status::INVAL);
    }
    match args.protect {
        ProtectHow::None => {}
        // Not offered, also to callers with tickets: Linux then takes SP4_NONE (RFC 8881 2.10.8.3).
        ProtectHow::MachCred(_) => return Err(Status::INVAL),
        ProtectHow::Ssv => return Err(Status::ENCR_ALG_UNSUPP),
    }
    let server = c.cx.server;
    let (client, confirmed, sequence) =
        server.states.exchange_id(&args.client, args.flags, &c.identity()?, c.now)?;
    let identity = || Opaque(bytes::Bytes::copy_from_slice(&server.identity));
    Ok(ExchangeIdOk {
        client,
        sequence,
        flags: flag::USE_NON_PNFS | if confirmed { flag::CONFIRMED_R } else { 0 },
        protect: ProtectHow::None,
        server_minor: 0,
        server_major: identity(),
        scope: identity(),
        implementation: UpTo(vec![ImplId {
            domain: Text::known("weft"),
            name: Text::known(concat!("weft ", env!("CARGO_PKG_VERSION"))),
            date: Time::default(),
        }]),
    })
}

pub async fn create_session(c: &Compound<'_>, args: &CreateSession) -> Result<CreateSessionOk, Status> {
    let (server, by) = (c.cx.server, c.identity()?);
    let id: SessionId = random::bytes().map_err(|_| Status::SERVERFAULT)?;
    let make = |lease, fore: ChannelAttrs, charge| {
        let known = session_flag::PERSIST | session_flag::CONN_BACK_CHAN | session_flag::CONN_RDMA;
        if args.flags & !known != 0 {
            return Err(Status::INVAL);
        }
        let back = back_channel(c, &args.back)?;
        let offered = credential(&args.callback_sec.0).filter(|_| c.cx.line.is_open());
        let wanted = args.flags & session_flag::CONN_BACK_CHAN != 0;
        let flags = if wanted && offered.is_some() { session_flag::CONN_BACK_CHAN } else { 0 };
        let route = Route {
            program: args.callback_program,
            credential: offered.unwrap_or(Credential::None),
            ident: 0,
            minor: c.minor,
        };
        let channel = Back::new(Some(id), back.max_requests, route);
        if flags != 0 {
            channel.bind(c.cx.line);
        }
        let ok = CreateSessionOk { session: id, sequence: args.sequence, flags, fore: fore.clone(), back };
        Ok((Session::new(id, lease, fore, channel, charge), ok))
    };
    // Before the request takes its sequence number: a request that can never succeed is not cached.
    let fore = fore_channel(c, &args.fore)?;
    back_channel(c, &args.back)?;
    let (ok, taken) = server.states.create_session(args, fore, &by, c.now, make)?;
    c.cx.line.associate(&ok.session);
    give_up(taken).await;
    Ok(ok)
}

fn fore_channel(c: &Compound<'_>, asked: &ChannelAttrs) -> Result<ChannelAttrs, Status> {
    let limits = &c.cx.server.states.limits;
    if asked.max_request < MIN_MESSAGE || asked.max_response < MIN_MESSAGE {
        return Err(Status::TOOSMALL);
    }
    if asked.max_operations == 0 || asked.max_requests == 0 {
        return Err(Status::INVAL);
    }
    let max_message = u32::try_from(c.cx.limits.max_message).unwrap_or(u32::MAX);
    let max_response = asked.max_response.min(max_message);
    Ok(ChannelAttrs {
        header_pad: 0,
        max_request: asked.max_request.min(max_message),
        max_response,
        max_response_cached: asked.max_response_cached.min(limits.cached_reply).min(max_response),
        max_operations: asked.max_operations.min(limits.operations),
        max_requests: asked.max_requests.min(limits.slots),
        rdma_ird: UpTo::default(),
    })
}

fn back_channel(c: &Compound<'_>, asked: &ChannelAttrs) -> Result<ChannelAttrs, Status> {
    if asked.max_request < MIN_MESSAGE || asked.max_response < MIN_MESSAGE {
        return Err(Status::TOOSMALL);
    }
    let slots = c.cx.server.states.limits.back_slots;
    Ok(ChannelAttrs { header_pad: 0, max_requests: asked.max_requests.min(slots), ..asked.clone() })
}

pub fn destroy_session(c: &Compound<'_>, id: &SessionId) -> Result<(), Status> {
    let own = c.turn.as_ref().is_some_and(|turn| turn.session.id == *id);
    if own && c.index.saturating_add(1) != c.announced {
        // RFC 8881 18.37.3: only the last operation may destroy its own session.
        return Err(Status::NOT_ONLY_OP);
    }
    let by = c.identity()?;
    // RFC 8881 18.37.3: the connection must be associated with the session.
    c.cx.server.states.session(id, &by.origin)?;
    if !c.cx.line.is_associated(id) {
        return Err(Status::CONN_NOT_BOUND_TO_SESSION);
    }
    c.cx.server.states.destroy_session(id, &by)
}

pub fn destroy_clientid(c: &Compound<'_>, id: u64) -> Result<(), Status> {
    c.cx.server.states.destroy_clientid(id, &c.identity()?)
}

pub fn bind_conn(c: &Compound<'_>, args: &BindConn) -> Result<BindConn, Status> {
    const FORE: u32 = 1;
    const BACK: u32 = 2;
    const BOTH: u32 = 3;
    let states = &c.cx.server.states;
    let session = states.bind_session(&args.session, &c.identity()?)?;
    session.lease.renew(c.now);
    c.cx.line.associate(&session.id);
    // CDFC4_BACK_OR_BOTH and CDFC4_FORE_OR_BOTH.
    let (back, fore) = match args.direction {
        FORE => (false, true),
        BACK => (true, false),
        3 | 7 => (true, true),
        _ => return Err(Status::INVAL),
    };
    let back = back && c.cx.line.is_open();
    let direction = match (back, fore) {
        (true, true) => BOTH,
        (true, false) => BACK,
        // The channel cannot carry calls to the client.
        (false, _) => FORE,
    };
    if back {
        session.back.bind(c.cx.line);
        if let Some(client) = states.holder(&session.lease) {
            client.ask_again();
        }
    }
    Ok(BindConn { session: args.session, direction, rdma: false })
}

pub fn backchannel_ctl(c: &Compound<'_>, args: &BackchannelCtl) -> Result<(), Status> {
    let turn = c.turn.as_ref().ok_or(Status::OP_NOT_IN_SESSION)?;
    // RFC 8881 18.33.3: at least one must be usable.
    let credential = credential(&args.sec.0).ok_or(Status::INVAL)?;
    turn.session.back.change(args.program, credential, 0);
    Ok(())
}

/// The flags that SEQUENCE reports to the client (RFC 8881 18.46.3).
fn status_flags(session: &Session) -> u32 {
    let lease = &session.lease;
    let mut flags = 0;
    if lease.revoked.load(Ordering::Acquire) != 0 {
        flags |= sequence_flag::RECALLABLE_STATE_REVOKED;
    }
    // A client that holds nothing recallable need not be called.
    if lease.delegations.load(Ordering::Acquire) != 0 && !session.back.is_up() {
        flags |= sequence_flag::CB_PATH_DOWN_SESSION | sequence_flag::CB_PATH_DOWN;
    }
    flags
}

pub fn reclaim_complete(c: &Compound<'_>, one_fs: bool) -> Result<(), Status> {
    let client = c.client(0)?;
    // Other users of the host use the session too; only the client's own user may discard its earlier state.
    if client.by().principal != c.identity()?.principal {
        return Err(Status::WRONG_CRED);
    }
    if one_fs {
        // No share has moved here from another server.
        return c.object().map(drop);
    }
    let mut mine = client.mine();
    if mine.reclaimed {
        return Err(Status::COMPLETE_ALREADY);
    }
    mine.reclaimed = true;
    drop(mine);
    c.cx.server.states.reclaimed(&client);
    Ok(())
}
