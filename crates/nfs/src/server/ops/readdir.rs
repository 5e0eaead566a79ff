//! READDIR, and what it shares with READDIRPLUS (RFC 1813 3.3.16).
//!
//! The store does not list "." and "..": they come first here, with cookies 1 and 2, and the store's own cookies are
//! shifted by two. The store's cookies stay valid as long as the directory exists, so the verifier is always zero.

use bytes::Bytes;
use weft_store::{self as store, Error, Kind};
use weft_wire::nfs3::{
    AttrOnly, Entry, Listing, Name, Outcome, PostOpAttr, ReaddirArgs, ReaddirOk, Status, Verifier,
};
use weft_wire::xdr::pad;

use super::{failed, failed_at};
use crate::server::caller::{EXECUTE, READ};
use crate::server::context::{Context, Node};
use crate::server::guard;

pub(super) const VERIFIER: Verifier = [0; 8];
/// The shift of the store's cookies.
const OWN_COOKIES: u64 = 2;
/// Entries requested from the store at a time.
const MAX_BATCH: usize = 1024;

/// Bytes of a listing without entries: attributes, verifier, the end of the list, eof.
pub(super) const EMPTY_LISTING: usize = 4 + 84 + 8 + 4 + 4;

/// One name, for either procedure.
pub(super) struct Found {
    pub name: Bytes,
    pub cookie: u64,
    /// Its attributes, or the number that the directory lists.
    pub attr: Result<store::Attr, store::Unread>,
}

impl Found {
    pub fn fileid(&self) -> u64 {
        match &self.attr {
            Ok(attr) => attr.fileid,
            Err(unread) => unread.fileid,
        }
    }

    /// Bytes of an entry3 including its "value follows" word.
    pub fn len(&self) -> usize {
        const AROUND: usize = 4 + 8 + 4 + 8;
        self.name.len().saturating_add(pad(self.name.len())).saturating_add(AROUND)
    }
}

/// The names after a cookie.
pub(super) struct Names {
    pub found: Vec<Found>,
    pub eof: bool,
    /// The caller may look names up here; with read permission alone, it learns names and nothing about their files.
    pub enters: bool,
}

/// At most `max` names after `cookie`.
pub(super) async fn names(cx: &Context<'_>, dir: &Node<'_>, cookie: u64, max: usize) -> Result<Names, Error> {
    let mut found = Vec::new();
    let attr = dir.getattr().await?;
    if attr.kind != Kind::Dir {
        return Err(Error::NotDir);
    }
    dir.check(&cx.caller, &attr, READ).await?;
    let enters = dir.check(&cx.caller, &attr, EXECUTE).await.is_ok();
    dir.admit(cx, &attr, guard::data(READ)).await?;
    if cookie < 1 {
        found.push(Found { name: Bytes::from_static(b"."), cookie: 1, attr: Ok(attr) });
    }
    if cookie < 2 {
        let attr = dir.vfs().as_server().lookup(dir.id, b"..", false).await?;
        found.push(Found { name: Bytes::from_static(b".."), cookie: 2, attr: Ok(attr) });
    }
    let behind = cookie.saturating_sub(OWN_COOKIES);
    let listing = dir.vfs().readdir(dir.id, behind, max.clamp(1, MAX_BATCH)).await?;
    for entry in listing.entries {
        let cookie = entry.cookie.checked_add(OWN_COOKIES).ok_or(Error::Limit("directory cookies"))?;
        found.push(Found { name: Bytes::from(entry.name), cookie, attr: entry.attr });
    }
    Ok(Names { found, eof: listing.is_last, enters })
}

/// Takes names as long as they fit; `Err` if even the first does not.
pub(super) fn fit(names: Names, fits: impl FnMut(&Found) -> bool) -> Result<Names, Status> {
    let Names { mut found, eof, enters } = names;
    let (all, mut fits) = (found.len(), fits);
    let taken = found.iter().take_while(|entry| fits(entry)).count();
    if taken == 0 && all > 0 {
        return Err(Status::TOOSMALL);
    }
    found.truncate(taken);
    Ok(Names { found, eof: eof && taken == all, enters })
}

pub(super) fn listing<E>(attributes: PostOpAttr, names: Names, entry: impl FnMut(Found) -> E) -> Listing<E> {
    let eof = names.eof;
    Listing { attributes, verifier: VERIFIER, entries: names.found.into_iter().map(entry).collect(), eof }
}

pub(in crate::server) async fn readdir(cx: &Context<'_>, args: ReaddirArgs) -> Outcome<ReaddirOk, AttrOnly> {
    let dir = match cx.node(&args.dir).await {
        Ok(dir) => dir,
        Err(status) => return failed(status, AttrOnly::default()),
    };
    let room = args.count.min(cx.server.limits.max_listing) as usize;
    // An entry takes at least 28 bytes.
    let names = match names(cx, &dir, args.cookie, room / 28).await {
        Ok(names) => names,
        Err(e) => return failed_at(&dir, &e).await,
    };
    let mut used = EMPTY_LISTING;
    let fits = |entry: &Found| {
        used = used.saturating_add(entry.len());
        used <= room
    };
    let attributes = dir.post().await;
    match fit(names, fits) {
        Ok(names) => Ok(listing(attributes, names, |found| Entry {
            fileid: found.fileid(),
            name: Name(found.name),
            cookie: found.cookie,
        })),
        Err(status) => failed(status, AttrOnly { attributes }),
    }
}
