//! SESSION_SETUP and LOGOFF: turns tokens into a session with keys, or into a further channel of one.
//!
//! Spec: [MS-SMB2] 3.3.5.5 and its sections, 3.3.5.6. [`crate::auth`] interprets the tokens.

use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::recorder;
use weft_machine::{Account, random, rt};
use weft_wire::smb2::header::Flags;
use weft_wire::smb2::negotiate::{SecurityMode, SigningId};
use weft_wire::smb2::session_setup::{Request, RequestFlags, Response, SessionFlags};
use weft_wire::smb2::{Dialect, Header, NtStatus, logoff};

use super::admission::InSession;
use super::answer::{Answer, Failure, Reply};
use super::audit;
use super::authentication::{InProgress, Purpose};
use super::connection::Connection;
use super::directory::Who;
use super::held::SESSION_BYTES;
use super::logons::escaped;
use super::negotiate::filetime;
use super::session::{self, Binding, New, Session};
use super::status;
use super::system::NotAdmitted;
use crate::auth::{Acceptor, AuthError, Crowded, Login, Refused, Step, Target, Users};
use crate::crypto::{self, Preauth, Role, Sender, SessionKeys, SigningKey};

/// The result of one round trip.
pub(super) struct Leg {
    pub answer: Answer,
    /// For the response's header.
    pub session_id: u64,
    /// The key that signs the response.
    pub sign: Option<Arc<SigningKey>>,
    /// The chain that the response is added to, unless it is the last.
    pub hash: Option<Rc<RefCell<Preauth>>>,
}

/// Executes one round trip. `sealed`: the request was encrypted.
pub(super) async fn session_setup(
    connection: &Connection,
    sealed: bool,
    header: &Header,
    message: &Bytes,
) -> Leg {
    let mut leg =
        Leg { answer: Err(NtStatus::SUCCESS.into()), session_id: header.session_id, sign: None, hash: None };
    leg.answer = advance(connection, sealed, header, message, &mut leg).await;
    leg
}

async fn advance(
    connection: &Connection,
    sealed: bool,
    header: &Header,
    message: &Bytes,
    leg: &mut Leg,
) -> Answer {
    let request = Request::parse(message).map_err(|_| Failure::from(NtStatus::INVALID_PARAMETER))?;
    let server = &connection.server;
    if server.config.require_encryption && connection.negotiated().profile.cipher.is_none() {
        let status = NtStatus::ACCESS_DENIED;
        let reason = "encryption is required, but the client supports none of our ciphers";
        refuse(connection, None, status, reason);
        return Err(status.into());
    }
    let id = header.session_id;
    let limit = Duration::from_millis(server.config.limits.authenticate_ms);
    connection.in_progress.borrow_mut().retain(|_, progress| progress.is_fresh(limit));
    let found = connection.in_progress.borrow_mut().remove(&id);
    let purpose = purpose_of(connection, sealed, header, &request, message, found.is_some(), leg)?;
    let mut progress = match found {
        Some(progress) if progress.purpose.is_alike(&purpose) => progress,
        // The binding flag differs from that of the previous round trip.
        Some(_) => return Err(NtStatus::INVALID_PARAMETER.into()),
        None => {
            if !matches!(purpose, Purpose::Again(_))
                && connection.sessions_len() >= server.config.limits.sessions
            {
                tracing::warn!(peer = %connection.peer, "limit reached: sessions per connection");
                return Err(NtStatus::INSUFFICIENT_RESOURCES.into());
            }
            begin(connection, purpose)?
        }
    };
    let id = match id {
        0 => random_id(connection)?,
        id => id,
    };
    leg.session_id = id;
    let user = progress.acceptor.claimed_user(&request.token);
    if let Some(user) = &user {
        wait_for_turn(connection, user).await?;
    }
    // No await from here to the verdict: at most as many attempts run at the same time as there are cores. The chain
    // includes the request now and the response when it is emitted, except the last response.
    progress.preauth.borrow_mut().update(message);
    match progress.acceptor.step(&request.token, filetime().0) {
        Ok(Step::Continue(token)) => {
            if !matches!(progress.purpose, Purpose::Again(_)) {
                leg.hash = Some(progress.preauth.clone());
            }
            connection.in_progress.borrow_mut().insert(id, progress);
            Ok(reply(NtStatus::MORE_PROCESSING_REQUIRED, SessionFlags::NONE, token))
        }
        Ok(Step::Done(token, login)) => {
            if user.is_some() {
                server.delays.succeeded(&login.user, connection.source, rt::now());
            }
            check_target(connection, &request, &progress.purpose, &login)?;
            let account = account_of(connection, &progress.purpose, &login).await?;
            check_users(connection, &progress.users, &login.user)?;
            match progress.purpose {
                Purpose::New => {
                    let (users, user) = (progress.users, login.user.clone());
                    let answer = established(
                        connection,
                        &request,
                        id,
                        (login, account),
                        &progress.preauth,
                        token,
                        leg,
                    )
                    .await;
                    // Whoever replaces the users from now on finds the session.
                    if let Err(status) = check_users(connection, &users, &user) {
                        if let Some(session) = server.sessions.find(id) {
                            session.end(&server.sessions).await;
                        }
                        return Err(status.into());
                    }
                    answer
                }
                Purpose::Again(binding) => reauthenticated(connection, &binding, &login, token, leg),
                Purpose::Bind(session) => bound(connection, session, &login, &progress.preauth, token, leg),
            }
        }
        Err(e) => {
            if let (AuthError::Anonymous, Purpose::Again(binding)) = (e, &progress.purpose) {
                // 3.3.5.5.3: a session that has a user keeps it. Nothing was proven, so its expiry does not change.
                leg.sign = Some(binding.signing.clone());
                return Ok(reply(
                    NtStatus::SUCCESS,
                    session_flags(&binding.session),
                    progress.acceptor.unproven(),
                ));
            }
            let refused = progress.acceptor.refused();
            let who = user.as_deref().or(refused.principal.as_deref());
            let status = status::in_full(&e, refused);
            match &refused.detail {
                Some(detail) => refuse(connection, who, status, format_args!("{e}: {}", escaped(detail))),
                None => refuse(connection, who, status, e),
            }
            if let (Some(user), AuthError::LogonFailure) = (&user, e) {
                server.delays.failed(user, connection.source, rt::now());
            }
            // 3.3.5.5.3: a failed reauthentication ends the session. A failed binding does not: the session's other
            // channels have done nothing wrong.
            if let Purpose::Again(binding) = progress.purpose {
                binding.session.end(&server.sessions).await;
            }
            Err(status::of(&e).into())
        }
    }
}

/// 3.3.5.5: what a request is for, if it is protected as that demands. `is_begun`: an authentication with its id is in progress.
/// Sets the key that signs the response, which may be a refusal.
fn purpose_of(
    connection: &Connection,
    sealed: bool,
    header: &Header,
    request: &Request,
    message: &Bytes,
    is_begun: bool,
    leg: &mut Leg,
) -> Result<Purpose, Failure> {
    let id = header.session_id;
    match () {
        () if id == 0 => Ok(Purpose::New),
        () if request.flags.contains(RequestFlags::BINDING) => {
            leg.sign = connection.proven(id, message);
            if let Some(binding) = connection.binding(id)
                && !binding.signing.verify(Sender::Client, message)
            {
                // Already bound: on this connection its own key signs, not the session's.
                return Err(NtStatus::ACCESS_DENIED.into());
            }
            let session = bindable(connection, id)?;
            if !header.flags.contains(Flags::SIGNED) {
                return Err(NtStatus::INVALID_PARAMETER.into());
            }
            if leg.sign.is_none() {
                connection.forged();
                return Err(NtStatus::ACCESS_DENIED.into());
            }
            Ok(Purpose::Bind(session))
        }
        () => match connection.binding(id) {
            Some(binding) => {
                leg.sign = connection.proven(id, message);
                let protected = sealed || header.flags.contains(Flags::SIGNED);
                if !protected && binding.must_sign {
                    return Err(NtStatus::ACCESS_DENIED.into());
                }
                if !sealed && protected && !binding.signing.verify(Sender::Client, message) {
                    connection.forged();
                    return Err(NtStatus::ACCESS_DENIED.into());
                }
                if protected && !sealed {
                    // 3.3.4.1.1: the session's key signs every response but the last, on every channel.
                    leg.sign = Some(binding.session.keys.signing.clone());
                }
                Ok(Purpose::Again(binding))
            }
            // An authentication in progress has no key yet (3.3.5.2.4).
            None if is_begun && header.flags.contains(Flags::SIGNED) => Err(NtStatus::NOT_SUPPORTED.into()),
            None if is_begun => Ok(Purpose::New),
            None => {
                leg.sign = connection.proven(id, message);
                Err(NtStatus::USER_SESSION_DELETED.into())
            }
        },
    }
}

/// Delays the password check as [`crate::auth::Delays`] demands; requests of other sessions run meanwhile.
async fn wait_for_turn(connection: &Connection, user: &str) -> Result<(), NtStatus> {
    match connection.server.delays.enter(user, connection.source, rt::now()) {
        Ok(Duration::ZERO) => {}
        Ok(wait) => {
            tracing::debug!(peer = %connection.peer, user = %escaped(user), "delaying a log-on by {} ms after failed ones", wait.as_millis());
            // The wait is meant, and anybody can bring it about: it is no slow operation.
            recorder::hide();
            rt::sleep(wait).await;
        }
        Err(Crowded) => {
            let status = NtStatus::ACCOUNT_LOCKED_OUT;
            let reason = "too many log-ons from this source are already waiting after failed ones";
            refuse(connection, Some(user), status, reason);
            return Err(status);
        }
    }
    Ok(())
}

/// The account of the system of a user who has logged on. A failed reauthentication ends the session, unless nobody knows
/// whether the user still has the account.
async fn account_of(
    connection: &Connection,
    purpose: &Purpose,
    login: &Login,
) -> Result<Option<Arc<Account>>, NtStatus> {
    let server = &connection.server;
    let session = match purpose {
        Purpose::New => None,
        Purpose::Again(binding) => Some(&binding.session),
        Purpose::Bind(session) => Some(session),
    };
    // Rights would take it for the user of ours whose name only looks different.
    let looks_like_ours = !login.is_ours && server.directory().accounts.find(&login.user).is_some();
    let admitted = match looks_like_ours {
        true => Err(AuthError::Stranger.into()),
        false => server.system.log_on(login).await,
    };
    let status = match admitted {
        Ok(account) => {
            let uid = |account: &Option<Arc<Account>>| account.as_ref().map(|account| account.uid);
            if session.is_none_or(|session| uid(&session.account) == uid(&account)) {
                return Ok(account);
            }
            let status = NtStatus::ACCESS_DENIED;
            let reason = "the user has another account of the system than the session";
            refuse(connection, Some(&login.user), status, reason);
            status
        }
        Err(why) => {
            let (actual, status) = match &why {
                NotAdmitted::Refused(error) => {
                    (status::in_full(error, &Refused::default()), status::of(error))
                }
                NotAdmitted::Full => (NtStatus::INSUFFICIENT_RESOURCES, NtStatus::INSUFFICIENT_RESOURCES),
                NotAdmitted::Unanswered(_) => (NtStatus::NO_LOGON_SERVERS, NtStatus::NO_LOGON_SERVERS),
            };
            refuse(connection, Some(&login.user), actual, &why);
            if matches!(why, NotAdmitted::Unanswered(_)) {
                return Err(status);
            }
            status
        }
    };
    if let Purpose::Again(binding) = purpose {
        binding.session.end(&server.sessions).await;
    }
    Err(status)
}

/// The user may have been removed, or have another password, since the authentication began.
fn check_users(connection: &Connection, users: &Users, user: &str) -> Result<(), NtStatus> {
    if connection.server.directory().users.agree(users, user) {
        return Ok(());
    }
    let actual = match connection.server.directory().users.has(user) {
        true => NtStatus::WRONG_PASSWORD,
        false => NtStatus::NO_SUCH_USER,
    };
    let reason = "the user was removed or got another password during the log-on";
    refuse(connection, Some(user), actual, reason);
    Err(NtStatus::LOGON_FAILURE)
}

/// [MS-NLMP] 3.2.5.1.2: a proof that was made for another server helps a man in the middle only if requests need no
/// key: then it is refused. If they are signed or encrypted, an unknown name is more likely an alias than an attack,
/// and is only logged.
fn check_target(
    connection: &Connection,
    request: &Request,
    purpose: &Purpose,
    login: &Login,
) -> Result<(), NtStatus> {
    let Target::Other(name) = &login.target else { return Ok(()) };
    let protected = match purpose {
        Purpose::New => must_sign(connection, request) || connection.server.config.require_encryption,
        Purpose::Again(binding) => binding.must_sign || binding.session.encrypt,
        // Already signed with the session's key.
        Purpose::Bind(_) => true,
    };
    if protected {
        tracing::info!(
            user = %login.user,
            source = %connection.peer,
            target = %escaped(name),
            "a client uses an unknown name for this server (add it with --server-name)"
        );
        return Ok(());
    }
    let reason = format_args!(
        "the client meant {}, which is not this server: if it is an alias, add it with --server-name; otherwise this is an NTLM relay",
        escaped(name)
    );
    let status = NtStatus::ACCESS_DENIED;
    refuse(connection, Some(&login.user), status, reason);
    Err(status)
}

/// 3.3.5.5.3: whether this session must sign: either side may require it.
fn must_sign(connection: &Connection, request: &Request) -> bool {
    let negotiated = connection.negotiated();
    let signs = [request.security_mode, negotiated.client_security_mode]
        .into_iter()
        .any(|mode| mode.contains(SecurityMode::SIGNING_REQUIRED));
    signs || negotiated.signing_required()
}

/// Logs a refused log-on. `user` is the name that the client claims; `status` is the actual one, for the audit log.
fn refuse(connection: &Connection, user: Option<&str>, status: NtStatus, reason: impl Display) {
    audit::log_on_refused(connection, user, status, &reason);
    connection.server.refusals.log(user, &connection.peer, reason, rt::now());
}

/// 3.3.5.5: the session that a binding request names, if this connection may become a channel of it. The checks run in
/// Windows' order, so that a client gets the same status from every server.
fn bindable(connection: &Connection, id: u64) -> Result<Arc<Session>, NtStatus> {
    let (negotiated, gmac) = (connection.negotiated(), SigningId::AES_GMAC);
    let session = connection.server.sessions.find(id).ok_or(NtStatus::USER_SESSION_DELETED)?;
    // All channels use AES-GMAC or none does; the other algorithms may be mixed.
    match (session.profile.signing == gmac, negotiated.profile.signing == gmac) {
        (true, false) => return Err(NtStatus::REQUEST_OUT_OF_SEQUENCE),
        (false, true) => return Err(NtStatus::NOT_SUPPORTED),
        _ => {}
    }
    if negotiated.dialect < Dialect::V3_0 || !connection.server.config.multichannel {
        return Err(NtStatus::REQUEST_NOT_ACCEPTED);
    }
    // The session's keys encrypt on every channel, so every channel must have its cipher.
    if negotiated.dialect != session.profile.dialect || negotiated.profile.cipher != session.profile.cipher {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if negotiated.client_guid != session.client_guid {
        return Err(NtStatus::USER_SESSION_DELETED);
    }
    if session.is_expired(rt::now) {
        return Err(NtStatus::NETWORK_SESSION_EXPIRED);
    }
    if connection.binding(id).is_some() {
        return Err(NtStatus::REQUEST_NOT_ACCEPTED);
    }
    Ok(session)
}

fn begin(connection: &Connection, purpose: Purpose) -> Result<InProgress, Failure> {
    let Some(place) = connection.half_open() else {
        let status = NtStatus::INSUFFICIENT_RESOURCES;
        refuse(connection, None, status, "limit reached: authentications in progress on a connection");
        return Err(status.into());
    };
    let server_challenge = random::bytes()?;
    let server = &connection.server;
    let users = server.directory().users.clone();
    Ok(InProgress {
        acceptor: Acceptor::new(
            users.clone(),
            server.name.clone(),
            server.config.names.clone(),
            server_challenge,
        )
        .with_keytab(server.config.offers.keytab.clone())
        .with_principals(server.config.offers.principals.clone()),
        preauth: Rc::new(RefCell::new(connection.preauth.borrow().clone())),
        users,
        purpose,
        begun: rt::now(),
        _place: place,
    })
}

/// A random id that is not in use. It proves nothing, and some clients keep only 32 bits of it.
fn random_id(connection: &Connection) -> Result<u64, Failure> {
    loop {
        let id = u64::from(u32::from_ne_bytes(random::bytes()?));
        let taken = connection.server.sessions.find(id).is_some()
            || connection.in_progress.borrow().contains_key(&id);
        if id != 0 && !taken {
            return Ok(id);
        }
    }
}

async fn established(
    connection: &Connection,
    request: &Request,
    id: u64,
    (login, account): (Login, Option<Arc<Account>>),
    preauth: &RefCell<Preauth>,
    token: Vec<u8>,
    leg: &mut Leg,
) -> Answer {
    let server = &connection.server;
    let negotiated = connection.negotiated();
    if !connection.enter_client(&login.user) {
        return Err(other_dialect(connection, &login).into());
    }
    let (key, full_key) = (&login.session_key, &login.full_key);
    let keys = SessionKeys::derive_from(Role::Server, &negotiated.profile, key, full_key, &preauth.borrow());
    let encrypt = server.config.require_encryption;
    let signing = keys.signing.clone();
    let holder = server.holder(Some(connection.source), &login.user);
    let audited = audit::logged_on(connection, &login, account.as_deref());
    // Never refused: a returning client needs the session to reach its handles.
    let held = server.held.charge_if_room(holder, SESSION_BYTES);
    let who = Who { user: &login.user, is_ours: login.is_ours, account: account.as_deref() };
    let user_id = server.directory().id_of(who);
    let session = Arc::new(Session::new(New {
        id,
        user: login.user,
        is_ours: login.is_ours,
        account,
        user_id,
        profile: negotiated.profile,
        client_guid: negotiated.client_guid,
        keys,
        signing_required: must_sign(connection, request) && !encrypt,
        encrypt,
        audited,
        held,
    }));
    expire(connection, &session, login.lifetime);
    // Add its first channel before it can be found: a session without channels counts as ended.
    connection.bind(session.clone(), signing.clone()).map_err(refused)?;
    if !server.sessions.insert(&session) {
        connection.forget(id);
        return Err(NtStatus::INSUFFICIENT_RESOURCES.into());
    }
    // 3.3.5.5.3: ends the user's previous session, from before the connection was lost, if it still exists.
    if request.previous_session_id != id {
        let previous = server.sessions.find(request.previous_session_id);
        if let Some(previous) = previous.filter(|previous| previous.user == session.user) {
            previous.end(&server.sessions).await;
        }
    }
    audit::tell_log_on(connection, &session);
    tracing::info!(
        user = %session.user,
        source = %connection.peer,
        dialect = %negotiated.dialect,
        signing = session.signing_required,
        encrypt,
        uid = session.account.as_ref().map(|account| account.uid),
        "logged on"
    );
    leg.sign = Some(signing);
    Ok(reply(NtStatus::SUCCESS, session_flags(&session), token))
}

/// The keys do not change, and the user must not.
fn reauthenticated(
    connection: &Connection,
    binding: &Binding,
    login: &Login,
    token: Vec<u8>,
    leg: &mut Leg,
) -> Answer {
    let session = &binding.session;
    if session.user != login.user {
        let status = NtStatus::ACCESS_DENIED;
        refuse(
            connection,
            Some(&login.user),
            status,
            format_args!("the session belongs to {}", session.user),
        );
        return Err(status.into());
    }
    expire(connection, session, login.lifetime);
    audit::tell_log_on(connection, session);
    tracing::info!(user = %session.user, source = %connection.peer, "reauthenticated");
    leg.sign = Some(binding.signing.clone());
    Ok(reply(NtStatus::SUCCESS, session_flags(session), token))
}

/// 3.3.5.5.3: the channel gets its own key, from its own authentication.
fn bound(
    connection: &Connection,
    session: Arc<Session>,
    login: &Login,
    preauth: &RefCell<Preauth>,
    token: Vec<u8>,
    leg: &mut Leg,
) -> Answer {
    if session.user != login.user {
        let status = NtStatus::NOT_SUPPORTED;
        refuse(
            connection,
            Some(&login.user),
            status,
            format_args!("the session belongs to {}", session.user),
        );
        return Err(status.into());
    }
    if !connection.enter_client(&login.user) {
        return Err(other_dialect(connection, login).into());
    }
    let profile = &connection.negotiated().profile;
    let signing = Arc::new(crypto::signing_key(profile, &login.session_key, &preauth.borrow()));
    let flags = session_flags(&session);
    tracing::info!(user = %session.user, source = %connection.peer, "added a channel to a session");
    connection.bind(session.clone(), signing.clone()).map_err(refused)?;
    audit::tell_log_on(connection, &session);
    leg.sign = Some(signing);
    Ok(reply(NtStatus::SUCCESS, flags, token))
}

fn other_dialect(connection: &Connection, login: &Login) -> NtStatus {
    let status = NtStatus::USER_SESSION_DELETED;
    refuse(connection, Some(&login.user), status, "the client uses another dialect on another connection");
    status
}

fn refused(why: session::Refused) -> NtStatus {
    match why {
        session::Refused::Ended => NtStatus::USER_SESSION_DELETED,
        session::Refused::Full => {
            tracing::warn!("limit reached: channels per session");
            NtStatus::INSUFFICIENT_RESOURCES
        }
    }
}

/// 3.3.5.5.3: a session ends with its ticket (NETWORK_SESSION_EXPIRED), or at the server's own limit.
fn expire(connection: &Connection, session: &Session, ticket: Option<Duration>) {
    let ours = connection.server.config.limits.session_ms.map(Duration::from_millis);
    let lifetime = [ours, ticket].into_iter().flatten().min();
    session.expire_at(lifetime.map(|lifetime| rt::now() + lifetime));
}

fn session_flags(session: &Session) -> SessionFlags {
    if session.encrypt { SessionFlags::ENCRYPT_DATA } else { SessionFlags::NONE }
}

fn reply(status: NtStatus, flags: SessionFlags, token: Vec<u8>) -> Reply {
    let mut reply = Reply::with_capacity(token.len().saturating_add(8));
    Response { flags, token: token.into() }.emit(&mut reply.message);
    reply.status = status;
    reply
}

/// LOGOFF: the answer is still protected by the session's keys.
pub(super) async fn logoff(request: &InSession<'_>) -> Answer {
    logoff::Request::parse(request.message()).map_err(|_| Failure::from(NtStatus::INVALID_PARAMETER))?;
    request.session().end(&request.connection().server.sessions).await;
    let mut reply = Reply::new();
    logoff::Response.emit(&mut reply.message);
    Ok(reply)
}
