//! A copy that was promoted is a source for a while, is superseded, and becomes a copy again, with something that only
//! it has.

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weft_machine::Payload;
use weft_wire::repl::control::Refusal;

use super::*;
use crate::peer::{self, Peer};
use crate::source::{First, PeerConfig};
use crate::status::Mode;

/// A destination that knows a later source.
#[derive(Debug)]
struct Fencing(Era);

impl Peer for Fencing {
    fn control(&self, _request: Request) -> LocalBoxFuture<'_, Result<Response, peer::Error>> {
        Box::pin(std::future::ready(Ok(Response::Refused(Refusal::Fenced(self.0)))))
    }

    fn append(&self, _: u64, _: Vec<Record>) -> LocalBoxFuture<'_, Result<(), peer::Error>> {
        Box::pin(std::future::ready(Err(Refusal::Session.into())))
    }

    fn write_blocks(
        &self,
        _: u64,
        _: u16,
        _: u64,
        _: Payload,
    ) -> LocalBoxFuture<'_, Result<(), peer::Error>> {
        Box::pin(std::future::ready(Err(Refusal::Session.into())))
    }
}

impl Room {
    /// It is a source from now on, until it is a destination again.
    pub(super) async fn be_source(&mut self, script: &mut Script<'_>) {
        self.picture = None;
        self.fill(false);
        rt::sleep(Duration::from_secs(1)).await;
        let waiting = self.under_way.iter().filter(|(_, task)| !task.is_finished()).count();
        assert_eq!(waiting, 0, "requests outlive what they were asked of");
        self.hang_up();
        self.runs = None;
        let died = script.flag();
        if died {
            self.die();
        }
        self.come_back_as_source(script, died).await;
    }

    async fn come_back_as_source(&mut self, script: &mut Script<'_>, died: bool) {
        let life = remembered(&self.journal, &self.pool).await.life;
        let begun = life != self.model.borrow().life;
        self.live_as_source(script, begun, died).await;
        self.come_back(false).await;
    }

    /// One life as a source, from a journal that says so to one that says otherwise.
    pub(super) async fn live_as_source(&mut self, script: &mut Script<'_>, begun: bool, died: bool) {
        let before = remembered(&self.journal, &self.pool).await;
        assert_eq!(before.role, Role::Source);
        let side = side(&self.journal, &self.members, &self.pool);
        let source = Source::open(side, real::Config::default()).await.expect("it opens");
        let now = remembered(&self.journal, &self.pool).await;
        let last = source.status().last;
        self.model.borrow_mut().reopened(before.tail.sequence, last, now.life, begun, died);
        self.compare_disks();
        let peer = PeerConfig { name: "other".into(), mode: Mode::Asynchronous, first: First::Copy };
        let n = source.add_peer(peer).await.expect("there is room");
        for _ in 0..script.below(6) {
            let member = script.below(SIZES.len()) as u16;
            let (offset, data) = (script.below(32) as u64 * 512, self.payload(512));
            let data = vec![Bytes::from(data)];
            let write = BlockOp::Write { offset, data, durable: false };
            let block = source.block(member.into());
            // An earlier source may have said that the volume is short.
            let is_inside = offset + 512 <= block.geometry().size;
            let written = block.submit(write).await;
            assert_eq!(written.is_ok(), is_inside, "{written:?}");
            self.model.borrow_mut().appended(source.status().last);
        }
        // A later source is heard of.
        let era = source.status().epoch + 1;
        let by = Era { epoch: era, tag: self.stamp, after: last };
        let ships = source.clone();
        let ships = rt::spawn(async move { drop(ships.ship(n, Rc::new(Fencing(by))).await) });
        let halted = rt::timeout(PATIENCE, source.until_halted()).await;
        assert!(halted.is_ok(), "it does not hear of another source: {:?}", source.status());
        source.demote().await.expect("it was superseded");
        drop(ships);
    }
}
