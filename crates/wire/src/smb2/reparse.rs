//! Targets of reparse points: symbolic links, mount points, links of NFS clients and of WSL.
//!
//! Layouts are [MS-FSCC] 2.1.2.2 (REPARSE_DATA_BUFFER), 2.1.2.4 (symbolic links), 2.1.2.5 (mount points), 2.1.2.6 (NFS)
//! and 2.1.2.7 (WSL). Other reparse points are not parsed.
//!
//! ```text
//! all:             tag 4 | length 2 | 0 2 | data
//! link, mount:     substitute offset 2 | its length 2 | print offset 2 | its length 2 | (links: flags 4) | names
//! NFS:             "LNK" and 1 as 8 bytes | target in UTF-16
//! WSL:             version 4 | target in UTF-8
//! ```

use super::field::Reader;
use super::{Malformed, utf16};

/// Most reparse data in bytes ([MS-FSA] 2.1.5.10.37).
pub const MAX_DATA: usize = 16_384;

/// IO_REPARSE_TAG_SYMLINK (all tags: [MS-FSCC] 2.1.2.1).
pub const SYMLINK: u32 = 0xA000_000C;
/// IO_REPARSE_TAG_MOUNT_POINT.
pub const MOUNT_POINT: u32 = 0xA000_0003;
/// IO_REPARSE_TAG_NFS.
pub const NFS: u32 = 0x8000_0014;
/// IO_REPARSE_TAG_LX_SYMLINK.
pub const LX_SYMLINK: u32 = 0xA000_001D;
/// IO_REPARSE_TAG_DFS.
pub const DFS: u32 = 0x8000_000A;
/// IO_REPARSE_TAG_AF_UNIX.
pub const AF_UNIX: u32 = 0x8000_0023;
/// IO_REPARSE_TAG_LX_FIFO, _LX_CHR and _LX_BLK.
pub const LX_FIFO: u32 = 0x8000_0024;
/// See [`LX_FIFO`].
pub const LX_CHR: u32 = 0x8000_0025;
/// See [`LX_FIFO`].
pub const LX_BLK: u32 = 0x8000_0026;
/// The bit in the tags of name surrogates, which stand for another file.
pub const SURROGATE: u32 = 0x2000_0000;
/// NFS_SPECFILE_LNK ([MS-FSCC] 2.1.2.6).
pub const NFS_LINK: u64 = u64::from_le_bytes(*b"LNK\x01\0\0\0\0");
const MALFORMED: Malformed = Malformed("reparse point");

/// The target of a reparse point for display: a relative path with `/` between its names. `None` for a reparse point
/// without a target, or of an unknown kind.
pub fn target(bytes: &[u8]) -> Result<Option<String>, Malformed> {
    let mut r = Reader::new(bytes);
    let (tag, len, _) = (r.u32()?, usize::from(r.u16()?), r.u16()?);
    let data = r.take(len)?;
    let mut r = Reader::new(data);
    match tag {
        SYMLINK => {
            let names = Names::read(&mut r)?;
            let relative = r.u32()? & 1 != 0;
            let name = names.shown(r.rest())?;
            Ok(Some(if relative { name.replace('\\', "/") } else { name }))
        }
        MOUNT_POINT => Names::read(&mut r)?.shown(r.rest()).map(Some),
        NFS if r.u64()? == NFS_LINK => Ok(Some(utf16::decode_lossy(r.rest())?)),
        LX_SYMLINK => {
            r.u32()?;
            Ok(Some(String::from_utf8_lossy(r.rest()).into_owned()))
        }
        _ => Ok(None),
    }
}

/// Offset and length of the substitute name and of the print name.
struct Names {
    substitute: (usize, usize),
    print: (usize, usize),
}

impl Names {
    fn read(r: &mut Reader<'_>) -> Result<Names, Malformed> {
        let mut place = || Ok((usize::from(r.u16()?), usize::from(r.u16()?)));
        Ok(Names { substitute: place()?, print: place()? })
    }

    /// The print name, or the substitute name without one.
    fn shown(&self, names: &[u8]) -> Result<String, Malformed> {
        let (offset, len) = if self.print.1 > 0 { self.print } else { self.substitute };
        utf16::decode_lossy(names.get(offset..).and_then(|rest| rest.get(..len)).ok_or(MALFORMED)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(tag: u32, data: &[&[u8]]) -> Vec<u8> {
        let data = data.concat();
        let len = (data.len() as u16).to_le_bytes();
        [&tag.to_le_bytes()[..], &len, &[0, 0], &data].concat()
    }

    fn wide(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }

    #[test]
    fn where_links_lead_and_every_truncation_of_them() {
        let relative = point(SYMLINK, &[&[0, 0, 8, 0, 0, 0, 8, 0], &[1, 0, 0, 0], &wide("d\\ff")]);
        let away = wide("\\??\\UNC\\h\\s");
        let print = wide("\\\\h\\s");
        let places = [0, 0, away.len() as u8, 0, away.len() as u8, 0, print.len() as u8, 0];
        let absolute = point(SYMLINK, &[&places, &[0; 4], &away, &print]);
        // Without a print name, the substitute name is shown.
        let mount = point(MOUNT_POINT, &[&[0, 0, 4, 0, 4, 0, 0, 0], &wide("C:")]);
        let nfs = point(NFS, &[b"LNK\x01\0\0\0\0", &wide("../x")]);
        let wsl = point(LX_SYMLINK, &[&[2, 0, 0, 0], "/etc/ü".as_bytes()]);
        for (bytes, leads_to) in
            [(relative, "d/ff"), (absolute, "\\\\h\\s"), (mount, "C:"), (nfs, "../x"), (wsl, "/etc/ü")]
        {
            assert_eq!(target(&bytes), Ok(Some(leads_to.to_owned())));
            (0..bytes.len()).for_each(|len| assert!(target(&bytes[..len]).is_err(), "{leads_to} {len}"));
        }
        assert_eq!(target(&point(NFS, &[b"FIFO\0\0\0\0"])), Ok(None));
        assert_eq!(target(&point(0x8000_0017, &[b"cloud"])), Ok(None));
        assert!(
            target(&point(SYMLINK, &[&[9, 0, 8, 0, 9, 0, 8, 0], &[1, 0, 0, 0], &wide("d\\ff")])).is_err()
        );
    }
}
