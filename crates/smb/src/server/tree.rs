//! TREE_CONNECT and TREE_DISCONNECT.
//!
//! Spec: [MS-SMB2] 3.3.5.7, 3.3.5.8. The session owns its trees. The rights on the share decide who may connect; a user
//! who may only read gets a view of the files that refuses changes. As whom the files are used is decided here, too (see
//! [`super::acting`]).

use weft_machine::{LogLimit, rt};
use weft_store::rights::Right;
use weft_store::vfs::{Share, ShareList};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::tree_connect::{Request, Response, ShareCapabilities, ShareFlags, ShareType};
use weft_wire::smb2::{Dialect, NtStatus, tree_disconnect};

use super::acting;
use super::admission::{Admitted, InSession};
use super::answer::{Answer, Failure, Reply};
use super::audit;
use super::directory::Directory;
use super::session::{Session, Tree};

/// The share of named pipes: always present, without files.
const IPC: &str = "IPC$";

/// The rights of a user who may only read a share (MaximalAccess).
const READABLE: AccessMask = AccessMask(
    AccessMask::FILE_READ_DATA.0
        | AccessMask::FILE_READ_EA.0
        | AccessMask::FILE_EXECUTE.0
        | AccessMask::FILE_READ_ATTRIBUTES.0
        | AccessMask::READ_CONTROL.0
        | AccessMask::SYNCHRONIZE.0,
);

/// Connects; returns the new TreeId for the response's header.
pub(super) async fn connect(request: &InSession<'_>) -> Result<(u32, Reply), Failure> {
    let parsed = Request::parse(request.message()).map_err(|_| Failure::from(NtStatus::INVALID_PARAMETER))?;
    // 2.2.9: \\server\share. The server part is the name or address by which the client knows us.
    let name = parsed
        .path
        .strip_prefix(r"\\")
        .and_then(|rest| rest.split_once('\\'))
        .map(|(_, share)| share)
        .ok_or(NtStatus::INVALID_PARAMETER)?;
    let connected = connect_to(request, name).await;
    if !name.eq_ignore_ascii_case(IPC) {
        audit::connected(request, name, connected.as_ref().err().map(|failure| failure.status));
    }
    connected
}

async fn connect_to(request: &InSession<'_>, name: &str) -> Result<(u32, Reply), Failure> {
    let (connection, session) = (request.connection(), request.session());
    let config = &connection.server.config;
    let share = match name.eq_ignore_ascii_case(IPC) {
        true => None,
        false => {
            let found = connection.server.shares.named(name);
            Some(found.ok_or(NtStatus::BAD_NETWORK_NAME)?)
        }
    };
    let encrypted = session.encrypt || share.as_ref().is_some_and(|share| share.rules.encrypted);
    if encrypted && connection.negotiated().profile.cipher.is_none() {
        tracing::warn!(peer = %connection.peer, "refused: the share requires encryption, but the client supports none of our ciphers");
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    let share_type = if share.is_some() { ShareType::Disk } else { ShareType::Pipe };
    if session.account.is_some() {
        connection.server.resolve_groups().await;
    }
    let directory = connection.server.directory();
    let right = share.as_ref().map_or(Right::Write, |share| directory.right(session.who(), &share.rules));
    let share = match (share, right) {
        (Some(share), Right::None) => {
            static REFUSED: LogLimit = LogLimit::new();
            if let Some(left_out) = REFUSED.pass(rt::now()) {
                tracing::info!(user = %session.user, peer = %connection.peer, share = %share.name, "refused: the user has no right on the share{left_out}");
            }
            return Err(NtStatus::ACCESS_DENIED.into());
        }
        (Some(share), Right::Read) => Some(Share { vfs: share.vfs.for_readers(), ..share }),
        (share, _) => share,
    };
    let share = match share {
        None => None,
        Some(share) => match acting::caller(&directory, session.who(), &share) {
            Ok(caller) => Some(Share { vfs: share.vfs.acting_as(caller), ..share }),
            Err(refused) => {
                refused.tell(&session.user, &share.name, &connection.peer);
                return Err(NtStatus::ACCESS_DENIED.into());
            }
        },
    };
    let tree = session.connect(share, right, config.limits.trees).ok_or_else(|| {
        tracing::warn!(peer = %connection.peer, "limit reached: trees per session");
        NtStatus::INSUFFICIENT_RESOURCES
    })?;
    // Whoever replaces users or shares from now on finds the tree.
    let server = &connection.server;
    if !is_allowed(session, &tree, &server.directory(), &server.shares.now()) {
        session.disconnect(tree.id).await;
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    session.client.get_or_init(|| {
        let address = connection.peer.rsplit_once(':').map_or(&*connection.peer, |(address, _)| address);
        address.to_owned()
    });
    let (mut flags, mut capabilities) = (ShareFlags::NONE, ShareCapabilities::NONE);
    if encrypted {
        flags |= ShareFlags::ENCRYPT_DATA;
    }
    if tree.share.as_ref().is_some_and(|share| share.rules.hides_unreadable) {
        flags |= ShareFlags::ACCESS_BASED_DIRECTORY_ENUM;
    }
    if tree.share.as_ref().is_some_and(|share| config.offers.dfs.is_root(&share.name)) {
        flags |= ShareFlags::DFS | ShareFlags::DFS_ROOT;
        capabilities |= ShareCapabilities::DFS;
    }
    let continuous = |share: &Share| config.offers.is_continuous(&share.name);
    if connection.dialect() >= Dialect::V3_0 && tree.share.as_ref().is_some_and(continuous) {
        capabilities |= ShareCapabilities::CONTINUOUS_AVAILABILITY;
    }
    let compressed = |share: &Share| config.offers.compressed.contains(&share.name.to_lowercase());
    if connection.compression().is_some() && tree.share.as_ref().is_some_and(compressed) {
        flags |= ShareFlags::COMPRESS_DATA;
    }
    let mut reply = Reply::with_capacity(16);
    let maximal_access = if right == Right::Read { READABLE } else { AccessMask::FILE_ALL };
    Response { share_type, flags, capabilities, maximal_access: maximal_access.0 }.emit(&mut reply.message);
    Ok((tree.id, reply))
}

/// Whether a tree could still be connected as it is.
pub(super) fn is_allowed(session: &Session, tree: &Tree, directory: &Directory, shares: &ShareList) -> bool {
    let Some(connected) = &tree.share else { return true };
    let Some(now) = shares.of(connected.key()) else { return false };
    // A reader's view is read-only by itself.
    let loses_writes = tree.right == Right::Write && now.vfs.is_read_only() && !connected.vfs.is_read_only();
    let shows_more = now.rules.hides_unreadable && !connected.rules.hides_unreadable;
    let lacks_encryption = now.rules.encrypted && !session.encrypt && !tree.encrypted();
    let acts_so = acting::caller(directory, session.who(), now).as_ref() == Ok(connected.vfs.caller());
    directory.right(session.who(), &now.rules) >= tree.right
        && acts_so
        && !loses_writes
        && !shows_more
        && !lacks_encryption
}

/// Disconnects a tree.
pub(super) async fn disconnect(request: &Admitted) -> Answer {
    let parsed = tree_disconnect::Request::parse(request.message());
    parsed.map_err(|_| Failure::from(NtStatus::INVALID_PARAMETER))?;
    if !request.session().disconnect(request.tree().id).await {
        return Err(NtStatus::NETWORK_NAME_DELETED.into());
    }
    let mut reply = Reply::new();
    tree_disconnect::Response.emit(&mut reply.message);
    Ok(reply)
}
