//! The common environment of misbehaving peers: a scripted queue pair, a pool that somebody else may hold, a file, the
//! tasks of the server's users, and the loop of acts.
//!
//! `calls` and `transfers` define the messages.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use weft_machine::rt::Task;
use weft_machine::sim::Sim;
use weft_machine::{Buf, File, Pool, rt};

use super::Script;
use super::peer::Scripted;

const MAX_ACTS: usize = 150;
pub(super) const FILE_BYTES: usize = 100_000;

thread_local! {
    // One for all inputs: making a pool is as much work as a short script.
    static POOL: Pool = Pool::new(16 << 20);
}

/// A server and its peer, driven by a script.
pub(super) trait World: Sized {
    /// Starts both.
    async fn begin(pool: &Pool, script: &mut Script<'_>) -> Self;

    /// The next act.
    async fn act(&mut self, script: &mut Script<'_>);

    /// Lets every task run as far as it can.
    async fn turn(&mut self);

    /// The connection ends, and no task waits for it.
    async fn end(self, script: &mut Script<'_>);
}

/// Runs a script.
pub(super) fn run<W: World>(data: &[u8]) {
    let pool = POOL.with(Pool::clone);
    let mut script = Script::new(data);
    Sim::new(u64::from(script.byte())).time_limit(Duration::from_secs(1 << 20)).run(async {
        let mut world = W::begin(&pool, &mut script).await;
        let mut acts = 0;
        while !script.is_over() && acts < MAX_ACTS {
            world.act(&mut script).await;
            world.turn().await;
            acts += 1;
        }
        world.end(&mut script).await;
    });
    assert_eq!(pool.in_use_bytes(), 0, "a buffer is lost");
}

/// See the module.
pub(super) struct Frame {
    pub qp: Rc<Scripted>,
    pub pool: Pool,
    pub file: File,
    /// The server's reader has been told the end.
    pub ended: Rc<Cell<bool>>,
    pub reader: Option<Task<()>>,
    /// Tasks that wait for payload, or for a message to be taken.
    tasks: Vec<Task<()>>,
    /// Memory held by somebody else.
    hoard: Vec<Buf>,
}

impl Frame {
    pub fn new(pool: &Pool, qp: Rc<Scripted>) -> Frame {
        let file = File::in_memory("fuzz").expect("memory");
        let filled = pool.buf_from(&[7; FILE_BYTES]).expect("room").into_window();
        file.place_at(0, &filled).expect("memory");
        Frame {
            qp,
            pool: pool.clone(),
            file,
            ended: Rc::default(),
            reader: None,
            tasks: Vec::new(),
            hoard: Vec::new(),
        }
    }

    pub async fn turn(&mut self, yields: usize) {
        self.qp.next_act();
        for _ in 0..yields {
            rt::yield_now().await;
        }
        self.tasks.retain(|task| !task.is_finished());
    }

    /// The outcome does not matter.
    pub fn spawn<T: 'static>(&mut self, task: impl Future<Output = T> + 'static) {
        self.tasks.push(rt::spawn(async move { drop(task.await) }));
    }

    /// Drops all waiting tasks.
    pub fn give_up_tasks(&mut self) {
        self.tasks.clear();
    }

    /// Others take all memory of some size, or return theirs.
    pub fn squeeze(&mut self, script: &mut Script<'_>) {
        if script.flag() {
            return self.hoard.clear();
        }
        let len = 1 << (12 + script.below(12));
        while self.hoard.len() < 100
            && let Some(buf) = self.pool.try_alloc(len)
        {
            self.hoard.push(buf);
        }
    }

    pub fn relax(&mut self) {
        self.hoard.clear();
    }

    /// The reader, unless it was dropped, has been told the end.
    pub fn check_ended(&self) {
        assert!(self.reader.is_none() || self.ended.get(), "a reader that was not told of the end");
    }
}
