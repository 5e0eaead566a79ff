//! Extended attributes: GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR.
//!
//! Spec: RFC 8276 8.4. Does not: know name spaces; names here have no "user." in front.

use bytes::Bytes;

use super::{Text, UpTo};
use crate::xdr::{Decoder, Encoder, Malformed, Xdr, xdr_struct};

/// Largest value that is parsed, so that a server can answer NFS4ERR_XATTR2BIG.
pub const MAX_XATTR: usize = 1 << 20;

/// xattrvalue4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrValue(pub Bytes);

impl Xdr for XattrValue {
    fn parse(d: &mut Decoder) -> Result<XattrValue, Malformed> {
        d.opaque(MAX_XATTR).map(XattrValue)
    }
    fn emit(&self, e: &mut Encoder) {
        e.opaque(&self.0);
    }
}

xdr_struct! {
    /// SETXATTR4args.
    pub struct Setxattr {
        /// 0 either, 1 only create, 2 only replace.
        pub option: u32,
        /// Name.
        pub name: Text,
        /// Value.
        pub value: XattrValue,
    }
}

xdr_struct! {
    /// LISTXATTRS4args.
    pub struct Listxattrs {
        /// Continue behind this; 0 is the start.
        pub cookie: u64,
        /// Most bytes of the result.
        pub maxcount: u32,
    }
}

xdr_struct! {
    /// LISTXATTRS4resok.
    pub struct ListxattrsOk {
        /// Continue with it.
        pub cookie: u64,
        /// Names.
        pub names: UpTo<Text, 4096>,
        /// Whether these are the last.
        pub eof: bool,
    }
}
