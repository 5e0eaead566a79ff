//! One file that only one client at a time has open for writing.
//!
//! On a continuously available share, clients of SMB open it with a persistent handle: when they have lost their session, they get the
//! handle back, also from a server that was started again, and what they wrote through it is there. Its holder alone writes to the file.

use bytes::Bytes;
use weft_machine::rt;
use weft_nfs::client as nfs;
use weft_smb::client as smb;

use super::{ALONE, Error, FILES, File, OWN_SECTORS, Session, Worker, below, ends, tag};
use crate::disk::SECTOR;
use crate::model::{Failed, Protocol};
use crate::world::{World, tell};

/// A persistent handle whose session is lost.
pub(super) struct Lost {
    session: smb::Session,
    file: smb::File,
}

impl Worker {
    /// Opens a file so that nobody else writes to it, uses it, or closes it.
    pub(super) async fn be_alone(&mut self, world: &World) {
        match below(4) {
            0 if self.alone.is_none() => self.intrude(world).await,
            _ if self.alone.is_none() => self.open_alone(world).await,
            0 if self.kept().is_some() => self.read_alone(world).await,
            1..3 if self.kept().is_some() => self.write_alone(world).await,
            _ => self.no_longer_alone(world).await,
        }
    }

    async fn open_alone(&mut self, world: &World) {
        let losses = world.alone.losses();
        let opened = match &self.session {
            Some(Session::Smb(_, tree)) => {
                let share = smb::OpenOptions::draft().share;
                let options = smb::OpenOptions { share, ..smb::OpenOptions::create() };
                let opened = match tree.is_continuously_available() {
                    true => ends("CREATE", tree.open_kept(ALONE, options)).await,
                    false => ends("CREATE", tree.open(ALONE, options)).await,
                };
                opened.map(File::Smb)
            }
            Some(Session::Nfs4(mount)) => {
                let set = nfs::SetAttributes::default();
                ends("OPEN", mount.create_alone(ALONE, set)).await.map(|file| File::Nfs(Box::new(file)))
            }
            Some(Session::Nfs3(_)) | None => return,
        };
        self.told(world, "is alone", &opened);
        match opened {
            Ok(file) => {
                self.alone = Some(file);
                let kept = self.kept().is_some();
                match world.alone.granted((self.number, self.protocol()), losses, kept, rt::now()) {
                    Ok(claimed) => tell!(world, "{self} claims it: {claimed}, keeps it: {kept}"),
                    Err(why) => panic!("{self}: {why}"),
                }
            }
            // Somebody else has it, or the connection is gone; the next step finds out.
            Err(Error(Failed::Refused, _)) => {}
            unknown => self.judge_session(world, &unknown),
        }
    }

    /// Opens the file to write, allows others everything, and closes it: only the open of one that is alone keeps it away.
    async fn intrude(&mut self, world: &World) {
        let (losses, since) = (world.alone.losses(), rt::now());
        let opened = match &self.session {
            Some(Session::Smb(_, tree)) => {
                ends("CREATE", tree.open(ALONE, smb::OpenOptions::write())).await.map(File::Smb)
            }
            Some(Session::Nfs4(mount)) => {
                ends("OPEN", mount.open(ALONE, true)).await.map(|file| File::Nfs(Box::new(file)))
            }
            Some(Session::Nfs3(_)) | None => return,
        };
        self.told(world, "is let in", &opened);
        match opened {
            Ok(file) => {
                if let Err(why) = world.alone.let_in(self.number, losses, since, rt::now()) {
                    panic!("{self} is let in: {why}");
                }
                let closed = file.close().await;
                self.judge_session(world, &closed);
            }
            Err(Error(Failed::Refused, _)) => {}
            unknown => self.judge_session(world, &unknown),
        }
    }

    pub(super) async fn no_longer_alone(&mut self, world: &World) {
        let Some(file) = self.alone.take() else { return };
        world.alone.released(self.number);
        tell!(world, "{self} is alone no longer...");
        let closed = file.close().await;
        self.told(world, "is alone no longer", &closed);
        self.judge_session(world, &closed);
    }

    /// Its persistent handle.
    fn kept(&self) -> Option<&smb::File> {
        match &self.alone {
            Some(File::Smb(file)) if file.is_persistent() => Some(file),
            _ => None,
        }
    }

    /// A WRITE by a persistent handle is durable when it is answered.
    async fn write_alone(&mut self, world: &World) {
        let Some(file) = self.kept() else { return };
        let sector = below(OWN_SECTORS);
        // The model takes all handles of this file for one open: only one at a time exists.
        let by = (0, Protocol::Smb);
        let writing = world.model.begin_write(FILES, sector..sector + 1, by, world.disk.failures());
        let tag = writing.tag;
        let what = format!("writes {tag} to {ALONE} {sector}");
        tell!(world, "{self} {what}...");
        let data = Bytes::from(tag.to_le_bytes().repeat(SECTOR / 8));
        let written = ends("WRITE", file.write((sector * SECTOR) as u64, data)).await;
        world.model.end_write(writing, written.as_ref().map(drop).map_err(|e| e.0));
        if written.is_ok() {
            world.model.written_through(FILES, tag);
        }
        self.told(world, what, &written);
        self.judge_session(world, &written);
    }

    pub(super) async fn read_alone(&mut self, world: &World) {
        let Some(file) = self.kept() else { return };
        let begun = world.model.moment();
        let read = ends("READ", file.read(0, OWN_SECTORS * SECTOR)).await;
        self.told(world, format_args!("reads {ALONE}"), &read);
        if let Ok(data) = &read {
            for sector in 0..OWN_SECTORS {
                let tag = tag(data.get(sector * SECTOR..).unwrap_or(&[]));
                let tag = tag.unwrap_or_else(|| panic!("{self} reads a torn sector {sector} of {ALONE}"));
                if let Err(why) = world.model.judge(FILES, sector, tag, begun) {
                    panic!("{self}, alone: {why}");
                }
                world.model.settle(FILES, sector, tag, begun);
            }
        }
        self.judge_session(world, &read);
    }

    /// The session is lost. A persistent handle waits for its client.
    pub(super) fn leave_alone(&mut self, world: &World) {
        match (self.session.take(), self.alone.take()) {
            (Some(Session::Smb(session, _)), Some(File::Smb(file))) if file.is_persistent() => {
                world.alone.waits(self.number);
                self.lost = Some(Lost { session, file });
            }
            _ => world.alone.released(self.number),
        }
    }

    /// The session that its new one is to replace.
    pub(super) fn session_before(&self) -> Option<smb::Session> {
        self.lost.as_ref().map(|lost| lost.session.clone())
    }

    /// Gets back what a lost session had open.
    pub(super) async fn reopen(
        &mut self,
        world: &World,
        session: &smb::Session,
        tree: &smb::Tree,
    ) -> Result<(), Error> {
        let Some(Lost { file, .. }) = self.lost.take() else { return Ok(()) };
        let reopened = ends("CREATE", tree.reopen(&file)).await;
        self.told(world, "is alone again", &reopened);
        match reopened {
            Ok(file) => {
                if let Err(why) = world.alone.back((self.number, Protocol::Smb), rt::now()) {
                    panic!("{self}: {why}");
                }
                self.alone = Some(File::Smb(file));
                Ok(())
            }
            Err(Error(Failed::Refused, refused)) => match world.alone.gone(self.number, rt::now()) {
                Ok(()) => Ok(()),
                Err(why) => panic!("{self}: {why}: {refused}"),
            },
            Err(unknown) => {
                self.lost = Some(Lost { session: session.clone(), file });
                Err(unknown)
            }
        }
    }
}
