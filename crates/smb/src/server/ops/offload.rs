//! OFFLOAD_READ and OFFLOAD_WRITE: a client copies with a token that represents the bytes.
//!
//! Spec: [MS-FSA] 2.1.5.10.20, 2.1.5.10.21; [MS-FSCC] 2.1.11, 2.3.41 to 2.3.44. Owns the meaning of the tokens, at most
//! [`MAX_TOKENS`], each for at most [`MAX_TTL`] and with a descriptor of its file. Old bytes are not kept: a token is
//! valid until its file changes; then, or when it has expired, the client reads again.
//!
//! A token is a number and its HMAC with a key of this run, which includes the user's name: nobody can forge one, and
//! nobody else can use one. A changed ctime reveals a changed file. The ctime advances in steps of the kernel's tick,
//! so a token is issued only once the last change is older than that.
//!
//! A token ends with the right to read its share, and with the share ([`Tokens::keep_only`]). An OFFLOAD_READ under way
//! may enter one afterwards: it looks again whether its tree is still connected.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use aws_lc_rs::hmac;
use weft_machine::{Time, clock, random, rt};
use weft_store::vfs::{Error, Kind, NodeId, OpenFile, ShareKey, Timestamp, Vfs};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::ioctl::Request;
use weft_wire::smb2::offload::{OffloadRead, OffloadReadAnswer, OffloadWrite, OffloadWriteAnswer, Token};

use super::control_output::Output;
use super::holes;
use super::opens::Open;
use crate::server::answer::Failure;
use crate::server::context::OpContext;

/// Tokens of all clients together, and per user.
const MAX_TOKENS: usize = 4096;
const MAX_TOKENS_OF_USER: usize = 512;
/// How long a token is valid if the client names no time, and the longest time that it can name.
const DEFAULT_TTL: Duration = Duration::from_secs(30);
const MAX_TTL: Duration = Duration::from_secs(300);
/// The most that one OFFLOAD_WRITE writes; its client requests the remainder.
const MAX_WRITE: u64 = 64 << 20;
/// The sector size of FileFsSizeInformation.
const SECTOR: u64 = 512;
/// Two ticks of the slowest kernel's clock.
const SETTLED: Duration = Duration::from_millis(20);
/// A file that is written all the time gets no token.
const MAX_WAITS: usize = 5;
/// Our TokenType.
const KIND: u32 = u32::from_be_bytes(*b"WEFT");

/// The tokens of this run and their meaning.
#[derive(Default)]
pub(crate) struct Tokens {
    known: Mutex<HashMap<u64, TokenSource>>,
    key: OnceLock<hmac::Key>,
}

#[derive(Clone)]
struct TokenSource {
    user: Arc<str>,
    share: ShareKey,
    vfs: Vfs,
    node: NodeId,
    file: OpenFile,
    changed: Timestamp,
    offset: u64,
    len: u64,
    until: Time,
}

impl Tokens {
    fn key(&self) -> Result<&hmac::Key, NtStatus> {
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        let bytes = random::bytes::<32>().map_err(|e| Failure::from(e).status)?;
        Ok(self.key.get_or_init(|| hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    fn give(self: &Arc<Tokens>, number: u64, source: TokenSource) -> Result<Token, NtStatus> {
        let (user, until) = (source.user.clone(), source.until);
        {
            let mut known = lock(&self.known);
            let his = known.values().filter(|token| token.user == user).count();
            if known.len() >= MAX_TOKENS || his >= MAX_TOKENS_OF_USER {
                tracing::warn!("limit reached: tokens of offloaded copies");
                return Err(NtStatus::INSUFFICIENT_RESOURCES);
            }
            known.insert(number, source);
        }
        rt::spawn(expire(Arc::downgrade(self), number, until)).detach();
        let mut id = number.to_le_bytes().to_vec();
        id.extend_from_slice(hmac::sign(self.key()?, &signed(number, &user)).as_ref());
        Ok(Token::Own { kind: KIND, id })
    }

    /// The meaning of a token, if we issued it to this user and it is still valid.
    fn find(&self, token: &Token, user: &str) -> Result<TokenSource, NtStatus> {
        let Token::Own { kind: KIND, id } = token else { return Err(NtStatus::INVALID_TOKEN) };
        let Some((number, tag)) = id.split_first_chunk() else { return Err(NtStatus::INVALID_TOKEN) };
        let number = u64::from_le_bytes(*number);
        // Verified in constant time, before any look-up.
        hmac::verify(self.key()?, &signed(number, user), tag).map_err(|_| NtStatus::INVALID_TOKEN)?;
        let known = lock(&self.known);
        known.get(&number).filter(|known| known.until > rt::now()).cloned().ok_or(NtStatus::INVALID_TOKEN)
    }

    /// Ends the tokens of users and shares for which `stays` is false.
    pub(super) fn keep_only(&self, stays: impl Fn(&str, ShareKey) -> bool) {
        let mut ended = Vec::new();
        let mut known = lock(&self.known);
        ended.extend(known.extract_if(|_, source| !stays(&source.user, source.share)));
        drop(known);
        // Closing files can take time.
        drop(ended);
    }

    fn end(&self, number: u64) {
        let ended = lock(&self.known).remove(&number);
        drop(ended);
    }

    /// Number of tokens.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.known).len()
    }
}

fn signed(number: u64, user: &str) -> Vec<u8> {
    [&number.to_le_bytes(), user.as_bytes()].concat()
}

async fn expire(tokens: Weak<Tokens>, number: u64, until: Time) {
    rt::sleep_until(until).await;
    if let Some(tokens) = tokens.upgrade() {
        tokens.end(number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every update of its content is one call that cannot panic half-way, so a poisoned lock is harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn aligned(numbers: &[u64]) -> bool {
    numbers.iter().all(|number| number.is_multiple_of(SECTOR))
}

/// The data of a plain file, or `refusal`: streams, sparse files and non-files are copied in other ways.
async fn data(open: &Open, refusal: NtStatus) -> Result<&OpenFile, Failure> {
    let file = open.file.as_ref().filter(|file| open.kind == Kind::File && file.is_plain()).ok_or(refusal)?;
    if holes::sparse(open).await? {
        return Err(refusal.into());
    }
    Ok(file)
}

/// [MS-FSA] 2.1.5.10.20.
pub(super) async fn read(cx: &OpContext, request: &Request, open: &Open) -> Result<Output, Failure> {
    let wish = OffloadRead::parse(&request.input).map_err(|_| NtStatus::BUFFER_TOO_SMALL)?;
    if request.max_output_response < OffloadReadAnswer::LEN {
        return Err(NtStatus::BUFFER_TOO_SMALL.into());
    }
    let end = wish.offset.checked_add(wish.len).filter(|&end| i64::try_from(end).is_ok());
    let Some(end) = end.filter(|_| aligned(&[wish.offset, wish.len]) && wish.size == OffloadRead::LEN) else {
        return Err(NtStatus::INVALID_PARAMETER.into());
    };
    if wish.len == 0 {
        return Ok(output(OffloadReadAnswer { zero_beyond: false, len: 0, token: Token::Zeros }));
    }
    let file = data(open, NtStatus::OFFLOAD_READ_FILE_NOT_SUPPORTED).await?;
    open.require_any(AccessMask::FILE_READ_DATA | AccessMask::FILE_EXECUTE)?;
    open.claim.may_read(wish.offset, wish.len)?;
    let (changed, size) = settled(open).await?;
    if size < SECTOR {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    if wish.offset >= size {
        return Err(NtStatus::END_OF_FILE.into());
    }
    let ttl = match wish.ttl_ms {
        0 => DEFAULT_TTL,
        ms => Duration::from_millis(ms.into()).min(MAX_TTL),
    };
    let share = cx.tree().share.as_ref().ok_or(NtStatus::OFFLOAD_READ_FILE_NOT_SUPPORTED)?.key();
    let source = TokenSource {
        share,
        user: cx.session().user.clone(),
        vfs: open.vfs.clone(),
        node: open.node,
        file: file.clone(),
        changed,
        offset: wish.offset,
        // The last sector is whole; the bytes beyond the end of the file are zeros.
        len: end.min(size.next_multiple_of(SECTOR)).saturating_sub(wish.offset),
        until: rt::now() + ttl,
    };
    let len = source.len;
    let (tokens, number) = (&cx.server().handles.tokens, cx.server().handles.number());
    let token = tokens.give(number, source)?;
    if !cx.session().trees().iter().any(|tree| Arc::ptr_eq(tree, cx.tree())) {
        tokens.end(number);
        return Err(NtStatus::NETWORK_NAME_DELETED.into());
    }
    Ok(output(OffloadReadAnswer { zero_beyond: end >= size, len, token }))
}

fn output(answer: OffloadReadAnswer) -> Output {
    let mut bytes = Vec::with_capacity(OffloadReadAnswer::LEN as usize);
    answer.emit(&mut bytes);
    bytes.into()
}

/// The time of the file's last change, old enough that any later change has another time, and its size at that time.
async fn settled(open: &Open) -> Result<(Timestamp, u64), Failure> {
    for _ in 0..MAX_WAITS {
        let attr = open.vfs.getattr(open.node).await?;
        let age = age(attr.ctime);
        if age > SETTLED {
            return Ok((attr.ctime, attr.size));
        }
        rt::sleep(SETTLED.saturating_sub(age).saturating_add(Duration::from_millis(1))).await;
    }
    Err(NtStatus::OFFLOAD_READ_FILE_NOT_SUPPORTED.into())
}

/// The age of a timestamp; zero for one in the future, which a clock that was set back leaves.
fn age(then: Timestamp) -> Duration {
    let now = clock::wall();
    let then = Duration::new(u64::try_from(then.secs).unwrap_or(0), then.nanos);
    now.saturating_sub(then)
}

/// [MS-FSA] 2.1.5.10.21.
pub(super) async fn write(cx: &OpContext, request: &Request, open: &Open) -> Result<Output, Failure> {
    let wish = OffloadWrite::parse(&request.input).map_err(|_| NtStatus::BUFFER_TOO_SMALL)?;
    if request.max_output_response < OffloadWriteAnswer::LEN {
        return Err(NtStatus::BUFFER_TOO_SMALL.into());
    }
    let end = wish.offset.checked_add(wish.len);
    let whole = aligned(&[wish.offset, wish.len, wish.transfer_offset]) && wish.size == OffloadWrite::LEN;
    if !whole || end.is_none_or(|end| i64::try_from(end).is_err()) {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    if wish.len == 0 {
        return Ok(written(0));
    }
    let to = data(open, NtStatus::OFFLOAD_WRITE_FILE_NOT_SUPPORTED).await?;
    open.require_any(AccessMask::FILE_WRITE_DATA | AccessMask::FILE_APPEND_DATA)?;
    open.claim.may_write(wish.offset, wish.len)?;
    let size = to.len().await?;
    if size < SECTOR {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    if wish.offset >= size {
        return Err(NtStatus::END_OF_FILE.into());
    }
    // Clients count in whole sectors, but the file must not grow.
    let room = size.saturating_sub(wish.offset);
    let len = wish.len.min(MAX_WRITE).min(room.next_multiple_of(SECTOR));
    let token = wish.token.as_ref().ok_or(NtStatus::INVALID_TOKEN)?;
    let done = match token {
        Token::Zeros => {
            to.zero_range(wish.offset, len.min(room)).await?;
            len
        }
        token => {
            let from = cx.server().handles.tokens.find(token, &cx.session().user)?;
            let len = len.min(from.len.checked_sub(wish.transfer_offset).ok_or(NtStatus::INVALID_PARAMETER)?);
            copy(open, to, (wish.offset, len.min(room)), &from, wish.transfer_offset).await?;
            len
        }
    };
    open.written(0).await;
    Ok(written(done))
}

fn written(len: u64) -> Output {
    let mut bytes = Vec::new();
    OffloadWriteAnswer { len }.emit(&mut bytes);
    bytes.into()
}

/// Copies the bytes of a token, unless its file has changed, before or during the copy.
async fn copy(
    open: &Open,
    to: &OpenFile,
    (at, len): (u64, u64),
    from: &TokenSource,
    skip: u64,
) -> Result<(), Failure> {
    let unchanged = async || match from.vfs.getattr(from.node).await {
        Ok(attr) if attr.ctime == from.changed => Ok(()),
        Ok(_) | Err(Error::NotFound | Error::Stale) => Err(Failure::from(NtStatus::INVALID_TOKEN)),
        Err(e) => Err(e.into()),
    };
    unchanged().await?;
    let start = from.offset.checked_add(skip).ok_or(NtStatus::INVALID_PARAMETER)?;
    // Some file systems share the blocks; the others copy in the kernel.
    let copied = match to.clone_range(at, &from.file, start, len).await {
        Ok(()) => len,
        Err(Error::NotSupported | Error::Invalid) => to.copy_from(at, &from.file, start, len).await?,
        Err(e) => return Err(e.into()),
    };
    if let Some(rest) = len.checked_sub(copied).filter(|rest| *rest > 0) {
        to.zero_range(at.saturating_add(copied), rest).await?;
    }
    // Within one file this copy itself changes the ctime.
    let same = from.node == open.node && Arc::ptr_eq(from.vfs.opens(), open.vfs.opens());
    if same { Ok(()) } else { unchanged().await }
}
