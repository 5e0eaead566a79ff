//! The content of the stream `AFP_AfpInfo`: the Finder info of a file or directory.
//!
//! The layout is that of Services for Macintosh, as Apple's published client writes it (SMBClient, `smbfs_vnops.c`,
//! DefaultFillAfpInfo). The numbers of the head are little-endian; the Finder info is kept as the Mac sends it.
//!
//! ```text
//! 0 "AFP" 0 | 4 Version | 8 Reserved | 12 BackupTime | 16 FinderInfo 32 | 48 ProDosInfo 6 | 54 Reserved 6
//! FinderInfo: 0 type 4 | 4 creator 4 | 8 flags 2 | 10 .. | 20 date when it was added 4 | 24 extended flags 2 | 26 ..
//! ```

use super::Malformed;
use super::field::{Put, Reader};

/// Length of the stream in bytes.
pub const LEN: usize = 60;
/// The name of the stream.
pub const NAME: &[u8] = b"AFP_AfpInfo";
/// The name of the stream with the resource fork.
pub const RESOURCE_NAME: &[u8] = b"AFP_Resource";

const SIGNATURE: &[u8; 4] = b"AFP\0";
const VERSION: u32 = 0x0001_0000;
/// BackupTime of a file that was never backed up.
const NO_BACKUP: u32 = 0x8000_0000;

/// The content of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfpInfo {
    /// Seconds since 2000.
    pub backup_time: u32,
    /// What the Finder keeps of the file.
    pub finder_info: [u8; 32],
    /// Type and auxiliary type in ProDOS.
    pub prodos_info: [u8; 6],
}

impl Default for AfpInfo {
    fn default() -> AfpInfo {
        AfpInfo { backup_time: NO_BACKUP, finder_info: [0; 32], prodos_info: [0; 6] }
    }
}

impl AfpInfo {
    /// Parses the stream; what follows its 60 bytes is ignored.
    pub fn parse(stream: &[u8]) -> Result<AfpInfo, Malformed> {
        let mut r = Reader::new(stream.get(..LEN).ok_or(Malformed("AFP_AfpInfo"))?);
        if r.array::<4>()? != *SIGNATURE || r.u32()? != VERSION {
            return Err(Malformed("AFP_AfpInfo"));
        }
        r.u32()?;
        Ok(AfpInfo { backup_time: r.u32()?, finder_info: r.array()?, prodos_info: r.array()? })
    }

    /// The stream.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LEN);
        out.put(SIGNATURE);
        out.put_u32(VERSION);
        out.put_u32(0);
        out.put_u32(self.backup_time);
        out.put(&self.finder_info);
        out.put(&self.prodos_info);
        out.put_zeros(6);
        out
    }

    /// Whether it says nothing of its file: a Mac hides such Finder info.
    pub fn is_empty(&self) -> bool {
        self.finder_info == [0; 32]
    }

    /// The Finder info in the form of listings. The first fields of a directory's are no longer used.
    pub fn compressed(&self, directory: bool) -> [u8; 16] {
        let mut out = [0; 16];
        let info = &self.finder_info;
        let (kind, rest) = out.split_at_mut(8);
        if !directory {
            kind.copy_from_slice(&info[..8]);
        }
        let fields = info[8..10].iter().chain(&info[24..26]).chain(&info[20..24]);
        rest.iter_mut().zip(fields).for_each(|(to, from)| *to = *from);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        [
            &b"AFP\0"[..],
            &[0, 0, 1, 0],    // Version
            &[0; 4],          // Reserved
            &[0, 0, 0, 0x80], // BackupTime
            b"TEXTttxt",      // type, creator
            &[0x40, 0],       // flags: invisible
            &[0; 10],
            &[1, 2, 3, 4], // date when it was added
            &[5, 6],       // extended flags
            &[0; 6],
            &[0; 6], // ProDosInfo
            &[0; 6], // Reserved
        ]
        .concat()
    }

    #[test]
    fn what_a_mac_writes_and_every_truncation_of_it() {
        let bytes = sample();
        assert_eq!(bytes.len(), LEN);
        let info = AfpInfo::parse(&bytes).unwrap();
        assert_eq!(info.to_bytes(), bytes);
        assert!(!info.is_empty());
        assert_eq!(info.compressed(false), *b"TEXTttxt\x40\0\x05\x06\x01\x02\x03\x04");
        assert_eq!(info.compressed(true), *b"\0\0\0\0\0\0\0\0\x40\0\x05\x06\x01\x02\x03\x04");
        (0..LEN).for_each(|len| assert!(AfpInfo::parse(&bytes[..len]).is_err()));
        assert_eq!(AfpInfo::parse(&[&bytes[..], b"more"].concat()), Ok(info));
    }

    #[test]
    fn another_signature_or_version_is_refused() {
        for at in 0..8 {
            let mut bytes = sample();
            bytes[at] ^= 1;
            assert!(AfpInfo::parse(&bytes).is_err(), "{at}");
        }
    }

    #[test]
    fn a_new_one_is_empty() {
        let new = AfpInfo::default();
        assert!(new.is_empty());
        assert_eq!(AfpInfo::parse(&new.to_bytes()), Ok(new));
    }
}
