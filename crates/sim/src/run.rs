//! A run: the server of a world, what happens to it, and what must hold when it ends.
//!
//! ```text
//! clients of SMB, clients of NFS -- simulated TCP -- SMB server, NFS server -- one Vfs -- Disk
//! ```
//!
//! `work` decides what clients do.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::Duration;

use weft_machine::sim::{self, CutHow, Faults as NetFaults, Sim, with_rng};
use weft_machine::{Listener, Pool, Stream, clock, rt};
use weft_nfs::server as nfsd;
use weft_smb::auth::Secret;
use weft_smb::server as smbd;
use weft_store::{Share, Vfs};
use weft_transport::{nbss, record};

use crate::disk::Faults as DiskFaults;
use crate::model::Protocol;
use crate::state::State;
use crate::work::{self, Worker};
use crate::world::{NFS, PASSWORD, SHARE, SMB, USER, World, tell};

/// All that was begun has ended by then, also what nobody waits for any more: handles of silent connections are closed.
const QUIET: Duration = Duration::from_secs(90);
/// TCP's keepalive finds out by then that nobody is at the other end (`machine::net` sets it so).
const KEEPALIVE: Duration = Duration::from_secs(60);
/// How long a crash waits for a rename, and for how many waits of the disk it is within one.
const A_RENAME: Duration = Duration::from_secs(5);
const STEPS: u32 = 2;
/// Leases have ended by then, and whatever servers keep for clients that are gone.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// What a run was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// A hash over all that happened; the same for the same seed.
    pub digest: (u64, u64),
    /// The same of what clients did.
    pub trace: (u64, u64),
    /// Calls that were answered with success.
    pub answered: u64,
    /// Crashes of process and host.
    pub crashes: u64,
    /// Leases that were granted, and breaks of them that clients had to acknowledge.
    pub leases: (u64, u64),
    /// Calls of NFS that arrived twice.
    pub copied: u64,
    /// Connections of SMB that broke under a request.
    pub broken: u64,
}

/// A world and its server.
struct Run {
    world: Rc<World>,
    /// What outlives its process, in some worlds.
    state: State,
    process: RefCell<Option<Process>>,
}

/// A run of the server.
struct Process {
    vfs: Vfs,
    pool: Pool,
    tasks: Vec<rt::Task<()>>,
}

/// Lets the world of `seed` unfold.
///
/// # Panics
/// When something happens that must not; the last events are printed before.
pub fn run(seed: u64) -> Report {
    let world = Rc::<World>::default();
    let run = Run { world: world.clone(), state: State::of(seed), process: RefCell::default() };
    let sim = Sim::new(seed).time_limit(Duration::from_secs(7 * 86400));
    let told = catch_unwind(AssertUnwindSafe(|| sim.run(run.unfold())));
    if let Err(panic) = told {
        eprintln!("{}make sim SEED={seed} repeats this", world.trace.tail());
        resume_unwind(panic);
    }
    Report {
        digest: sim.digest(),
        trace: world.trace.digest(),
        answered: world.answered.get(),
        crashes: world.crashes.get(),
        leases: world.leases.counts(),
        copied: world.taps.copied(),
        broken: world.broken.get(),
    }
}

fn below(n: usize) -> usize {
    with_rng(|rng| rng.below(n))
}

/// The network of a world.
fn network() -> NetFaults {
    let millis = Duration::from_millis;
    match below(4) {
        0 => NetFaults::default(),
        1 => NetFaults::rough(),
        2 => NetFaults { latency: millis(1)..=millis(40), ..NetFaults::default() },
        _ => NetFaults { bytes_per_second: Some(1 << 20), split: true, ..NetFaults::default() },
    }
}

/// Its disk.
fn faults() -> DiskFaults {
    let one_of = |choices: &[u64]| choices[below(choices.len())];
    DiskFaults {
        slow_one_in: one_of(&[0, 2, 8]),
        wait: Duration::from_millis(one_of(&[1, 20, 500])),
        failing_flush_one_in: one_of(&[0, 0, 6]),
        failing_write_one_in: one_of(&[0, 0, 40]),
        limit_bytes: one_of(&[0, 0, 0, 24 << 10]) as usize,
    }
}

impl Run {
    async fn unfold(&self) {
        let world = &self.world;
        let (network, faults) = (network(), faults());
        tell!(world, "{network:?} {faults:?}");
        sim::set_faults(network);
        self.start().await;
        let mut workers: Vec<Worker> = work::workers();
        world.disk.set_faults(faults);
        for round in 0..2 + below(3) {
            tell!(world, "round {round}");
            let ops = 5 + below(20);
            let running: Vec<_> = workers
                .drain(..)
                .map(|mut worker| {
                    let world = world.clone();
                    rt::spawn(async move {
                        for _ in 0..ops {
                            worker.step(&world).await;
                        }
                        worker
                    })
                })
                .collect();
            for _ in 0..below(3) {
                let nanos = with_rng(|rng| rng.within(0..=3_000_000_000));
                rt::sleep(Duration::from_nanos(nanos)).await;
                self.strike().await;
            }
            for worker in running {
                workers.push(worker.await);
            }
            rt::sleep(QUIET).await;
            world.model.quiet();
            world.names.quiet();
            if let Err(why) = world.leases.quiet().and_then(|()| world.taps.quiet()) {
                panic!("{why}");
            }
        }
        // From here on nothing fails any more.
        world.disk.set_faults(DiskFaults::default());
        for worker in &mut workers {
            worker.check(world).await;
        }
        for worker in &mut workers {
            worker.close_locks(world).await;
        }
        for worker in &mut workers {
            worker.lock_whole(world).await;
        }
        for worker in workers {
            worker.end(world).await;
        }
        self.end().await;
    }

    /// Something happens.
    async fn strike(&self) {
        match below(6) {
            0 => self.cut(CutHow::Reset),
            1 => self.cut(CutHow::Close),
            2 => self.cut(CutHow::Silent),
            kind @ (3 | 4) => {
                if below(2) == 0 {
                    self.meet_a_rename().await;
                }
                self.restart(kind == 4).await;
            }
            _ => {
                let days = with_rng(|rng| rng.within(0..=2000));
                let back = with_rng(|rng| rng.one_in(2));
                let by = Duration::from_secs(days * 43_200);
                let wall = if back { clock::wall().saturating_sub(by) } else { clock::wall() + by };
                tell!(self.world, "the clock is set to {wall:?}");
                sim::set_wall(wall);
            }
        }
    }

    /// Waits until a rename is at work, and a little longer: its steps are what a crash may come between.
    async fn meet_a_rename(&self) {
        if rt::timeout(A_RENAME, self.world.names.next_rename()).await.is_ok() {
            let longest = self.world.disk.faults().wait * STEPS;
            let nanos = with_rng(|rng| rng.within(0..=longest.as_nanos() as u64));
            rt::sleep(Duration::from_nanos(nanos)).await;
        }
    }

    fn cut(&self, how: CutHow) {
        tell!(self.world, "all links are cut: {how:?}");
        // Opens of SMB end with their connection. One of NFS outlives it, unless its client is silent for longer than its lease.
        self.world.grants_lost((how != CutHow::Silent).then_some(Protocol::Smb));
        sim::cut_all(how);
        if how == CutHow::Silent {
            let world = self.world.clone();
            world.leases.silence_begins();
            let keepalive = async move {
                rt::sleep(KEEPALIVE).await;
                sim::end_silent();
                world.leases.silence_ends();
            };
            rt::spawn(keepalive).detach();
        }
    }

    /// The process is killed, or the host crashes, and the server is started again.
    async fn restart(&self, host: bool) {
        tell!(self.world, "{}", if host { "the host crashes" } else { "the process is killed" });
        self.world.crashes.set(self.world.crashes.get() + 1);
        let process = self.process.take();
        // What it has in memory goes with it, and what it has not done is not done.
        self.world.grants_lost(None);
        if host {
            self.world.disk.crash();
            self.world.model.host_crashed();
            self.world.names.host_crashed();
        } else {
            self.world.disk.end_process();
            self.world.model.process_ended();
            self.world.names.process_ended();
        }
        self.state.leave_behind();
        drop(process);
        sim::cut_all(CutHow::Reset);
        // Its tasks are gone, and its ports free, when nothing can run at this moment.
        let away = with_rng(|rng| rng.within(1..=20_000_000_000));
        rt::sleep(Duration::from_nanos(away)).await;
        self.start().await;
    }

    async fn start(&self) {
        let vfs = Vfs::new(self.world.disk.for_process());
        let share = Share::new(SHARE, vfs.clone());
        let pool = Pool::new(64 << 20);
        let user = smbd::User::new(USER, Secret::password(PASSWORD));
        let smb = smbd::Server::new(smbd::Config {
            signing: smbd::Signing::Enabled,
            offers: self.state.offers(),
            ..smbd::Config::new([7; 16], vec![share.clone()], vec![user], pool.clone())
        });
        let nfs = nfsd::Server::new(nfsd::Config {
            shares: vec![share],
            pool: pool.clone(),
            limits: nfsd::Limits::default(),
            policy: nfsd::Policy { decides: false, squash_root: false },
            durable: self.state.durable(),
        });
        smb.restore().await.expect("its journal");
        let tending = nfs.clone();
        let (smb_pool, nfs_pool) = (pool.clone(), pool.clone());
        let (smb_world, nfs_world) = (self.world.clone(), self.world.clone());
        let tasks = vec![
            accept(SMB, move |stream| {
                let (server, pool) = (smb.clone(), smb_pool.clone());
                let channel = nbss::Nbss::channel(stream, pool, nbss::Config::default());
                let channel = smb_world.taps.tap(channel);
                async move { server.serve(channel).await }
            }),
            accept(NFS, move |stream| {
                let (server, pool) = (nfs.clone(), nfs_pool.clone());
                let channel = record::Record::channel(stream, pool, record::Config::default());
                let channel = nfs_world.taps.tap(channel);
                // It ends with its connection, however that ends.
                async move { drop(server.serve(channel).await) }
            }),
            rt::spawn(async move { tending.run_housekeeping().await }),
        ];
        tell!(self.world, "the server starts");
        self.process.replace(Some(Process { vfs, pool, tasks }));
    }

    /// All clients are gone: nothing may be left of them.
    async fn end(&self) {
        rt::sleep(FORGOTTEN).await;
        let Some(Process { vfs, pool, tasks }) = self.process.take() else { panic!("the server runs") };
        let open: Vec<String> =
            vfs.opens().open_nodes().into_iter().map(|node| self.world.disk.name_of(node)).collect();
        assert!(open.is_empty(), "{open:?} are open, and no client is left");
        drop((tasks, vfs));
        rt::sleep(QUIET).await;
        assert_eq!(self.world.disk.held(), 0, "nodes that a server without clients keeps");
        assert_eq!(pool.in_use_bytes(), 0, "buffers that nobody has");
    }
}

/// Serves what connects to `addr`.
fn accept<F: Future<Output = ()> + 'static>(
    addr: SocketAddr,
    serve: impl Fn(Stream) -> F + 'static,
) -> rt::Task<()> {
    let listener = Listener::bind(addr).expect("the port is free");
    rt::spawn(async move {
        let connections = RefCell::new(Vec::<rt::Task<()>>::new());
        let accepted = async || {
            let Ok(socket) = listener.accept().await else { return ControlFlow::Break(()) };
            let Ok(stream) = Stream::from_socket(socket) else { return ControlFlow::Continue(()) };
            let connections = &mut *connections.borrow_mut();
            connections.retain(|task| !task.is_finished());
            connections.push(rt::spawn(serve(stream)));
            ControlFlow::Continue(())
        };
        while accepted().await.is_continue() {}
    })
}
