//! What Macs are told beyond SMB: the context `AAPL` of CREATE, and its form of directory entries.
//!
//! The protocol is that of Apple's published client (SMBClient, `netsmb/smb_2.h`). A Mac asks when it mounts a share, and
//! applies the server's answer to its session, so all shares of a server answer alike. From then on it reads each entry of a
//! FileIdBothDirectoryInformation listing as [`directory::Mac`]; other clients never see that form.
//!
//! Not offered: paths of file numbers, which cannot be found for every file after a restart. Modes in access control entries
//! are in [`super::security`].

use weft_store::vfs::{Attr, DirName, Error, Kind, Share, Vfs, XattrSummary};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::aapl::{Parts, Request, Response, ServerCaps, VolumeCaps};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::afp_info::AfpInfo;
use weft_wire::smb2::create_context::{RequestContext, ResponseContext};
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::fscc::directory;

use super::afp_streams::{self, AfpStream};
use super::attributes::Metadata;
use super::security;
use crate::server::answer::Failure;
use crate::server::context::OpContext;

/// Listings in Apple's form, of either version.
const LISTS: ServerCaps = ServerCaps(ServerCaps::READ_DIR_ATTR.0 | ServerCaps::READ_DIR_ATTR_V2.0);
/// What a Mac may use whether or not it says that it can.
const ALWAYS: ServerCaps = ServerCaps(ServerCaps::OSX_COPYFILE.0 | ServerCaps::UNIX_BASED.0);

/// The answers to what a Mac asks in a CREATE; none for other clients. Of several questions of one kind the first is
/// answered.
pub(super) fn answers(cx: &OpContext, share: &Share, asked: &[RequestContext]) -> Vec<ResponseContext> {
    let Some(model) = &cx.config().offers.mac_model else { return Vec::new() };
    let first = |wanted: fn(&Request) -> bool| {
        asked.iter().find_map(|context| match context {
            RequestContext::Apple(request) if wanted(request) => Some(request),
            _ => None,
        })
    };
    let query = first(|request| matches!(request, Request::Query { .. }));
    let resolve = first(|request| matches!(request, Request::Resolve { .. }));
    let answer = |request: &Request| match request {
        Request::Query { parts, client } => {
            let has = |part| parts.contains(part);
            let server = has(Parts::SERVER_CAPS).then(|| offered(*client));
            if let Some(server) = server {
                cx.session().set_mac(server);
            }
            let sync = if share.rules.backs_up_macs { VolumeCaps::FULL_SYNC } else { VolumeCaps::NONE };
            Some(Response::Query {
                server,
                volume: has(Parts::VOLUME_CAPS).then_some(sync),
                model: has(Parts::MODEL_INFO).then(|| model.to_string()),
            })
        }
        Request::Resolve { .. } => {
            Some(Response::Resolve { status: NtStatus::NOT_SUPPORTED, path: String::new() })
        }
        Request::Unknown { .. } => None,
    };
    [query, resolve].into_iter().flatten().filter_map(answer).map(ResponseContext::Apple).collect()
}

/// What the server offers a client that can do this: a Mac that knows flags in listings gets only the form with flags.
fn offered(client: ServerCaps) -> ServerCaps {
    let lists = match client {
        _ if client.contains(ServerCaps::READ_DIR_ATTR_V2) => ServerCaps::READ_DIR_ATTR_V2,
        _ => client & ServerCaps::READ_DIR_ATTR,
    };
    ALWAYS | lists | (client & ServerCaps::NFS_ACE)
}

/// Whether a listing of this class is in Apple's form.
pub(super) fn lists(cx: &OpContext, class: FileClass) -> bool {
    class == FileClass::ID_BOTH_DIRECTORY && cx.session().mac().intersects(LISTS)
}

/// What a listing tells of a file at `place`, to which its directory adds the rights `above`. Of a file that was removed
/// meanwhile, or whose streams cannot be read, only what is known.
pub(super) async fn entry(
    cx: &OpContext,
    vfs: &Vfs,
    (attr, xattrs): (&Attr, &XattrSummary),
    place: DirName<&[u8]>,
    above: AccessMask,
) -> Result<directory::Mac, Failure> {
    let metadata = Metadata { attr, dos: xattrs.dos };
    let maximal = match security::maximal_below(cx, vfs, metadata, place, above).await {
        // Removed since it was listed.
        Err(failure) if failure.status == NtStatus::OBJECT_NAME_NOT_FOUND => AccessMask::NONE,
        Err(failure) if failure.status == NtStatus::FILE_CLOSED => AccessMask::NONE,
        maximal => maximal?,
    };
    let flagged = cx.session().mac().contains(ServerCaps::READ_DIR_ATTR_V2);
    let mut told = directory::Mac {
        maximal_access: maximal.0,
        has_streams: flagged.then_some(xattrs.streams),
        mode: mode(attr),
        ..directory::Mac::default()
    };
    if !xattrs.streams {
        return Ok(told);
    }
    let heads = match afp_streams::heads(cx, vfs, attr.node).await {
        Err(Error::NotFound | Error::Stale) => return Ok(told),
        heads => heads?,
    };
    let is_dir = attr.kind == Kind::Dir;
    for head in heads {
        match AfpStream::named(&head.name) {
            Some(AfpStream::Resource) if !is_dir => told.resource_fork_len = head.size,
            Some(AfpStream::Info) => {
                // Another program may have written anything.
                let info = AfpInfo::parse(&head.content);
                told.finder_info = info.map(|info| info.compressed(is_dir)).unwrap_or_default();
            }
            _ => {}
        }
    }
    Ok(told)
}

/// `st_mode` of stat(2).
fn mode(attr: &Attr) -> u16 {
    const FIFO: u32 = 0o010_000;
    let kind = match attr.kind {
        Kind::Dir => 0o040_000,
        Kind::File => 0o100_000,
        Kind::Symlink => 0o120_000,
        Kind::Special(_) => FIFO,
    };
    // Both together have 16 bits.
    (kind | (attr.mode & 0o7777)) as u16
}
