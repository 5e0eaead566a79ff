//! Stores streams that are too large for an extended attribute: in files of a hidden folder at the share's root.
//!
//! ```text
//! .weft-streams/             0700, the server's own user's
//!   <file, 48 digits>/       one for each file or directory that has large streams, named by its `Stable`
//!     <number, 16 digits>    0600; the stream's attribute leads to it:
//!
//! 0                          8
//! | 89 57 45 46 54 0d 0a 1a | number, little-endian | 16     number 0: the stream is empty, and has no file
//! ```
//!
//! Files are identified by their `Stable`: a program that moves a file on the host moves its attributes with it, and
//! the number leads to the bytes from anywhere in the share. A copy made on the host is a different file: its
//! attribute leads nowhere, so nobody can read another file's stream by forging an attribute. Each stream gets a
//! random number and a new file, so that no two streams ever share a file, even one after the other, whatever their
//! names. (A rename cut short by a crash leaves one stream under two names, see below.) On file systems that do not
//! store birth times, a later file with the same inode has the same identity; its attributes do not contain the
//! numbers. The attribute of a large stream has 16 bytes, and a new stream reserves them from the start, so that it
//! can always be moved out of a full attribute block.
//!
//! The order of writes, so that a crash or a failure in between loses nothing that was guaranteed:
//!
//! | what | steps | a crash in between leaves |
//! |---|---|---|
//! | move out | the file is made and written; fsync of it and of the three directories; one setxattr leads to it | the stream as it was, and a file that nothing leads to |
//! | the same, of a stream that is empty and that nobody has flushed | the fsyncs wait for the first flush | no such stream, perhaps: nobody was promised one |
//! | flush | fsync of the file; of the three directories unless that was done before; of the stream's file or directory, for the attribute | no answer was sent |
//! | remove | removexattr; unlink of the file; rmdir of the last one's folder | a file that nothing leads to |
//! | rename | where it replaces a stream: fsync of its own file and of the three directories; setxattr of the new name, which replaces the bytes of one that has it; removexattr of the old name; unlink of what was replaced | the stream under both names, until one of them is removed; or a file that nothing leads to |
//! | last name of a file | unlink of it; then of its streams | a folder of no file |
//!
//! Files without an attribute, and folders without a file, are removed by `backend::dir::orphans`. Only files on the
//! device of the share's root have large streams: the number of any other device may change when the host restarts,
//! and with it the name of the folder. On other devices, a stream that outgrows its attribute is refused as if the
//! disk were full. So is replacing an attribute that leads to a file, which earlier versions created.
//! [`super::stream`] decides which streams are large.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::sync::{Arc, Mutex, PoisonError};

use weft_machine::random;

use super::{
    Attr, Backend, Caller, Created, Error, Exists, Kind, Make, NodeId, Op, OpenFile, Outcome, SetAttr, Stable,
};
use crate::backend::{fold, is_called};

/// The folder's name, hidden from clients in every directory: a share's folder may be inside of another share, where
/// the protection of the files with these streams would not be checked.
pub(crate) const FOLDER: &[u8] = b".weft-streams";
/// The prefix of attributes that store streams.
pub(crate) const ATTRIBUTES: &[u8] = b"weft.stream.";
const MAGIC: [u8; 8] = *b"\x89WEFT\r\n\x1a";
/// Entries read at a time.
const BATCH: usize = 256;
/// How often creating a file is retried if its name is taken, or its folder was removed with another stream
/// meanwhile.
const MAX_TRIES: usize = 16;
/// Maximum number of devices that the log reports for not having large streams.
const MAX_TOLD: usize = 64;

/// The contents of a stream's attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// The stream's bytes.
    Here(Vec<u8>),
    /// The number of the file with the bytes; 0 if the stream is empty.
    Beside(u64),
}

impl Kept {
    pub(super) const EMPTY: Kept = Kept::Beside(0);

    pub(super) fn parse(value: Vec<u8>) -> Kept {
        match value.split_first_chunk() {
            Some((&MAGIC, rest)) => match <[u8; 8]>::try_from(rest) {
                Ok(number) => Kept::Beside(u64::from_le_bytes(number)),
                Err(_) => Kept::Here(value),
            },
            _ => Kept::Here(value),
        }
    }

    /// The bytes as an attribute, if allowed: bytes that look like a reference to a file must be stored in a file.
    pub(super) fn here(bytes: Vec<u8>) -> Option<Kept> {
        if bytes.is_empty() {
            return Some(Kept::EMPTY);
        }
        (!bytes.starts_with(&MAGIC)).then_some(Kept::Here(bytes))
    }

    /// The same, with an empty value if there are no bytes.
    pub(super) fn or_no_bytes(self) -> Kept {
        if self == Kept::EMPTY { Kept::Here(Vec::new()) } else { self }
    }

    pub(super) fn emit(self) -> Vec<u8> {
        match self {
            Kept::Here(bytes) => bytes,
            Kept::Beside(number) => [MAGIC, number.to_le_bytes()].concat(),
        }
    }
}

/// Whether a name is the folder's, in any case.
pub(super) fn hides(name: &[u8]) -> bool {
    // Most names begin differently.
    name.first() == FOLDER.first() && fold(name) == fold(FOLDER)
}

/// The same for a look-up that ignores case, which also finds 8.3 names.
pub(super) fn hides_folded(name: &[u8]) -> bool {
    (name.first() == FOLDER.first() || name.contains(&b'~')) && is_called(FOLDER, &fold(name))
}

/// The name of the folder with a file's streams.
pub(crate) fn folder_of(stable: &Stable) -> Vec<u8> {
    use std::fmt::Write;
    stable
        .0
        .iter()
        .fold(String::with_capacity(48), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
        .into_bytes()
}

/// The file whose streams a folder holds.
pub(crate) fn whose(name: &[u8]) -> Option<Stable> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut stable = [0; 24];
    let (digits, rest) = name.as_chunks::<2>();
    if digits.len() != stable.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in stable.iter_mut().zip(digits) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(Stable(stable))
}

fn file_name(number: u64) -> Vec<u8> {
    format!("{number:016x}").into_bytes()
}

/// The number of a stream file with this name.
pub(crate) fn number_of(name: &[u8]) -> Option<u64> {
    let number = u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()?;
    (file_name(number) == name).then_some(number)
}

/// The number of the file that an attribute's value leads to.
pub(crate) fn leads_to(value: Vec<u8>) -> Option<u64> {
    match Kept::parse(value) {
        Kept::Beside(number) if number != 0 => Some(number),
        _ => None,
    }
}

/// The file's device, if it differs from that of the share's root.
fn elsewhere(stable: &Stable) -> Option<u32> {
    let [.., a, b, c, d] = stable.0;
    Some(u32::from_le_bytes([a, b, c, d])).filter(|device| *device != 0)
}

/// Whether the log has not yet reported this device.
fn is_news(told: &Mutex<Vec<u32>>, device: u32) -> bool {
    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
    let news = !told.contains(&device) && told.len() < MAX_TOLD;
    if news {
        told.push(device);
    }
    news
}

/// [`Error::NoSpace`] for a file on another device than the share's root.
fn require_home(stable: &Stable) -> Result<(), Error> {
    static TOLD: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    let Some(device) = elsewhere(stable) else { return Ok(()) };
    if is_news(&TOLD, device) {
        tracing::warn!(
            "streams that do not fit into an extended attribute are refused for files on device {}:{}, because it differs from the device of \
             their share's root; a file system mounted inside a share, or a subvolume, accepts them if it is served as a \
             separate share",
            device >> 20,
            device & 0xf_ffff,
        );
    }
    Err(Error::NoSpace)
}

/// Never 0, and unused by other streams.
fn new_number() -> Result<u64, Error> {
    let number = random::bytes().map_err(|e| Error::Io(e.into()))?;
    Ok(u64::from_ne_bytes(number).max(1))
}

async fn attr(backend: &dyn Backend, op: Op) -> Result<Attr, Error> {
    match backend.submit(op, Caller::Server).await? {
        Outcome::Attr(attr) | Outcome::Created(Created { attr, .. }) => Ok(attr),
        other => unreachable!("backend answered {other:?}"),
    }
}

/// The node of a name, if the name exists.
async fn child(backend: &dyn Backend, dir: NodeId, name: &[u8]) -> Result<Option<Attr>, Error> {
    match attr(backend, Op::Lookup { dir, name: name.to_vec(), fold_case: false }).await {
        Ok(attr) => Ok(Some(attr)),
        Err(Error::NotFound | Error::NotDir) => Ok(None),
        Err(e) => Err(e),
    }
}

async fn stable_of(backend: &dyn Backend, node: NodeId) -> Result<Stable, Error> {
    match backend.submit(Op::Stable { node }, Caller::Server).await? {
        Outcome::Stable(stable) => Ok(stable),
        other => unreachable!("backend answered {other:?}"),
    }
}

/// [`Error::NoSpace`] for a file whose large streams cannot be reached.
pub(super) async fn require_reach(backend: &dyn Backend, base: NodeId) -> Result<(), Error> {
    require_home(&stable_of(backend, base).await?)
}

/// The folder, if it exists.
async fn folder(backend: &dyn Backend) -> Result<Option<NodeId>, Error> {
    let found = child(backend, NodeId::ROOT, FOLDER).await?;
    Ok(found.filter(|found| found.kind == Kind::Dir).map(|found| found.node))
}

/// Whether any file of the share has a large stream: one system call.
pub(super) async fn any(backend: &dyn Backend) -> Result<bool, Error> {
    Ok(folder(backend).await?.is_some())
}

/// The location of a file's large streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owned {
    folder: NodeId,
    node: NodeId,
    stable: Stable,
}

impl Owned {
    /// The directories that must be durable for its streams, innermost first.
    fn directories(&self) -> [NodeId; 3] {
        [self.node, self.folder, NodeId::ROOT]
    }
}

/// The large streams of a file, if it has any.
pub(super) async fn of(backend: &dyn Backend, stable: Stable) -> Result<Option<Owned>, Error> {
    if elsewhere(&stable).is_some() {
        return Ok(None);
    }
    let Some(folder) = folder(backend).await? else { return Ok(None) };
    let found = child(backend, folder, &folder_of(&stable)).await?;
    Ok(found.map(|found| Owned { folder, node: found.node, stable }))
}

/// The file of one stream, if it exists.
pub(super) async fn find(backend: &dyn Backend, base: NodeId, number: u64) -> Result<Option<Attr>, Error> {
    let stable = stable_of(backend, base).await?;
    let Some(owned) = of(backend, stable).await? else { return Ok(None) };
    let found = child(backend, owned.node, &file_name(number)).await?;
    Ok(found.filter(|found| found.kind == Kind::File))
}

/// Creates a file for one stream, which must not exist yet, and returns its number.
pub(super) async fn make(backend: &dyn Backend, base: NodeId) -> Result<(u64, NodeId), Error> {
    let stable = stable_of(backend, base).await?;
    require_home(&stable)?;
    let make = async |dir, name: Vec<u8>, make, exists, mode| {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        attr(backend, Op::Create { dir, name, make, exists, set }).await
    };
    let folder = make(NodeId::ROOT, FOLDER.to_vec(), Make::Dir, Exists::Reuse, 0o700).await?;
    // Another user on the host may have created it, to read the data put there.
    let own = rustix::process::geteuid().as_raw();
    if backend.changes_on_the_host() && (folder.uid != own || folder.mode & 0o077 != 0) {
        tracing::error!(
            "{} does not belong exclusively to this server's user: streams that are too large for an extended attribute are refused; \
             remove it, or fix it with chown and chmod 700",
            String::from_utf8_lossy(FOLDER),
        );
        return Err(Error::Access);
    }
    let mut failed = Error::Stale;
    for _ in 0..MAX_TRIES {
        let number = new_number()?;
        let owner = make(folder.node, folder_of(&stable), Make::Dir, Exists::Reuse, 0o700).await?;
        match make(owner.node, file_name(number), Make::File, Exists::Fail, 0o600).await {
            Ok(file) => return Ok((number, file.node)),
            Err(e @ (Error::Exists | Error::NotFound | Error::Stale)) => failed = e,
            Err(e) => return Err(e),
        }
    }
    Err(failed)
}

/// Makes the names durable that lead to a file's stream files. False if they no longer exist.
pub(super) async fn sync_names(backend: &dyn Backend, base: NodeId) -> Result<bool, Error> {
    let stable = stable_of(backend, base).await?;
    let Some(owned) = of(backend, stable).await? else { return Ok(false) };
    for dir in owned.directories() {
        backend.submit(Op::SyncDir { dir }, Caller::Server).await?;
    }
    Ok(true)
}

/// Opens the file of a stream, for writing if possible.
pub(super) async fn open(backend: &Arc<dyn Backend>, node: NodeId) -> Result<OpenFile, Error> {
    let open = async |write| match backend.submit(Op::Open { node, write }, Caller::Server).await? {
        Outcome::File(file) => Ok(file),
        other => unreachable!("backend answered {other:?}"),
    };
    match open(true).await {
        Err(Error::ReadOnly | Error::Access | Error::NotPermitted) => open(false).await,
        other => other,
    }
}

/// Removes a name that may already be gone.
async fn remove_name(backend: &dyn Backend, op: Op) -> Result<(), Error> {
    match backend.submit(op, Caller::Server).await {
        Ok(_) | Err(Error::NotFound) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Removes the file of one stream, and the folder after its last stream.
pub(super) async fn remove(backend: &dyn Backend, base: NodeId, number: u64) -> Result<(), Error> {
    let stable = stable_of(backend, base).await?;
    let Some(owned) = of(backend, stable).await? else { return Ok(()) };
    remove_name(backend, Op::Remove { dir: owned.node, name: file_name(number) }).await?;
    remove_folder(backend, owned).await
}

async fn remove_folder(backend: &dyn Backend, owned: Owned) -> Result<(), Error> {
    match remove_name(backend, Op::Rmdir { dir: owned.folder, name: folder_of(&owned.stable) }).await {
        Err(Error::NotEmpty) => Ok(()),
        other => other,
    }
}

/// Removes all streams of a deleted file.
pub(super) async fn purge(backend: &dyn Backend, owned: Owned) -> Result<(), Error> {
    // Each round starts from the beginning, because the names read before are removed.
    loop {
        let op = Op::Readdir { dir: owned.node, cookie: 0, max: BATCH, xattrs: false };
        let entries = match backend.submit(op, Caller::Server).await? {
            Outcome::Entries(listing) => listing.entries,
            other => unreachable!("backend answered {other:?}"),
        };
        if entries.is_empty() {
            return remove_folder(backend, owned).await;
        }
        for entry in entries {
            remove_name(backend, Op::Remove { dir: owned.node, name: entry.name }).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_leads_to_a_file_only_if_it_says_so_exactly() {
        let leads = Kept::Beside(0x0102_0304_0506_0708).emit();
        assert_eq!(leads, b"\x89WEFT\r\n\x1a\x08\x07\x06\x05\x04\x03\x02\x01");
        assert_eq!(Kept::parse(leads.clone()), Kept::Beside(0x0102_0304_0506_0708));
        let longer = [&leads[..], b"x"].concat();
        for bytes in [&b""[..], b"x", &leads[..15], &leads[1..], &longer] {
            assert_eq!(Kept::parse(bytes.to_vec()), Kept::Here(bytes.to_vec()));
        }
        // A client cannot create a reference by writing it.
        assert_eq!((Kept::here(leads), Kept::here(longer)), (None, None));
        assert_eq!(Kept::here(Vec::new()), Some(Kept::EMPTY));
    }

    #[test]
    fn files_are_named_by_their_number() {
        for number in [1, 0xfedc_ba98_7654_3210, u64::MAX] {
            assert_eq!(number_of(&file_name(number)), Some(number));
        }
        for wrong in ["", "1", "+00000000000001", "+000000000000001", "00000000000000001", "000000000000000A"]
        {
            assert_eq!(number_of(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(leads_to(Kept::EMPTY.emit()), None);
        assert_eq!(leads_to(Kept::Beside(7).emit()), Some(7));
    }

    #[test]
    fn a_device_is_told_of_once() {
        let told = Mutex::default();
        assert!(is_news(&told, 5) && !is_news(&told, 5));
        assert!(
            (6..6 + 2 * MAX_TOLD as u32).filter(|device| is_news(&told, *device)).count() == MAX_TOLD - 1
        );
        let home = Stable([7; 24]);
        assert_eq!(elsewhere(&home), Some(0x0707_0707));
        assert!(matches!(require_home(&home), Err(Error::NoSpace)));
        assert!(require_home(&Stable(std::array::from_fn(|i| u8::from(i < 20)))).is_ok());
    }

    #[test]
    fn folders_are_named_by_their_file() {
        let stable = Stable(std::array::from_fn(|i| (i * 11) as u8));
        let name = folder_of(&stable);
        assert_eq!((name.len(), whose(&name)), (48, Some(stable)));
        let mut other = name.clone();
        other[3] = b'g';
        for wrong in [&b""[..], &name[..47], &other, b"lost+found"] {
            assert_eq!(whose(wrong), None);
        }
    }

    #[test]
    fn the_folder_is_hidden_by_any_of_its_names() {
        let short = crate::backend::short_name(FOLDER).unwrap();
        assert!(hides(b".Weft-Streams") && hides_folded(".weft-\u{17f}treams".as_bytes()));
        assert!(hides_folded(short.as_bytes()) && !hides(short.as_bytes()));
        assert!(!hides(b".weft") && !hides_folded(b"A~1"));
    }
}
