//! Decides where the system calls of an operation run: on the calling core, or on a worker because a file system may
//! block.
//!
//! There is one decision per operation, based on the file systems of the nodes that it names. The system calls are
//! the same in both cases. A share is usually one file system, but others may be mounted below its root: an operation
//! on a node of such a file system, or on the name that leads into it, runs in that file system's places, so that a
//! hanging mount does not block the rest of the share. A listing runs where its directory is, and asks mounted file systems
//! apart (see `across`). [`weft_machine::file::system`] knows which file systems may
//! block, and limits their places; an operation that finds none fails with [`Error::Limit`].

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_machine::file::system::{Device, FileSystem};
use weft_machine::file::{mount_readings, remote_below};

use super::crossing::Across;
use super::observe::Guard;
use super::sys::Identity;
use super::{Folder, names};
use crate::vfs::{Attr, Error, Mentions, NodeId, Op};

/// Maximum number of file systems remembered besides the root's.
const MAX_OTHERS: usize = 1024;

/// Where the system calls of an operation run.
#[derive(Clone)]
pub(super) enum Site {
    /// On the calling core. `None`: on the root's file system.
    Core(Option<Arc<FileSystem>>),
    /// On workers, in the places of this file system.
    Workers(Arc<FileSystem>),
}

/// The file systems of a share.
pub(super) struct Systems {
    home: Arc<FileSystem>,
    /// Whether there are others: then each operation is checked.
    are_several: AtomicBool,
    /// The version of the mount table that `mounts` reflects.
    reading: AtomicU64,
    mounts: Mutex<Mounts>,
}

#[derive(Default)]
struct Mounts {
    others: HashMap<Device, Arc<FileSystem>>,
    crossings: Vec<Crossing>,
}

/// A name below the root that leads to a file system which may block.
struct Crossing {
    /// The path from the root to the directory of the name.
    way: Vec<Vec<u8>>,
    device: Device,
    across: Across,
}

impl Systems {
    /// The file systems of a share whose root is on this device. In tests, times are not used to detect blocking.
    pub(super) fn of(home: Device) -> Systems {
        Systems::new(if cfg!(test) { FileSystem::fixed(false) } else { FileSystem::of(home) })
    }

    pub(super) fn new(home: Arc<FileSystem>) -> Systems {
        Systems {
            home,
            are_several: AtomicBool::new(false),
            // Differs from every real version.
            reading: AtomicU64::new(u64::MAX),
            mounts: Mutex::default(),
        }
    }

    /// The root's file system.
    pub(super) fn home(&self) -> &Arc<FileSystem> {
        &self.home
    }

    // Each change under the lock is one step.
    fn mounts(&self) -> MutexGuard<'_, Mounts> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file system that may block, besides the root's.
    fn any_that_blocks(&self) -> Option<Arc<FileSystem>> {
        let mounts = self.mounts();
        let mounted = mounts.crossings.iter().map(|crossing| &crossing.across.system);
        mounts.others.values().chain(mounted).find(|system| system.blocks()).cloned()
    }

    /// A node on another device than the root's was seen.
    pub(super) fn saw_another(&self) {
        self.are_several.store(true, Ordering::Release);
    }

    /// The file system of another device.
    fn other(&self, device: Device) -> Arc<FileSystem> {
        if let Some(system) = self.mounts().others.get(&device) {
            return system.clone();
        }
        let system = FileSystem::of(device);
        let mut mounts = self.mounts();
        if mounts.others.len() >= MAX_OTHERS {
            mounts.others.clear();
        }
        mounts.others.insert(device, system.clone());
        system
    }
}

impl Folder {
    /// Where the system calls of `op` run.
    pub(super) fn site(&self, op: &Op) -> Site {
        let systems = &self.systems;
        if systems.reading.load(Ordering::Acquire) != mount_readings() {
            self.look_for_mounts();
        }
        if let Op::Stable { .. } = op {
            // The table tells, without a system call.
            return Site::Core(None);
        }
        if systems.are_several.load(Ordering::Acquire) {
            return self.site_among_several(op);
        }
        self.site_at_home()
    }

    /// See [`crate::vfs::Backend::attr_now`].
    pub(super) fn attr_now(&self, node: NodeId) -> Option<Result<Attr, Error>> {
        match self.site(&Op::Getattr { node }) {
            Site::Core(other) => {
                Some(other.as_ref().unwrap_or(&self.systems.home).inline(|| self.getattr(node)))
            }
            Site::Workers(_) => None,
        }
    }

    fn site_at_home(&self) -> Site {
        let home = &self.systems.home;
        match home.blocks() {
            true => Site::Workers(home.clone()),
            false => Site::Core(None),
        }
    }

    fn site_among_several(&self, op: &Op) -> Site {
        let mut elsewhere = None;
        let Mentions { mut nodes, names: mut used } = op.mentions();
        if let Op::Readdir { .. } = op {
            // What its names lead to is asked apart.
            used = [None, None];
        }
        if let Op::Find { stable } = op {
            let wanted = Identity::from_stable(stable, &self.home);
            nodes = [self.table().of(&wanted), None];
            if nodes == [None, None]
                && let Some(system) = self.slow_system_of(&wanted)
            {
                return Site::Workers(system);
            }
        }
        for node in nodes.into_iter().flatten() {
            let Ok(identity) = self.table().identity(node) else { continue };
            if identity.is_beside(&self.home) {
                continue;
            }
            let system = self.systems.other(identity.device());
            if system.blocks() {
                return Site::Workers(system);
            }
            elsewhere = Some(system);
        }
        for (dir, name) in used.into_iter().flatten() {
            let mounts = self.systems.mounts();
            let crossings = mounts.crossings.iter().filter(|crossing| crossing.across.system.blocks());
            let is_named = |crossing: &&Crossing| {
                name.is_none_or(|name| names::fold(name) == names::fold(&crossing.across.name))
            };
            let mut leading = crossings.filter(is_named);
            if let Some(crossing) = leading.find(|crossing| self.table().is_at(dir, &crossing.way)) {
                return Site::Workers(crossing.across.system.clone());
            }
        }
        match self.site_at_home() {
            Site::Core(_) => Site::Core(elsewhere),
            site => site,
        }
    }

    /// The names in a directory that lead to file systems which may block.
    pub(super) fn names_across(&self, dir: NodeId) -> Vec<Across> {
        if !self.systems.are_several.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mounts = self.systems.mounts();
        let crossings = mounts.crossings.iter().filter(|crossing| crossing.across.system.blocks());
        let in_dir = crossings.filter(|crossing| self.table().is_at(dir, &crossing.way));
        in_dir.map(|crossing| crossing.across.clone()).collect()
    }

    /// The names below the root that lead to this file system if it may block, each with the names of the directories on the way.
    pub(super) fn ways_across(&self, device: Device) -> Vec<(Vec<Vec<u8>>, Vec<u8>)> {
        let mounts = self.systems.mounts();
        let crossings = mounts.crossings.iter().filter(|crossing| crossing.device == device);
        let blocking = crossings.filter(|crossing| crossing.across.system.blocks());
        blocking.map(|crossing| (crossing.way.clone(), crossing.across.name.clone())).collect()
    }

    /// The file system of a file, if it is not the root's and may block.
    pub(super) fn slow_system_of(&self, identity: &Identity) -> Option<Arc<FileSystem>> {
        let elsewhere = (!identity.is_beside(&self.home)).then(|| self.systems.other(identity.device()));
        elsewhere.filter(|system| system.blocks())
    }

    /// Whether a node is on a file system other than the root's that may block.
    pub(super) fn is_behind_slow_mount(&self, node: NodeId) -> bool {
        let identity = self.table().identity(node);
        identity.is_ok_and(|identity| self.slow_system_of(&identity).is_some())
    }

    /// The file system of a node.
    pub(super) fn system_of(&self, node: NodeId) -> Result<Arc<FileSystem>, Error> {
        let identity = self.table().identity(node)?;
        Ok(match identity.is_beside(&self.home) {
            true => self.systems.home.clone(),
            false => self.systems.other(identity.device()),
        })
    }

    /// The mounts below the root, from the kernel's table: the mounted file systems are not asked.
    fn look_for_mounts(&self) {
        let reading = mount_readings();
        let crossings = self.root_path().map(|root| remote_below(&root)).unwrap_or_default().into_iter();
        let crossings = crossings.filter_map(|(mount, way)| {
            let mut way: Vec<_> = way.iter().map(|name| name.as_bytes().to_vec()).collect();
            let name = way.pop()?;
            let across = Across { name, system: FileSystem::of(mount.device), questions: Arc::default() };
            Some(Crossing { way, device: mount.device, across })
        });
        let mut crossings: Vec<_> = crossings.collect();
        if !crossings.is_empty() {
            self.systems.saw_another();
        }
        let mut mounts = self.systems.mounts();
        for Crossing { across, .. } in &mut crossings {
            // What it has been asked is still asked.
            let mut known = mounts.crossings.iter().map(|crossing| &crossing.across);
            if let Some(known) = known.find(|known| Arc::ptr_eq(&known.system, &across.system)) {
                across.questions = known.questions.clone();
            }
        }
        mounts.crossings = crossings;
        drop(mounts);
        self.systems.reading.store(reading, Ordering::Release);
    }

    fn root_path(&self) -> Option<PathBuf> {
        let root: Arc<OwnedFd> = self.fd(NodeId::ROOT).ok()?;
        std::fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd())).ok()
    }

    /// Runs one step of an operation. A step on a worker is completed even if its caller is gone.
    pub(super) async fn step<T: Send + 'static>(
        self: &Arc<Folder>,
        site: &Site,
        step: impl FnOnce(&Folder) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        match site {
            Site::Core(_) => step(self),
            Site::Workers(system) => {
                let folder = self.clone();
                system.names(move || step(&folder)).await?
            }
        }
    }

    /// Runs periodic work on the whole share, on its own thread if the file system may block, because it would delay
    /// other shares. One run at a time.
    pub(super) fn from_time_to_time(
        self: &Arc<Folder>,
        runs: fn(&Folder) -> &AtomicBool,
        act: impl FnOnce(&Folder) + Send + 'static,
    ) {
        if !self.systems.home.may_hang() && self.systems.any_that_blocks().is_none() {
            return act(self);
        }
        if runs(self).swap(true, Ordering::AcqRel) {
            return;
        }
        let folder = self.clone();
        let spawned = std::thread::Builder::new().name("weft-sweep".to_owned()).spawn(move || {
            act(&folder);
            runs(&folder).store(false, Ordering::Release);
        });
        if spawned.is_err() {
            runs(self).store(false, Ordering::Release);
        }
    }

    /// Starts to observe a directory.
    pub(super) async fn observing(
        self: Arc<Folder>,
        observe: impl FnOnce(&Folder) -> Option<Guard> + Send + 'static,
    ) -> Option<Box<dyn Any + Send + Sync>> {
        let system = self.systems.home.clone();
        let guard = match system.blocks() {
            false => observe(&self),
            true => system.names(move || observe(&self)).await.ok().flatten(),
        };
        Some(Box::new(Observing { guard: Some(guard?), system }))
    }
}

#[cfg(test)]
impl Folder {
    /// From now on a name leads to this file system, as far as the table of mounts says.
    pub(super) fn cross(&self, way: &[&[u8]], name: &[u8], system: &Arc<FileSystem>) {
        let across = Across { name: name.to_vec(), system: system.clone(), questions: Arc::default() };
        let way = way.iter().map(|name| name.to_vec()).collect();
        // Read already, so that it is not replaced by what is mounted.
        self.look_for_mounts();
        self.systems.saw_another();
        self.systems.mounts().crossings.push(Crossing { way, device: (0, 0), across });
    }

    /// Where an operation runs, without a look at the mounts.
    pub(super) fn site_among(&self, op: &Op) -> Site {
        self.site_among_several(op)
    }
}

/// A running observation. It ends on a thread of its file system if that may block: starting an observation holds a
/// lock while the file system is asked.
struct Observing {
    guard: Option<Guard>,
    system: Arc<FileSystem>,
}

impl Drop for Observing {
    fn drop(&mut self) {
        let guard = self.guard.take();
        if self.system.blocks() {
            self.system.later(move || drop(guard));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::{DirName, SetAttr, Stable};

    fn places(site: &Site) -> Option<&Arc<FileSystem>> {
        match site {
            Site::Core(_) => None,
            Site::Workers(system) => Some(system),
        }
    }

    #[test]
    fn what_leads_into_a_slow_mount_goes_to_its_places_and_the_rest_of_the_share_stays() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("a/m")).unwrap();
        std::fs::create_dir(tree.path().join("m")).unwrap();
        let folder = Folder::open(tree.path(), Systems::of).unwrap();
        let a = folder.exact(NodeId::ROOT, b"a").unwrap().node;
        let slow = FileSystem::fixed(true);
        folder.cross(&[b"a"], b"m", &slow);
        let lookup = |dir, name: &[u8]| Op::Lookup { dir, name: name.to_vec(), fold_case: true };
        let list = |dir| Op::Readdir { dir, cookie: 0, max: 10, xattrs: false };
        let rename = Op::Rename {
            from: DirName { dir: NodeId::ROOT, name: b"m".to_vec() },
            to: DirName { dir: a, name: b"m".to_vec() },
            replace: false,
        };
        let nowhere = Stable([7; 24]);
        for leads in [lookup(a, b"m"), lookup(a, b"M"), rename] {
            let site = folder.site_among_several(&leads);
            assert!(places(&site).is_some_and(|places| Arc::ptr_eq(places, &slow)), "{leads:?}");
        }
        let stays = [
            lookup(NodeId::ROOT, b"m"),
            lookup(a, b"n"),
            list(a),
            list(NodeId::ROOT),
            Op::Getattr { node: a },
            Op::Setattr { node: a, set: SetAttr::default() },
            Op::Find { stable: folder.getattr(a).unwrap().stable },
            Op::Find { stable: nowhere },
            Op::Statfs,
        ];
        for stays in stays {
            assert!(places(&folder.site_among_several(&stays)).is_none(), "{stays:?}");
        }
    }

    #[test]
    fn a_share_whose_own_file_system_may_block_asks_only_its_table_on_a_core() {
        let tree = tempfile::tempdir().unwrap();
        let folder = Folder::open(tree.path(), |_| Systems::new(FileSystem::fixed(true))).unwrap();
        assert!(places(&folder.site(&Op::Getattr { node: NodeId::ROOT })).is_some());
        assert!(places(&folder.site(&Op::Statfs)).is_some());
        assert!(places(&folder.site(&Op::Stable { node: NodeId::ROOT })).is_none());
    }
}
