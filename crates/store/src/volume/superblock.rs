//! The metadata of a volume on disk: two copies of one page, one of which survives a torn write.
//!
//! [`Superblock`], its parse and emit, and the choice of the valid copy. Layout version 1, little-endian. The parent
//! module reads and writes the file.
//!
//! ```text
//!   0   8  "WeftVol\0"
//!   8   4  layout version
//!  12   4  zero
//!  16   8  generation: the copy of the larger one counts; copy number = generation modulo 2
//!  24  16  identity of the volume, random
//!  40   8  size in bytes
//!  48   4  medium: 1 ram, 2 file, 3 device
//!  52   4  flags: 1 direct (past the page cache), 2 its memory is taken when it is opened
//!  56   8  when it was created, seconds of Unix time
//!  64   4  length of the path
//!  68   .  path of the file or device, absolute; then zeros
//! 3848 16  partnership of the group that it is in    ┐ of a volume in a group: its path ends before them; all zero of one in
//! 3864  4  length of the group's name, 0: in none     │ none, and where an older program has written the copy
//! 3868 200 name of the group                          ┘
//! 4068  8  number of the file (inode)            ┐ of a file whose path ends before them; absent where an
//! 4076  8  when it was made, microseconds of Unix time │ older program has written the copy
//! 4084  4  0 neither is known, 1 its number is, 2 both are ┘
//! 4088  4  zero
//! 4092  4  CRC32C of the 4092 bytes before
//! ```
//!
//! Magic and version come first: everything after them may change with the version. The checksum comes last and
//! covers everything, so a partially written copy is invalid. The newer copy is never touched while it is the only
//! current one: a new one is written over the older copy, and when that is durable, over the other one, too, before
//! anything depends on it. So a crash leaves one of them valid, and damage to one of them loses nothing. Group
//! membership is recorded here a second time, because the group's own files may be lost, and the volume must not be
//! used without its group.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::identity::FileIdentity;
use super::rbd::ImageRecord;
use super::{MAX_NAME, is_name};
use crate::block::Medium;

/// Bytes of one copy.
pub const COPY_BYTES: usize = 4096;
/// Bytes of the file: both copies.
pub const FILE_BYTES: usize = 2 * COPY_BYTES;
/// The longest path.
pub const MAX_PATH: usize = SUM_AT - PATH_AT;
/// The version of every volume but those on images, so that older programs can still open them.
pub const VERSION: u32 = 1;
/// The version of a volume on an image: its path is an [`ImageRecord`].
pub const IMAGE_VERSION: u32 = 2;

const MAGIC: [u8; 8] = *b"WeftVol\0";
const PATH_AT: usize = 68;
const SUM_AT: usize = COPY_BYTES - 4;
const PARTNERSHIP_AT: usize = 3848;
const GROUP_LEN_AT: usize = 3864;
const GROUP_AT: usize = 3868;
const INODE_AT: usize = 4068;
const BORN_AT: usize = 4076;
const KNOWN_AT: usize = 4084;
const FLAG_DIRECT: u32 = 1;
const FLAG_TAKEN: u32 = 2;

/// The replicated group of a volume: the volume is used only through it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The group's name on this host.
    pub group: String,
    /// The same on all sides of the group.
    pub partnership: [u8; 16],
}

/// The metadata of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Counts the changes.
    pub generation: u64,
    /// A random number that identifies this volume.
    pub id: [u8; 16],
    /// Bytes.
    pub size: u64,
    /// Its medium.
    pub medium: Medium,
    /// Whether the page cache is bypassed.
    pub direct: bool,
    /// For a volume in memory: whether all of its memory is allocated when it is opened.
    pub taken: bool,
    /// Seconds of Unix time.
    pub created: u64,
    /// The file or device; empty for ram and images.
    pub path: PathBuf,
    /// The image.
    pub image: Option<ImageRecord>,
    /// The identity of the file with this path, or of the image. `None` if unknown (yet), and if it is neither.
    pub file: Option<FileIdentity>,
    /// The group that contains it. Only if [`Superblock::has_room_for_group`].
    pub membership: Option<Membership>,
}

/// Why a copy is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Damaged {
    /// It has another length.
    #[error("it is truncated")]
    Length,
    /// It is something else.
    #[error("it is not the metadata of a volume")]
    Magic,
    /// The checksum does not match.
    #[error("its checksum does not match: it is damaged or partially written")]
    Sum,
    /// A layout version that this program does not know.
    #[error("its layout has version {0}: use a newer program")]
    Version(u32),
    /// A field is out of range although the checksum matches: another program wrote it.
    #[error("{0} is invalid")]
    Field(&'static str),
}

impl Superblock {
    /// The number of the copy for a superblock of this generation.
    pub fn copy_number(&self) -> usize {
        (self.generation % 2) as usize
    }

    /// Whether its path leaves room for a group.
    pub fn has_room_for_group(&self) -> bool {
        self.place().len() <= PARTNERSHIP_AT - PATH_AT
    }

    /// Whether it fits into its layout.
    pub fn fits(&self) -> bool {
        match &self.image {
            // Whoever will hold its lock, its group and identity must fit.
            Some(image) => image.emit_longest() <= PARTNERSHIP_AT - PATH_AT,
            None => self.place().len() <= MAX_PATH,
        }
    }

    /// Its storage, for people.
    pub fn storage(&self) -> String {
        match &self.image {
            Some(image) => format!("image {}", image.spec),
            None => self.path.display().to_string(),
        }
    }

    /// What names its storage, in the place of the path.
    fn place(&self) -> Cow<'_, [u8]> {
        match &self.image {
            Some(image) => image.emit().into(),
            None => self.path.as_os_str().as_bytes().into(),
        }
    }

    /// One copy.
    ///
    /// # Panics If it does not fit ([`Superblock::fits`], checked when volumes are created) or the group's name is
    /// longer than [`MAX_NAME`] (checked when a group is joined).
    pub fn emit(&self) -> [u8; COPY_BYTES] {
        let path = &*self.place();
        assert!(path.len() <= MAX_PATH);
        let medium: u32 = match self.medium {
            Medium::Ram => 1,
            Medium::File => 2,
            Medium::Device => 3,
            Medium::Rbd => 4,
        };
        let flags = if self.direct { FLAG_DIRECT } else { 0 } | if self.taken { FLAG_TAKEN } else { 0 };
        let mut bytes = [0; COPY_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        let version = if self.image.is_some() { IMAGE_VERSION } else { VERSION };
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.id);
        bytes[40..48].copy_from_slice(&self.size.to_le_bytes());
        bytes[48..52].copy_from_slice(&medium.to_le_bytes());
        bytes[52..56].copy_from_slice(&flags.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.created.to_le_bytes());
        bytes[64..68].copy_from_slice(&(path.len() as u32).to_le_bytes());
        bytes.iter_mut().skip(PATH_AT).zip(path).for_each(|(to, byte)| *to = *byte);
        if let Some(file) = self.file.filter(|_| path.len() <= INODE_AT - PATH_AT) {
            let known: u32 = if file.born_us.is_some() { 2 } else { 1 };
            bytes[INODE_AT..BORN_AT].copy_from_slice(&file.inode.to_le_bytes());
            bytes[BORN_AT..KNOWN_AT].copy_from_slice(&file.born_us.unwrap_or_default().to_le_bytes());
            bytes[KNOWN_AT..KNOWN_AT + 4].copy_from_slice(&known.to_le_bytes());
        }
        if let Some(Membership { group, partnership }) =
            self.membership.as_ref().filter(|_| self.has_room_for_group())
        {
            assert!(group.len() <= MAX_NAME);
            bytes[PARTNERSHIP_AT..GROUP_LEN_AT].copy_from_slice(partnership);
            bytes[GROUP_LEN_AT..GROUP_AT].copy_from_slice(&(group.len() as u32).to_le_bytes());
            bytes.iter_mut().skip(GROUP_AT).zip(group.as_bytes()).for_each(|(to, byte)| *to = *byte);
        }
        let sum = crc32c::crc32c(&bytes[..SUM_AT]);
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads one copy.
    pub fn parse(bytes: &[u8]) -> Result<Superblock, Damaged> {
        let bytes: &[u8; COPY_BYTES] = bytes.try_into().map_err(|_| Damaged::Length)?;
        if bytes[..8] != MAGIC {
            return Err(Damaged::Magic);
        }
        if u32_at(bytes, SUM_AT) != crc32c::crc32c(&bytes[..SUM_AT]) {
            return Err(Damaged::Sum);
        }
        let version = u32_at(bytes, 8);
        if version != VERSION && version != IMAGE_VERSION {
            return Err(Damaged::Version(version));
        }
        let medium = match (u32_at(bytes, 48), version) {
            (1, VERSION) => Medium::Ram,
            (2, VERSION) => Medium::File,
            (3, VERSION) => Medium::Device,
            (4, IMAGE_VERSION) => Medium::Rbd,
            _ => return Err(Damaged::Field("its medium")),
        };
        let flags = u32_at(bytes, 52);
        if flags & !(FLAG_DIRECT | FLAG_TAKEN) != 0 {
            return Err(Damaged::Field("its flags"));
        }
        let len = u32_at(bytes, 64) as usize;
        let path = bytes[PATH_AT..SUM_AT].get(..len).ok_or(Damaged::Field("the length of its path"))?;
        let file = match u32_at(bytes, KNOWN_AT) {
            // The path occupies this field.
            _ if len > INODE_AT - PATH_AT => None,
            0 => None,
            known @ (1 | 2) => {
                let born_us = i64::from_le_bytes(field(bytes, BORN_AT));
                Some(FileIdentity {
                    inode: u64_at(bytes, INODE_AT),
                    born_us: (known == 2).then_some(born_us),
                })
            }
            _ => return Err(Damaged::Field("the identity of its file")),
        };
        let membership = match u32_at(bytes, GROUP_LEN_AT) as usize {
            // The path occupies this field.
            _ if len > PARTNERSHIP_AT - PATH_AT => None,
            0 => None,
            len => {
                let name = bytes[GROUP_AT..INODE_AT].get(..len).and_then(|name| str::from_utf8(name).ok());
                let group = name.filter(|name| is_name(name)).ok_or(Damaged::Field("its group"))?.to_owned();
                Some(Membership { group, partnership: field(bytes, PARTNERSHIP_AT) })
            }
        };
        let image = match medium {
            Medium::Rbd => Some(ImageRecord::parse(path).ok_or(Damaged::Field("its image"))?),
            _ => None,
        };
        let path = if image.is_some() { &[] } else { path };
        let mut id = [0; 16];
        id.copy_from_slice(&bytes[24..40]);
        Ok(Superblock {
            generation: u64_at(bytes, 16),
            id,
            size: u64_at(bytes, 40),
            medium,
            direct: flags & FLAG_DIRECT != 0,
            taken: flags & FLAG_TAKEN != 0,
            created: u64_at(bytes, 56),
            path: OsString::from_vec(path.to_vec()).into(),
            image,
            file,
            membership,
        })
    }

    /// The valid one of both copies. If either has an unknown version, this fails: a newer program wrote it, and its copy
    /// is the true state.
    pub fn latest(file: &[u8]) -> Result<Superblock, Damaged> {
        if file.len() != FILE_BYTES {
            return Err(Damaged::Length);
        }
        let (first, second) = file.split_at(COPY_BYTES);
        match (Superblock::parse(first), Superblock::parse(second)) {
            (Err(e @ Damaged::Version(_)), _) | (_, Err(e @ Damaged::Version(_))) => Err(e),
            (Ok(a), Ok(b)) => Ok(if a.generation > b.generation { a } else { b }),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            // The more informative reason.
            (Err(Damaged::Magic), Err(e)) | (Err(e), Err(_)) => Err(e),
        }
    }
}

/// All fields are inside of a copy.
fn field<const N: usize>(bytes: &[u8; COPY_BYTES], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

fn u32_at(bytes: &[u8; COPY_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(field(bytes, at))
}

fn u64_at(bytes: &[u8; COPY_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(generation: u64) -> Superblock {
        Superblock {
            generation,
            id: *b"0123456789abcdef",
            size: 10 << 30,
            medium: Medium::File,
            direct: false,
            taken: false,
            created: 1_790_000_000,
            path: "/srv/vol1.img".into(),
            image: None,
            file: None,
            membership: None,
        }
    }

    fn file(old: &Superblock, new: &[u8]) -> Vec<u8> {
        let mut file = vec![0; FILE_BYTES];
        let at = old.copy_number() * COPY_BYTES;
        file[at..at + COPY_BYTES].copy_from_slice(&old.emit());
        let other = COPY_BYTES - at;
        file[other..other + new.len()].copy_from_slice(new);
        file
    }

    #[test]
    fn the_layout_is_what_it_was() {
        let bytes = superblock(0x0102).emit();
        assert_eq!(&bytes[..24], b"WeftVol\0\x01\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0");
        assert_eq!(&bytes[24..56], b"0123456789abcdef\0\0\0\x80\x02\0\0\0\x02\0\0\0\0\0\0\0");
        assert_eq!(&bytes[64..84], b"\x0d\0\0\0/srv/vol1.img\0\0\0");
        assert_eq!(u32_at(&bytes, SUM_AT), crc32c::crc32c(&bytes[..SUM_AT]));
        assert_eq!(Superblock::parse(&bytes), Ok(superblock(0x0102)));
    }

    /// The write of a new generation is cut at every byte, over an older copy, over nothing and over noise.
    #[test]
    fn a_torn_write_leaves_the_older_copy() {
        for generation in [6, 7] {
            let (old, new) = (superblock(generation), superblock(generation + 1));
            let whole = new.emit();
            for below in [superblock(generation - 1).emit(), [0; COPY_BYTES], [0xa5; COPY_BYTES]] {
                for cut in 0..COPY_BYTES {
                    let mut torn = below;
                    torn[..cut].copy_from_slice(&whole[..cut]);
                    let expected = if torn == whole { &new } else { &old };
                    assert_eq!(Superblock::latest(&file(&old, &torn)).as_ref(), Ok(expected), "cut at {cut}");
                }
            }
            assert_eq!(Superblock::latest(&file(&old, &whole)), Ok(new));
        }
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let whole = superblock(3).emit();
        for bit in 0..8 * COPY_BYTES {
            let mut damaged = whole;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::parse(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_newer_layout_is_not_guessed_at() {
        let mut newer = superblock(8).emit();
        newer[8] = 3;
        let sum = crc32c::crc32c(&newer[..SUM_AT]).to_le_bytes();
        newer[SUM_AT..].copy_from_slice(&sum);
        assert_eq!(Superblock::latest(&file(&superblock(7), &newer)), Err(Damaged::Version(3)));
    }

    #[test]
    fn what_is_no_superblock_says_why() {
        assert_eq!(Superblock::latest(&[]), Err(Damaged::Length));
        assert_eq!(Superblock::latest(&[0; FILE_BYTES]), Err(Damaged::Magic));
        let mut damaged = superblock(1).emit();
        damaged[100] = 1;
        let torn = [&damaged[..], &[0; COPY_BYTES]].concat();
        assert_eq!(Superblock::latest(&torn), Err(Damaged::Sum));
    }

    #[test]
    fn the_longest_path_fits() {
        let path = format!("/{}", "x".repeat(MAX_PATH - 1));
        let long = Superblock { path: path.into(), ..superblock(1) };
        assert_eq!(Superblock::parse(&long.emit()), Ok(long.clone()));
        // It leaves no room for the file's identity.
        let known = Superblock { file: Some(FileIdentity { inode: 7, born_us: Some(9) }), ..long.clone() };
        assert_eq!(Superblock::parse(&known.emit()), Ok(long));
    }

    #[test]
    fn the_identity_of_the_file_is_kept_as_far_as_it_is_known() {
        for born_us in [None, Some(1_790_000_000_123_456), Some(-1)] {
            let path = format!("/{}", "x".repeat(INODE_AT - PATH_AT - 1));
            let file = Some(FileIdentity { inode: u64::MAX - 1, born_us });
            let known = Superblock { path: path.into(), file, ..superblock(1) };
            assert_eq!(Superblock::parse(&known.emit()), Ok(known));
        }
        let mut odd = superblock(1).emit();
        odd[KNOWN_AT] = 3;
        let sum = crc32c::crc32c(&odd[..SUM_AT]).to_le_bytes();
        odd[SUM_AT..].copy_from_slice(&sum);
        assert_eq!(Superblock::parse(&odd), Err(Damaged::Field("the identity of its file")));
    }
    #[test]
    fn the_group_is_kept_and_a_path_that_leaves_no_room_for_it_is_told() {
        let in_group = |path: String, group: &str| {
            let membership = Some(Membership { group: group.into(), partnership: *b"fedcba9876543210" });
            let file = Some(FileIdentity { inode: 7, born_us: Some(9) });
            Superblock { path: path.into(), file, membership, ..superblock(1) }
        };
        for group in ["g", &"x".repeat(MAX_NAME)] {
            let longest = in_group(format!("/{}", "x".repeat(PARTNERSHIP_AT - PATH_AT - 1)), group);
            assert!(longest.has_room_for_group());
            assert_eq!(Superblock::parse(&longest.emit()), Ok(longest));
        }
        let bytes = in_group("/srv/vol1.img".into(), "db").emit();
        assert_eq!(&bytes[3848..3872], b"fedcba9876543210\x02\0\0\0db\0\0");
        let longer = in_group(format!("/{}", "x".repeat(PARTNERSHIP_AT - PATH_AT)), "db");
        assert!(!longer.has_room_for_group());
        assert_eq!(Superblock::parse(&longer.emit()), Ok(Superblock { membership: None, ..longer }));
        let mut odd = bytes;
        odd[GROUP_AT] = b'/';
        let sum = crc32c::crc32c(&odd[..SUM_AT]).to_le_bytes();
        odd[SUM_AT..].copy_from_slice(&sum);
        assert_eq!(Superblock::parse(&odd), Err(Damaged::Field("its group")));
    }
}
