//! Operations on names: LOOKUP, READLINK, REMOVE, RMDIR, RENAME, LINK (RFC 1813 3.3.3, 3.3.5, 3.3.12 to 3.3.15).

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
        /// The name to look up.
        pub what: DirOp,
    }
}

xdr_struct! {
    /// LOOKUP3resok.
    pub struct LookupOk {
        /// The object found.
        pub object: Handle,
        /// Its attributes.
        pub attributes: PostOpAttr,
        /// Attributes of the directory.
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
        /// Attributes of the link.
        pub attributes: PostOpAttr,
        /// Its target.
        pub target: Path,
    }
}

xdr_struct! {
    /// REMOVE3args and RMDIR3args.
    pub struct RemoveArgs {
        /// The name to remove.
        pub object: DirOp,
    }
}

xdr_struct! {
    /// RENAME3args.
    pub struct RenameArgs {
        /// The existing name.
        pub from: DirOp,
        /// The new name.
        pub to: DirOp,
    }
}

xdr_struct! {
    /// RENAME3resok and resfail.
    #[derive(Default)]
    pub struct RenameWcc {
        /// Attributes of the source directory.
        pub from_dir: WccData,
        /// Attributes of the target directory.
        pub to_dir: WccData,
    }
}

xdr_struct! {
    /// LINK3args.
    pub struct LinkArgs {
        /// The file.
        pub file: Handle,
        /// Its additional name.
        pub link: DirOp,
    }
}

xdr_struct! {
    /// LINK3resok and resfail.
    #[derive(Default)]
    pub struct LinkWcc {
        /// Attributes of the file.
        pub attributes: PostOpAttr,
        /// Attributes of the directory.
        pub dir: WccData,
    }
}
