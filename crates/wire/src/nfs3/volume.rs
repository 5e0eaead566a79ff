//! The file system: FSSTAT, FSINFO, PATHCONF.
//!
//! Spec: RFC 1813 3.3.18 to 3.3.20. Does not: choose limits.

use super::{Handle, PostOpAttr, Time, xdr_struct};

xdr_struct! {
    /// FSSTAT3args, FSINFO3args and PATHCONF3args.
    pub struct ObjectArgs {
        /// The root, or for PATHCONF any object.
        pub object: Handle,
    }
}

xdr_struct! {
    /// FSSTAT3resok.
    pub struct FsstatOk {
        /// Of the object.
        pub attributes: PostOpAttr,
        /// Bytes in all.
        pub tbytes: u64,
        /// Bytes free.
        pub fbytes: u64,
        /// Bytes free to this user.
        pub abytes: u64,
        /// Files in all.
        pub tfiles: u64,
        /// Files free.
        pub ffiles: u64,
        /// Files free to this user.
        pub afiles: u64,
        /// For how many seconds this will not change.
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
        /// Of the object.
        pub attributes: PostOpAttr,
        /// Largest READ.
        pub rtmax: u32,
        /// Preferred READ.
        pub rtpref: u32,
        /// Suggested multiple of READ.
        pub rtmult: u32,
        /// Largest WRITE.
        pub wtmax: u32,
        /// Preferred WRITE.
        pub wtpref: u32,
        /// Suggested multiple of WRITE.
        pub wtmult: u32,
        /// Preferred READDIR.
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
        /// Of the object.
        pub attributes: PostOpAttr,
        /// Most hard links.
        pub linkmax: u32,
        /// Longest name.
        pub name_max: u32,
        /// Whether longer names are refused (not shortened).
        pub no_trunc: bool,
        /// Whether only the superuser may give files away.
        pub chown_restricted: bool,
        /// Whether case does not matter.
        pub case_insensitive: bool,
        /// Whether case is kept.
        pub case_preserving: bool,
    }
}
