//! The metadata of a file or directory.

use weft_wire::smb2::Filetime;
use weft_wire::smb2::access::FileAttributes;
use weft_wire::smb2::create;

/// Metadata of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Bytes.
    pub len: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// A directory.
    pub is_dir: bool,
    /// Creation time.
    pub created: Filetime,
    /// Time of the last read.
    pub accessed: Filetime,
    /// Time of the last write.
    pub modified: Filetime,
    /// Time of the last change of content or metadata.
    pub changed: Filetime,
    /// Attributes.
    pub attributes: FileAttributes,
}

impl From<create::FileSummary> for Stat {
    fn from(summary: create::FileSummary) -> Stat {
        Stat {
            len: summary.end_of_file,
            allocated: summary.allocation_size,
            is_dir: summary.attributes.contains(FileAttributes::DIRECTORY),
            created: summary.creation_time,
            accessed: summary.last_access_time,
            modified: summary.last_write_time,
            changed: summary.change_time,
            attributes: summary.attributes,
        }
    }
}
