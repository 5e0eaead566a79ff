//! Names: LOOKUP, READLINK, REMOVE, RMDIR, RENAME, LINK.
//!
//! Spec: RFC 1813 3.3.3, 3.3.5, 3.3.12 to 3.3.15. Does not: judge names.

use super::{Handle, Name, Path, PostOpAttr, WccData, xdr_struct};

xdr_struct! {
    /// diropargs3: a name in a directory.
    pub struct DirOp {
        /// The directory.
        pub dir: Handle,
        /// The name.
        pub name: Name,
    }
}

xdr_struct! {
    /// LOOKUP3args.
    pub struct LookupArgs {
        /// What to look up.
        pub what: DirOp,
    }
}

xdr_struct! {
    /// LOOKUP3resok.
    pub struct LookupOk {
        /// What was found.
        pub object: Handle,
        /// Its attributes.
        pub attributes: PostOpAttr,
        /// The directory's.
        pub dir_attributes: PostOpAttr,
    }
}

xdr_struct! {
    /// READLINK3args.
    pub struct ReadlinkArgs {
        /// The link.
        pub symlink: Handle,
    }
}

xdr_struct! {
    /// READLINK3resok.
    pub struct ReadlinkOk {
        /// Of the link.
        pub attributes: PostOpAttr,
        /// Its target.
        pub target: Path,
    }
}

xdr_struct! {
    /// REMOVE3args and RMDIR3args.
    pub struct RemoveArgs {
        /// What to remove.
        pub object: DirOp,
    }
}

xdr_struct! {
    /// RENAME3args.
    pub struct RenameArgs {
        /// The old name.
        pub from: DirOp,
        /// Where to.
        pub to: DirOp,
    }
}

xdr_struct! {
    /// RENAME3resok and resfail.
    #[derive(Default)]
    pub struct RenameWcc {
        /// Of the source directory.
        pub from_dir: WccData,
        /// Of the target directory.
        pub to_dir: WccData,
    }
}

xdr_struct! {
    /// LINK3args.
    pub struct LinkArgs {
        /// The file.
        pub file: Handle,
        /// Its further name.
        pub link: DirOp,
    }
}

xdr_struct! {
    /// LINK3resok and resfail.
    #[derive(Default)]
    pub struct LinkWcc {
        /// Of the file.
        pub attributes: PostOpAttr,
        /// Of the directory.
        pub dir: WccData,
    }
}
