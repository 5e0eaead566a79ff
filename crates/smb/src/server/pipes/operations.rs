//! The operations on pipes.
//!
//! Spec: [MS-SMB2] 3.3.5.9 (CREATE), 3.3.5.12, 3.3.5.13, 3.3.5.15.3 and .4 (transceive, peek); [MS-FSCC] 2.4.34,
//! 2.4.35. There are no byte locks, directories or change notices on IPC$.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Either, select};
use weft_machine::Payload;
use weft_wire::smb2::access::FileAttributes;
use weft_wire::smb2::channel::Channel;
use weft_wire::smb2::create::{self, CreateAction, FileSummary, OplockLevel};
use weft_wire::smb2::fscc::{FileClass, truncate};
use weft_wire::smb2::ioctl::{self, CtlCode};
use weft_wire::smb2::query_info::{self, InfoType};
use weft_wire::smb2::{Command, FileId, HEADER_LEN, NtStatus, close, flush, read, set_info, write};

use super::caller::Caller;
use super::rpc::Service;
use super::{Pipe, Taken, lock};
use crate::server::answer::{Answer, Failure, Reply};
use crate::server::context::OpContext;
use crate::server::held::PIPE_BYTES;
use crate::server::ops::ioctl as general_ioctl;

/// The quota that a pipe reports (FilePipeLocalInformation); clients do not rely on it.
const QUOTA_BYTES: u32 = 4096;

/// The pipe that a request refers to: by its FileId, or by that of the compound.
fn find(cx: &OpContext, carried: FileId) -> Result<Arc<Pipe>, Failure> {
    cx.tree().pipes.find(cx.file_id(carried)).ok_or_else(|| NtStatus::FILE_CLOSED.into())
}

/// The caller of what is written to a pipe.
fn caller(cx: &OpContext) -> Caller<'_> {
    Caller { server: cx.server(), session: cx.session(), peer: &cx.connection().peer }
}

/// Reads from a pipe, waiting until there is a message.
async fn message(cx: &OpContext, pipe: &Pipe, len: usize) -> Result<Taken, NtStatus> {
    if let Some(taken) = pipe.try_read(len) {
        return Ok(taken);
    }
    if lock(&pipe.state).closed {
        return Err(NtStatus::PIPE_DISCONNECTED);
    }
    cx.pending();
    let message = pin!(poll_fn(|task| pipe.poll_read(task, len)));
    match select(message, pin!(cx.cancelled())).await {
        Either::Left((taken, _)) => taken,
        Either::Right(_) => Err(NtStatus::CANCELLED),
    }
}

/// Executes CREATE to OPLOCK_BREAK on IPC$.
pub(in crate::server) async fn dispatch(cx: &OpContext) -> Answer {
    match cx.header().command {
        Command::Create => create(cx),
        Command::Close => close(cx),
        Command::Read => read(cx).await,
        Command::Write => write(cx).await,
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
    let (data, more) = message(cx, &pipe, len).await?;
    let mut reply = Reply::with_capacity(read::RESPONSE_DATA_AT - HEADER_LEN);
    reply.status = if more { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS };
    read::Response::emit_head(u32::try_from(data.len()).unwrap_or(u32::MAX), 0, &mut reply.message);
    reply.payload = Some(Payload::from(data)).filter(|data: &Payload| !data.is_empty());
    Ok(reply)
}

async fn write(cx: &OpContext) -> Answer {
    let request = write::Request::parse(cx.message())?;
    let pipe = find(cx, request.file)?;
    if request.channel != Channel::None || request.data.len() > cx.max_payload() as usize {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let turn = pipe.prepare(&caller(cx), &request.data).await?;
    pipe.write(&caller(cx), &request.data)?;
    drop(turn);
    let count = u32::try_from(request.data.len()).unwrap_or(u32::MAX);
    answer(|out| write::Response { count }.emit(out))
}

async fn control(cx: &OpContext) -> Answer {
    let request = ioctl::Request::parse(cx.message())?;
    if !matches!(request.code, CtlCode::PIPE_TRANSCEIVE | CtlCode::PIPE_PEEK | CtlCode::PIPE_WAIT) {
        return general_ioctl(cx).await;
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
            let turn = pipe.prepare(&caller(cx), &request.input).await?;
            pipe.write(&caller(cx), &request.input)?;
            drop(turn);
            let (output, more) = message(cx, &pipe, room).await?;
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
