//! Calls to a client's lock manager and status monitor: GRANTED, the `_RES` procedures, NOTIFY, STAT.
//!
//! See RFC 1813 6.3 (NLMPROC4_GRANTED and the `_RES` procedures) and RFC 1833 (finding the client's port). Each call
//! has a connection of its own, because calls are rare. Retries are limited.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft_machine::{Pool, Stream, rt};
use weft_transport::{Channel, record};
use weft_wire::nlm::{self, Answer, Lock, Object, Status, TestArgs, procedure};
use weft_wire::nsm;
use weft_wire::rpcbind::{self, Mapping, protocol};
use weft_wire::xdr::Xdr;

use crate::client::rpc::{Cargo, Program, Rpc};
use crate::client::{Credential, Error};
use crate::server::outgoing::{ConnectionPermit, Outgoing};

/// How long a call may take, including the query for its port.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often GRANTED is sent. A client that receives none repeats its request.
const ATTEMPTS: u32 = 3;
/// All messages exchanged are short.
const MAX_MESSAGE: usize = 16 << 10;

const NLM: Program = Program(nlm::PROGRAM, nlm::VERSION);
const NSM: Program = Program(nsm::PROGRAM, nsm::VERSION);

async fn dial(addr: SocketAddr, pool: &Pool) -> Result<Rc<Rpc>, Error> {
    let stream = Stream::connect_within(addr, PATIENCE).await.map_err(failed)?;
    let config = record::Config { max_message: MAX_MESSAGE, ..record::Config::default() };
    let channel: Rc<dyn Channel> = record::Record::channel(stream, pool.clone(), config);
    Ok(Rpc::new(channel, Credential::None))
}

fn failed(e: std::io::Error) -> Error {
    Error::Channel(Arc::new(weft_transport::Error::Io(e)))
}

fn late() -> Error {
    Error::Channel(Arc::new(weft_transport::Error::TimedOut("a call to a client's lock manager")))
}

/// How to reach a client.
#[derive(Clone)]
pub(in crate::server) struct CallbackTarget {
    pub host: IpAddr,
    /// The port of its rpcbind: 111, unless a test acts as the client.
    pub port: u16,
    pub pool: Pool,
    /// The limit on concurrent calls.
    pub calls: Outgoing,
}

/// Asks the host's rpcbind for the program's port, and calls it there. The caller holds a permit for the connection.
async fn call<R: Xdr>(
    target: &CallbackTarget,
    _permit: &ConnectionPermit,
    program: Program,
    number: u32,
    args: &impl Xdr,
) -> Result<R, Error> {
    let CallbackTarget { host, port, ref pool, .. } = *target;
    let call = async {
        let binder = dial(SocketAddr::new(host, port), pool).await?;
        let asked = Mapping { program: program.0, version: program.1, protocol: protocol::TCP, port: 0 };
        let binding = Program(rpcbind::PROGRAM, rpcbind::PORTMAP);
        let port: u32 = binder.call(binding, rpcbind::procedure::GETPORT, &asked, Cargo::default()).await?;
        drop(binder);
        let port = u16::try_from(port).ok().filter(|port| *port != 0);
        let port = port.ok_or_else(|| failed(std::io::ErrorKind::ConnectionRefused.into()))?;
        let there = dial(SocketAddr::new(host, port), pool).await?;
        there.call(program, number, args, Cargo::default()).await
    };
    rt::timeout(PATIENCE, call).await.unwrap_or_else(|_| Err(late()))
}

/// Tells a client that its blocked lock is granted; returns whether it still wants the lock.
pub(super) async fn granted(target: &CallbackTarget, cookie: Object, exclusive: bool, lock: Lock) -> bool {
    let args = TestArgs { cookie, exclusive, lock };
    for attempt in 1..=ATTEMPTS {
        let Some(permit) = target.calls.enter_within(target.host, PATIENCE).await else { continue };
        match call::<Answer>(target, &permit, NLM, procedure::GRANTED, &args).await {
            Ok(answer) => {
                tracing::debug!(host = %target.host, status = answer.status.0, "a client was told that it has its lock");
                return answer.status == Status::GRANTED;
            }
            Err(e) => {
                tracing::debug!(host = %target.host, attempt, "a client was not told that it has its lock: {e}")
            }
        }
    }
    false
}

/// Answers a `_MSG` by its `_RES`.
pub(super) async fn answer(
    target: &CallbackTarget,
    permit: &ConnectionPermit,
    number: u32,
    result: &impl Xdr,
) {
    if let Err(e) = call::<()>(target, permit, NLM, number, result).await {
        tracing::debug!(host = %target.host, number, "could not send a reply to a client's lock manager: {e}");
    }
}

/// Asks a client's status monitor for its state number.
pub(super) async fn stat(
    target: &CallbackTarget,
    permit: &ConnectionPermit,
    name: &nsm::Name,
) -> Result<nsm::StatAnswer, Error> {
    call(target, permit, NSM, nsm::procedure::STAT, name).await
}

/// Notifies a client's status monitor that we have restarted.
pub(in crate::server) async fn notify(target: &CallbackTarget, change: &nsm::Change) -> Result<(), Error> {
    let permit = target.calls.enter_within(target.host, PATIENCE).await.ok_or_else(late)?;
    call(target, &permit, NSM, nsm::procedure::NOTIFY, change).await
}
