//! The POSIX extensions of SMB 3.1.1: modes, links, owners.
//!
//! They are the SMB3 POSIX Extensions ([POSIX-SMB2] 2.2.3.1.8 negotiate context, 2.2.13.2.16 and 2.2.14.2.16 create
//! contexts; [POSIX-FSCC] 2.3.1 FilePosixInformation, class 100, and the mode). [`super::fscc::directory`] lists
//! directories.
//!
//! ```text
//! create request:  mode 4                     response:  links 4 | reparse tag 4 | mode 4 | owner SID | group SID
//! class 100:       times 8 x 4 | size 8 | allocated 8 | attributes 4 | inode 8 | device 4 | 0 4 | links 4 | reparse tag 4
//!                  | mode 4 | owner SID | group SID | name length 4 | name
//! mode:            permissions in the lower 12 bits, above them the type: 0 file, 1 directory, 2 symbolic link, 3 character
//!                  device, 4 block device, 5 FIFO, 6 socket
//! ```

use super::access::FileAttributes;
use super::field::{Put, Reader, len32};
use super::{Filetime, Guid, Malformed, utf16};
use crate::security::Sid;

/// Identifies the version of the extensions in NEGOTIATE, and the context in CREATE.
pub const EXTENSIONS: Guid = *b"\x93\xad\x25\x50\x9c\xb4\x11\xe7\xb4\x23\x83\xde\x96\x8b\xcd\x7c";

/// Permissions of a mode.
pub const PERMISSIONS: u32 = 0o7777;

/// The permissions that the mode of a CREATE requests; `None` if it requests none, which Linux indicates by a mode of
/// all ones.
pub fn wished(mode: u32) -> Option<u32> {
    const ALL: u32 = 0xffff;
    (mode & ALL != ALL).then_some(mode & PERMISSIONS)
}

/// Type of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "kinds of files of POSIX")]
pub enum FileType {
    #[default]
    Regular = 0,
    Directory = 1,
    Symlink = 2,
    CharacterDevice = 3,
    BlockDevice = 4,
    Fifo = 5,
    Socket = 6,
}

/// A mode on the wire.
pub fn mode(kind: FileType, permissions: u32) -> u32 {
    (kind as u32) << 12 | permissions & PERMISSIONS
}

/// Properties of a file that plain SMB does not report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posix {
    /// Number of hard links.
    pub links: u32,
    /// Tag of the reparse point; 0 for none.
    pub reparse_tag: u32,
    /// See [`mode`].
    pub mode: u32,
    /// Owner.
    pub owner: Sid,
    /// Group.
    pub group: Sid,
}

impl Posix {
    /// Parses the context of a CREATE response.
    pub fn parse(data: &[u8]) -> Result<Posix, Malformed> {
        let mut r = Reader::new(data);
        let (links, reparse_tag, mode) = (r.u32()?, r.u32()?, r.u32()?);
        Ok(Posix { links, reparse_tag, mode, owner: sid(&mut r)?, group: sid(&mut r)? })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(self.links);
        out.put_u32(self.reparse_tag);
        out.put_u32(self.mode);
        self.owner.emit(out);
        self.group.emit(out);
    }
}

fn sid(r: &mut Reader<'_>) -> Result<Sid, Malformed> {
    // Revision, number of sub-authorities, authority, and the sub-authorities.
    let subs = *r.rest().get(1).ok_or(Malformed("SID"))?;
    let bytes = r.take(usize::from(subs).saturating_mul(4).saturating_add(8))?;
    Sid::parse(bytes).map_err(|_| Malformed("SID"))
}

/// FilePosixInformation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Information {
    /// Time of creation.
    pub creation_time: Filetime,
    /// Last read.
    pub last_access_time: Filetime,
    /// Last write.
    pub last_write_time: Filetime,
    /// Last change of data or metadata.
    pub change_time: Filetime,
    /// Size in bytes.
    pub end_of_file: u64,
    /// Allocated bytes.
    pub allocation_size: u64,
    /// Attributes.
    pub attributes: FileAttributes,
    /// Number of the file on its device.
    pub inode: u64,
    /// Number of the device.
    pub device: u32,
    /// The POSIX properties.
    pub posix: Posix,
    /// Name.
    pub name: String,
}

impl Information {
    /// Parses the structure, or the part of it that an entry of a listing has.
    pub fn parse(bytes: &[u8]) -> Result<Information, Malformed> {
        let mut r = Reader::new(bytes);
        let [creation_time, last_access_time, last_write_time, change_time] =
            [Filetime(r.u64()?), Filetime(r.u64()?), Filetime(r.u64()?), Filetime(r.u64()?)];
        let (end_of_file, allocation_size, attributes) = (r.u64()?, r.u64()?, FileAttributes(r.u32()?));
        let (inode, device, _zero) = (r.u64()?, r.u32()?, r.u32()?);
        let (links, reparse_tag, mode) = (r.u32()?, r.u32()?, r.u32()?);
        let posix = Posix { links, reparse_tag, mode, owner: sid(&mut r)?, group: sid(&mut r)? };
        let len = r.u32()? as usize;
        let name = utf16::decode_lossy(r.take(len)?)?;
        Ok(Information {
            creation_time,
            last_access_time,
            last_write_time,
            change_time,
            end_of_file,
            allocation_size,
            attributes,
            inode,
            device,
            posix,
            name,
        })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u64(self.creation_time.0);
        out.put_u64(self.last_access_time.0);
        out.put_u64(self.last_write_time.0);
        out.put_u64(self.change_time.0);
        out.put_u64(self.end_of_file);
        out.put_u64(self.allocation_size);
        out.put_u32(self.attributes.0);
        out.put_u64(self.inode);
        out.put_u32(self.device);
        out.put_u32(0);
        self.posix.emit(out);
        out.put_u32(len32(utf16::encoded_len(&self.name)));
        utf16::encode(&self.name, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_file_and_every_truncation_of_it() {
        let posix = Posix {
            links: 2,
            reparse_tag: 0,
            mode: mode(FileType::Directory, 0o1755),
            owner: Sid::unix_user(1000),
            group: Sid::unix_group(100),
        };
        assert_eq!(posix.mode, 0x13ed);
        assert_eq!(
            [0o100_640, 0o4755, 0xffff, u32::MAX].map(wished),
            [Some(0o640), Some(0o4755), None, None]
        );
        let mut bytes = Vec::new();
        posix.emit(&mut bytes);
        assert_eq!(bytes.len(), 12 + 2 * 16);
        assert_eq!(Posix::parse(&bytes), Ok(posix.clone()));
        (0..bytes.len()).for_each(|len| assert!(Posix::parse(&bytes[..len]).is_err()));
        let information = Information {
            creation_time: Filetime(1),
            last_access_time: Filetime(2),
            last_write_time: Filetime(3),
            change_time: Filetime(4),
            end_of_file: 5,
            allocation_size: 6,
            attributes: FileAttributes::ARCHIVE,
            inode: 7,
            device: 8,
            posix,
            name: "näme".into(),
        };
        let mut bytes = Vec::new();
        information.emit(&mut bytes);
        assert_eq!(bytes.len(), 68 + 44 + 4 + 8);
        assert_eq!(Information::parse(&bytes), Ok(information));
        (0..bytes.len()).for_each(|len| assert!(Information::parse(&bytes[..len]).is_err()));
    }
}
