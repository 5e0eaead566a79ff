//! Creation of objects: CREATE, MKDIR, SYMLINK, MKNOD (RFC 1813 3.3.8 to 3.3.11).

use super::{
    DirOp, FileType, Handle, Path, PostOpAttr, SetAttributes, SpecData, Verifier, WccData, Xdr, xdr_struct,
};
use crate::xdr::{Decoder, Encoder, Malformed};

/// createhow3: what happens to an existing file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// CREATE succeeds whether or not the file exists.
    Unchecked(SetAttributes),
    /// CREATE succeeds only if the file does not exist.
    Guarded(SetAttributes),
    /// CREATE succeeds only if the file does not exist or was created with this verifier.
    Exclusive(Verifier),
}

impl Xdr for CreateHow {
    fn parse(d: &mut Decoder) -> Result<CreateHow, Malformed> {
        match d.u32()? {
            0 => SetAttributes::parse(d).map(CreateHow::Unchecked),
            1 => SetAttributes::parse(d).map(CreateHow::Guarded),
            2 => Verifier::parse(d).map(CreateHow::Exclusive),
            _ => Err(Malformed("RFC 1813 3.3.8: unknown createmode3")),
        }
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            CreateHow::Unchecked(set) => {
                e.u32(0);
                set.emit(e);
            }
            CreateHow::Guarded(set) => {
                e.u32(1);
                set.emit(e);
            }
            CreateHow::Exclusive(verifier) => {
                e.u32(2);
                verifier.emit(e);
            }
        }
    }
}

xdr_struct! {
    /// CREATE3args.
    pub struct CreateArgs {
        /// Directory and name.
        pub object: DirOp,
        /// Mode and attributes.
        pub how: CreateHow,
    }
}

xdr_struct! {
    /// The `resok` arm of CREATE, MKDIR, SYMLINK and MKNOD.
    pub struct CreateOk {
        /// The new object.
        pub object: Option<Handle>,
        /// Its attributes.
        pub attributes: PostOpAttr,
        /// Attributes of the directory.
        pub dir: WccData,
    }
}

xdr_struct! {
    /// MKDIR3args.
    pub struct MkdirArgs {
        /// Directory and name.
        pub object: DirOp,
        /// Its attributes.
        pub attributes: SetAttributes,
    }
}

xdr_struct! {
    /// SYMLINK3args.
    pub struct SymlinkArgs {
        /// Directory and name.
        pub object: DirOp,
        /// Its attributes.
        pub attributes: SetAttributes,
        /// Target of the link.
        pub target: Path,
    }
}

/// mknoddata3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// NF3CHR or NF3BLK.
    Device(FileType, SetAttributes, SpecData),
    /// NF3SOCK or NF3FIFO.
    Pipe(FileType, SetAttributes),
    /// A type that MKNOD cannot create.
    Other(FileType),
}

impl Xdr for Node {
    fn parse(d: &mut Decoder) -> Result<Node, Malformed> {
        Ok(match FileType::parse(d)? {
            kind @ (FileType::Chr | FileType::Blk) => {
                Node::Device(kind, SetAttributes::parse(d)?, SpecData::parse(d)?)
            }
            kind @ (FileType::Sock | FileType::Fifo) => Node::Pipe(kind, SetAttributes::parse(d)?),
            kind => Node::Other(kind),
        })
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            Node::Device(kind, set, numbers) => {
                kind.emit(e);
                set.emit(e);
                numbers.emit(e);
            }
            Node::Pipe(kind, set) => {
                kind.emit(e);
                set.emit(e);
            }
            Node::Other(kind) => kind.emit(e),
        }
    }
}

xdr_struct! {
    /// MKNOD3args.
    pub struct MknodArgs {
        /// Directory and name.
        pub object: DirOp,
        /// Kind of node, with its attributes or device.
        pub node: Node,
    }
}
