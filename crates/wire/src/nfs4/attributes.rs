//! fattr4: attributes by number, as clients ask for and set them.
//!
//! What: [`Fattr`] as it travels, [`Attributes`] with typed values. Spec: RFC 8881 5.6 to 5.8, RFC 7862 12.2, RFC 8276 8.2, RFC 9754.
//! Does not: decide which are supported.
//!
//! Attributes that are not in the table below (quotas of labels, pNFS, retention) are not spoken: a mask that names one
//! has no typed value.

use bytes::Bytes;

use super::acl::Acl;
use super::{Bitmap, FileType, Handle, SetTime, SpecData, Text, Time, UpTo};
use crate::xdr::{Decoder, Encoder, Malformed, Xdr, xdr_struct};

/// Longest value list of a fattr4 that is parsed.
const MAX_VALUES: usize = 64 << 10;

/// fattr4: which attributes, and their values one behind the other.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Fattr {
    /// Which.
    pub mask: Bitmap,
    /// Values in order of their numbers.
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
        /// First half.
        pub major: u64,
        /// Second half.
        pub minor: u64,
    }
}

xdr_struct! {
    /// mode_masked4, mode_umask: a mode and what goes with it.
    #[derive(Copy)]
    pub struct ModePair {
        /// The values, or the mode.
        pub mode: u32,
        /// Which bits to set, or the umask.
        pub mask: u32,
    }
}

xdr_struct! {
    /// fs_location4.
    pub struct FsLocation {
        /// Hosts.
        pub servers: UpTo<Text, 16>,
        /// Path there.
        pub root: UpTo<Text, 64>,
    }
}

xdr_struct! {
    /// fs_locations4.
    pub struct FsLocations {
        /// Path here.
        pub root: UpTo<Text, 64>,
        /// Elsewhere.
        pub locations: UpTo<FsLocation, 16>,
    }
}

xdr_struct! {
    /// open_arguments4 (RFC 9754): which values of each argument of OPEN are understood.
    #[derive(Copy)]
    pub struct OpenArguments {
        /// share_access.
        pub access: Bitmap,
        /// share_deny.
        pub deny: Bitmap,
        /// Wishes beside share_access.
        pub wants: Bitmap,
        /// Claims.
        pub claims: Bitmap,
        /// Ways to create.
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

        /// Values of attributes; `None` is not there.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Attributes {
            $($(#[$doc])* pub $field: Option<$type>,)*
        }

        impl Attributes {
            /// All that have a typed value here.
            pub const TYPED: Bitmap = Bitmap::of(&[$($number),*]);

            /// Which are there.
            pub fn mask(&self) -> Bitmap {
                let mut mask = Bitmap::EMPTY;
                $(if self.$field.is_some() { mask.set($number); })*
                mask
            }

            /// Parses values one behind the other.
            ///
            /// # Errors
            /// A value that does not parse or has no type here, or bytes behind the last.
            pub fn parse(fattr: &Fattr) -> Result<Attributes, Malformed> {
                if !fattr.mask.without(Attributes::TYPED).is_empty() {
                    return Err(Malformed("an attribute without a type"));
                }
                let mut d = Decoder::new(fattr.values.clone());
                let mut values = Attributes::default();
                $(if fattr.mask.has($number) { values.$field = Some(<$type>::parse(&mut d)?); })*
                d.end()?;
                Ok(values)
            }

            /// Appends the values that are there, one behind the other.
            pub fn emit_values(&self, e: &mut Encoder) {
                $(if let Some(value) = &self.$field { value.emit(e); })*
            }

            /// As a fattr4.
            pub fn fattr(&self) -> Fattr {
                let mut e = Encoder::with_capacity(256);
                self.emit_values(&mut e);
                Fattr { mask: self.mask(), values: e.into_bytes() }
            }
        }
    };
}

attributes! {
    /// Which are supported.
    SUPPORTED_ATTRS supported_attrs: Bitmap = 0,
    /// Type.
    TYPE kind: FileType = 1,
    /// How handles expire.
    FH_EXPIRE_TYPE fh_expire_type: u32 = 2,
    /// Changes with every change.
    CHANGE change: u64 = 3,
    /// Bytes.
    SIZE size: u64 = 4,
    /// Whether links are supported.
    LINK_SUPPORT link_support: bool = 5,
    /// Whether symbolic links are supported.
    SYMLINK_SUPPORT symlink_support: bool = 6,
    /// Whether it has named attributes.
    NAMED_ATTR named_attr: bool = 7,
    /// Which file system.
    FSID fsid: Fsid = 8,
    /// Whether two handles may be one file.
    UNIQUE_HANDLES unique_handles: bool = 9,
    /// Seconds of a lease.
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
    /// Whether case does not matter.
    CASE_INSENSITIVE case_insensitive: bool = 16,
    /// Whether case is kept.
    CASE_PRESERVING case_preserving: bool = 17,
    /// Whether only root gives files away.
    CHOWN_RESTRICTED chown_restricted: bool = 18,
    /// Handle.
    FILEHANDLE filehandle: Handle = 19,
    /// Number in the file system.
    FILEID fileid: u64 = 20,
    /// Files free to this user.
    FILES_AVAIL files_avail: u64 = 21,
    /// Files free.
    FILES_FREE files_free: u64 = 22,
    /// Files in all.
    FILES_TOTAL files_total: u64 = 23,
    /// Where else it is.
    FS_LOCATIONS fs_locations: FsLocations = 24,
    /// Hidden.
    HIDDEN hidden: bool = 25,
    /// Whether attributes are the same all over the file system.
    HOMOGENEOUS homogeneous: bool = 26,
    /// Largest file.
    MAXFILESIZE maxfilesize: u64 = 27,
    /// Most links.
    MAXLINK maxlink: u32 = 28,
    /// Longest name.
    MAXNAME maxname: u32 = 29,
    /// Largest READ.
    MAXREAD maxread: u64 = 30,
    /// Largest WRITE.
    MAXWRITE maxwrite: u64 = 31,
    /// Permission bits.
    MODE mode: u32 = 33,
    /// Whether long names fail.
    NO_TRUNC no_trunc: bool = 34,
    /// Links.
    NUMLINKS numlinks: u32 = 35,
    /// Owner.
    OWNER owner: Text = 36,
    /// Group.
    OWNER_GROUP owner_group: Text = 37,
    /// Device numbers.
    RAWDEV rawdev: SpecData = 41,
    /// Bytes free to this user.
    SPACE_AVAIL space_avail: u64 = 42,
    /// Bytes free.
    SPACE_FREE space_free: u64 = 43,
    /// Bytes in all.
    SPACE_TOTAL space_total: u64 = 44,
    /// Bytes that it occupies.
    SPACE_USED space_used: u64 = 45,
    /// System file.
    SYSTEM system: bool = 46,
    /// Last read.
    TIME_ACCESS time_access: Time = 47,
    /// Sets it.
    TIME_ACCESS_SET time_access_set: SetTime = 48,
    /// Last backup.
    TIME_BACKUP time_backup: Time = 49,
    /// Birth.
    TIME_CREATE time_create: Time = 50,
    /// Smallest difference of times.
    TIME_DELTA time_delta: Time = 51,
    /// Last change of attributes.
    TIME_METADATA time_metadata: Time = 52,
    /// Last write.
    TIME_MODIFY time_modify: Time = 53,
    /// Sets it.
    TIME_MODIFY_SET time_modify_set: SetTime = 54,
    /// Number of the directory that it is mounted on.
    MOUNTED_ON_FILEID mounted_on_fileid: u64 = 55,
    /// Some permission bits.
    MODE_SET_MASKED mode_set_masked: ModePair = 74,
    /// What EXCLUSIVE4_1 can set.
    SUPPATTR_EXCLCREAT suppattr_exclcreat: Bitmap = 75,
    /// Character sets of names.
    FS_CHARSET_CAP fs_charset_cap: u32 = 76,
    /// What CLONE's ranges are a multiple of.
    CLONE_BLKSIZE clone_blksize: u32 = 77,
    /// How `change` behaves.
    CHANGE_ATTR_TYPE change_attr_type: u32 = 79,
    /// A mode that the server masks.
    MODE_UMASK mode_umask: ModePair = 81,
    /// Whether extended attributes are supported.
    XATTR_SUPPORT xattr_support: bool = 82,
    /// Last read, as the holder of a delegation says.
    TIME_DELEG_ACCESS time_deleg_access: Time = 84,
    /// Last write, as the holder of a delegation says.
    TIME_DELEG_MODIFY time_deleg_modify: Time = 85,
    /// What OPEN understands.
    OPEN_ARGUMENTS open_arguments: OpenArguments = 86,
}
