//! A server's disk over NBD, on this host: opened, and written one request at a time, because the time of a single
//! request is measured.
//!
//! See the NBD project's doc/proto.md (`weft_wire::nbd`).

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use weft_wire::nbd::handshake::{
    Choice, ClientFlags, FIXED_NEWSTYLE, GREETING_LEN, Greeting, Info, REPLY_HEADER_LEN, Reply, Wanted,
};
use weft_wire::nbd::transmission::{
    Command, REQUEST_LEN, ReplyHeader, Request, SIMPLE_REPLY_LEN, command_flags,
};

use crate::Failure;

/// A server that does not answer for this long is considered lost.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest answer of the handshake.
const MAX_REPLY: u32 = 64 << 10;

/// See the module.
pub(super) struct Disk {
    stream: TcpStream,
    size: u64,
    cookie: u64,
    /// The buffer of a request, reused for the next one.
    out: Vec<u8>,
}

impl Disk {
    /// Opens the disk with this name.
    pub(super) fn open(port: u16, export: &str) -> Result<Disk, Failure> {
        let opening = || -> Result<Disk, Failure> {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            let mut greeting = [0; GREETING_LEN];
            stream.read_exact(&mut greeting)?;
            if Greeting::parse(&greeting)?.flags & FIXED_NEWSTYLE == 0 {
                return Err("it speaks an NBD version without options".into());
            }
            stream.write_all(&ClientFlags { fixed_newstyle: true, no_zeroes: true }.emit())?;
            stream.write_all(&Choice::Go(Wanted { export: export.to_owned(), infos: vec![] }).emit())?;
            let mut size = None;
            loop {
                let mut header = [0; REPLY_HEADER_LEN];
                stream.read_exact(&mut header)?;
                let (_, kind, len) = Reply::parse_header(&header)?;
                if len > MAX_REPLY {
                    return Err(format!("an answer of {len} bytes").into());
                }
                let mut data = vec![0; len as usize];
                stream.read_exact(&mut data)?;
                match Reply::parse(kind, &data)? {
                    Reply::Info(Info::Export { size: told, .. }) => size = Some(told),
                    Reply::Ack => break,
                    Reply::Refused(refusal, why) => return Err(format!("{refusal:?}: {why}").into()),
                    _ => {}
                }
            }
            let size = size.ok_or("it does not report its size")?;
            Ok(Disk { stream, size, cookie: 0, out: Vec::new() })
        };
        opening().map_err(|e| format!("opening disk {export} at port {port}: {e}").into())
    }

    /// Size in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Writes, and waits for the answer; a durable write is answered when it can no longer be lost.
    pub(super) fn write(&mut self, offset: u64, data: &[u8], durable: bool) -> Result<(), Failure> {
        self.cookie += 1;
        let flags = if durable { command_flags::FUA } else { 0 };
        let len = u32::try_from(data.len())?;
        let request = Request { flags, command: Command::WRITE, cookie: self.cookie, offset, len };
        self.out.clear();
        self.out.extend(request.emit());
        self.out.extend(data);
        let mut answer = [0; SIMPLE_REPLY_LEN];
        let exchange = self.stream.write_all(&self.out).and_then(|()| self.stream.read_exact(&mut answer));
        exchange.map_err(|e| format!("writing to a disk: {e}"))?;
        match ReplyHeader::parse(&answer)? {
            ReplyHeader::Simple(reply) if reply.cookie == self.cookie => match reply.error {
                None => Ok(()),
                Some(code) => Err(format!("a write was refused: {code:?}").into()),
            },
            other => Err(format!("writing to a disk was answered by {other:?}").into()),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let goodbye = Request { flags: 0, command: Command::DISC, cookie: 0, offset: 0, len: 0 };
        let bytes: [u8; REQUEST_LEN] = goodbye.emit();
        // This has no answer, and fails harmlessly if the server is gone.
        let _ = self.stream.write_all(&bytes);
    }
}
