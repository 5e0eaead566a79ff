//! The link from a source to a destination: an SMB session with its server, over any transport.
//!
//! It implements the contract `replica::peer::Peer` and uses the doors of [`super::door`]. It owns the session, and a
//! hello makes a new one if the old one was lost. Otherwise nothing is retried here: the source retries after a
//! hello.
//!
//! Buffers: an append is gathered into one pool buffer (the only copy on this side; RDMA needs memory in one piece);
//! blocks are read from the volume's file straight into one. Over RDMA the destination pulls from that buffer; over
//! TCP it is sent from there.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::{Buf, Payload, Pool, buf, rt};
use weft_replica::peer::{self, Peer};
use weft_replica::record::Record;
use weft_smb::client::{File, OpenOptions};
use weft_wire::repl::control::{MAX_MESSAGE, Refusal, Request, Response};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::ioctl::CtlCode;

use super::config::Address;
use super::door;
use super::error::{Interrupted, Unasked};
use super::position::Part;
use super::setup::{self, Ask, Tell};
use crate::Failure;
use crate::args::Connect;
use crate::connect::{Joined, join};
use crate::hex::hex;
use crate::status::Traffic;

/// The state of a link, for the status. The link's core writes it.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    /// "tcp", "iwarp", "shm", "rnic"; empty while not connected.
    pub transport: &'static str,
    /// Why this transport was chosen.
    pub reason: &'static str,
    /// The negotiated parameters, in one line.
    pub description: String,
    /// Traffic since the link was made, as seen from this side.
    pub traffic: Traffic,
}

/// See the module.
pub(super) struct Carrier {
    address: Address,
    partnership: [u8; 16],
    pool: Pool,
    link: RefCell<Option<Rc<Link>>>,
    report: Arc<Mutex<Report>>,
}

/// What is written through a door. Its name is long, and made only to open it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Door {
    /// Appends to the log of a session.
    Log { session: u64 },
    /// Blocks of a volume of a session.
    Volume { session: u64, member: u16 },
}

impl Door {
    fn name(self, partnership: &[u8; 16]) -> String {
        match self {
            Door::Log { session } => door::log_name(partnership, session),
            Door::Volume { session, member } => door::volume_name(partnership, session, member),
        }
    }
}

/// A session, and the doors opened in it.
struct Link {
    joined: Joined,
    control: File,
    doors: RefCell<HashMap<Door, File>>,
    /// Payload moved since the last report.
    unreported: Cell<u64>,
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Carrier").field("host", &self.address.host).finish_non_exhaustive()
    }
}

fn unreachable(why: impl fmt::Display) -> peer::Error {
    peer::Error::Unreachable(why.to_string())
}

/// Time limit for an answer that a server has at once.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// Maximum number of open doors in a session; opening more closes the oldest ones.
const MOST_DOORS: usize = 64;
/// A server's answer to a request that it cannot parse, for example of a later version: UNEXPECTED_IO_ERROR.
const CANNOT_READ: NtStatus = NtStatus(0xC000_00E9);
/// Payload between two reports of the counters.
const REPORT_EVERY: u64 = 16 << 20;

impl Carrier {
    /// Creates the link to the destination of this partnership. It connects when a hello is sent.
    pub fn new(address: Address, partnership: [u8; 16], pool: Pool, report: Arc<Mutex<Report>>) -> Carrier {
        Carrier { address, partnership, pool, link: RefCell::new(None), report }
    }

    fn link(&self) -> Result<Rc<Link>, peer::Error> {
        self.link.borrow().clone().ok_or_else(|| unreachable("not connected"))
    }

    async fn connect(&self) -> Result<Rc<Link>, peer::Error> {
        let joined =
            join_server(&self.address, &self.pool, self.address.encrypt).await.map_err(unreachable)?;
        let name = hex(self.partnership);
        let control = match joined.tree.open(&name, OpenOptions::write()).await {
            Ok(control) => control,
            Err(e) if e.is_not_found() => return Err(peer::Error::Refused(self.why_unknown(&name).await)),
            Err(e) => return Err(unreachable(e)),
        };
        let doors = RefCell::default();
        let link = Rc::new(Link { joined, control, doors, unreported: Cell::new(0) });
        self.tell(&link);
        *self.link.borrow_mut() = Some(link.clone());
        Ok(link)
    }

    /// Whether a server without such a door was told that the partnership has ended. An older version does not say.
    async fn why_unknown(&self, partnership: &str) -> Refusal {
        let ask_for = Ask::Holds { partnership: partnership.to_owned() };
        match ask_briefly(&self.address, &self.pool, &ask_for).await {
            Some(Tell::Holds(holds)) if holds.part == Part::Ended => Refusal::Ended,
            _ => Refusal::Partnership,
        }
    }

    /// Writes the report.
    fn tell(&self, link: &Link) {
        let traffic = link.joined.session.traffic().into();
        let description = link.joined.tree.describe().to_string();
        let report =
            Report { transport: link.joined.transport, reason: link.joined.reason, description, traffic };
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    fn moved(&self, link: &Link, bytes: u64) {
        link.unreported.set(link.unreported.get().saturating_add(bytes));
        if link.unreported.get() >= REPORT_EVERY {
            link.unreported.set(0);
            self.tell(link);
        }
    }

    /// The link has failed: the next hello makes another one.
    fn lose(&self, lost: &Rc<Link>) {
        let mut link = self.link.borrow_mut();
        if link.as_ref().is_some_and(|link| Rc::ptr_eq(link, lost)) {
            *link = None;
            *self.report.lock().unwrap_or_else(PoisonError::into_inner) = Report::default();
        }
    }

    async fn exchange(&self, link: &Rc<Link>, request: &Request) -> Result<Response, peer::Error> {
        let most = u32::try_from(MAX_MESSAGE).unwrap_or(u32::MAX);
        let answer = link.control.ioctl(CtlCode::WEFT_EXCHANGE, request.emit().into(), most).await;
        let answer = answer.map_err(|e| match (e.status(), request) {
            (Some(CANNOT_READ), Request::Prepare { .. }) => peer::Error::Unknown,
            _ => {
                self.lose(link);
                unreachable(e)
            }
        })?;
        self.tell(link);
        Response::parse(&answer).map_err(|_| peer::Error::Violation)
    }

    async fn open(&self, link: &Link, door: Door) -> Result<File, peer::Error> {
        if let Some(file) = link.doors.borrow().get(&door) {
            return Ok(file.clone());
        }
        let name = door.name(&self.partnership);
        let file = link.joined.tree.open(&name, OpenOptions::write()).await.map_err(unreachable)?;
        let mut doors = link.doors.borrow_mut();
        if doors.len() >= MOST_DOORS {
            doors.clear();
        }
        doors.insert(door, file.clone());
        Ok(file)
    }

    /// One WRITE through a door.
    async fn put(&self, link: &Rc<Link>, door: Door, offset: u64, data: Buf) -> Result<(), peer::Error> {
        let bytes = data.len() as u64;
        let file = self.open(link, door).await?;
        file.write_buf(offset, data).await.map_err(|e| {
            // A status is an answer; after any other error the connection is unusable.
            match e.status() {
                None => self.lose(link),
                Some(NtStatus::DISK_FULL) => return peer::Error::Refused(Refusal::NoSpace),
                Some(_) => {}
            }
            unreachable(e)
        })?;
        self.moved(link, bytes);
        Ok(())
    }

    async fn gather(&self, chain: &[Bytes]) -> Buf {
        let len = chain.iter().map(Bytes::len).sum();
        let mut whole = self.pool.alloc(len).await;
        whole.set_len(len);
        let mut rest = &mut whole[..];
        for piece in chain {
            let (to, behind) = rest.split_at_mut(piece.len());
            buf::copy(to, piece);
            rest = behind;
        }
        whole
    }
}

impl Peer for Carrier {
    fn control(&self, request: Request) -> LocalBoxFuture<'_, Result<Response, peer::Error>> {
        Box::pin(async move {
            if !matches!(request, Request::Hello(_)) {
                return self.exchange(&self.link()?, &request).await;
            }
            // A working link can carry another hello.
            if let Ok(link) = self.link()
                && let Ok(answer) = self.exchange(&link, &request).await
            {
                return Ok(answer);
            }
            let link = self.connect().await?;
            self.exchange(&link, &request).await
        })
    }

    fn append(&self, session: u64, records: Vec<Record>) -> LocalBoxFuture<'_, Result<(), peer::Error>> {
        rt::boxed(move || async move {
            let link = self.link()?;
            let (_, most) = link.joined.tree.io_sizes();
            let mut rest = &records[..];
            while !rest.is_empty() {
                // As many records as fit into one WRITE; the engine's appends fit as they are, except those of slow
                // starts.
                let mut bytes = 0usize;
                let fits = |record: &&Record| {
                    bytes = bytes.saturating_add(record.header.record_len());
                    bytes <= most
                };
                let count = rest.iter().take_while(fits).count().max(1);
                let (now, later) = rest.split_at(count);
                let data = self.gather(&peer::append_bytes(now)).await;
                if data.len() > most {
                    return Err(unreachable("a record is longer than the other server accepts in one WRITE"));
                }
                self.put(&link, Door::Log { session }, 0, data).await?;
                rest = later;
            }
            Ok(())
        })
    }

    fn write_blocks(
        &self,
        session: u64,
        member: u16,
        offset: u64,
        data: Payload,
    ) -> LocalBoxFuture<'_, Result<(), peer::Error>> {
        Box::pin(async move {
            let link = self.link()?;
            let data = match data {
                Payload::Chain(chain) => self.gather(&chain).await,
                Payload::File(range) => {
                    let mut buf = self.pool.alloc(range.len).await;
                    buf.set_len(range.len);
                    let window = buf.into_window();
                    range
                        .read_into(&window)
                        .await
                        .map_err(|e| unreachable(format!("reading the volume: {e}")))?;
                    window.try_into_buf().expect("nobody else holds this window")
                }
            };
            self.put(&link, Door::Volume { session, member }, offset, data).await
        })
    }
}

/// Logs on to a server and connects to its share of doors.
pub(super) async fn join_server(address: &Address, pool: &Pool, encrypt: bool) -> Result<Joined, Failure> {
    let options = Connect { encrypt, compress: address.compress, ..Connect::by(address.transport) };
    let server = (&*address.host, address.port, &*address.user);
    join(server, address.password.text(), door::SHARE, &options, pool).await
}

/// Sends the other server a message outside of a partnership. Always encrypted.
pub(super) async fn ask(address: &Address, pool: &Pool, question: &Ask) -> Result<Tell, Unasked> {
    match exchange(address, pool, question).await? {
        Tell::Error(why) => Err(Unasked::Refused { host: address.host.clone(), why }),
        told => Ok(told),
    }
}

/// Asks another server what it knows at once; `None` if it does not answer within [`ANSWERS_WITHIN`], or refuses.
pub(super) async fn ask_briefly(address: &Address, pool: &Pool, question: &Ask) -> Option<Tell> {
    rt::timeout(ANSWERS_WITHIN, ask(address, pool, question)).await.ok()?.ok()
}

/// Like [`ask`], but a refusal is a normal answer: after an error it is unknown what the other server has done.
pub(super) async fn exchange(address: &Address, pool: &Pool, question: &Ask) -> Result<Tell, Unasked> {
    let (host, port) = (&address.host, address.port);
    let joined = join_server(address, pool, true).await;
    let joined = joined.map_err(|source| Unasked::NotJoined { host: host.clone(), port, source })?;
    let answer = async {
        let door = joined.tree.open(door::SETUP, OpenOptions::write()).await?;
        let question = serde_json::to_vec(question).map_err(Interrupted::Question)?;
        let most = u32::try_from(setup::MAX_MESSAGE).unwrap_or(u32::MAX);
        let answer = door.ioctl(CtlCode::WEFT_EXCHANGE, question.into(), most).await?;
        serde_json::from_slice::<Tell>(&answer).map_err(Interrupted::Answer)
    };
    let answer = answer.await;
    let answer = answer.map_err(|source| Unasked::Interrupted { host: host.clone(), port, source })?;
    if let Err(e) = joined.session.logoff().await {
        tracing::debug!("while leaving {host}: {e}");
    }
    Ok(answer)
}
