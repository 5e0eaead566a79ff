//! Log-ons, shares and users for the audit log. What is done with files is in [`super::ops`].
//!
//! Clients are told little of why a log-on is refused. The line has the status that says it, see [`super::status::in_full`].

use std::fmt::Display;

use weft_machine::Account;
use weft_store::audit::{Audit, Event, Fact, Kind, Outcome, Who};
use weft_transport::Kind as Transport;
use weft_wire::security::Sid;
use weft_wire::smb2::NtStatus;

use super::Server;
use super::admission::InSession;
use super::connection::Connection;
use super::directory;
use super::session::Session;
use crate::auth::Login;

/// The outcome to tell; `None` if the request failed for a reason that has nothing to do with rights.
pub(super) fn outcome(status: NtStatus) -> Option<Outcome> {
    match status {
        status if status.is_success() => Some(Outcome::Done),
        NtStatus::ACCESS_DENIED
        | NtStatus::PRIVILEGE_NOT_HELD
        | NtStatus::MEDIA_WRITE_PROTECTED
        | NtStatus::NETWORK_ACCESS_DENIED => Some(Outcome::Denied(status.to_string())),
        _ => None,
    }
}

/// The audit log, and the user of a session on this connection; `None` without an audit log.
pub(super) fn actor<'a>(connection: &Connection, session: &'a Session) -> Option<(&'a Audit, Who)> {
    let (audit, who) = session.audited.as_ref()?;
    Some((audit, Who { user: who.user.clone(), sid: who.sid.clone(), uid: who.uid, ..at(connection) }))
}

/// The user of a session has logged on: for the first time, on one more connection, or again on the same one.
pub(super) fn tell_log_on(connection: &Connection, session: &Session) {
    if let Some((audit, who)) = actor(connection, session) {
        audit.tell(Event::now(Kind::Logon, Outcome::Done, who));
    }
}

/// Somebody on this connection.
fn at(connection: &Connection) -> Who {
    let transport = match connection.channel.kind() {
        Transport::Smbd => "smb-direct",
        _ => "tcp",
    };
    Who {
        client: Some(connection.peer.as_str().into()),
        source: Some(connection.source),
        protocol: Some("smb"),
        transport: Some(transport),
        ..Who::default()
    }
}

/// The user who has logged on, with the audit log; `None` without one.
pub(super) fn logged_on(
    connection: &Connection,
    login: &Login,
    account: Option<&Account>,
) -> Option<(Audit, Who)> {
    let who = directory::Who { user: &login.user, is_ours: login.is_ours, account };
    let (audit, who) = user(&connection.server, who)?;
    Some((audit, Who { user: who.user, sid: who.sid, uid: who.uid, ..at(connection) }))
}

/// A user without a connection, with the audit log; `None` without one.
pub(super) fn user(server: &Server, who: directory::Who<'_>) -> Option<(Audit, Who)> {
    let audit = &server.config.offers.audit;
    if !audit.is_on() {
        return None;
    }
    let sid = match who.account {
        Some(account) if !who.is_ours => Sid::unix_user(account.uid),
        _ => server.directory().accounts.sid_of_user(who.user),
    };
    let who = Who {
        user: Some(who.user.into()),
        sid: Some(sid.to_string().into()),
        uid: who.account.map(|account| account.uid),
        protocol: Some("smb"),
        ..Who::default()
    };
    Some((audit.clone(), who))
}

/// A log-on is refused. `user` is the name that the client claims; `status` is the actual one.
pub(super) fn log_on_refused(
    connection: &Connection,
    user: Option<&str>,
    status: NtStatus,
    reason: &dyn Display,
) {
    let audit = &connection.server.config.offers.audit;
    if audit.is_on() {
        let who = Who { user: user.map(Into::into), ..at(connection) };
        let denied = Outcome::Denied(status.to_string());
        audit.tell(Event::now(Kind::Logon, denied, who).with(Fact::Reason(reason.to_string())));
    }
}

/// A TREE_CONNECT to this share has succeeded, or failed with a status.
pub(super) fn connected(request: &InSession<'_>, share: &str, status: Option<NtStatus>) {
    let Some(outcome) = outcome(status.unwrap_or(NtStatus::SUCCESS)) else { return };
    if let Some((audit, who)) = actor(request.connection(), request.session()) {
        // As the server spells it.
        let share =
            request.connection().server.shares.named(share).map_or_else(|| share.into(), |known| known.name);
        audit.tell(Event::now(Kind::Connect, outcome, who).in_share(&share));
    }
}
