//! What lies between two hosts of the simulation: slow, reordering, and at times not there.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weft_machine::rt;
use weft_machine::sim::with_rng;
use weft_machine::{Payload, Pool};
use weft_wire::repl::control::{Refusal, Request, Response};

use crate::destination::Destination;
use crate::group::Behind;
use crate::peer::{Error, Peer, append_bytes};
use crate::record::Record;
use crate::source::Source;

/// What a host runs.
#[derive(Clone, Debug, Default)]
pub enum Side {
    #[default]
    Nothing,
    Starting,
    Stopped,
    /// A server that knows nothing of the partnership.
    Stranger,
    /// A server that was told by its source that the partnership is over.
    Ended,
    Source(Arc<Source>),
    Destination(Arc<Destination>),
}

/// A host, as others reach it.
#[derive(Debug, Default)]
pub struct Host {
    pub side: RefCell<Side>,
    /// Counts its lives.
    pub life: Cell<u64>,
}

/// The cable, which all hosts share.
#[derive(Debug)]
pub struct Cable {
    pub up: Cell<bool>,
    /// Counts how often it was cut: what was under way then is lost.
    pub cuts: Cell<u64>,
    pub slowest: Duration,
    /// What this host says reaches nobody, though it is answered what it is asked.
    pub muted: RefCell<Option<Rc<Host>>>,
    /// One answer of so many is lost, though the cable is up; 0 for none.
    pub loses_one_in: Cell<u64>,
}

/// From one host to another.
#[derive(Debug)]
pub struct Link {
    pub cable: Rc<Cable>,
    pub to: Rc<Host>,
    pub from: Rc<Host>,
    /// Of the host that holds it.
    pub life: u64,
    pub pool: Pool,
}

impl Cable {
    /// Whether what this host says reaches the others.
    pub fn carries(&self, from: &Rc<Host>) -> bool {
        self.up.get() && self.muted.borrow().as_ref().is_none_or(|muted| !Rc::ptr_eq(muted, from))
    }
}

impl Link {
    async fn hop(&self) {
        let most = self.cable.slowest.as_nanos() as u64;
        rt::sleep(Duration::from_nanos(with_rng(|rng| rng.within(0..=most)))).await;
    }

    /// Carries a call over and its answer back. A call whose link is lost goes on, or is dropped, as by a server whose
    /// connection ends.
    async fn carry<T: 'static>(&self, call: impl AsyncFnOnce(Side) -> T + 'static) -> Result<T, Error> {
        let gone = || Error::Unreachable("the cable is cut".into());
        let cuts = self.cable.cuts.get();
        if self.from.life.get() != self.life {
            // The host is dead: nothing that it was about to do happens.
            std::future::pending::<()>().await;
        }
        self.hop().await;
        if !self.cable.carries(&self.from)
            || self.cable.cuts.get() != cuts
            || self.from.life.get() != self.life
        {
            self.hop().await;
            return Err(gone());
        }
        let (side, there) = (self.to.side.borrow().clone(), self.to.life.get());
        if matches!(side, Side::Nothing) {
            return Err(Error::Unreachable("nobody listens".into()));
        }
        // One that died meanwhile answers nobody.
        let call = rt::spawn(call(side));
        let answer = call_or_cut(self, there, cuts, call).await.ok_or_else(gone)?;
        self.hop().await;
        let lost = self.cable.loses_one_in.get();
        if self.cable.cuts.get() != cuts || (lost > 0 && with_rng(|rng| rng.one_in(lost))) {
            return Err(gone());
        }
        if self.from.life.get() != self.life {
            std::future::pending::<()>().await;
        }
        Ok(answer)
    }
}

/// The answer, unless the cable is cut or the host dies first; the call goes on then, or is dropped.
async fn call_or_cut<T: 'static>(link: &Link, there: u64, cuts: u64, call: rt::Task<T>) -> Option<T> {
    let mut call = Box::pin(call);
    loop {
        match rt::timeout(Duration::from_millis(1), call.as_mut()).await {
            Ok(answer) => return Some(answer),
            Err(_) if link.cable.cuts.get() != cuts || link.to.life.get() != there => {
                if with_rng(|rng| rng.below(2)) == 0 {
                    rt::spawn(async move {
                        call.await;
                    })
                    .detach();
                }
                return None;
            }
            Err(_) => {}
        }
    }
}

/// A destination that answers what it likes.
pub struct Says<F>(pub F);

impl<F> std::fmt::Debug for Says<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Says")
    }
}

impl<F: Fn(Request) -> Response> Peer for Says<F> {
    fn control(&self, request: Request) -> LocalBoxFuture<'_, Result<Response, Error>> {
        Box::pin(async move { Ok((self.0)(request)) })
    }

    fn append(&self, _: u64, _: Vec<Record>) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Err(Error::Violation)))
    }

    fn write_blocks(&self, _: u64, _: u16, _: u64, _: Payload) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Err(Error::Violation)))
    }
}

impl Peer for Link {
    fn control(&self, request: Request) -> LocalBoxFuture<'_, Result<Response, Error>> {
        Box::pin(async move {
            // As bytes, as it would travel.
            let request = Request::parse(&request.emit()).expect("a request");
            let response = self.carry(async move |side| match side {
                Side::Destination(destination) => destination.control(request).await,
                Side::Source(source) => source.control(&request).await,
                Side::Starting => Behind::Starting.control(request).await,
                Side::Stopped => Behind::Stopped.control(request).await,
                Side::Stranger => Response::Refused(Refusal::Partnership),
                Side::Ended => Response::Refused(Refusal::Ended),
                Side::Nothing => unreachable!("looked at before"),
            });
            Ok(Response::parse(&response.await?.emit()).expect("a response"))
        })
    }

    fn append(&self, session: u64, records: Vec<Record>) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let records = Record::parse_all(append_bytes(&records)).expect("records");
            let done = self.carry(async move |side| match side {
                Side::Destination(destination) => destination.append(session, records).await,
                _ => Err(Refusal::Session),
            });
            Ok(done.await??)
        })
    }

    fn write_blocks(
        &self,
        session: u64,
        member: u16,
        offset: u64,
        data: Payload,
    ) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            // Read as late as a transport would.
            self.hop().await;
            let data = data.into_chain(&self.pool).await.expect("it is read");
            let done = self.carry(async move |side| match side {
                Side::Destination(destination) => {
                    destination.write_blocks(session, member, offset, data).await
                }
                _ => Err(weft_wire::repl::control::Refusal::Session),
            });
            Ok(done.await??)
        })
    }
}
