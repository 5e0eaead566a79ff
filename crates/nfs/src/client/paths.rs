//! Files and folders of a mounted export by path.
//!
//! See RFC 1813 3.3. Symbolic links are not followed; a path is walked name by name below the root.

use bytes::Bytes;
use weft_wire::nfs3::{self, *};
use weft_wire::xdr::Malformed;

use super::Error;
use super::attributes::{Attributes, SetAttributes};
use super::file::File;
use super::listing::{Entry, Listed};
use super::mount::{AROUND_BYTES, Mount, NFS, ok};
use super::patience::Patience;
use super::rpc::Cargo;

/// Most bytes of a directory requested at once.
const MAX_LISTING_BYTES: u32 = 64 << 10;

impl Mount {
    /// Looks up a path below the root. Includes attributes if the server returns them.
    pub async fn lookup(&self, path: &str) -> Result<(Handle, Option<Attributes>), Error> {
        let mut found = (self.root, None);
        for name in names(path) {
            let args = LookupArgs { what: DirOp { dir: found.0, name: name? } };
            let ok: LookupOk = self.ask::<_, AttrOnly>(procedure::LOOKUP, &args).await?;
            found = (ok.object, ok.attributes.map(Attributes::from));
        }
        Ok(found)
    }

    /// The directory of a path's last name, and that name.
    async fn place(&self, path: &str) -> Result<DirOp, Error> {
        let path = path.trim_end_matches('/');
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let name = names(name).next().ok_or(Error::BadPath)??;
        Ok(DirOp { dir: self.lookup(dir).await?.0, name })
    }

    /// The attributes of a path.
    pub async fn stat(&self, path: &str) -> Result<Attributes, Error> {
        match self.lookup(path).await? {
            (_, Some(attributes)) => Ok(attributes),
            (handle, None) => self.getattr(handle).await,
        }
    }

    /// Opens an existing file. The server does not see this, because RFC 1813 has no OPEN.
    pub async fn open(&self, path: &str) -> Result<File, Error> {
        let (handle, attributes) = self.lookup(path).await?;
        let kind = match attributes {
            Some(attributes) => attributes.kind,
            None => self.getattr(handle).await?.kind,
        };
        match kind {
            FileType::Reg => Ok(File::new(self.clone(), handle)),
            FileType::Dir => Err(Status::ISDIR.into()),
            _ => Err(Status::INVAL.into()),
        }
    }

    /// Creates a file, or opens an existing one; `set.size` of 0 truncates it.
    pub async fn create(&self, path: &str, set: SetAttributes) -> Result<File, Error> {
        self.create_how(path, CreateHow::Unchecked(set.v3()?)).await
    }

    /// Creates a file, which must not exist.
    pub async fn create_new(&self, path: &str, set: SetAttributes) -> Result<File, Error> {
        self.create_how(path, CreateHow::Guarded(set.v3()?)).await
    }

    /// Creates a file, which must not exist unless an earlier attempt of this call created it (RFC 1813 3.3.8,
    /// EXCLUSIVE).
    pub async fn create_exclusive(&self, path: &str, verifier: Verifier) -> Result<File, Error> {
        self.create_how(path, CreateHow::Exclusive(verifier)).await
    }

    async fn create_how(&self, path: &str, how: CreateHow) -> Result<File, Error> {
        let object = self.place(path).await?;
        let args = CreateArgs { object: object.clone(), how };
        let made: CreateOk = self.ask::<_, WccOnly>(procedure::CREATE, &args).await?;
        Ok(File::new(self.clone(), self.handle_of(made, object).await?))
    }

    /// A server may omit the handle of the object that it created.
    async fn handle_of(&self, made: CreateOk, what: DirOp) -> Result<Handle, Error> {
        match made.object {
            Some(handle) => Ok(handle),
            None => {
                let ok: LookupOk = self.ask::<_, AttrOnly>(procedure::LOOKUP, &LookupArgs { what }).await?;
                Ok(ok.object)
            }
        }
    }

    /// Creates a directory.
    pub async fn mkdir(&self, path: &str, attributes: SetAttributes) -> Result<Handle, Error> {
        let object = self.place(path).await?;
        let args = MkdirArgs { object: object.clone(), attributes: attributes.v3()? };
        let made = self.ask::<CreateOk, WccOnly>(procedure::MKDIR, &args).await?;
        self.handle_of(made, object).await
    }

    /// Creates a symbolic link at `path` to `target`.
    pub async fn symlink(&self, path: &str, target: &str) -> Result<(), Error> {
        let object = self.place(path).await?;
        let target = Path(Bytes::copy_from_slice(target.as_bytes()));
        let args = SymlinkArgs { object, attributes: nfs3::SetAttributes::default(), target };
        self.ask::<CreateOk, WccOnly>(procedure::SYMLINK, &args).await.map(drop)
    }

    /// Removes a file or link.
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        let args = RemoveArgs { object: self.place(path).await? };
        self.ask::<WccOnly, WccOnly>(procedure::REMOVE, &args).await.map(drop)
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, path: &str) -> Result<(), Error> {
        let args = RemoveArgs { object: self.place(path).await? };
        self.ask::<WccOnly, WccOnly>(procedure::RMDIR, &args).await.map(drop)
    }

    /// Renames; an existing target is replaced.
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let args = RenameArgs { from: self.place(from).await?, to: self.place(to).await? };
        self.ask::<RenameWcc, RenameWcc>(procedure::RENAME, &args).await.map(drop)
    }

    /// Adds a hard link to a file.
    pub async fn link(&self, file: Handle, path: &str) -> Result<(), Error> {
        let args = LinkArgs { file, link: self.place(path).await? };
        self.ask::<LinkWcc, LinkWcc>(procedure::LINK, &args).await.map(drop)
    }

    /// All names of a directory, without "." and "..".
    pub async fn list(&self, path: &str) -> Result<Vec<Entry>, Error> {
        let dir = self.lookup(path).await?.0;
        let maxcount = self.info.dtpref.clamp(4096, MAX_LISTING_BYTES);
        let (mut cookie, mut verifier) = (0, Verifier::default());
        let (mut all, mut listed) = (Vec::new(), Listed::default());
        loop {
            let args = ReaddirplusArgs { dir, cookie, verifier, dircount: maxcount, maxcount };
            let cargo =
                Cargo { longest_reply: AROUND_BYTES.saturating_add(maxcount as usize), ..Cargo::default() };
            let outcome: Outcome<ReaddirplusOk, AttrOnly> =
                self.rpc.call(&Patience::new(), NFS, procedure::READDIRPLUS, &args, cargo).await?;
            let piece = ok(outcome)?;
            match piece.entries.last() {
                Some(last) if last.cookie != cookie => cookie = last.cookie,
                _ if piece.eof => {}
                _ => return Err(Malformed("READDIRPLUS makes no progress").into()),
            }
            verifier = piece.verifier;
            for e in piece.entries {
                // "." counts, because a server may list it without end.
                let name = listed.own(&e.name.0)?;
                if matches!(&name[..], b"." | b"..") {
                    continue;
                }
                let attributes = match e.attributes {
                    Some(told) => Some(told.into()),
                    None => match self.known(dir, e.name).await {
                        // Removed since it was listed.
                        Err(Error::Status(Status::NOENT)) => continue,
                        Err(Error::Status(_)) => None,
                        known => Some(known?),
                    },
                };
                all.push(Entry { name, fileid: e.fileid, attributes, handle: e.handle });
            }
            if piece.eof {
                return Ok(all);
            }
        }
    }

    /// Attributes of a name in a directory. A listing may omit them (RFC 1813 3.3.17).
    async fn known(&self, dir: Handle, name: Name) -> Result<Attributes, Error> {
        let args = LookupArgs { what: DirOp { dir, name } };
        let found: LookupOk = self.ask::<_, AttrOnly>(procedure::LOOKUP, &args).await?;
        match found.attributes {
            Some(told) => Ok(told.into()),
            None => self.getattr(found.object).await,
        }
    }
}

fn names(path: &str) -> impl Iterator<Item = Result<Name, Error>> {
    path.split('/').filter(|name| !name.is_empty()).map(|name| {
        if name.len() > MAX_NAME {
            Err(Error::BadPath)
        } else {
            Ok(Name(Bytes::copy_from_slice(name.as_bytes())))
        }
    })
}
