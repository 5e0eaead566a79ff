//! Information classes of file systems ([MS-FSCC] 2.5).

use crate::smb2::field::{Put, Reader, bits, len32};
use crate::smb2::{Filetime, Guid, Malformed, utf16};

bits! {
    /// Capabilities of a file system (2.5.1).
    FsAttributes: u32 {
        /// Names are case-sensitive.
        CASE_SENSITIVE_SEARCH = 0x0000_0001;
        /// The case of names is preserved.
        CASE_PRESERVED_NAMES = 0x0000_0002;
        /// Names are Unicode.
        UNICODE_ON_DISK = 0x0000_0004;
        /// Access control lists.
        PERSISTENT_ACLS = 0x0000_0008;
        /// Holes.
        SUPPORTS_SPARSE_FILES = 0x0000_0040;
        /// Reparse points.
        SUPPORTS_REPARSE_POINTS = 0x0000_0080;
        /// POSIX unlink and rename.
        SUPPORTS_POSIX_UNLINK_RENAME = 0x0000_0400;
        /// Named streams.
        NAMED_STREAMS = 0x0004_0000;
        /// Read-only.
        READ_ONLY_VOLUME = 0x0008_0000;
        /// Hard links.
        SUPPORTS_HARD_LINKS = 0x0040_0000;
        /// Extended attributes.
        SUPPORTS_EXTENDED_ATTRIBUTES = 0x0080_0000;
        /// Open by file id.
        SUPPORTS_OPEN_BY_FILE_ID = 0x0100_0000;
    }
}

/// FileFsVolumeInformation (2.5.9).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// When the volume was created.
    pub creation_time: Filetime,
    /// Serial number.
    pub serial_number: u32,
    /// Object ids.
    pub supports_objects: bool,
    /// Label.
    pub label: String,
}

impl Volume {
    /// Length of the fixed part in bytes.
    pub const FIXED_LEN: usize = 18;

    /// Parses the structure.
    pub fn parse(bytes: &[u8]) -> Result<Volume, Malformed> {
        let mut r = Reader::new(bytes);
        let creation_time = Filetime(r.u64()?);
        let (serial_number, len) = (r.u32()?, r.u32()? as usize);
        let supports_objects = r.u8()? != 0;
        r.u8()?;
        let label = utf16::decode_lossy(r.take(len)?)?;
        Ok(Volume { creation_time, serial_number, supports_objects, label })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u64(self.creation_time.0);
        out.put_u32(self.serial_number);
        out.put_u32(len32(utf16::encoded_len(&self.label)));
        out.put_u8(u8::from(self.supports_objects));
        out.put_u8(0);
        utf16::encode(&self.label, out);
    }
}

/// FileFsSizeInformation (2.5.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Total allocation units.
    pub total_units: u64,
    /// Allocation units available to the caller.
    pub available_units: u64,
    /// Sectors per allocation unit.
    pub sectors_per_unit: u32,
    /// Bytes per sector.
    pub bytes_per_sector: u32,
}

impl Size {
    /// Parses the structure.
    pub fn parse(bytes: &[u8]) -> Result<Size, Malformed> {
        let mut r = Reader::new(bytes);
        Ok(Size {
            total_units: r.u64()?,
            available_units: r.u64()?,
            sectors_per_unit: r.u32()?,
            bytes_per_sector: r.u32()?,
        })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u64(self.total_units);
        out.put_u64(self.available_units);
        out.put_u32(self.sectors_per_unit);
        out.put_u32(self.bytes_per_sector);
    }
}

/// The result of statvfs for the POSIX extensions (class 100): blocks and files. All ones means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Posix {
    /// Optimal transfer size in bytes.
    pub optimal_transfer_size: u32,
    /// Unit of the block counts, in bytes.
    pub block_size: u32,
    /// Total blocks.
    pub total_blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Blocks available to the caller.
    pub available_blocks: u64,
    /// Total files.
    pub total_files: u64,
    /// Free files.
    pub free_files: u64,
    /// Id of the file system.
    pub identifier: u64,
}

impl Posix {
    /// Parses the structure.
    pub fn parse(bytes: &[u8]) -> Result<Posix, Malformed> {
        let mut r = Reader::new(bytes);
        Ok(Posix {
            optimal_transfer_size: r.u32()?,
            block_size: r.u32()?,
            total_blocks: r.u64()?,
            free_blocks: r.u64()?,
            available_blocks: r.u64()?,
            total_files: r.u64()?,
            free_files: r.u64()?,
            identifier: r.u64()?,
        })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(self.optimal_transfer_size);
        out.put_u32(self.block_size);
        out.put_u64(self.total_blocks);
        out.put_u64(self.free_blocks);
        out.put_u64(self.available_blocks);
        out.put_u64(self.total_files);
        out.put_u64(self.free_files);
        out.put_u64(self.identifier);
    }
}

/// FileFsFullSizeInformation (2.5.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FullSize {
    /// Total allocation units.
    pub total_units: u64,
    /// Allocation units available to the caller.
    pub caller_available_units: u64,
    /// Free allocation units.
    pub actual_available_units: u64,
    /// Sectors per allocation unit.
    pub sectors_per_unit: u32,
    /// Bytes per sector.
    pub bytes_per_sector: u32,
}

impl FullSize {
    /// Parses the structure.
    pub fn parse(bytes: &[u8]) -> Result<FullSize, Malformed> {
        let mut r = Reader::new(bytes);
        Ok(FullSize {
            total_units: r.u64()?,
            caller_available_units: r.u64()?,
            actual_available_units: r.u64()?,
            sectors_per_unit: r.u32()?,
            bytes_per_sector: r.u32()?,
        })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u64(self.total_units);
        out.put_u64(self.caller_available_units);
        out.put_u64(self.actual_available_units);
        out.put_u32(self.sectors_per_unit);
        out.put_u32(self.bytes_per_sector);
    }
}

/// FileFsDeviceInformation (2.5.10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// 7: disk.
    pub device_type: u32,
    /// 0x20: mounted; 0x10: remote; 0x02: read-only.
    pub characteristics: u32,
}

impl Device {
    /// FILE_DEVICE_DISK.
    pub const DISK: u32 = 7;
    /// FILE_DEVICE_IS_MOUNTED.
    pub const IS_MOUNTED: u32 = 0x20;

    /// Parses the structure.
    pub fn parse(bytes: &[u8]) -> Result<Device, Malformed> {
        let mut r = Reader::new(bytes);
        Ok(Device { device_type: r.u32()?, characteristics: r.u32()? })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(self.device_type);
        out.put_u32(self.characteristics);
    }
}

/// FileFsAttributeInformation (2.5.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribute {
    /// Capabilities.
    pub attributes: FsAttributes,
    /// Longest name in characters.
    pub max_name_len: u32,
    /// "NTFS", which some clients expect.
    pub name: String,
}

impl Attribute {
    /// Length of the fixed part in bytes.
    pub const FIXED_LEN: usize = 12;

    /// Parses the structure.
    pub fn parse(bytes: &[u8]) -> Result<Attribute, Malformed> {
        let mut r = Reader::new(bytes);
        let (attributes, max_name_len) = (FsAttributes(r.u32()?), r.u32()?);
        let len = r.u32()? as usize;
        Ok(Attribute { attributes, max_name_len, name: utf16::decode_lossy(r.take(len)?)? })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(self.attributes.0);
        out.put_u32(self.max_name_len);
        out.put_u32(len32(utf16::encoded_len(&self.name)));
        utf16::encode(&self.name, out);
    }
}

/// FileFsSectorSizeInformation (2.5.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SectorSize {
    /// Logical sector size.
    pub logical: u32,
    /// Physical sector size for atomicity.
    pub physical_atomicity: u32,
    /// Physical sector size for performance.
    pub physical_performance: u32,
    /// Physical sector size that the file system assumes.
    pub effective_atomicity: u32,
    /// 1: aligned device; 2: aligned partition; 4: no seek penalty; 8: TRIM.
    pub flags: u32,
    /// Alignment of sectors in bytes.
    pub sector_alignment: u32,
    /// Alignment of the partition in bytes.
    pub partition_alignment: u32,
}

impl SectorSize {
    /// Parses the structure.
    pub fn parse(bytes: &[u8]) -> Result<SectorSize, Malformed> {
        let mut r = Reader::new(bytes);
        Ok(SectorSize {
            logical: r.u32()?,
            physical_atomicity: r.u32()?,
            physical_performance: r.u32()?,
            effective_atomicity: r.u32()?,
            flags: r.u32()?,
            sector_alignment: r.u32()?,
            partition_alignment: r.u32()?,
        })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(self.logical);
        out.put_u32(self.physical_atomicity);
        out.put_u32(self.physical_performance);
        out.put_u32(self.effective_atomicity);
        out.put_u32(self.flags);
        out.put_u32(self.sector_alignment);
        out.put_u32(self.partition_alignment);
    }
}

/// FileFsControlInformation (2.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Bytes at which a user is warned; all ones: never.
    pub default_quota_threshold: u64,
    /// Most bytes of a user; all ones: unlimited.
    pub default_quota_limit: u64,
    /// FILE_VC_*: 1 quotas are tracked, 2 quotas are enforced, 8 contents are not indexed.
    pub flags: u32,
}

impl Control {
    /// For a volume without quotas and without an index.
    pub const UNLIMITED: Control =
        Control { default_quota_threshold: u64::MAX, default_quota_limit: u64::MAX, flags: 8 };

    /// Parses the structure.
    pub fn parse(bytes: &[u8]) -> Result<Control, Malformed> {
        let mut r = Reader::new(bytes);
        // Three numbers for an indexing service, ignored.
        r.take(24)?;
        let (default_quota_threshold, default_quota_limit) = (r.u64()?, r.u64()?);
        let flags = r.u32()?;
        r.take(4)?;
        Ok(Control { default_quota_threshold, default_quota_limit, flags })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_zeros(24);
        out.put_u64(self.default_quota_threshold);
        out.put_u64(self.default_quota_limit);
        out.put_u32(self.flags);
        out.put_u32(0);
    }
}

/// FileFsObjectIdInformation (2.5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectId {
    /// Object id.
    pub object_id: Guid,
    /// Defined by the server.
    pub extended_info: [u8; 48],
}

impl ObjectId {
    /// Parses the structure.
    pub fn parse(bytes: &[u8]) -> Result<ObjectId, Malformed> {
        let mut r = Reader::new(bytes);
        Ok(ObjectId { object_id: r.array()?, extended_info: r.array()? })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put(&self.object_id);
        out.put(&self.extended_info);
    }
}
