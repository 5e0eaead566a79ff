//! Properties of a file system: FSSTAT, FSINFO, PATHCONF (RFC 1813 3.3.18 to 3.3.20).

use super::{Handle, PostOpAttr, Time, xdr_struct};

xdr_struct! {
    /// FSSTAT3args, FSINFO3args and PATHCONF3args.
    pub struct ObjectArgs {
        /// The root, or any object for PATHCONF.
        pub object: Handle,
    }
}

xdr_struct! {
    /// FSSTAT3resok.
    pub struct FsstatOk {
        /// Attributes of the object.
        pub attributes: PostOpAttr,
        /// Total bytes.
        pub tbytes: u64,
        /// Free bytes.
        pub fbytes: u64,
        /// Bytes available to this user.
        pub abytes: u64,
        /// Total files.
        pub tfiles: u64,
        /// Free files.
        pub ffiles: u64,
        /// Files available to this user.
        pub afiles: u64,
        /// Seconds for which these numbers are expected to remain valid.
        pub invarsec: u32,
    }
}

/// FSINFO properties: hard links exist.
pub const FSF_LINK: u32 = 0x01;
/// Symbolic links exist.
pub const FSF_SYMLINK: u32 = 0x02;
/// PATHCONF is the same for all objects.
pub const FSF_HOMOGENEOUS: u32 = 0x08;
/// SETATTR can set times.
pub const FSF_CANSETTIME: u32 = 0x10;

xdr_struct! {
    /// FSINFO3resok.
    pub struct FsinfoOk {
        /// Attributes of the object.
        pub attributes: PostOpAttr,
        /// Largest READ.
        pub rtmax: u32,
        /// Preferred size of a READ.
        pub rtpref: u32,
        /// Suggested multiple for the size of a READ.
        pub rtmult: u32,
        /// Largest WRITE.
        pub wtmax: u32,
        /// Preferred size of a WRITE.
        pub wtpref: u32,
        /// Suggested multiple for the size of a WRITE.
        pub wtmult: u32,
        /// Preferred size of a READDIR.
        pub dtpref: u32,
        /// Largest file.
        pub maxfilesize: u64,
        /// Resolution of times.
        pub time_delta: Time,
        /// FSF bits.
        pub properties: u32,
    }
}

xdr_struct! {
    /// PATHCONF3resok.
    pub struct PathconfOk {
        /// Attributes of the object.
        pub attributes: PostOpAttr,
        /// Most hard links.
        pub linkmax: u32,
        /// Longest name.
        pub name_max: u32,
        /// Whether longer names are refused (not shortened).
        pub no_trunc: bool,
        /// Whether only the superuser may change a file's owner.
        pub chown_restricted: bool,
        /// Whether names are case-insensitive.
        pub case_insensitive: bool,
        /// Whether the case of names is preserved.
        pub case_preserving: bool,
    }
}
