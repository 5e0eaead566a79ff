//! An open file: reads, writes, and other operations by handle.
//!
//! Spec: [MS-SMB2] 3.2.4.5 (closing), 3.2.4.6 (reading), 3.2.4.7 (writing), 3.2.4.10 (attributes), 3.2.5.11, 3.2.5.12.
//! Owns the handle, which is closed when the last clone is dropped, and exposed memory, which is revoked before anyone
//! sees it. There is no cache, read-ahead or write-behind: keep several calls in flight instead.
//!
//! A READ returns the buffer that the transport received, or the exposed buffer that the server filled. Only a READ
//! that is longer than the server allows in one request is assembled by copying. Over TCP a WRITE is sent from the
//! caller's buffer; by RDMA from a pool buffer: [`File::write_buf`] takes one, [`File::write`] copies.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, TryStreamExt};
use weft_machine::{Buf, buf};
use weft_transport::Access;
use weft_wire::security::SecurityDescriptor;
use weft_wire::smb2::access::FileAttributes;
use weft_wire::smb2::channel::Channel;
use weft_wire::smb2::fscc::{self, FileClass};
use weft_wire::smb2::ioctl::{self, CtlCode};
use weft_wire::smb2::query_info::{self, InfoType, SecurityInformation};
use weft_wire::smb2::rdma_transform::Crypto;
use weft_wire::smb2::{Command, FileId, Filetime, NtStatus, close, flush, read, set_info, write};

use super::connections::Connection;
use super::core::{CREDIT_BYTES, ReplayBackoff, TreeCore};
use super::error::Error;
use super::kept::Kept;
use super::link::{Permit, Reply};
use super::lock_sequences::LockSequences;
use super::negotiate::Negotiated;
use super::path::wire_path;
use super::payload::{self, Protector};
use super::region::Region;
use super::stat::Stat;

const TOO_MUCH: Error = Error::Violation("READ: more bytes than were asked for");

/// Buffer of one QUERY_INFO.
const INFO_BYTES: u32 = 64 << 10;

struct FileCore {
    tree: Rc<TreeCore>,
    id: FileId,
    opened_as: Stat,
    kept: Option<Kept>,
    locks: LockSequences,
    closed: Cell<bool>,
}

impl Drop for FileCore {
    fn drop(&mut self) {
        if !self.closed.get() {
            let request = close::Request { flags: close::Flags::NONE, file: self.id };
            let call = self.tree.call(Command::Close, |out| request.emit(out));
            self.tree.core.let_go(call);
        }
    }
}

/// An open file. Cloning shares the handle; many calls may be in flight at once.
///
/// Dropping a call before it completes cancels it at the server.
#[derive(Clone)]
pub struct File(Rc<FileCore>);

impl File {
    pub(super) fn new(tree: Rc<TreeCore>, id: FileId, opened_as: Stat, kept: Option<Kept>) -> File {
        let locks = LockSequences::default();
        File(Rc::new(FileCore { tree, id, opened_as, kept, locks, closed: Cell::new(false) }))
    }

    pub(super) fn kept(&self) -> Option<&Kept> {
        self.0.kept.as_ref()
    }

    pub(super) fn id(&self) -> FileId {
        self.0.id
    }

    pub(super) fn lock_sequences(&self) -> &LockSequences {
        &self.0.locks
    }

    pub(super) fn negotiated(&self) -> &Negotiated {
        &self.0.tree.core.negotiated
    }

    /// The file's metadata when it was opened.
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
            // Bypasses the set of futures below, which polls once more than there are events: with 32 of these calls in
            // flight, they would be scheduled and sent in pairs.
            return self.read_all(offset, len).await;
        }
        let mut parts = FuturesUnordered::new();
        for at in (0..len).step_by(one) {
            parts.push(async move {
                let at_file = offset.saturating_add(at as u64);
                let part = self.read_all(at_file, one.min(len.saturating_sub(at))).await?;
                Ok::<_, Error>((at, part))
            });
        }
        let mut whole = self.alloc_buf(len).await;
        // End of the file: the first part that is shorter than requested.
        let mut end = len;
        while let Some((at, part)) = parts.try_next().await? {
            let to = at.saturating_add(part.len());
            buf::copy(whole.get_mut(at..to).ok_or(TOO_MUCH)?, &part);
            if to < len.min(at.saturating_add(one)) {
                end = end.min(to);
            }
        }
        whole.set_len(end);
        Ok(whole.freeze())
    }

    async fn alloc_buf(&self, len: usize) -> Buf {
        let mut whole = self.0.tree.core.pool().alloc(len).await;
        whole.set_len(len);
        whole
    }

    /// Reads until `len` bytes have arrived or the file ends.
    fn read_all(&self, offset: u64, len: usize) -> LocalBoxFuture<'_, Result<Bytes, Error>> {
        Box::pin(async move {
            if len == 0 {
                return Ok(Bytes::new());
            }
            let (first, asked) = self.read_part(offset, len).await?;
            if first.len() < asked || first.len() >= len {
                return Ok(first);
            }
            let mut whole = self.alloc_buf(len).await;
            buf::copy(whole.get_mut(..first.len()).ok_or(TOO_MUCH)?, &first);
            let mut done = first.len();
            while done < len {
                let at = offset.saturating_add(done as u64);
                let (part, asked) = self.read_part(at, len.saturating_sub(done)).await?;
                let to = done.saturating_add(part.len());
                buf::copy(whole.get_mut(done..to).ok_or(TOO_MUCH)?, &part);
                done = to;
                if part.len() < asked {
                    break;
                }
            }
            whole.set_len(done);
            Ok(whole.freeze())
        })
    }

    /// One READ over any live connection; the second value is the requested length. A server returns less than that
    /// only at the end of the file.
    async fn read_part(&self, offset: u64, len: usize) -> Result<(Bytes, usize), Error> {
        let connections = &self.0.tree.core.connections;
        loop {
            let (connection, rdma) = self.0.tree.pick();
            match self.read_by(&connection, rdma, offset, len).await {
                Err(e) if connections.goes_on(&connection, &e) => {}
                read => return read,
            }
        }
    }

    async fn read_by(
        &self,
        connection: &Rc<Connection>,
        rdma: bool,
        offset: u64,
        len: usize,
    ) -> Result<(Bytes, usize), Error> {
        let core = &self.0.tree.core;
        let by_rdma = rdma && len > core.options.rdma_threshold;
        let len = len.min(core.io_bytes(connection, connection.negotiated.max_read, by_rdma));
        let _underway = connection.carry(len);
        let permit = connection.link.permit(charge(len)).await?;
        let len = len.min(usize::from(permit.charge) * CREDIT_BYTES);
        let region = match by_rdma {
            true => {
                let buf = self.alloc_buf(len).await;
                Some(Region::expose(connection.link.channel(), buf, Access::RemoteFill)?)
            }
            false => None,
        };
        let dialect = core.negotiated.profile.dialect;
        let request = read::Request {
            padding: read::RESPONSE_DATA_AT as u8,
            flags: match connection.negotiated.compression {
                Some(_) => read::Flags::REQUEST_COMPRESSED,
                None => read::Flags::NONE,
            },
            length: len as u32,
            offset,
            file: self.0.id,
            minimum_count: 0,
            remaining_bytes: if region.is_some() { len as u32 } else { 0 },
            channel: region.as_ref().map_or(Channel::None, |r| r.channel(dialect)),
        };
        let call = self.0.tree.call(Command::Read, |out| request.emit(out));
        let mut pending = connection.link.send(permit, call)?;
        pending.region = region;
        let reply = (&mut pending).await;
        // First of all: from here on the server cannot reach the memory.
        let filled = pending.region.take().map(Region::revoke);
        let reply = reply?;
        match reply.header.status {
            NtStatus::SUCCESS | NtStatus::BUFFER_OVERFLOW => {}
            NtStatus::END_OF_FILE => return Ok((Bytes::new(), len)),
            status => return Err(Error::Status { command: Command::Read, status }),
        }
        let response = read::Response::parse(&reply.message)?;
        let moved = response.data_remaining as usize;
        match filled {
            Some(filled) if moved > 0 => {
                let mut filled = filled?;
                if moved > len || !response.data.is_empty() {
                    return Err(TOO_MUCH);
                }
                filled.set_len(moved);
                let Some(kind) = self.0.tree.transform() else { return Ok((filled.freeze(), len)) };
                let security = connection.link.security()?;
                let protector = Protector { kind, security: &security, pool: core.pool() };
                Ok((protector.restore(response.transform, filled).await?, len))
            }
            _ if response.data.len() > len || moved > 0 => Err(TOO_MUCH),
            // The server may send requested RDMA payload in the message instead, as much as fits.
            Some(_) if !response.data.is_empty() => {
                let asked = response.data.len();
                Ok((response.data, asked))
            }
            _ => Ok((response.data, len)),
        }
    }

    /// Writes all of `data` at `offset`. With an RDMA channel it is copied once; see [`File::write_buf`].
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<(), Error> {
        self.write_split(offset, data, false).await
    }

    /// `replay`: part of it may have reached the server over a connection that is lost.
    async fn write_split(&self, offset: u64, data: Bytes, replay: bool) -> Result<(), Error> {
        check_end(offset, data.len())?;
        let one = self.write_size(data.len());
        if data.len() <= one {
            return self.write_all(offset, data, replay).await;
        }
        let mut parts = FuturesUnordered::new();
        for at in (0..data.len()).step_by(one) {
            let part = data.slice(at..data.len().min(at.saturating_add(one)));
            parts.push(self.write_all(offset.saturating_add(at as u64), part, replay));
        }
        while parts.try_next().await?.is_some() {}
        Ok(())
    }

    fn write_all(
        &self,
        mut offset: u64,
        mut data: Bytes,
        mut replay: bool,
    ) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let core = &self.0.tree.core;
            let mut backoff = ReplayBackoff::new(&core.options);
            loop {
                let (connection, rdma) = self.0.tree.pick();
                match self.write_by(&connection, rdma, offset, &data, replay).await {
                    Ok(len) => {
                        offset = offset.saturating_add(len as u64);
                        data.advance(len);
                        if data.is_empty() {
                            return Ok(());
                        }
                        replay = false;
                    }
                    Err(e) if core.connections.goes_on(&connection, &e) => replay = true,
                    Err(e) if core.connections.is_too_early(&e) && backoff.wait().await => replay = true,
                    Err(e) => return Err(e),
                }
            }
        })
    }

    /// Sends one WRITE with the front of `data`; returns its length.
    async fn write_by(
        &self,
        connection: &Rc<Connection>,
        rdma: bool,
        offset: u64,
        data: &Bytes,
        replay: bool,
    ) -> Result<usize, Error> {
        let core = &self.0.tree.core;
        let by_rdma = rdma && data.len() > core.options.rdma_threshold;
        let len = data.len().min(core.io_bytes(connection, connection.negotiated.max_write, by_rdma));
        let _underway = connection.carry(len);
        let permit = connection.link.permit(charge(len)).await?;
        let len = len.min(usize::from(permit.charge) * CREDIT_BYTES);
        let part = data.slice(..len);
        if by_rdma {
            let mut buf = self.alloc_buf(len).await;
            buf::copy(&mut buf, &part);
            self.write_region(connection, permit, offset, buf, replay).await.map_err(|(e, _)| e)?;
        } else {
            self.write_inline(connection, permit, offset, part, replay).await?;
        }
        Ok(len)
    }

    /// Writes all of `data` at `offset` without copying it, and returns the buffer. On an error the buffer is lost.
    ///
    /// A buffer that is longer than one WRITE (see [`super::Tree::io_sizes`]) is split as in [`File::write`]. On an
    /// encrypted session the server reads an encrypted copy.
    pub fn write_buf(&self, offset: u64, mut data: Buf) -> LocalBoxFuture<'_, Result<Buf, Error>> {
        Box::pin(async move {
            check_end(offset, data.len())?;
            let core = &self.0.tree.core;
            let len = data.len();
            let mut backoff = ReplayBackoff::new(&core.options);
            let mut replay = false;
            loop {
                let (connection, rdma) = self.0.tree.pick();
                let by_rdma = rdma && len > core.options.rdma_threshold;
                if !by_rdma || len > core.io_bytes(&connection, connection.negotiated.max_write, true) {
                    break;
                }
                let _underway = connection.carry(len);
                let permit = match connection.link.permit(charge(len)).await {
                    Err(e) if core.connections.goes_on(&connection, &e) => continue,
                    permit => permit?,
                };
                if usize::from(permit.charge) * CREDIT_BYTES < len {
                    break;
                }
                data = match self.write_region(&connection, permit, offset, data, replay).await {
                    Ok(data) => return Ok(data),
                    Err((e, Some(data))) if core.connections.goes_on(&connection, &e) => data,
                    Err((e, Some(data))) if core.connections.is_too_early(&e) && backoff.wait().await => data,
                    Err((e, _)) => return Err(e),
                };
                replay = true;
            }
            // Shared with the transport; ours again once the transport has dropped its reference.
            let lent = Lent(Arc::new(data));
            self.write_split(offset, Bytes::from_owner(Lent(lent.0.clone())), replay).await?;
            match Arc::try_unwrap(lent.0) {
                Ok(buf) => Ok(buf),
                Err(held) => {
                    let mut copy = self.alloc_buf(len).await;
                    buf::copy(&mut copy, &held);
                    Ok(copy)
                }
            }
        })
    }

    /// One WRITE by RDMA; returns the buffer even on an error, unless exposing it is what failed.
    async fn write_region(
        &self,
        connection: &Rc<Connection>,
        permit: Permit,
        offset: u64,
        data: Buf,
        replay: bool,
    ) -> Result<Buf, (Error, Option<Buf>)> {
        let Some(kind) = self.0.tree.transform() else {
            return self.write_exposed(connection, permit, offset, data, None, replay).await;
        };
        let security = match connection.link.security() {
            Ok(security) => security,
            Err(e) => return Err((e, Some(data))),
        };
        let protector = Protector { kind, security: &security, pool: self.0.tree.core.pool() };
        match protector.protect(&data).await {
            Ok((crypto, Some(sealed))) => {
                match self.write_exposed(connection, permit, offset, sealed, Some(crypto), replay).await {
                    Ok(_) => Ok(data),
                    Err((e, _)) => Err((e, Some(data))),
                }
            }
            Ok((crypto, None)) => {
                self.write_exposed(connection, permit, offset, data, Some(crypto), replay).await
            }
            Err(e) => Err((e, Some(data))),
        }
    }

    /// Exposes `data` to the server during the write and returns it.
    async fn write_exposed(
        &self,
        connection: &Rc<Connection>,
        permit: Permit,
        offset: u64,
        data: Buf,
        crypto: Option<Crypto>,
        replay: bool,
    ) -> Result<Buf, (Error, Option<Buf>)> {
        let len = data.len();
        let region = Region::expose(connection.link.channel(), data, Access::RemoteRead);
        let region = region.map_err(|e| (e, None))?;
        let channel = region.channel(self.0.tree.core.negotiated.profile.dialect);
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
        let mut call = self.0.tree.call(Command::Write, |out| request.emit_head(out));
        call.replay = replay;
        let mut pending = match connection.link.send(permit, call) {
            Ok(pending) => pending,
            Err(e) => return Err((e, region.revoke().ok())),
        };
        pending.region = Some(region);
        let reply = (&mut pending).await;
        let data = pending.region.take().and_then(|region| region.revoke().ok());
        match (reply.and_then(|reply| written(reply, len)), data) {
            (Ok(()), Some(data)) => Ok(data),
            (Ok(()), None) => Err((Error::Closed, None)),
            (Err(e), data) => Err((e, data)),
        }
    }

    /// One WRITE in the message.
    async fn write_inline(
        &self,
        connection: &Rc<Connection>,
        permit: Permit,
        offset: u64,
        data: Bytes,
        replay: bool,
    ) -> Result<(), Error> {
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
        call.replay = replay;
        written(connection.link.send(permit, call)?.await?, len)
    }

    fn read_size(&self, len: usize) -> usize {
        let (core, (connection, rdma)) = (&self.0.tree.core, self.0.tree.pick());
        let by_rdma = rdma && len > core.options.rdma_threshold;
        core.io_bytes(&connection, connection.negotiated.max_read, by_rdma)
    }

    fn write_size(&self, len: usize) -> usize {
        let (core, (connection, rdma)) = (&self.0.tree.core, self.0.tree.pick());
        let by_rdma = rdma && len > core.options.rdma_threshold;
        core.io_bytes(&connection, connection.negotiated.max_write, by_rdma)
    }

    /// Makes all written data durable.
    pub async fn flush(&self) -> Result<(), Error> {
        let request = flush::Request { file: self.0.id, full_sync: false };
        let message = self.call(Command::Flush, |out| request.emit(out)).await?;
        flush::Response::parse(&message)?;
        Ok(())
    }

    /// Closes the handle. Calls through other clones fail from now on.
    pub async fn close(self) -> Result<(), Error> {
        self.0.closed.set(true);
        let request = close::Request { flags: close::Flags::NONE, file: self.0.id };
        let lost = self.0.tree.core.connections.lost();
        match self.call(Command::Close, |out| request.emit(out)).await {
            Ok(message) => close::Response::parse(&message).map(drop).map_err(Error::from),
            // The CLOSE was carried out over a connection that was lost before the answer arrived.
            Err(e)
                if e.status() == Some(NtStatus::FILE_CLOSED)
                    && self.0.tree.core.connections.lost() > lost =>
            {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// The file's current metadata.
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

    /// Truncates or extends the file.
    pub async fn set_len(&self, len: u64) -> Result<(), Error> {
        let info = fscc::file::EndOfFile { end_of_file: len };
        self.set_info(FileClass::END_OF_FILE, |out| info.emit(out)).await
    }

    /// Sets the given times.
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

    /// The owner and the access control list.
    pub async fn security(&self) -> Result<SecurityDescriptor, Error> {
        let what = SecurityInformation::OWNER | SecurityInformation::DACL;
        let found = query_info(self, InfoType::SECURITY, 0, what.0).await?;
        Ok(SecurityDescriptor::parse(&found)?)
    }

    /// Replaces the access control list; the file must be open with WRITE_DAC.
    pub async fn set_dacl(&self, descriptor: &SecurityDescriptor) -> Result<(), Error> {
        let dacl = SecurityDescriptor { owner: None, group: None, ..descriptor.clone() };
        self.set(InfoType::SECURITY, 0, SecurityInformation::DACL.0, dacl.to_bytes()).await
    }

    /// Renames or moves the file within the share; it must be open with DELETE access. Without `replace` an existing
    /// target fails with STATUS_OBJECT_NAME_COLLISION.
    pub async fn rename(&self, to: &str, replace: bool) -> Result<(), Error> {
        let name = wire_path(to)?;
        let rename = fscc::file::Rename { replace_if_exists: replace, root_directory: 0, name };
        self.set_info(FileClass::RENAME, |out| rename.emit(out)).await
    }

    /// Removes the file's name when the last handle closes; it must be open with DELETE access.
    pub async fn remove(&self) -> Result<(), Error> {
        let disposition = fscc::file::Disposition { delete_pending: true };
        self.set_info(FileClass::DISPOSITION, |out| disposition.emit(out)).await
    }

    /// Its share.
    pub(super) fn tree(&self) -> &Rc<TreeCore> {
        &self.0.tree
    }

    /// A control code on this file.
    pub async fn ioctl(&self, code: CtlCode, input: Bytes, max_output: u32) -> Result<Bytes, Error> {
        let tree = &self.0.tree;
        let request = ioctl::Request {
            code,
            file: self.0.id,
            input,
            max_input_response: 0,
            max_output_response: max_output.min(tree.core.negotiated.max_transact),
            flags: ioctl::Flags::IS_FSCTL,
        };
        tree.core.ioctl(tree.connect, &request).await
    }

    pub(super) async fn set_info(
        &self,
        class: FileClass,
        emit: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Error> {
        let mut buffer = Vec::new();
        emit(&mut buffer);
        self.set(InfoType::FILE, class.0, 0, buffer).await
    }

    async fn set(
        &self,
        info_type: InfoType,
        class: u8,
        additional_information: u32,
        buffer: Vec<u8>,
    ) -> Result<(), Error> {
        let request = set_info::Request {
            info_type,
            class,
            additional_information,
            file: self.0.id,
            buffer: buffer.into(),
        };
        let message = self.call(Command::SetInfo, |out| request.emit(out)).await?;
        set_info::Response::parse(&message)?;
        Ok(())
    }

    pub(super) async fn call(
        &self,
        command: Command,
        emit: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Bytes, Error> {
        self.0.tree.core.call(self.0.tree.call(command, emit)).await?.success()
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
    // Servers write everything or fail; a retry after a short write would be code that no server exercises.
    match response.count as usize == len {
        true => Ok(()),
        false => Err(Error::Violation("WRITE: the count differs from the bytes sent")),
    }
}
