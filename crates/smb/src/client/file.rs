//! An open file: reading, writing, and everything by handle.
//!
//! Spec: [MS-SMB2] 3.2.4.5 (closing), 3.2.4.6 (reading), 3.2.4.7 (writing), 3.2.4.10 (attributes), 3.2.5.11, 3.2.5.12.
//! Owns: the handle, closed when the last clone is gone; exposed memory, taken back before it is shown to anybody.
//! Does not: cache, read ahead or write behind: keep several calls outstanding instead.
//!
//! Buffers: a READ's bytes are those that the transport received, or the exposed buffer that the server filled. Only a
//! READ that is longer than the server allows in one request is put together by copying. A WRITE's bytes leave from
//! the caller's buffer over TCP; by RDMA from a pool buffer: [`File::write_buf`] takes one, [`File::write`] copies.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, TryStreamExt};
use weft_machine::{Buf, buf};
use weft_transport::Access;
use weft_wire::smb2::access::FileAttributes;
use weft_wire::smb2::channel::Channel;
use weft_wire::smb2::fscc::{self, FileClass};
use weft_wire::smb2::ioctl::{self, CtlCode};
use weft_wire::smb2::query_info::{self, InfoType};
use weft_wire::smb2::rdma_transform::Crypto;
use weft_wire::smb2::{Command, FileId, Filetime, NtStatus, close, flush, read, set_info, write};

use super::error::Error;
use super::link::{Permit, Reply};
use super::payload::{self, Protector};
use super::region::Region;
use super::session::CREDIT_BYTES;
use super::tree::{Stat, TreeCore};

/// Buffer of one QUERY_INFO.
const INFO_BYTES: u32 = 64 << 10;

struct FileCore {
    tree: Rc<TreeCore>,
    id: FileId,
    opened_as: Stat,
    closed: Cell<bool>,
}

impl Drop for FileCore {
    fn drop(&mut self) {
        if !self.closed.get() {
            let request = close::Request { flags: close::Flags::NONE, file: self.id };
            let call = self.tree.call(Command::Close, |out| request.emit(out));
            self.tree.core.link.send_and_forget(call);
        }
    }
}

/// An open file. Cloning shares the handle; many calls may be outstanding at once.
///
/// Dropping a call before it has ended cancels it at the server.
#[derive(Clone)]
pub struct File(Rc<FileCore>);

impl File {
    pub(super) fn new(tree: Rc<TreeCore>, id: FileId, opened_as: Stat) -> File {
        File(Rc::new(FileCore { tree, id, opened_as, closed: Cell::new(false) }))
    }

    pub(super) fn id(&self) -> FileId {
        self.0.id
    }

    /// What the file was when it was opened.
    pub fn opened_as(&self) -> Stat {
        self.0.opened_as
    }

    /// Reads up to `len` bytes at `offset`; fewer at the end of the file, none beyond it.
    ///
    /// # Errors
    /// [`Error::Misuse`] when `len` exceeds [`weft_machine::buf::MAX_BUF`].
    pub async fn read(&self, offset: u64, len: usize) -> Result<Bytes, Error> {
        if len > buf::MAX_BUF {
            return Err(Error::Misuse("a READ is at most 16 MiB; split it"));
        }
        check_end(offset, len)?;
        let one = self.read_size(len);
        if len <= one {
            return self.read_part(offset, len).await;
        }
        let mut parts = FuturesUnordered::new();
        for at in (0..len).step_by(one) {
            parts.push(async move {
                let part = self.read_all(offset + at as u64, one.min(len - at)).await?;
                Ok::<_, Error>((at, part))
            });
        }
        let mut whole = self.0.tree.core.link.pool().alloc(len).await;
        whole.set_len(len);
        // Where the file ends: at the first part that is shorter than asked for.
        let mut end = len;
        while let Some((at, part)) = parts.try_next().await? {
            let mut to = at;
            for bytes in &part {
                buf::copy(&mut whole[to..to + bytes.len()], bytes);
                to += bytes.len();
            }
            if to < len.min(at + one) {
                end = end.min(to);
            }
        }
        whole.set_len(end);
        Ok(whole.freeze())
    }

    /// Reads until `len` bytes are there or the file ends.
    async fn read_all(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, Error> {
        let mut parts = Vec::with_capacity(1);
        let mut done = 0;
        while done < len {
            let part = self.read_part(offset + done as u64, len - done).await?;
            if part.is_empty() {
                break;
            }
            done += part.len();
            parts.push(part);
        }
        Ok(parts)
    }

    /// One READ; the server may give less.
    async fn read_part(&self, offset: u64, len: usize) -> Result<Bytes, Error> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        let core = &self.0.tree.core;
        let permit = core.link.permit(charge(len)).await?;
        let len = len.min(usize::from(permit.charge) * CREDIT_BYTES);
        let region = self.expose_for_read(len).await?;
        let dialect = core.negotiated.profile.dialect;
        let request = read::Request {
            padding: read::RESPONSE_DATA_AT as u8,
            flags: read::Flags::NONE,
            length: len as u32,
            offset,
            file: self.0.id,
            minimum_count: 0,
            remaining_bytes: if region.is_some() { len as u32 } else { 0 },
            channel: region.as_ref().map_or(Channel::None, |r| r.channel(dialect)),
        };
        let call = self.0.tree.call(Command::Read, |out| request.emit(out));
        let mut pending = core.link.send(permit, call)?;
        pending.region = region;
        let reply = (&mut pending).await;
        // In any case before anything else is looked at: from here on the server cannot reach the memory.
        let filled = pending.region.take().map(Region::revoke);
        let reply = reply?;
        match reply.header.status {
            NtStatus::SUCCESS | NtStatus::BUFFER_OVERFLOW => {}
            NtStatus::END_OF_FILE => return Ok(Bytes::new()),
            status => return Err(Error::Status { command: Command::Read, status }),
        }
        let response = read::Response::parse(&reply.message)?;
        let by_rdma = response.data_remaining as usize;
        match filled {
            Some(filled) if by_rdma > 0 => {
                let mut filled = filled?;
                if by_rdma > len || !response.data.is_empty() {
                    return Err(Error::Violation("READ: more bytes than were asked for"));
                }
                filled.set_len(by_rdma);
                match self.0.tree.transform() {
                    None => Ok(filled.freeze()),
                    Some(kind) => {
                        let security = core.link.security()?;
                        let protector = Protector { kind, security: &security, pool: core.link.pool() };
                        protector.restore(response.transform, filled).await
                    }
                }
            }
            _ if response.data.len() > len || by_rdma > 0 => {
                Err(Error::Violation("READ: more bytes than were asked for"))
            }
            _ => Ok(response.data),
        }
    }

    async fn expose_for_read(&self, len: usize) -> Result<Option<Region>, Error> {
        let core = &self.0.tree.core;
        if !self.by_rdma(len) {
            return Ok(None);
        }
        let mut buf = core.link.pool().alloc(len).await;
        buf.set_len(len);
        Region::expose(core.link.channel(), buf, Access::RemoteFill).map(Some)
    }

    /// Writes all of `data` at `offset`. With an RDMA channel it is copied once; see [`File::write_buf`].
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<(), Error> {
        check_end(offset, data.len())?;
        let one = self.write_size(data.len());
        if data.len() <= one {
            return self.write_all(offset, data).await;
        }
        let mut parts = FuturesUnordered::new();
        for at in (0..data.len()).step_by(one) {
            let part = data.slice(at..data.len().min(at + one));
            parts.push(self.write_all(offset + at as u64, part));
        }
        while parts.try_next().await?.is_some() {}
        Ok(())
    }

    async fn write_all(&self, mut offset: u64, mut data: Bytes) -> Result<(), Error> {
        loop {
            let permit = self.0.tree.core.link.permit(charge(data.len())).await?;
            let part = data.split_to(data.len().min(usize::from(permit.charge) * CREDIT_BYTES));
            let len = part.len();
            if self.by_rdma(len) {
                let mut buf = self.0.tree.core.link.pool().alloc(len).await;
                buf.set_len(len);
                buf::copy(&mut buf, &part);
                self.write_region(permit, offset, buf).await?;
            } else {
                self.write_inline(permit, offset, part).await?;
            }
            offset += len as u64;
            if data.is_empty() {
                return Ok(());
            }
        }
    }

    /// Writes all of `data` at `offset` without copying it, and gives it back. On an error it is gone.
    ///
    /// A buffer longer than one WRITE may be (see [`super::Session::io_sizes`]) is split as [`File::write`] does it.
    pub async fn write_buf(&self, offset: u64, data: Buf) -> Result<Buf, Error> {
        check_end(offset, data.len())?;
        let len = data.len();
        if len <= self.write_size(len) && self.by_rdma(len) {
            let permit = self.0.tree.core.link.permit(charge(len)).await?;
            if usize::from(permit.charge) * CREDIT_BYTES >= len {
                return self.write_region(permit, offset, data).await;
            }
        }
        // Lent to the transport as shared bytes; ours again when it has let go of them.
        let lent = Lent(Arc::new(data));
        self.write(offset, Bytes::from_owner(Lent(lent.0.clone()))).await?;
        match Arc::try_unwrap(lent.0) {
            Ok(buf) => Ok(buf),
            Err(held) => {
                let mut copy = self.0.tree.core.link.pool().alloc(len).await;
                copy.set_len(len);
                buf::copy(&mut copy, &held);
                Ok(copy)
            }
        }
    }

    /// One WRITE by RDMA; gives the buffer back.
    async fn write_region(&self, permit: Permit, offset: u64, data: Buf) -> Result<Buf, Error> {
        let core = &self.0.tree.core;
        let Some(kind) = self.0.tree.transform() else {
            return self.write_exposed(permit, offset, data, None).await;
        };
        let security = core.link.security()?;
        let protector = Protector { kind, security: &security, pool: core.link.pool() };
        match protector.protect(&data).await? {
            (crypto, Some(sealed)) => {
                self.write_exposed(permit, offset, sealed, Some(crypto)).await?;
                Ok(data)
            }
            (crypto, None) => self.write_exposed(permit, offset, data, Some(crypto)).await,
        }
    }

    /// Shows `data` to the server while it writes; gives it back.
    async fn write_exposed(
        &self,
        permit: Permit,
        offset: u64,
        data: Buf,
        crypto: Option<Crypto>,
    ) -> Result<Buf, Error> {
        let core = &self.0.tree.core;
        let len = data.len();
        let region = Region::expose(core.link.channel(), data, Access::RemoteRead)?;
        let channel = region.channel(core.negotiated.profile.dialect);
        let request = write::Request {
            offset,
            file: self.0.id,
            channel: match crypto {
                Some(crypto) => payload::transformed(channel, crypto),
                None => channel,
            },
            remaining_bytes: len as u32,
            flags: write::Flags::NONE,
            data: Bytes::new(),
        };
        let call = self.0.tree.call(Command::Write, |out| request.emit_head(out));
        let mut pending = core.link.send(permit, call)?;
        pending.region = Some(region);
        let reply = (&mut pending).await;
        let data = pending.region.take().map(Region::revoke);
        written(reply?, len)?;
        data.unwrap_or(Err(Error::Closed))
    }

    /// One WRITE in the message.
    async fn write_inline(&self, permit: Permit, offset: u64, data: Bytes) -> Result<(), Error> {
        let len = data.len();
        let request = write::Request {
            offset,
            file: self.0.id,
            channel: Channel::None,
            remaining_bytes: 0,
            flags: write::Flags::NONE,
            data,
        };
        let mut call = self.0.tree.call(Command::Write, |out| request.emit_head(out));
        call.payload = request.data;
        written(self.0.tree.core.link.send(permit, call)?.await?, len)
    }

    fn by_rdma(&self, len: usize) -> bool {
        len > self.0.tree.core.rdma_threshold && self.0.tree.rdma()
    }

    fn read_size(&self, len: usize) -> usize {
        let core = &self.0.tree.core;
        core.io_bytes(core.negotiated.max_read, self.by_rdma(len))
    }

    fn write_size(&self, len: usize) -> usize {
        let core = &self.0.tree.core;
        core.io_bytes(core.negotiated.max_write, self.by_rdma(len))
    }

    /// Makes what was written durable.
    pub async fn flush(&self) -> Result<(), Error> {
        let request = flush::Request { file: self.0.id };
        let message = self.call(Command::Flush, |out| request.emit(out)).await?;
        flush::Response::parse(&message)?;
        Ok(())
    }

    /// Closes the handle. Calls through other clones fail from now on.
    pub async fn close(self) -> Result<(), Error> {
        self.0.closed.set(true);
        let request = close::Request { flags: close::Flags::NONE, file: self.0.id };
        let message = self.call(Command::Close, |out| request.emit(out)).await?;
        close::Response::parse(&message)?;
        Ok(())
    }

    /// What the file is now.
    pub async fn stat(&self) -> Result<Stat, Error> {
        let info = query_info(self, InfoType::FILE, FileClass::NETWORK_OPEN.0, 0).await?;
        let info = fscc::file::NetworkOpen::parse(&info)?;
        Ok(Stat {
            len: info.end_of_file,
            allocated: info.allocation_size,
            is_dir: info.attributes.contains(FileAttributes::DIRECTORY),
            created: info.creation_time,
            accessed: info.last_access_time,
            modified: info.last_write_time,
            changed: info.change_time,
            attributes: info.attributes,
        })
    }

    /// Truncates or extends.
    pub async fn set_len(&self, len: u64) -> Result<(), Error> {
        let info = fscc::file::EndOfFile { end_of_file: len };
        self.set_info(FileClass::END_OF_FILE, |out| info.emit(out)).await
    }

    /// Sets the times that are given.
    pub async fn set_times(
        &self,
        accessed: Option<Filetime>,
        modified: Option<Filetime>,
    ) -> Result<(), Error> {
        let info = fscc::file::Basic {
            last_access_time: accessed.unwrap_or(Filetime::ZERO),
            last_write_time: modified.unwrap_or(Filetime::ZERO),
            ..Default::default()
        };
        self.set_info(FileClass::BASIC, |out| info.emit(out)).await
    }

    /// A control code on this file.
    pub async fn ioctl(&self, code: CtlCode, input: Bytes, max_output: u32) -> Result<Bytes, Error> {
        let tree = &self.0.tree;
        let request = ioctl::Request {
            code,
            file: self.0.id,
            input,
            max_input_response: 0,
            max_output_response: max_output.min(CREDIT_BYTES as u32),
            flags: ioctl::Flags::IS_FSCTL,
        };
        tree.core.ioctl(tree.id, tree.protection(), &request).await
    }

    pub(super) async fn set_info(
        &self,
        class: FileClass,
        emit: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Error> {
        let mut buffer = Vec::new();
        emit(&mut buffer);
        let request = set_info::Request {
            info_type: InfoType::FILE,
            class: class.0,
            additional_information: 0,
            file: self.0.id,
            buffer: buffer.into(),
        };
        let message = self.call(Command::SetInfo, |out| request.emit(out)).await?;
        set_info::Response::parse(&message)?;
        Ok(())
    }

    async fn call(&self, command: Command, emit: impl FnOnce(&mut Vec<u8>)) -> Result<Bytes, Error> {
        self.0.tree.core.link.call(self.0.tree.call(command, emit)).await?.success()
    }
}

/// One QUERY_INFO of an open file.
pub(super) async fn query_info(
    file: &File,
    info_type: InfoType,
    class: u8,
    additional_information: u32,
) -> Result<Bytes, Error> {
    let request = query_info::Request {
        info_type,
        class,
        output_buffer_length: INFO_BYTES.min(file.0.tree.core.negotiated.max_transact),
        additional_information,
        flags: 0,
        file: file.0.id,
        input: Bytes::new(),
    };
    let message = file.call(Command::QueryInfo, |out| request.emit(out)).await?;
    Ok(query_info::Response::parse(&message)?.buffer)
}

/// A buffer that the transport reads while it sends.
struct Lent(Arc<Buf>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Credits that a payload costs ([MS-SMB2] 3.1.5.2).
fn charge(len: usize) -> u16 {
    u16::try_from(len.div_ceil(CREDIT_BYTES).max(1)).unwrap_or(u16::MAX)
}

fn check_end(offset: u64, len: usize) -> Result<(), Error> {
    match offset.checked_add(len as u64) {
        Some(_) => Ok(()),
        None => Err(Error::Misuse("a file has at most 2^64 - 1 bytes")),
    }
}

fn written(reply: Reply, len: usize) -> Result<(), Error> {
    let response = write::Response::parse(&reply.success()?)?;
    // Servers write all or fail; anything else would need a retry that no server's tests cover.
    match response.count as usize == len {
        true => Ok(()),
        false => Err(Error::Violation("WRITE: another count than was sent")),
    }
}
