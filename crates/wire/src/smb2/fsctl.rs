//! Data of control codes on files: server-side copies ([MS-SMB2] 2.2.31.1, 2.2.32.1 to 2.2.32.3), holes, clones, trims
//! ([MS-FSCC] 2.3).

use super::field::{Put, Reader, array_at, len32, u32_at, u64_at};
use super::{FileId, Malformed};

/// Identifies the source of a server-side copy; opaque to clients.
pub type ResumeKey = [u8; 24];

/// SRV_REQUEST_RESUME_KEY response (2.2.32.3): the key, and a context that is always empty but occupies four bytes.
pub fn emit_resume_key(key: &ResumeKey, out: &mut Vec<u8>) {
    out.put(key);
    out.put_u32(0);
    out.put_u32(0);
}

/// Length of that response.
pub const RESUME_KEY_LEN: u32 = 32;

/// One range of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Offset in the source.
    pub source: u64,
    /// Offset in the target.
    pub target: u64,
    /// Length in bytes.
    pub len: u32,
}

/// SRV_COPYCHUNK_COPY (2.2.31.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyChunks {
    /// The file to copy from.
    pub source: ResumeKey,
    /// ChunkCount in the request. [`CopyChunks::parse`] skips the chunks if it exceeds its `limit`.
    pub count: u32,
    /// The ranges.
    pub chunks: Vec<Chunk>,
}

impl CopyChunks {
    const HEAD: usize = 32;

    /// Parses the structure, without the chunks if there are more than `limit`.
    pub fn parse(input: &[u8], limit: u32) -> Result<CopyChunks, Malformed> {
        let mut r = Reader::new(input);
        let (source, count) = (r.array()?, r.u32()?);
        r.u32()?;
        let mut chunks = Vec::new();
        if count <= limit {
            for _ in 0..count {
                let b: [u8; 24] = r.array()?;
                chunks.push(Chunk { source: u64_at(&b, 0), target: u64_at(&b, 8), len: u32_at(&b, 16) });
            }
        }
        Ok(CopyChunks { source, count, chunks })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.reserve(self.chunks.len().saturating_mul(24).saturating_add(CopyChunks::HEAD));
        out.put(&self.source);
        out.put_u32(len32(self.chunks.len()));
        out.put_u32(0);
        for chunk in &self.chunks {
            out.put_u64(chunk.source);
            out.put_u64(chunk.target);
            out.put_u32(chunk.len);
            out.put_u32(0);
        }
    }
}

/// SRV_COPYCHUNK_RESPONSE (2.2.32.1): the amount copied, or the limits if the status is STATUS_INVALID_PARAMETER.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Number of chunks.
    pub chunks: u32,
    /// Bytes copied of an incomplete chunk; as a limit, bytes per chunk.
    pub chunk_bytes: u32,
    /// Total bytes.
    pub total_bytes: u32,
}

impl Copied {
    /// Length on the wire in bytes.
    pub const LEN: u32 = 12;

    /// Parses the structure.
    pub fn parse(output: &[u8]) -> Result<Copied, Malformed> {
        let mut r = Reader::new(output);
        Ok(Copied { chunks: r.u32()?, chunk_bytes: r.u32()?, total_bytes: r.u32()? })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(self.chunks);
        out.put_u32(self.chunk_bytes);
        out.put_u32(self.total_bytes);
    }
}

/// A range of a file: FILE_ALLOCATED_RANGE_BUFFER, FILE_ZERO_DATA_INFORMATION (whose second field is the end), or a
/// range to trim ([MS-FSCC] 2.3.48, 2.3.67, 2.3.73.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes, or the first byte after the range.
    pub len: u64,
}

impl Extent {
    /// Length on the wire in bytes.
    pub const LEN: usize = 16;

    /// Parses one range.
    pub fn parse(input: &[u8]) -> Result<Extent, Malformed> {
        let mut r = Reader::new(input);
        Ok(Extent { offset: r.u64()?, len: r.u64()? })
    }

    /// Parses a list.
    pub fn parse_list(output: &[u8]) -> Vec<Extent> {
        let extents = output.chunks_exact(Extent::LEN);
        extents.map(|b| Extent { offset: u64_at(b, 0), len: u64_at(b, 8) }).collect()
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u64(self.offset);
        out.put_u64(self.len);
    }
}

/// DUPLICATE_EXTENTS_DATA and DUPLICATE_EXTENTS_DATA_EX in the form of SMB2 ([MS-FSCC] 2.3.7.2, 2.3.9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DuplicateExtents {
    /// The source.
    pub source: FileId,
    /// Offset in the source.
    pub source_offset: u64,
    /// Offset in the target.
    pub target_offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl DuplicateExtents {
    /// Parses the older form.
    pub fn parse(input: &[u8]) -> Result<DuplicateExtents, Malformed> {
        let mut r = Reader::new(input);
        let b: [u8; 40] = r.array()?;
        Ok(DuplicateExtents {
            source: FileId::from_bytes(array_at(&b, 0)),
            source_offset: u64_at(&b, 16),
            target_offset: u64_at(&b, 24),
            len: u64_at(&b, 32),
        })
    }

    /// Parses the newer form, which starts with its size and ends with flags (which only request atomicity).
    pub fn parse_ex(input: &[u8]) -> Result<DuplicateExtents, Malformed> {
        match input {
            [0x30 | 0x38, 0, 0, 0, 0, 0, 0, 0, rest @ ..] if rest.len() >= 40 => {
                DuplicateExtents::parse(rest)
            }
            _ => Err(Malformed("duplicate extents")),
        }
    }

    /// Appends the older form.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put(&self.source.to_bytes());
        out.put_u64(self.source_offset);
        out.put_u64(self.target_offset);
        out.put_u64(self.len);
    }
}

/// FILE_LEVEL_TRIM ([MS-FSCC] 2.3.73): ranges whose content is no longer needed.
pub fn parse_trim(input: &[u8], limit: u32) -> Result<Vec<Extent>, Malformed> {
    let mut r = Reader::new(input);
    let (key, count) = (r.u32()?, r.u32()?);
    if key != 0 || count == 0 || count > limit {
        return Err(Malformed("FILE_LEVEL_TRIM"));
    }
    (0..count).map(|_| Ok(Extent { offset: r.u64()?, len: r.u64()? })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_and_every_truncation_of_it() {
        let chunks = vec![Chunk { source: 1, target: 2, len: 3 }, Chunk { source: 4, target: 5, len: 6 }];
        let copy = CopyChunks { source: [7; 24], count: 2, chunks };
        let mut bytes = Vec::new();
        copy.emit(&mut bytes);
        assert_eq!(bytes.len(), 32 + 2 * 24);
        assert_eq!(CopyChunks::parse(&bytes, 2), Ok(copy));
        for len in 0..bytes.len() {
            assert!(CopyChunks::parse(&bytes[..len], 2).is_err());
        }
        let over = CopyChunks::parse(&bytes, 1).unwrap();
        assert_eq!((over.count, over.chunks.len()), (2, 0));
        let mut out = Vec::new();
        let copied = Copied { chunks: 1, chunk_bytes: 2, total_bytes: 3 };
        copied.emit(&mut out);
        assert_eq!(Copied::parse(&out), Ok(copied));
        let mut out = Vec::new();
        emit_resume_key(&[1; 24], &mut out);
        assert_eq!(out.len(), RESUME_KEY_LEN as usize);
    }

    #[test]
    fn clones_ranges_and_trims() {
        let file = FileId { persistent: 1, volatile: 2 };
        let clone = DuplicateExtents { source: file, source_offset: 3, target_offset: 4, len: 5 };
        let mut bytes = Vec::new();
        clone.emit(&mut bytes);
        assert_eq!(DuplicateExtents::parse(&bytes), Ok(clone));
        let newer = [&0x38u64.to_le_bytes()[..], &bytes, &[0; 8]].concat();
        assert_eq!(DuplicateExtents::parse_ex(&newer), Ok(clone));
        assert!(DuplicateExtents::parse_ex(&bytes).is_err());
        for len in 0..40 {
            assert!(DuplicateExtents::parse(&bytes[..len]).is_err());
            assert!(DuplicateExtents::parse_ex(&newer[..len]).is_err());
        }
        let extent = Extent { offset: 1, len: 2 };
        let mut bytes = vec![0, 0, 0, 0, 1, 0, 0, 0];
        extent.emit(&mut bytes);
        assert_eq!(parse_trim(&bytes, 1), Ok(vec![extent]));
        assert_eq!(Extent::parse_list(&bytes[8..]), [extent]);
        assert_eq!(Extent::parse(&bytes[8..]), Ok(extent));
        assert!(parse_trim(&bytes, 0).is_err());
        bytes[4] = 2;
        assert!(parse_trim(&bytes, 2).is_err());
    }
}
