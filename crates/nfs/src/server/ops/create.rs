//! CREATE (RFC 1813 3.3.8).

use weft_store::opens::{Access, Rights};
use weft_store::{Attr, Error, Exists, Kind, Make, SetAttr, Unsettled};
use weft_wire::nfs3::{CreateArgs, CreateHow, CreateOk, Outcome, WccOnly};

use super::{begin, created, failed, make_in};
use crate::server::attributes::changes;
use crate::server::caller::{EXECUTE, WRITE};
use crate::server::context::{Context, Node};
use crate::server::guard;

pub(in crate::server) async fn create(cx: &Context<'_>, args: CreateArgs) -> Outcome<CreateOk, WccOnly> {
    let (dir, before) = match begin(cx, &args.object.dir).await {
        Ok(begun) => begun,
        Err(status) => return failed(status, WccOnly::default()),
    };
    let how = match &args.how {
        CreateHow::Unchecked(set) => changes(set).map(|set| (Exists::Reuse, set)),
        CreateHow::Guarded(set) => changes(set).map(|set| (Exists::Fail, set)),
        CreateHow::Exclusive(verifier) => Ok((Exists::Verifier(*verifier), SetAttr::default())),
    };
    let (exists, set) = match how {
        Ok(how) => how,
        Err(status) => return failed(status, WccOnly { wcc: dir.wcc(before).await }),
    };
    let made = make(cx, &dir, &args.object.name.0, exists, set).await;
    created(cx, &dir, before, made).await
}

async fn make(
    cx: &Context<'_>,
    dir: &Node<'_>,
    name: &[u8],
    exists: Exists,
    set: SetAttr,
) -> Result<Attr, Error> {
    match exists {
        Exists::Reuse => find_or_make(cx, dir, name, set).await,
        Exists::Fail | Exists::Verifier(_) => make_in(cx, dir, name, Make::File, exists, set).await,
    }
}

/// How often others may remove or create the name between its lookup and its use.
const ATTEMPTS: usize = 4;

/// UNCHECKED: the existing file, or a new one. A lookup decides which. The checks of the two differ, so a file that
/// others remove after the lookup is not created without the checks of a new file, and one that others create is not
/// truncated without those of an existing file.
async fn find_or_make(cx: &Context<'_>, dir: &Node<'_>, name: &[u8], set: SetAttr) -> Result<Attr, Error> {
    let above = dir.getattr().await?;
    if above.kind == Kind::Dir {
        cx.caller.check(&above, EXECUTE)?;
    }
    let names_entry = !matches!(name, b"." | b"..");
    for _ in 0..ATTEMPTS {
        let known = dir.vfs().lookup(dir.id, name, false).await.ok().filter(|_| names_entry);
        match known {
            Some(known) => match reuse(cx, dir, &known, set.size).await {
                Err(Error::Stale) => {}
                reused => return reused,
            },
            None => match make_in(cx, dir, name, Make::File, Exists::Fail, set.clone()).await {
                Err(Error::Exists) => {}
                made => return made,
            },
        }
    }
    // The client repeats the request by itself.
    Err(Error::Sharing)
}

/// An existing file, with its size set. No other attribute is set.
async fn reuse(cx: &Context<'_>, dir: &Node<'_>, known: &Attr, size: Option<u64>) -> Result<Attr, Error> {
    match known.kind {
        Kind::File => {}
        Kind::Dir => return Err(Error::IsDir),
        Kind::Symlink | Kind::Special(_) => return Err(Error::Exists),
    }
    let file = Node { id: known.node, ..*dir };
    let unsettled = if size.is_some() {
        // Truncating an existing file: its other opens may deny that, and so may its mode.
        file.check_data(&cx.caller, known, WRITE).await?;
        file.admit(cx, known, guard::data(WRITE)).await?;
        file.pass(Access::Overwrite, Rights::WRITE).await?;
        file.set(known, SetAttr { size, ..SetAttr::default() }, true).await?;
        Unsettled::existing(None, dir.id)
    } else {
        Unsettled::existing(Some(file.id), dir.id)
    };
    let attr = file.getattr().await?;
    file.vfs().settle(unsettled).await?;
    Ok(attr)
}
