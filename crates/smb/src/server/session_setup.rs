//! SESSION_SETUP and LOGOFF: from tokens to a session with keys.
//!
//! Spec: [MS-SMB2] 3.3.5.5, 3.3.5.6.
//! Owns: authentications in progress. Does not: look into tokens (see [`crate::auth`]).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weft_wire::smb2::negotiate::SecurityMode;
use weft_wire::smb2::session_setup::{Request, RequestFlags, Response, SessionFlags};
use weft_wire::smb2::{Header, NtStatus, logoff};

use super::connection::Connection;
use super::context::{Answer, Failure, Reply};
use super::negotiate::filetime;
use super::session::Session;
use super::status;
use crate::auth::{Acceptor, Login, Step};
use crate::crypto::{Preauth, Role, SessionKeys};

/// An authentication between two of its legs.
pub(super) struct InProgress {
    acceptor: Acceptor,
    /// 3.1.1: what the keys will be bound to.
    preauth: Rc<RefCell<Preauth>>,
}

/// What came of one leg.
pub(super) struct Leg {
    pub answer: Answer,
    /// For the response's header.
    pub session_id: u64,
    /// Signs the response: the last one is signed with the new keys, whatever the request was.
    pub sign: Option<Arc<Session>>,
    /// Takes the response in, unless it is the last.
    pub hash: Option<Rc<RefCell<Preauth>>>,
}

/// Carries out one leg. `current` is the session that the header names, if it exists: then this is a
/// reauthentication, and its signature has been verified where it must be.
pub(super) async fn session_setup(
    connection: &Connection,
    header: &Header,
    message: &Bytes,
    current: Option<Arc<Session>>,
) -> Leg {
    let mut leg =
        Leg { answer: Err(NtStatus::SUCCESS.into()), session_id: header.session_id, sign: None, hash: None };
    leg.answer = advance(connection, header, message, current, &mut leg).await;
    leg
}

async fn advance(
    connection: &Connection,
    header: &Header,
    message: &Bytes,
    current: Option<Arc<Session>>,
    leg: &mut Leg,
) -> Answer {
    let request = Request::parse(message).map_err(|_| Failure::from(NtStatus::INVALID_PARAMETER))?;
    let server = &connection.server;
    if server.config.require_encryption && connection.negotiated().profile.cipher.is_none() {
        tracing::warn!(peer = %connection.peer, "refused: encryption is required and the client has no cipher of ours");
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if request.flags.contains(RequestFlags::BINDING) {
        // 3.3.5.5: not capable of several channels.
        return Err(NtStatus::REQUEST_NOT_ACCEPTED.into());
    }
    let id = header.session_id;
    let found = connection.in_progress.borrow_mut().remove(&id);
    let mut progress = match found {
        Some(progress) => progress,
        None if id != 0 && current.is_none() => return Err(NtStatus::USER_SESSION_DELETED.into()),
        None => {
            if id == 0 && connection.sessions_len() >= server.config.limits.sessions {
                tracing::warn!(peer = %connection.peer, "limit reached: sessions of a connection");
                return Err(NtStatus::INSUFFICIENT_RESOURCES.into());
            }
            begin(connection)?
        }
    };
    let id = match id {
        0 => random_id(connection)?,
        id => id,
    };
    leg.session_id = id;
    // The chain takes in the request now, the response when it is emitted; the last response stays out.
    progress.preauth.borrow_mut().update(message);
    match progress.acceptor.step(&request.token, filetime().0) {
        Ok(Step::Continue(token)) => {
            leg.hash = Some(progress.preauth.clone());
            connection.in_progress.borrow_mut().insert(id, progress);
            Ok(reply(NtStatus::MORE_PROCESSING_REQUIRED, SessionFlags::NONE, token))
        }
        Ok(Step::Done(token, login)) => match current {
            Some(session) => reauthenticated(&session, &login, token, leg),
            None => established(connection, &request, id, login, &progress.preauth, token, leg).await,
        },
        Err(e) => {
            tracing::warn!(peer = %connection.peer, "authentication failed: {e}");
            // 3.3.5.5.3: a session that fails to authenticate again is gone.
            if let Some(session) = current {
                session.end(&server.sessions).await;
                connection.forget(id);
            }
            Err(status::of(&e).into())
        }
    }
}

fn begin(connection: &Connection) -> Result<InProgress, Failure> {
    let mut server_challenge = [0; 8];
    getrandom::fill(&mut server_challenge).map_err(|_| Failure::from(NtStatus::INSUFFICIENT_RESOURCES))?;
    let server = &connection.server;
    Ok(InProgress {
        acceptor: Acceptor::new(server.users.clone(), server.name.clone(), server_challenge),
        preauth: Rc::new(RefCell::new(connection.preauth.borrow().clone())),
    })
}

/// An id that cannot be guessed and that nobody has.
fn random_id(connection: &Connection) -> Result<u64, Failure> {
    loop {
        let id = getrandom::u64().map_err(|_| Failure::from(NtStatus::INSUFFICIENT_RESOURCES))?;
        let taken = connection.server.sessions.find(id).is_some()
            || connection.in_progress.borrow().contains_key(&id);
        if id != 0 && id != u64::MAX && !taken {
            return Ok(id);
        }
    }
}

async fn established(
    connection: &Connection,
    request: &Request,
    id: u64,
    login: Login,
    preauth: &RefCell<Preauth>,
    token: Vec<u8>,
    leg: &mut Leg,
) -> Answer {
    let server = &connection.server;
    let negotiated = connection.negotiated();
    let keys = SessionKeys::derive(Role::Server, &negotiated.profile, &login.session_key, &preauth.borrow());
    let signs = [request.security_mode, negotiated.client_security_mode]
        .into_iter()
        .any(|mode| mode.contains(SecurityMode::SIGNING_REQUIRED));
    let encrypt = server.config.require_encryption;
    let session = Arc::new(Session::new(
        id,
        login.user,
        keys,
        (signs || server.config.require_signing) && !encrypt,
        encrypt,
    ));
    if !server.sessions.insert(&session) {
        return Err(NtStatus::INSUFFICIENT_RESOURCES.into());
    }
    connection.enter(session.clone());
    // 3.3.5.5.3: the user's session of before the connection was lost, if it is still here.
    if request.previous_session_id != id {
        let previous = server.sessions.find(request.previous_session_id);
        if let Some(previous) = previous.filter(|previous| previous.user == session.user) {
            previous.end(&server.sessions).await;
        }
    }
    tracing::debug!(
        peer = %connection.peer,
        user = %session.user,
        dialect = %negotiated.dialect,
        signing = session.signing_required,
        encrypt,
        "logged on"
    );
    leg.sign = Some(session);
    let flags = if encrypt { SessionFlags::ENCRYPT_DATA } else { SessionFlags::NONE };
    Ok(reply(NtStatus::SUCCESS, flags, token))
}

/// The keys stay; so must the user.
fn reauthenticated(session: &Arc<Session>, login: &Login, token: Vec<u8>, leg: &mut Leg) -> Answer {
    if session.user != login.user {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    leg.sign = Some(session.clone());
    let flags = if session.encrypt { SessionFlags::ENCRYPT_DATA } else { SessionFlags::NONE };
    Ok(reply(NtStatus::SUCCESS, flags, token))
}

fn reply(status: NtStatus, flags: SessionFlags, token: Vec<u8>) -> Reply {
    let mut reply = Reply::with_capacity(8 + token.len());
    Response { flags, token: token.into() }.emit(&mut reply.message);
    reply.status = status;
    reply
}

/// LOGOFF: the answer is still protected by the session's keys.
pub(super) async fn logoff(connection: &Connection, session: &Session, message: &Bytes) -> Answer {
    logoff::Request::parse(message).map_err(|_| Failure::from(NtStatus::INVALID_PARAMETER))?;
    connection.forget(session.id);
    session.end(&connection.server.sessions).await;
    let mut reply = Reply::new();
    logoff::Response.emit(&mut reply.message);
    Ok(reply)
}
