//! New objects: CREATE, MKDIR, SYMLINK, MKNOD.
//!
//! Spec: RFC 1813 3.3.8 to 3.3.11. Does not: create.

use super::{
    DirOp, FileType, Handle, Path, PostOpAttr, SetAttributes, SpecData, Verifier, WccData, Xdr, xdr_struct,
};
use crate::xdr::{Decoder, Encoder, Malformed};

/// createhow3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// Whether or not it exists.
    Unchecked(SetAttributes),
    /// Only if it does not exist.
    Guarded(SetAttributes),
    /// Only if it does not exist, or was made with this verifier.
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
        /// Where.
        pub object: DirOp,
        /// How.
        pub how: CreateHow,
    }
}

xdr_struct! {
    /// The `resok` arm of CREATE, MKDIR, SYMLINK and MKNOD.
    pub struct CreateOk {
        /// What was made.
        pub object: Option<Handle>,
        /// Its attributes.
        pub attributes: PostOpAttr,
        /// Of the directory.
        pub dir: WccData,
    }
}

xdr_struct! {
    /// MKDIR3args.
    pub struct MkdirArgs {
        /// Where.
        pub object: DirOp,
        /// With which attributes.
        pub attributes: SetAttributes,
    }
}

xdr_struct! {
    /// SYMLINK3args.
    pub struct SymlinkArgs {
        /// Where.
        pub object: DirOp,
        /// With which attributes.
        pub attributes: SetAttributes,
        /// To where.
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
    /// A type that MKNOD does not make.
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
        /// Where.
        pub object: DirOp,
        /// Kind of node, with its attributes or device.
        pub node: Node,
    }
}
