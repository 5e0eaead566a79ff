//! Authenticates: sends SESSION_SETUP until both sides have proven their identity, by password or ticket.
//!
//! Spec: [MS-SMB2] 3.2.4.2.3 (requests), 3.2.5.3 (responses); NTLMv2 or Kerberos in SPNEGO (see [`crate::auth`]). Guest
//! sessions are refused.

use std::rc::Rc;
use std::sync::Arc;

use weft_machine::{clock, random, rt};
use weft_wire::smb2::header::Flags;
use weft_wire::smb2::negotiate::Capabilities;
use weft_wire::smb2::session_setup::{Request, RequestFlags, Response, SessionFlags};
use weft_wire::smb2::{Command, Dialect, Filetime, NtStatus};
use zeroize::Zeroizing;

use super::error::{Denial, Error};
use super::link::{Call, Link, Protection, Reply, Security};
use super::negotiate::Negotiated;
use super::options::Options;
use crate::auth::{Credentials, Initiator, Nonces, Ticketed};
use crate::crypto::{Role, Sender, SessionKeys, signing_key};

/// NTLM needs two round trips; a server that asks for more than this is stalling.
const MAX_LEGS: usize = 8;

/// Authenticates; returns the keys and the kind of session. The server ends `previous`, if given (3.2.4.2.3): it may
/// not have noticed yet that its connection is lost.
pub(super) async fn authenticate(
    link: &Link,
    negotiated: &Negotiated,
    options: &Options,
    previous_session_id: u64,
) -> Result<(Security, SessionFlags), Error> {
    legs(link, negotiated, options, None, previous_session_id).await
}

/// Binds the connection of `link` to the session whose keys `session` has; returns the keys for this connection: its
/// own for signing, the session's for encryption (3.2.5.3.3).
pub(super) async fn bind(
    link: &Link,
    negotiated: &Negotiated,
    options: &Options,
    session: &Security,
) -> Result<Security, Error> {
    link.set_security(Rc::new(Security { session_id: session.session_id, keys: session.keys.clone() }));
    legs(link, negotiated, options, Some(session), 0).await.map(|(security, _)| security)
}

async fn legs(
    link: &Link,
    negotiated: &Negotiated,
    options: &Options,
    session: Option<&Security>,
    previous_session_id: u64,
) -> Result<(Security, SessionFlags), Error> {
    let (flags, protection) = match session {
        None => (RequestFlags::NONE, Protection::None),
        Some(_) => (RequestFlags::BINDING, Protection::Signed),
    };
    let (mut initiator, mut token) = Proof::start(options).await?;
    let mut preauth = negotiated.preauth.clone();
    let mut session_id = 0;
    for _ in 0..MAX_LEGS {
        let request = Request {
            flags,
            security_mode: negotiated.security_mode(),
            capabilities: Capabilities::NONE,
            previous_session_id,
            token: token.into(),
        };
        let call = Call::before_session(Command::SessionSetup, protection, |out| request.emit(out));
        let permit = link.permit(1).await?;
        let (pending, sent) = link.send_recorded(permit, call, session_id)?;
        preauth.update(&sent);
        let reply = pending.await?;
        match reply.header.status {
            NtStatus::MORE_PROCESSING_REQUIRED => {
                preauth.update(&reply.message);
                session_id = reply.header.session_id;
                let response = Response::parse(&reply.message)?;
                token = initiator
                    .step(&response.token)?
                    .ok_or(Error::Violation("SESSION_SETUP goes on after authentication is complete"))?;
            }
            NtStatus::SUCCESS => {
                let response = Response::parse(&reply.message)?;
                if response.flags.intersects(SessionFlags::IS_GUEST | SessionFlags::IS_NULL) {
                    return Err(Denial::Guest.into());
                }
                if initiator.step(&response.token)?.is_some() {
                    return Err(Error::Violation("SESSION_SETUP ends before authentication is complete"));
                }
                let (profile, full_key) = (&negotiated.profile, initiator.key());
                // 3.2.5.3.1: the first 16 bytes of the key, which is longer with some tickets.
                let key = full_key.first_chunk().ok_or(Error::Violation("authentication without a key"))?;
                let keys = match session {
                    None => SessionKeys::derive_from(Role::Client, profile, key, full_key, &preauth),
                    Some(session) => SessionKeys {
                        signing: Arc::new(signing_key(profile, key, &preauth)),
                        ..session.keys.clone()
                    },
                };
                let must = session.is_some()
                    || negotiated.profile.dialect >= Dialect::V3_1_1
                    || negotiated.signing_required();
                check_last(&reply, &keys, must)?;
                let security = Security { session_id: reply.header.session_id, keys };
                return Ok((security, response.flags));
            }
            status => return Err(Error::Status { command: Command::SessionSetup, status }),
        }
    }
    Err(Error::Violation("SESSION_SETUP takes too many round trips"))
}

/// The mechanism that proves our identity.
enum Proof {
    Password(Box<Initiator>),
    Ticket(Ticketed),
}

impl Proof {
    async fn start(options: &Options) -> Result<(Proof, Vec<u8>), Error> {
        if options.kerberos {
            let host = options.host.clone();
            let (ticketed, token) = rt::blocking(move || Ticketed::start(&host)).await?;
            return Ok((Proof::Ticket(ticketed), token));
        }
        let credentials = Credentials {
            user: options.user.clone(),
            domain: options.domain.clone(),
            secret: options.secret.clone(),
        };
        let nonces =
            Nonces { client_challenge: random::bytes()?, session_key: Zeroizing::new(random::bytes()?) };
        let (initiator, token) = Initiator::start(credentials, &options.host, nonces);
        Ok((Proof::Password(Box::new(initiator)), token))
    }

    fn step(&mut self, token: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self {
            Proof::Password(initiator) => Ok(initiator.step(token, now())?),
            Proof::Ticket(ticketed) => Ok(ticketed.step(token)?),
        }
    }

    /// 16 bytes or more; empty until authentication is complete.
    fn key(&self) -> &[u8] {
        match self {
            Proof::Password(initiator) => initiator.session_key(),
            Proof::Ticket(ticketed) => ticketed.key().unwrap_or_default(),
        }
    }
}

/// 3.2.5.3.1 and 3.3.5.5.3: the last response is signed, always so in 3.1.1. The signature proves that the server knows
/// the password and that nobody changed the negotiation.
fn check_last(reply: &Reply, keys: &SessionKeys, must: bool) -> Result<(), Error> {
    let signed = reply.header.flags.contains(Flags::SIGNED);
    match signed {
        true if keys.signing.verify(Sender::Server, &reply.message) => Ok(()),
        true => Err(Error::Tampered("wrong signature of the last SESSION_SETUP response")),
        false if must => Err(Error::Tampered("the last SESSION_SETUP response is not signed")),
        false => Ok(()),
    }
}

/// The current FILETIME, for servers that do not send theirs.
fn now() -> u64 {
    let since = clock::wall();
    Filetime::from_unix(since.as_secs() as i64, since.subsec_nanos()).0
}
