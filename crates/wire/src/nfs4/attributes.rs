//! fattr4: attributes by number, as clients request and set them (RFC 8881 5.6 to 5.8, RFC 7862 12.2, RFC 8276 8.2, RFC
//! 9754).
//!
//! [`Fattr`] is the form on the wire, [`Attributes`] has typed values. Attributes that are not in the table below
//! (label quotas, pNFS, retention) are unsupported: if a mask names one, parsing fails.

use bytes::Bytes;

use super::acl::Acl;
use super::{Bitmap, FileType, Handle, SetTime, SpecData, Text, Time, UpTo};
use crate::xdr::{Decoder, Encoder, Malformed, Xdr, xdr_struct};

/// Longest value list of a fattr4 that is parsed.
const MAX_VALUES: usize = 64 << 10;

/// fattr4: a set of attributes, and their values in sequence.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Fattr {
    /// The attributes that are present.
    pub mask: Bitmap,
    /// Values in the order of their numbers.
    pub values: Bytes,
}

impl Xdr for Fattr {
    fn parse(d: &mut Decoder) -> Result<Fattr, Malformed> {
        Ok(Fattr { mask: Bitmap::parse(d)?, values: d.opaque(MAX_VALUES)? })
    }
    fn emit(&self, e: &mut Encoder) {
        self.mask.emit(e);
        e.opaque(&self.values);
    }
}

xdr_struct! {
    /// fsid4.
    #[derive(Copy, Default)]
    pub struct Fsid {
        /// First half of the id.
        pub major: u64,
        /// Second half of the id.
        pub minor: u64,
    }
}

xdr_struct! {
    /// mode_masked4, mode_umask: a mode and its mask.
    #[derive(Copy)]
    pub struct ModePair {
        /// The bits to set, or the mode.
        pub mode: u32,
        /// The mask of bits to change, or the umask.
        pub mask: u32,
    }
}

xdr_struct! {
    /// fs_location4.
    pub struct FsLocation {
        /// Host names.
        pub servers: UpTo<Text, 16>,
        /// Path on these hosts.
        pub root: UpTo<Text, 64>,
    }
}

xdr_struct! {
    /// fs_locations4.
    pub struct FsLocations {
        /// Path on this server.
        pub root: UpTo<Text, 64>,
        /// Other locations.
        pub locations: UpTo<FsLocation, 16>,
    }
}

xdr_struct! {
    /// open_arguments4 (RFC 9754): the supported values of each argument of OPEN.
    #[derive(Copy)]
    pub struct OpenArguments {
        /// share_access.
        pub access: Bitmap,
        /// share_deny.
        pub deny: Bitmap,
        /// Delegation wishes in share_access.
        pub wants: Bitmap,
        /// Claims.
        pub claims: Bitmap,
        /// Creation modes.
        pub create: Bitmap,
    }
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident $field:ident: $type:ty = $number:literal,)*) => {
        /// Numbers of attributes.
        #[allow(missing_docs, reason = "the RFC's names")]
        pub mod attr {
            $(pub const $name: u32 = $number;)*
        }

        /// Attribute values; `None` is absent.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Attributes {
            $($(#[$doc])* pub $field: Option<$type>,)*
        }

        impl Attributes {
            /// All attributes with a typed value in this module.
            pub const TYPED: Bitmap = Bitmap::of(&[$($number),*]);

            /// The attributes that are present.
            pub fn mask(&self) -> Bitmap {
                let mut mask = Bitmap::EMPTY;
                $(if self.$field.is_some() { mask.set($number); })*
                mask
            }

            /// Parses values in sequence.
            ///
            /// # Errors
            ///
            /// A value that does not parse or has no type here, or bytes after the last value.
            pub fn parse(fattr: &Fattr) -> Result<Attributes, Malformed> {
                if !fattr.mask.without(Attributes::TYPED).is_empty() {
                    return Err(Malformed("unsupported attribute"));
                }
                let mut d = Decoder::new(fattr.values.clone());
                let mut values = Attributes::default();
                $(if fattr.mask.has($number) { values.$field = Some(<$type>::parse(&mut d)?); })*
                d.end()?;
                Ok(values)
            }

            /// Appends the present values in sequence.
            pub fn emit_values(&self, e: &mut Encoder) {
                $(if let Some(value) = &self.$field { value.emit(e); })*
            }

            /// Encodes the present values as a fattr4.
            pub fn fattr(&self) -> Fattr {
                let mut e = Encoder::with_capacity(256);
                self.emit_values(&mut e);
                Fattr { mask: self.mask(), values: e.into_bytes() }
            }
        }
    };
}

attributes! {
    /// Supported attributes.
    SUPPORTED_ATTRS supported_attrs: Bitmap = 0,
    /// File type.
    TYPE kind: FileType = 1,
    /// How handles expire.
    FH_EXPIRE_TYPE fh_expire_type: u32 = 2,
    /// Changes whenever the file changes.
    CHANGE change: u64 = 3,
    /// Size in bytes.
    SIZE size: u64 = 4,
    /// Whether links are supported.
    LINK_SUPPORT link_support: bool = 5,
    /// Whether symbolic links are supported.
    SYMLINK_SUPPORT symlink_support: bool = 6,
    /// Whether the object has named attributes.
    NAMED_ATTR named_attr: bool = 7,
    /// File system id.
    FSID fsid: Fsid = 8,
    /// Whether different handles always denote different files.
    UNIQUE_HANDLES unique_handles: bool = 9,
    /// Duration of a lease in seconds.
    LEASE_TIME lease_time: u32 = 10,
    /// Why attributes of a READDIR entry are missing.
    RDATTR_ERROR rdattr_error: u32 = 11,
    /// Access control list.
    ACL acl: Acl = 12,
    /// Kinds of access control entries.
    ACLSUPPORT aclsupport: u32 = 13,
    /// Archived.
    ARCHIVE archive: bool = 14,
    /// Whether times can be set.
    CANSETTIME cansettime: bool = 15,
    /// Whether names are case-insensitive.
    CASE_INSENSITIVE case_insensitive: bool = 16,
    /// Whether the case of names is preserved.
    CASE_PRESERVING case_preserving: bool = 17,
    /// Whether only root may change a file's owner.
    CHOWN_RESTRICTED chown_restricted: bool = 18,
    /// Handle.
    FILEHANDLE filehandle: Handle = 19,
    /// File id, unique in the file system.
    FILEID fileid: u64 = 20,
    /// Files available to this user.
    FILES_AVAIL files_avail: u64 = 21,
    /// Free files.
    FILES_FREE files_free: u64 = 22,
    /// Total files.
    FILES_TOTAL files_total: u64 = 23,
    /// Other locations of the file system.
    FS_LOCATIONS fs_locations: FsLocations = 24,
    /// Hidden.
    HIDDEN hidden: bool = 25,
    /// Whether attribute support is the same for all objects of the file system.
    HOMOGENEOUS homogeneous: bool = 26,
    /// Largest file.
    MAXFILESIZE maxfilesize: u64 = 27,
    /// Largest number of links.
    MAXLINK maxlink: u32 = 28,
    /// Longest name.
    MAXNAME maxname: u32 = 29,
    /// Largest READ.
    MAXREAD maxread: u64 = 30,
    /// Largest WRITE.
    MAXWRITE maxwrite: u64 = 31,
    /// Permission bits.
    MODE mode: u32 = 33,
    /// Whether long names fail instead of being truncated.
    NO_TRUNC no_trunc: bool = 34,
    /// Number of links.
    NUMLINKS numlinks: u32 = 35,
    /// Owner.
    OWNER owner: Text = 36,
    /// Group.
    OWNER_GROUP owner_group: Text = 37,
    /// Bytes that may still be allocated at most.
    QUOTA_AVAIL_HARD quota_avail_hard: u64 = 38,
    /// Bytes that may be allocated before the user is warned.
    QUOTA_AVAIL_SOFT quota_avail_soft: u64 = 39,
    /// Bytes that count for the quota.
    QUOTA_USED quota_used: u64 = 40,
    /// Device numbers.
    RAWDEV rawdev: SpecData = 41,
    /// Bytes available to this user.
    SPACE_AVAIL space_avail: u64 = 42,
    /// Free bytes.
    SPACE_FREE space_free: u64 = 43,
    /// Total bytes.
    SPACE_TOTAL space_total: u64 = 44,
    /// Bytes allocated.
    SPACE_USED space_used: u64 = 45,
    /// System file.
    SYSTEM system: bool = 46,
    /// Last read.
    TIME_ACCESS time_access: Time = 47,
    /// Sets the time of the last read.
    TIME_ACCESS_SET time_access_set: SetTime = 48,
    /// Last backup.
    TIME_BACKUP time_backup: Time = 49,
    /// Time of creation.
    TIME_CREATE time_create: Time = 50,
    /// Resolution of times.
    TIME_DELTA time_delta: Time = 51,
    /// Last change of attributes.
    TIME_METADATA time_metadata: Time = 52,
    /// Last write.
    TIME_MODIFY time_modify: Time = 53,
    /// Sets the time of the last write.
    TIME_MODIFY_SET time_modify_set: SetTime = 54,
    /// File id of the directory on which the file system is mounted.
    MOUNTED_ON_FILEID mounted_on_fileid: u64 = 55,
    /// Sets some permission bits.
    MODE_SET_MASKED mode_set_masked: ModePair = 74,
    /// Attributes that EXCLUSIVE4_1 can set.
    SUPPATTR_EXCLCREAT suppattr_exclcreat: Bitmap = 75,
    /// Character sets of names.
    FS_CHARSET_CAP fs_charset_cap: u32 = 76,
    /// Alignment of CLONE's ranges.
    CLONE_BLKSIZE clone_blksize: u32 = 77,
    /// How `change` behaves.
    CHANGE_ATTR_TYPE change_attr_type: u32 = 79,
    /// A mode to which the server applies the umask.
    MODE_UMASK mode_umask: ModePair = 81,
    /// Whether extended attributes are supported.
    XATTR_SUPPORT xattr_support: bool = 82,
    /// Last read, reported by the holder of a delegation.
    TIME_DELEG_ACCESS time_deleg_access: Time = 84,
    /// Last write, reported by the holder of a delegation.
    TIME_DELEG_MODIFY time_deleg_modify: Time = 85,
    /// Arguments of OPEN that the server supports.
    OPEN_ARGUMENTS open_arguments: OpenArguments = 86,
}
