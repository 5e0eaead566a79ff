//! Names: a worker makes, removes and renames its own files, and looks what names lead to, its own and those of others.
//!
//! A new file gets a tag as its content. After an answered rename the worker looks at both names; workers of the other protocol look at
//! the new one. [`crate::names`] judges what they see.

use bytes::Bytes;
use weft_nfs::client as nfs;
use weft_smb::client as smb;

use super::{ALL_NAMES, Error, File, OWN_NAMES, Session, WORKERS, Worker, below, ends};
use crate::model::{Failed, Protocol};
use crate::names::{self, Change, Changing, Seen, TAG_BYTES, Tag};
use crate::world::{World, tell};

impl Worker {
    /// Makes a name, or removes it.
    pub(super) async fn change_name(&mut self, world: &World) {
        let name = names::name(self.number, below(OWN_NAMES));
        let known = world.names.is_there(self.number, &name);
        match known.unwrap_or_else(|| below(2) == 0) {
            true => self.remove(world, name).await,
            false => self.make(world, name).await,
        }
    }

    async fn make(&mut self, world: &World, name: String) {
        let tag = world.names.new_tag();
        let changing = world.names.begin(self.number, Change::Make(name.clone(), tag));
        tell!(world, "{self} makes {name} with {tag}...");
        let set = nfs::SetAttributes::default();
        let made = match &self.session {
            Some(Session::Smb(_, tree)) => {
                ends("CREATE", tree.open(&name, smb::OpenOptions::create_new())).await.map(File::Smb)
            }
            Some(Session::Nfs3(mount)) => {
                ends("CREATE", mount.create_new(&name, set)).await.map(|file| File::Nfs(Box::new(file)))
            }
            Some(Session::Nfs4(mount)) => {
                ends("OPEN", mount.create_new(&name, set)).await.map(|file| File::Nfs(Box::new(file)))
            }
            None => panic!("{self} has a file open"),
        };
        self.told(world, format_args!("makes {name}"), &made);
        self.ended(world, changing, &made);
        let done = match made {
            Ok(file) => self.write_tag(world, file, &name, tag).await,
            Err(e) => Err(e),
        };
        self.judge_change(world, &done);
    }

    /// Writes a file's tag and closes it.
    async fn write_tag(&self, world: &World, file: File, name: &str, tag: Tag) -> Result<(), Error> {
        let content = Bytes::copy_from_slice(&tag.to_le_bytes());
        let written = match &file {
            File::Smb(file) => ends("WRITE", file.write(0, content)).await,
            File::Nfs(file) => ends("WRITE", file.write(0, content)).await,
        };
        let flushed = match &file {
            _ if written.is_err() => written,
            File::Smb(file) => ends("FLUSH", file.flush()).await,
            File::Nfs(file) => ends("COMMIT", file.commit()).await,
        };
        self.told(world, format_args!("writes {tag} to {name}"), &flushed);
        if flushed.is_ok() {
            world.names.written(tag);
        }
        let closed = file.close().await;
        flushed.and(closed)
    }

    async fn remove(&mut self, world: &World, name: String) {
        let changing = world.names.begin(self.number, Change::Remove(name.clone()));
        tell!(world, "{self} removes {name}...");
        let removed = match &self.session {
            Some(Session::Smb(_, tree)) => ends("the removal of a name", tree.remove(&name)).await,
            Some(Session::Nfs3(mount)) => ends("REMOVE", mount.remove(&name)).await,
            Some(Session::Nfs4(mount)) => ends("REMOVE", mount.remove(&name)).await,
            None => panic!("{self} has a file open"),
        };
        self.told(world, format_args!("removes {name}"), &removed);
        self.ended(world, changing, &removed);
        self.judge_change(world, &removed);
    }

    /// Gives a file of its own another name, which another file of its own may have.
    pub(super) async fn rename(&mut self, world: &World) {
        let own = (0..OWN_NAMES).map(|index| names::name(self.number, index));
        let (from, others): (Vec<_>, Vec<_>) =
            own.partition(|name| world.names.is_there(self.number, name) != Some(false));
        if from.is_empty() {
            return self.change_name(world).await;
        }
        let mut others = [from.clone(), others].concat();
        let from = from[below(from.len())].clone();
        others.retain(|name| *name != from);
        let to = others[below(others.len())].clone();
        // NFS always replaces.
        let replace = self.protocol() == Protocol::Nfs || below(2) == 0;
        let change = Change::Rename { from: from.clone(), to: to.clone(), replace };
        let changing = world.names.begin(self.number, change);
        let what = format!("renames {from} to {to}{}", if replace { "" } else { ", which is new" });
        tell!(world, "{self} {what}...");
        let renamed = match &self.session {
            Some(Session::Smb(_, tree)) => ends("a rename", tree.rename(&from, &to, replace)).await,
            Some(Session::Nfs3(mount)) => ends("RENAME", mount.rename(&from, &to)).await,
            Some(Session::Nfs4(mount)) => ends("RENAME", mount.rename(&from, &to)).await,
            None => panic!("{self} has a file open"),
        };
        self.told(world, what, &renamed);
        self.ended(world, changing, &renamed);
        self.judge_change(world, &renamed);
        for name in [from, to] {
            if self.session.is_some() {
                self.look(world, self.number, &name, true).await;
            }
        }
    }

    /// Looks at a name that a worker of the other protocol changes. It does not keep it open where that delays a removal.
    pub(super) async fn look_at_another(&mut self, world: &World) {
        let others = |owner: &usize| owner % 2 != self.number % 2;
        let renamed = world.names.last_renamed().filter(|(owner, _)| others(owner) && below(2) == 0);
        let (owner, name) = renamed.unwrap_or_else(|| {
            let others: Vec<usize> = (0..WORKERS).filter(others).collect();
            let owner = others[below(others.len())];
            (owner, names::name(owner, below(OWN_NAMES)))
        });
        let opens = self.protocol() == Protocol::Smb;
        self.look(world, owner, &name, opens).await;
    }

    /// Looks at all names while nobody changes them.
    pub(super) async fn look_at_all(&mut self, world: &World) {
        for index in 0..ALL_NAMES {
            let owner = index / OWN_NAMES;
            let looked = self.look(world, owner, &names::name(owner, index % OWN_NAMES), true).await;
            assert!(looked, "{self} cannot look at a name, and nothing fails any more");
        }
    }

    /// Whether it was answered.
    async fn look(&mut self, world: &World, owner: usize, name: &str, opens: bool) -> bool {
        let since = world.names.moment();
        let seen = self.seen(name, opens).await;
        self.told(world, format_args!("looks at {name}"), &seen);
        match &seen {
            Ok(seen) => {
                tell!(world, "{self} sees {seen:?}");
                if let Err(why) = world.names.saw(self.number, owner, name, seen, since) {
                    panic!("{self}: {why}");
                }
            }
            Err(Error(Failed::Unknown, _)) => world.names.lingers(owner),
            Err(Error(Failed::Refused, _)) => {}
        }
        self.judge_change(world, &seen);
        seen.is_ok()
    }

    async fn seen(&self, name: &str, opens: bool) -> Result<Seen, Error> {
        let file = match &self.session {
            Some(Session::Smb(_, tree)) => {
                let opened = async {
                    match tree.open(name, smb::OpenOptions::read()).await {
                        Err(e) if e.is_not_found() => Ok(None),
                        opened => opened.map(|file| Some(File::Smb(file))),
                    }
                };
                ends("CREATE", opened).await?
            }
            Some(Session::Nfs3(mount)) => ends("LOOKUP", found(mount.open(name))).await?.map(nfs_file),
            Some(Session::Nfs4(mount)) if opens => {
                ends("OPEN", found(mount.open(name, false))).await?.map(nfs_file)
            }
            Some(Session::Nfs4(mount)) => {
                let found = ends("LOOKUP", found(mount.stat(name))).await?;
                return Ok(found.map_or(Seen::Nothing, |_| Seen::Something));
            }
            None => panic!("{self} has a file open"),
        };
        let Some(file) = file else { return Ok(Seen::Nothing) };
        let read = match &file {
            File::Smb(file) => ends("READ", file.read(0, 2 * TAG_BYTES)).await,
            File::Nfs(file) => ends("READ", file.read(0, 2 * TAG_BYTES)).await,
        };
        let closed = file.close().await;
        let content = read?;
        closed.map(|()| Seen::Content(content))
    }

    /// Reads the folder while nobody changes it.
    pub(super) async fn list(&mut self, world: &World) {
        let listed = match &self.session {
            Some(Session::Smb(_, tree)) => {
                let listed = ends("QUERY_DIRECTORY", tree.list("")).await;
                listed.map(|all| all.into_iter().map(|entry| entry.name).collect::<Vec<_>>())
            }
            Some(Session::Nfs3(mount)) => entries(ends("READDIRPLUS", mount.list("")).await),
            Some(Session::Nfs4(mount)) => entries(ends("READDIR", mount.list("")).await),
            None => panic!("{self} has read files a moment ago"),
        };
        self.told(world, "lists", &listed);
        match listed {
            Ok(listed) => {
                if let Err(why) = world.names.judge(&listed) {
                    panic!("{self}: {why}");
                }
            }
            Err(e) => panic!("{self} lists a folder, and nothing fails any more: {e}"),
        }
    }

    fn ended<T>(&self, world: &World, changing: Changing, outcome: &Result<T, Error>) {
        let outcome = outcome.as_ref().map(drop).map_err(|e| e.0);
        if let Err(why) = world.names.end(changing, outcome, self.protocol()) {
            panic!("{self}: {why}");
        }
    }

    /// A refusal ends no session: what is not known to be there may be refused.
    pub(super) fn judge_change<T>(&mut self, world: &World, outcome: &Result<T, Error>) {
        if !matches!(outcome, Err(Error(Failed::Refused, _))) {
            self.judge_session(world, outcome);
        }
    }
}

/// What a call of NFS finds, if there is such a name.
async fn found<T>(call: impl Future<Output = Result<T, nfs::Error>>) -> Result<Option<T>, nfs::Error> {
    match call.await {
        Err(e) if e.status() == Some(nfs::Status::NOENT) => Ok(None),
        found => found.map(Some),
    }
}

fn nfs_file(file: nfs::File) -> File {
    File::Nfs(Box::new(file))
}

fn entries(listed: Result<Vec<nfs::Entry>, Error>) -> Result<Vec<String>, Error> {
    let name = |entry: nfs::Entry| String::from_utf8_lossy(&entry.name).into_owned();
    listed.map(|all| all.into_iter().map(name).collect())
}
