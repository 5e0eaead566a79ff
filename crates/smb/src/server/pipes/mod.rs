//! Named pipes: opens on IPC$, and the bytes that go in and come out.
//!
//! Spec: [MS-SMB2] 3.3.5.9 (CREATE), 3.3.5.12, 3.3.5.13, 3.3.5.15.3 and .4 (transceive, peek); [MS-FSCC] 2.3.41 to
//! 2.3.47, 2.4.34, 2.4.35. Owns the pipes of a tree. A pipe has one reader and writer, its client; the other end is an
//! [`Association`], which answers at once, so only a READ that precedes its WRITE ever waits. There are no pipes of
//! other programs, and no byte locks, directories or change notices on IPC$.

mod caller;
mod handles;
mod lsarpc;
mod rpc;
mod samr;
mod srvsvc;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use bytes::Bytes;
use futures_util::future::{Either, select};
use slab::Slab;
use weft_machine::budget::Full;
use weft_machine::{Charge, Payload};
use weft_wire::smb2::access::FileAttributes;
use weft_wire::smb2::channel::Channel;
use weft_wire::smb2::create::{self, CreateAction, FileSummary, OplockLevel};
use weft_wire::smb2::fscc::{FileClass, truncate};
use weft_wire::smb2::ioctl::{self, CtlCode};
use weft_wire::smb2::query_info::{self, InfoType};
use weft_wire::smb2::{Command, FileId, HEADER_LEN, NtStatus, close, flush, read, set_info, write};

use self::caller::Caller;
use self::rpc::{Association, Service};
use super::context::{Answer, Failure, OpContext, Reply};
use super::held::{self, PIPE_BYTES};
use super::ops;

/// Open pipes per tree.
const MAX_PIPES: usize = 128;
/// Unread answers per pipe, in bytes: beyond this, the pipe accepts no more calls.
const MAX_UNREAD_BYTES: usize = 1 << 20;
/// Waiting READs per pipe.
const MAX_WAITING: usize = 1024;
/// The quota that a pipe reports (FilePipeLocalInformation); clients do not rely on it.
const QUOTA_BYTES: u32 = 4096;
/// Marks pipes in a FileId: a session's open table never sets this bit.
const PIPE_BIT: u64 = 1 << 63;

/// The state of a pipe.
struct State {
    rpc: Association,
    /// Messages that the client has not read yet.
    unread: VecDeque<Bytes>,
    unread_bytes: usize,
    /// FILE_PIPE_BYTE_STREAM_MODE: message boundaries are ignored.
    byte_mode: bool,
    closed: bool,
    waiting: Vec<Waker>,
    /// The charge for all of this.
    held: Charge,
}

impl State {
    fn new(held: Charge) -> State {
        State {
            rpc: Association::default(),
            unread: VecDeque::new(),
            unread_bytes: 0,
            byte_mode: false,
            closed: false,
            waiting: Vec::new(),
            held,
        }
    }

    /// Updates the charge to the current size, if the budget allows it.
    fn hold(&mut self) -> Result<(), Full> {
        let bytes = PIPE_BYTES.saturating_add(self.unread_bytes).saturating_add(self.rpc.held_bytes());
        self.held.set(bytes)
    }

    /// Closes the pipe in both directions.
    fn end(&mut self) {
        self.closed = true;
        self.unread.clear();
        self.unread_bytes = 0;
        self.rpc.give_up();
        let _ = self.hold();
    }
}

/// An open pipe.
pub(super) struct Pipe {
    service: Service,
    state: Mutex<State>,
}

/// The bytes read, and whether their message continues.
type Taken = (Bytes, bool);

impl Pipe {
    fn new(service: Service, held: Charge) -> Pipe {
        Pipe { service, state: Mutex::new(State::new(held)) }
    }

    /// Processes the bytes that the client wrote; the answers are queued when this returns.
    fn write(&self, cx: &OpContext, data: &Bytes) -> Result<(), NtStatus> {
        let waiting = {
            let mut state = lock(&self.state);
            if state.closed {
                return Err(NtStatus::PIPE_DISCONNECTED);
            }
            if state.unread_bytes > MAX_UNREAD_BYTES {
                return Err(NtStatus::PIPE_BUSY);
            }
            let caller = Caller { server: cx.server(), session: cx.session(), peer: &cx.connection().peer };
            let answers = state.rpc.receive(&caller, self.service, data);
            if state.rpc.is_broken() {
                // Queued answers can still be read.
                state.closed = true;
            }
            let more = answers.iter().map(Bytes::len).sum();
            state.unread_bytes = state.unread_bytes.saturating_add(more);
            state.unread.extend(answers);
            if let Err(full) = state.hold() {
                state.end();
                let waiting = std::mem::take(&mut state.waiting);
                drop(state);
                waiting.into_iter().for_each(Waker::wake);
                return Err(held::refused(full));
            }
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Takes up to `len` bytes of the next message; `None` if there is none.
    fn try_read(&self, len: usize) -> Option<Taken> {
        let state = &mut *lock(&self.state);
        let first = state.unread.front_mut()?;
        let taken = first.split_to(len.min(first.len()));
        let more = !first.is_empty();
        if !more {
            state.unread.pop_front();
        }
        state.unread_bytes = state.unread_bytes.saturating_sub(taken.len());
        // The size has shrunk, so this cannot fail.
        let _ = state.hold();
        Some((taken, more && !state.byte_mode))
    }

    /// Reads, waiting until there is a message.
    async fn read(&self, cx: &OpContext, len: usize) -> Result<Taken, NtStatus> {
        if let Some(taken) = self.try_read(len) {
            return Ok(taken);
        }
        if lock(&self.state).closed {
            return Err(NtStatus::PIPE_DISCONNECTED);
        }
        cx.pending();
        let message = pin!(poll_fn(|task| {
            if let Some(taken) = self.try_read(len) {
                return Poll::Ready(Ok(taken));
            }
            let mut state = lock(&self.state);
            if state.closed {
                return Poll::Ready(Err(NtStatus::PIPE_BROKEN));
            }
            if !state.unread.is_empty() {
                // A message arrived between the two checks.
                task.waker().wake_by_ref();
                return Poll::Pending;
            }
            if state.waiting.iter().any(|waiting| waiting.will_wake(task.waker())) {
                return Poll::Pending;
            }
            if state.waiting.len() >= MAX_WAITING {
                return Poll::Ready(Err(NtStatus::INSUFFICIENT_RESOURCES));
            }
            state.waiting.push(task.waker().clone());
            Poll::Pending
        }));
        match select(message, pin!(cx.cancelled())).await {
            Either::Left((taken, _)) => taken,
            Either::Right(_) => Err(NtStatus::CANCELLED),
        }
    }

    /// Closes the pipe; waiting READs fail.
    fn close(&self) {
        let waiting = {
            let mut state = lock(&self.state);
            state.end();
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic during a call leaves an association that answers no other call: acceptable for its client.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The open pipes of a tree.
#[derive(Default)]
pub(crate) struct Pipes {
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    serial: u32,
    pipes: Slab<(u32, Arc<Pipe>)>,
}

impl Pipes {
    fn insert(&self, pipe: Pipe) -> Option<FileId> {
        let slots = &mut *lock(&self.slots);
        if slots.pipes.len() >= MAX_PIPES {
            return None;
        }
        slots.serial = slots.serial.wrapping_add(1) & 0x7fff_ffff;
        let slot = slots.pipes.insert((slots.serial, Arc::new(pipe)));
        Some(file_id(slots.serial, slot))
    }

    fn find(&self, id: FileId) -> Option<Arc<Pipe>> {
        let slots = lock(&self.slots);
        let slot = id.volatile as u32 as usize;
        let (serial, pipe) = slots.pipes.get(slot)?;
        (file_id(*serial, slot) == id).then(|| pipe.clone())
    }

    fn remove(&self, id: FileId) -> Option<Arc<Pipe>> {
        self.find(id)?;
        let (_, pipe) = lock(&self.slots).pipes.try_remove(id.volatile as u32 as usize)?;
        Some(pipe)
    }

    /// Closes all pipes.
    pub(super) fn close_all(&self) {
        let pipes = std::mem::take(&mut lock(&self.slots).pipes);
        pipes.into_iter().for_each(|(_, (_, pipe))| pipe.close());
    }
}

fn file_id(serial: u32, slot: usize) -> FileId {
    let id = PIPE_BIT | u64::from(serial) << 32 | slot as u64 & 0xffff_ffff;
    FileId { persistent: id, volatile: id }
}

/// The pipe that a request refers to: by its FileId, or by that of the compound.
fn find(cx: &OpContext, carried: FileId) -> Result<Arc<Pipe>, Failure> {
    cx.tree().pipes.find(cx.file_id(carried)).ok_or_else(|| NtStatus::FILE_CLOSED.into())
}

/// Executes CREATE to OPLOCK_BREAK on IPC$.
pub(super) async fn dispatch(cx: &OpContext) -> Answer {
    match cx.header().command {
        Command::Create => create(cx),
        Command::Close => close(cx),
        Command::Read => read(cx).await,
        Command::Write => write(cx),
        Command::Ioctl => control(cx).await,
        Command::QueryInfo => query_info(cx),
        Command::SetInfo => set_info(cx),
        Command::Flush => {
            find(cx, flush::Request::parse(cx.message())?.file)?;
            answer(|out| flush::Response.emit(out))
        }
        Command::QueryDirectory | Command::ChangeNotify => Err(NtStatus::INVALID_PARAMETER.into()),
        Command::Lock | Command::OplockBreak => Err(NtStatus::INVALID_DEVICE_REQUEST.into()),
        _ => Err(NtStatus::INVALID_PARAMETER.into()),
    }
}

fn answer(emit: impl FnOnce(&mut Vec<u8>)) -> Answer {
    let mut reply = Reply::new();
    emit(&mut reply.message);
    Ok(reply)
}

/// The metadata of a pipe in CREATE and CLOSE responses.
const SUMMARY: FileSummary = FileSummary {
    creation_time: weft_wire::smb2::Filetime(0),
    last_access_time: weft_wire::smb2::Filetime(0),
    last_write_time: weft_wire::smb2::Filetime(0),
    change_time: weft_wire::smb2::Filetime(0),
    allocation_size: QUOTA_BYTES as u64,
    end_of_file: 0,
    attributes: FileAttributes::NORMAL,
};

fn create(cx: &OpContext) -> Answer {
    let request = create::Request::parse(cx.message())?;
    if request.impersonation > 3 {
        return Err(NtStatus::BAD_IMPERSONATION_LEVEL.into());
    }
    let service = Service::of_pipe(&request.name).ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
    let held = cx.session().hold(PIPE_BYTES)?;
    let file = cx.tree().pipes.insert(Pipe::new(service, held)).ok_or_else(|| {
        tracing::warn!(peer = %cx.connection().peer, "limit reached: pipes per tree");
        NtStatus::PIPE_NOT_AVAILABLE
    })?;
    cx.set_file_id(file);
    let mut reply = Reply::with_capacity(96);
    create::Response {
        oplock: OplockLevel::NONE,
        flags: 0,
        action: CreateAction::OPENED,
        summary: SUMMARY,
        file,
        contexts: Vec::new(),
    }
    .emit(&mut reply.message);
    Ok(reply)
}

fn close(cx: &OpContext) -> Answer {
    let request = close::Request::parse(cx.message())?;
    let pipe = cx.tree().pipes.remove(cx.file_id(request.file)).ok_or(NtStatus::FILE_CLOSED)?;
    pipe.close();
    let wanted = request.flags.contains(close::Flags::POSTQUERY_ATTRIB);
    answer(|out| close::Response { summary: wanted.then_some(SUMMARY) }.emit(out))
}

/// Offsets are ignored on a pipe. Pipe data never moves by RDMA.
async fn read(cx: &OpContext) -> Answer {
    let request = read::Request::parse(cx.message())?;
    let pipe = find(cx, request.file)?;
    if request.channel != Channel::None || request.length > cx.max_payload() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let len = cx.max_inline().min(request.length as usize);
    let (data, more) = pipe.read(cx, len).await?;
    let mut reply = Reply::with_capacity(read::RESPONSE_DATA_AT - HEADER_LEN);
    reply.status = if more { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS };
    read::Response::emit_head(u32::try_from(data.len()).unwrap_or(u32::MAX), 0, &mut reply.message);
    reply.payload = Some(Payload::from(data)).filter(|data: &Payload| !data.is_empty());
    Ok(reply)
}

fn write(cx: &OpContext) -> Answer {
    let request = write::Request::parse(cx.message())?;
    let pipe = find(cx, request.file)?;
    if request.channel != Channel::None || request.data.len() > cx.max_payload() as usize {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    pipe.write(cx, &request.data)?;
    let count = u32::try_from(request.data.len()).unwrap_or(u32::MAX);
    answer(|out| write::Response { count }.emit(out))
}

async fn control(cx: &OpContext) -> Answer {
    let request = ioctl::Request::parse(cx.message())?;
    if !matches!(request.code, CtlCode::PIPE_TRANSCEIVE | CtlCode::PIPE_PEEK | CtlCode::PIPE_WAIT) {
        return ops::ioctl(cx).await;
    }
    if !request.flags.contains(ioctl::Flags::IS_FSCTL) {
        return Err(NtStatus::NOT_SUPPORTED.into());
    }
    let most = cx.max_payload();
    if request.input.len() > most as usize || request.max_output_response > most {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let room = cx.max_inline().min(request.max_output_response as usize);
    let (file, output, more) = match request.code {
        CtlCode::PIPE_WAIT => {
            wait(&request.input)?;
            (FileId::RELATED, Bytes::new(), false)
        }
        CtlCode::PIPE_PEEK => {
            let (output, more) = peek(&*find(cx, request.file)?, room)?;
            (cx.file_id(request.file), output, more)
        }
        // 3.3.5.15.4: writes a message and reads the answer.
        _ => {
            let pipe = find(cx, request.file)?;
            if !lock(&pipe.state).unread.is_empty() {
                return Err(NtStatus::PIPE_BUSY.into());
            }
            pipe.write(cx, &request.input)?;
            let (output, more) = pipe.read(cx, room).await?;
            (cx.file_id(request.file), output, more)
        }
    };
    let mut reply = Reply::with_capacity(output.len().saturating_add(48));
    reply.status = if more { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS };
    ioctl::Response { code: request.code, file, output }.emit(&mut reply.message);
    Ok(reply)
}

/// [MS-FSCC] 2.3.47: waits for a pipe instance; one is always available.
fn wait(input: &[u8]) -> Result<(), NtStatus> {
    const NAME_AT: usize = 14;
    let head = input.first_chunk::<NAME_AT>().ok_or(NtStatus::INVALID_PARAMETER)?;
    let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
    let name = NAME_AT.checked_add(len).and_then(|end| input.get(NAME_AT..end));
    let name = weft_wire::smb2::utf16::decode(name.ok_or(NtStatus::INVALID_PARAMETER)?)
        .map_err(|_| NtStatus::INVALID_PARAMETER)?;
    Service::of_pipe(&name).map(|_| ()).ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)
}

/// [MS-FSCC] 2.3.46: returns queued data without consuming it.
fn peek(pipe: &Pipe, room: usize) -> Result<Taken, NtStatus> {
    /// FILE_PIPE_CONNECTED_STATE, FILE_PIPE_CLOSING_STATE.
    const CONNECTED: u32 = 3;
    const CLOSING: u32 = 4;
    const FIXED_LEN: usize = 16;
    let room = room.checked_sub(FIXED_LEN).ok_or(NtStatus::INFO_LENGTH_MISMATCH)?;
    let state = lock(&pipe.state);
    if state.closed && state.unread.is_empty() {
        return Err(NtStatus::PIPE_BROKEN);
    }
    let first = state.unread.front().cloned().unwrap_or_default();
    let shown = first.slice(..first.len().min(room));
    let mut output = Vec::with_capacity(shown.len().saturating_add(FIXED_LEN));
    let words = [
        if state.closed { CLOSING } else { CONNECTED } as usize,
        state.unread_bytes,
        state.unread.len(),
        first.len(),
    ];
    for word in words {
        output.extend_from_slice(&u32::try_from(word).unwrap_or(u32::MAX).to_le_bytes());
    }
    output.extend_from_slice(&shown);
    Ok((output.into(), shown.len() < first.len()))
}

fn query_info(cx: &OpContext) -> Answer {
    let request = query_info::Request::parse(cx.message())?;
    let pipe = find(cx, request.file)?;
    if request.output_buffer_length > cx.max_payload() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    if request.info_type != InfoType::FILE {
        return Err(NtStatus::NOT_SUPPORTED.into());
    }
    let mut bytes = info(&pipe, FileClass(request.class))?;
    let fixed = bytes.len();
    if truncate(&mut bytes, request.output_buffer_length as usize, fixed).is_none() {
        return Err(NtStatus::INFO_LENGTH_MISMATCH.into());
    }
    answer(|out| query_info::Response { buffer: bytes.into() }.emit(out))
}

fn info(pipe: &Pipe, class: FileClass) -> Result<Vec<u8>, NtStatus> {
    use weft_wire::smb2::fscc::file::{Basic, Standard};
    let mut out = Vec::new();
    let state = lock(&pipe.state);
    match class {
        FileClass::BASIC => Basic { attributes: FileAttributes::NORMAL, ..Basic::default() }.emit(&mut out),
        FileClass::STANDARD => Standard {
            allocation_size: u64::from(QUOTA_BYTES),
            end_of_file: state.unread_bytes as u64,
            number_of_links: 1,
            // [MS-FSA] does not cover pipes; Windows reports this, because a closed pipe is gone.
            delete_pending: true,
            ..Standard::default()
        }
        .emit(&mut out),
        // [MS-FSCC] 2.4.34: read mode and completion mode (queued).
        FileClass::PIPE => {
            for word in [u32::from(!state.byte_mode), 0] {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
        // [MS-FSCC] 2.4.35: message type, full duplex, unlimited instances, connected, client end.
        FileClass::PIPE_LOCAL => {
            let unread = u32::try_from(state.unread_bytes).unwrap_or(u32::MAX);
            for word in [1, 2, u32::MAX, 1, QUOTA_BYTES, unread, QUOTA_BYTES, QUOTA_BYTES, 3, 0] {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
        class if class.name().is_some() => return Err(NtStatus::INVALID_PARAMETER),
        _ => return Err(NtStatus::INVALID_INFO_CLASS),
    }
    Ok(out)
}

fn set_info(cx: &OpContext) -> Answer {
    let request = set_info::Request::parse(cx.message())?;
    let pipe = find(cx, request.file)?;
    if request.info_type != InfoType::FILE || FileClass(request.class) != FileClass::PIPE {
        return Err(NtStatus::NOT_SUPPORTED.into());
    }
    let words = request.buffer.first_chunk::<8>().ok_or(NtStatus::INFO_LENGTH_MISMATCH)?;
    let mode = u32::from_le_bytes([words[0], words[1], words[2], words[3]]);
    let completion = u32::from_le_bytes([words[4], words[5], words[6], words[7]]);
    if mode > 1 || completion > 1 {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    lock(&pipe.state).byte_mode = mode == 0;
    answer(|out| set_info::Response.emit(out))
}
