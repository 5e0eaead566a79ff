//! What the servers of a world keep beside its files, on a real disk: the NFS server's clients and the key of its handles, and the SMB
//! server's journal of persistent handles.
//!
//! A process that was killed writes nothing more. Its last tasks may still run here, so the next process gets a copy of the folder.

use std::cell::RefCell;

use tempfile::TempDir;
use weft_nfs::server as nfsd;
use weft_smb::server as smbd;

use crate::world::SHARE;

/// See the module.
pub(crate) struct State {
    /// The folder of the process that runs, behind those of its predecessors.
    folders: RefCell<Vec<TempDir>>,
    /// The NFS server is told of it.
    nfs: bool,
    /// The share is continuously available.
    smb: bool,
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder for state")
}

impl State {
    /// Half of the worlds have state.
    pub fn of(seed: u64) -> State {
        let (nfs, smb) = (seed % 4 == 3, seed % 4 >= 2);
        let folders = if nfs || smb { vec![folder()] } else { Vec::new() };
        State { folders: RefCell::new(folders), nfs, smb }
    }

    /// The process has ended.
    pub fn leave_behind(&self) {
        let folders = &mut *self.folders.borrow_mut();
        let Some(last) = folders.last() else { return };
        let next = folder();
        for entry in std::fs::read_dir(last.path()).expect("a folder for state") {
            let entry = entry.expect("a file of the state");
            std::fs::copy(entry.path(), next.path().join(entry.file_name())).expect("a copy of the state");
        }
        folders.push(next);
    }

    /// What the SMB server offers.
    pub fn offers(&self) -> smbd::Offers {
        let folders = self.folders.borrow();
        match folders.last().filter(|_| self.smb) {
            Some(folder) => smbd::Offers {
                journal: Some(smbd::journal::Journal::open(folder.path(), "sim").expect("its journal")),
                continuous: vec![SHARE.into()],
                ..smbd::Offers::default()
            },
            None => smbd::Offers::default(),
        }
    }

    /// What the NFS server keeps.
    pub fn durable(&self) -> Option<nfsd::Durable> {
        let folders = self.folders.borrow();
        let folder = folders.last().filter(|_| self.nfs)?;
        Some(nfsd::Durable::open(folder.path(), "sim").expect("its state"))
    }
}
