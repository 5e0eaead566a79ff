//! READDIR (RFC 8881 18.23, RFC 7530 16.24).
//!
//! "." and ".." are not listed, and cookies 0, 1 and 2 are special, so the store's own cookies are shifted by two.
//! They stay valid as long as the directory exists, so the verifier is always zero.

use weft_machine::rt;
use weft_store::{Attr, Kind, Listing, NodeId, Unread};
use weft_wire::nfs4::{Bitmap, Entry, Readdir, ReaddirOk, Status, Verifier, attr};
use weft_wire::xdr::pad;

use super::super::attributes;
use super::super::compound::Compound;
use super::super::fs_object::FsObject;
use super::super::named;
use super::super::names::{shown, status};
use crate::server::caller::{EXECUTE, READ};
use crate::server::context::Node;
use crate::server::export::KeptOut;
use crate::server::guard;

const VERIFIER: Verifier = [0; 8];
const OWN_COOKIES: u64 = 2;
/// What a caller with read but no execute permission learns about the entries of a directory: as much as readdir(3)
/// returns.
const OF_NAMES: Bitmap = Bitmap::of(&[attr::TYPE, attr::RDATTR_ERROR, attr::FILEID, attr::MOUNTED_ON_FILEID]);
/// What a caller whose flavour or port an export refuses learns about its root: the name must stay listed, so that
/// the caller can ask for the flavours (RFC 8881 2.6.3).
const OF_REFUSED: Bitmap = Bitmap::of(&[attr::TYPE, attr::FSID, attr::RDATTR_ERROR, attr::MOUNTED_ON_FILEID]);
/// What is told of an object whose attributes cannot be read.
const OF_UNREAD: Bitmap = Bitmap::of(&[attr::TYPE, attr::FSID, attr::RDATTR_ERROR, attr::MOUNTED_ON_FILEID]);
/// Entries requested from the store at a time.
const BATCH: usize = 256;
/// Verifier, the end of the list, eof.
const EMPTY: usize = 8 + 4 + 4;

/// A listing, filled up to its limits.
struct Page {
    entries: Vec<Entry>,
    left: usize,
    /// A hint that counts names only (RFC 8881 18.23.3); it never excludes the first entry.
    names_left: usize,
}

impl Page {
    /// `false` if there is no space.
    fn add(&mut self, entry: Entry) -> bool {
        // Cookie and length.
        const NAME: usize = 8 + 4;
        // "Value follows", a bitmap of at most three words, and a length.
        const AROUND: usize = 4 + 16 + 4;
        let padded = |len: usize| len.saturating_add(pad(len));
        let name = padded(entry.name.0.len()).saturating_add(NAME);
        let len = padded(entry.attributes.values.len()).saturating_add(name).saturating_add(AROUND);
        let left = self.left.checked_sub(len);
        let Some(left) = left.filter(|_| self.entries.is_empty() || name <= self.names_left) else {
            return false;
        };
        self.left = left;
        self.names_left = self.names_left.saturating_sub(name);
        self.entries.push(entry);
        true
    }
}

pub async fn readdir(c: &Compound<'_>, args: &Readdir) -> Result<ReaddirOk, Status> {
    let object = c.object()?;
    let mut asked = args.attributes;
    if let FsObject::Node(node) = &object {
        let attr = node.attr().await?;
        if attr.kind != Kind::Dir {
            return Err(Status::NOTDIR);
        }
        node.check(&c.cx.caller, &attr, READ).await.map_err(|e| status(&e))?;
        node.admit(c.cx, &attr, guard::data(READ)).await.map_err(|e| status(&e))?;
        if node.check(&c.cx.caller, &attr, EXECUTE).await.is_err() {
            asked = asked.and(OF_NAMES);
        }
    }
    attributes::readable(args.attributes)?;
    let args = &Readdir { attributes: asked, ..args.clone() };
    if args.cookie == 1 || args.cookie == 2 {
        return Err(Status::BAD_COOKIE);
    }
    if args.cookie != 0 && args.verifier != VERIFIER {
        return Err(Status::NOT_SAME);
    }
    let room = args.maxcount.min(c.cx.server.limits.max_listing) as usize;
    let left = room.checked_sub(EMPTY).ok_or(Status::TOOSMALL)?;
    let names_left = if args.dircount == 0 { usize::MAX } else { args.dircount as usize };
    let mut page = Page { entries: Vec::new(), left, names_left };
    let eof = match object {
        FsObject::Root => list_shares(c, args, &mut page).await?,
        FsObject::Node(node) => list(c, &node, args, &mut page).await?,
        FsObject::Attributes(of) => {
            let (skip, wanted) = (args.cookie.saturating_sub(OWN_COOKIES), args.attributes);
            let wanted = wanted.and(attributes::supported(c.minor));
            let add =
                |entry: Entry| page.add(Entry { cookie: entry.cookie.saturating_add(OWN_COOKIES), ..entry });
            named::list(c, &of, skip, wanted, add).await?
        }
    };
    if page.entries.is_empty() && !eof {
        return Err(Status::TOOSMALL);
    }
    Ok(ReaddirOk { verifier: VERIFIER, entries: page.entries, eof })
}

/// Fills the page; returns whether the directory ends with it.
async fn list(c: &Compound<'_>, dir: &Node<'_>, args: &Readdir, page: &mut Page) -> Result<bool, Status> {
    let mut behind = args.cookie.saturating_sub(OWN_COOKIES);
    loop {
        let Listing { entries, is_last } =
            dir.share.vfs.readdir(dir.id, behind, BATCH).await.map_err(|e| status(&e))?;
        if entries.is_empty() {
            return Ok(true);
        }
        for entry in entries {
            behind = entry.cookie;
            let cookie = behind.checked_add(OWN_COOKIES).ok_or(Status::SERVERFAULT)?;
            rt::yield_if_due().await;
            let entry = match &entry.attr {
                Ok(attr) => found(c, dir, args, entry.name, cookie, attr).await?,
                Err(why) => unread(c, dir, args, entry.name, cookie, why)?,
            };
            if !page.add(entry) {
                return Ok(false);
            }
        }
        if is_last {
            return Ok(true);
        }
    }
}

async fn list_shares(c: &Compound<'_>, args: &Readdir, page: &mut Page) -> Result<bool, Status> {
    // A cookie contains the share's id, so it stays valid when other shares come and go.
    let first = args.cookie.saturating_sub(OWN_COOKIES);
    let mut shares: Vec<_> = c.cx.list().iter().filter(|share| share.id.number() >= first).collect();
    shares.sort_unstable_by_key(|share| share.id.number());
    for share in shares {
        // A caller whose address is not admitted learns neither the share's attributes nor its handle.
        if matches!(c.cx.judge(share.id), Err(KeptOut::Network | KeptOut::Rights)) {
            continue;
        }
        let root = Node { share, id: NodeId::ROOT };
        let attr = root.attr().await?;
        let cookie = share.id.number().saturating_add(1 + OWN_COOKIES);
        let name = share.name.as_bytes().to_vec();
        let entry = match FsObject::Node(root).judge(c.cx) {
            Ok(()) => found(c, &root, args, name, cookie, &attr).await?,
            Err(refused) => {
                let wanted = args.attributes.and(OF_REFUSED);
                let mut values = attributes::of_node(c, &root, &attr, wanted).await?;
                values.rdattr_error = values.rdattr_error.map(|_| refused.0);
                Entry { cookie, name: shown(&name), attributes: values.fattr() }
            }
        };
        if !page.add(entry) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An entry whose attributes cannot be read. Its name is listed if the client asks for errors of entries (RFC 8881 18.23.3).
fn unread(
    c: &Compound<'_>,
    dir: &Node<'_>,
    args: &Readdir,
    name: Vec<u8>,
    cookie: u64,
    unread: &Unread,
) -> Result<Entry, Status> {
    let why = status(&unread.why.into());
    if !args.attributes.has(attr::RDATTR_ERROR) {
        return Err(why);
    }
    let wanted = args.attributes.and(attributes::supported(c.minor)).and(OF_UNREAD);
    Ok(Entry {
        cookie,
        name: shown(&name),
        attributes: attributes::of_unread(dir, unread, wanted, why).fattr(),
    })
}

async fn found(
    c: &Compound<'_>,
    dir: &Node<'_>,
    args: &Readdir,
    name: Vec<u8>,
    cookie: u64,
    attr: &Attr,
) -> Result<Entry, Status> {
    let wanted = args.attributes.and(attributes::supported(c.minor));
    let node = Node { id: attr.node, ..*dir };
    let values = attributes::of_node(c, &node, attr, wanted).await?;
    Ok(Entry { cookie, name: shown(&name), attributes: values.fattr() })
}
