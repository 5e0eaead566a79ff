//! Leases of SMB: a worker takes one, keeps it while it does other things, and acknowledges its breaks; all workers open, read, write and
//! take away the same files.
//!
//! [`crate::leases`] judges what is granted and answered. Nothing is cached: only the right to do so matters.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::rt;
use weft_machine::sim::with_rng;
use weft_nfs::client as nfs;
use weft_smb::client::{self as smb, LeaseState};

use super::{Error, File, Session, Worker, below, ends};
use crate::disk::SECTOR;
use crate::leases::{Access, Act, ClaimId, Rights, Through};
use crate::world::{World, tell};

/// Files that are leased: few, so that clients meet.
const LEASED: usize = 2;

/// A file that is open with a lease.
pub(super) struct LeasedFile {
    which: usize,
    file: smb::File,
    handle: Through,
    lease: Rc<smb::Lease>,
    claim: Option<ClaimId>,
    /// Acknowledges breaks.
    _watch: rt::Task<()>,
}

fn name(which: usize) -> String {
    format!("leased{which}")
}

fn rights(state: LeaseState) -> Rights {
    Rights {
        read: state.contains(LeaseState::READ_CACHING),
        write: state.contains(LeaseState::WRITE_CACHING),
        handle: state.contains(LeaseState::HANDLE_CACHING),
    }
}

/// Answers the breaks of a lease: at once, later, or not in time.
async fn watch(world: Rc<World>, by: String, lease: Rc<smb::Lease>, claim: Option<ClaimId>) {
    loop {
        let smb::LeaseBreak { from, to, acknowledge } = lease.broken().await;
        tell!(world, "{by} is told that its lease breaks from {from:?} to {to:?}");
        if let Some(claim) = claim {
            world.leases.broken(claim, rights(to), acknowledge);
        }
        if !acknowledge {
            continue;
        }
        let waits = below(8);
        if waits > 3 {
            let nanos = with_rng(|rng| rng.within(1..=3_000_000_000));
            rt::sleep(Duration::from_nanos(nanos)).await;
        }
        if let Some(claim) = claim {
            world.leases.gives_up(claim, if waits == 0 { Rights::default() } else { rights(to) });
        }
        if waits == 0 {
            // The server does not wait for ever.
            tell!(world, "{by} acknowledges nothing");
            continue;
        }
        let acknowledged = ends("the acknowledgement of a break", lease.acknowledge(to)).await;
        match acknowledged {
            Ok(()) => tell!(world, "{by} has acknowledged"),
            Err(e) => tell!(world, "{by} acknowledges: {e}"),
        }
    }
}

impl Worker {
    /// Takes a lease, uses it or closes its file, or gets in the way of the leases of others.
    pub(super) async fn use_leases(&mut self, world: &Rc<World>) {
        let can_lease = matches!(self.session, Some(Session::Smb(..)));
        match below(5) {
            0 | 1 if can_lease && self.leased.is_none() => self.take_lease(world).await,
            0 if can_lease => self.close_leased(world).await,
            1 | 2 if self.leased.is_some() => self.use_leased(world).await,
            _ => self.disturb(world, below(LEASED)).await,
        }
    }

    async fn take_lease(&mut self, world: &Rc<World>) {
        use LeaseState as State;
        let Some(Session::Smb(_, tree)) = &self.session else { return };
        let read = State::READ_CACHING;
        let wanted = match below(5) {
            0 => read,
            1 => read | State::HANDLE_CACHING,
            2 => read | State::WRITE_CACHING,
            _ => read | State::HANDLE_CACHING | State::WRITE_CACHING,
        };
        let which = below(LEASED);
        let access = world.leases.begin(self.number, which, Act::Open, Through::Name);
        tell!(world, "{self} opens {} to cache {wanted:?}...", name(which));
        let opened = ends("CREATE", tree.open_leased(&name(which), smb::OpenOptions::create(), wanted)).await;
        self.told(world, format_args!("opens {}", name(which)), &opened);
        match opened {
            Ok((file, lease)) => {
                let granted = lease.granted();
                let handle = world.leases.handle(&access);
                let claim = match lease.is_broken() {
                    // It may have been less when it was answered.
                    true => self.judged(world.leases.end(access, Ok(()))).and(None),
                    false => self.judged(world.leases.granted(access, rights(granted))).flatten(),
                };
                tell!(world, "{self} may cache {granted:?}, claims {claim:?}");
                let lease = Rc::new(lease);
                let _watch = rt::spawn(watch(world.clone(), self.to_string(), lease.clone(), claim));
                self.leased = Some(LeasedFile { which, file, handle, lease, claim, _watch });
            }
            failed => self.failed(world, access, failed),
        }
    }

    /// Closes the file, which ends the lease.
    pub(super) async fn close_leased(&mut self, world: &World) {
        let Some(LeasedFile { which, file, .. }) = self.leased.take() else { return };
        world.leases.released_all(self.number);
        tell!(world, "{self} closes {}...", name(which));
        let closed = ends("CLOSE", file.close()).await;
        self.told(world, format_args!("closes {}", name(which)), &closed);
        self.judge_session(world, &closed);
    }

    /// Reads or writes by the lease's own handle, which breaks leases of others only.
    async fn use_leased(&mut self, world: &World) {
        let Some(LeasedFile { which, file, handle, lease, claim, .. }) = &self.leased else { return };
        let (act, begun) = (if below(2) == 0 { Act::Read } else { Act::Write }, world.leases.moment());
        let access = world.leases.begin(self.number, *which, act, *handle);
        let done = match act {
            Act::Read => ends("READ", file.read(0, SECTOR)).await.map(drop),
            _ => ends("WRITE", file.write(0, Bytes::from_static(&[1; SECTOR]))).await,
        };
        self.told(world, format_args!("does {act:?} with {}", name(*which)), &done);
        if let (Ok(()), Some(claim), false) = (&done, claim, lease.is_broken()) {
            self.judged(world.leases.heard(*claim, begun));
        }
        self.done(world, access, &done);
        self.judge_session(world, &done);
    }

    /// Opens, reads, writes or takes away a file that others may have leased.
    async fn disturb(&mut self, world: &World, which: usize) {
        match below(6) {
            0 => return self.take_away(world, which).await,
            _ if self.session.is_none() => return,
            _ => {}
        }
        let (writes, truncates) = (below(2) == 0, below(3) == 0);
        let name = name(which);
        let set = nfs::SetAttributes::default();
        let act = match &self.session {
            Some(Session::Smb(..)) if writes && truncates => Act::Write,
            _ => Act::Open,
        };
        tell!(world, "{self} opens {name}, writes: {writes}, truncates: {truncates}...");
        let access = world.leases.begin(self.number, which, act, Through::Name);
        let opened = match &self.session {
            Some(Session::Smb(_, tree)) => {
                let options = match (writes, truncates) {
                    (true, true) => smb::OpenOptions::truncate(),
                    (true, false) => smb::OpenOptions::create(),
                    (false, _) => smb::OpenOptions::read(),
                };
                ends("CREATE", tree.open(&name, options)).await.map(File::Smb)
            }
            // No open of version 3 excludes anything.
            Some(Session::Nfs3(mount)) => {
                ends("CREATE", mount.create(&name, set)).await.map(|file| File::Nfs(Box::new(file)))
            }
            Some(Session::Nfs4(mount)) => {
                let opened = async {
                    match writes {
                        true => mount.create(&name, set).await,
                        false => mount.open(&name, false).await,
                    }
                };
                ends("OPEN", opened).await.map(|file| File::Nfs(Box::new(file)))
            }
            None => return,
        };
        self.told(world, format_args!("opens {name}"), &opened);
        let file = match opened {
            Ok(file) => file,
            failed => return self.failed(world, access, failed),
        };
        let handle = world.leases.handle(&access);
        match &self.session {
            Some(Session::Nfs3(_)) => {}
            _ => self.done(world, access, &Ok(())),
        }
        let act = if writes { Act::Write } else { Act::Read };
        let access = world.leases.begin(self.number, which, act, handle);
        let data = Bytes::from_static(&[2; SECTOR]);
        let done = match &file {
            File::Smb(file) if writes => ends("WRITE", file.write(0, data)).await,
            File::Smb(file) => ends("READ", file.read(0, SECTOR)).await.map(drop),
            File::Nfs(file) if writes && truncates => ends("SETATTR", file.set_len(0)).await,
            File::Nfs(file) if writes => ends("WRITE", file.write(0, data)).await,
            File::Nfs(file) => ends("READ", file.read(0, SECTOR)).await.map(drop),
        };
        self.told(world, format_args!("does {act:?} with {name}"), &done);
        self.done(world, access, &done);
        let closed = file.close().await;
        self.judge_change(world, &done.and(closed));
    }

    async fn take_away(&mut self, world: &World, which: usize) {
        let (from, to) = (name(which), format!("was-{}", name(which)));
        let renames = below(2) == 0;
        let access = world.leases.begin(self.number, which, Act::TakeAway, Through::Name);
        tell!(world, "{self} takes away {from}, by another name: {renames}...");
        let gone = match &self.session {
            Some(Session::Smb(_, tree)) if renames => ends("a rename", tree.rename(&from, &to, true)).await,
            Some(Session::Smb(_, tree)) => ends("the removal of a name", tree.remove(&from)).await,
            Some(Session::Nfs3(mount)) if renames => ends("RENAME", mount.rename(&from, &to)).await,
            Some(Session::Nfs3(mount)) => ends("REMOVE", mount.remove(&from)).await,
            Some(Session::Nfs4(mount)) if renames => ends("RENAME", mount.rename(&from, &to)).await,
            Some(Session::Nfs4(mount)) => ends("REMOVE", mount.remove(&from)).await,
            None => Ok(()),
        };
        self.told(world, format_args!("takes away {from}"), &gone);
        self.done(world, access, &gone);
        self.judge_change(world, &gone);
    }

    fn judged<T>(&self, judged: Result<T, String>) -> Option<T> {
        match judged {
            Ok(judged) => Some(judged),
            Err(why) => panic!("{self}: {why}"),
        }
    }

    fn done(&self, world: &World, access: Access, outcome: &Result<(), Error>) {
        self.judged(world.leases.end(access, outcome.as_ref().map(drop).map_err(|e| e.0)));
    }

    fn failed<T>(&mut self, world: &World, access: Access, outcome: Result<T, Error>) {
        let outcome = outcome.map(drop);
        self.done(world, access, &outcome);
        self.judge_change(world, &outcome);
    }
}
