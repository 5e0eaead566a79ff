//! Extended attributes: GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR (RFC 8276 8.4).
//!
//! Names on the wire have no "user." prefix.

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
        /// 0 creates or replaces, 1 only creates, 2 only replaces.
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
        /// Continue after this cookie; 0 is the start.
        pub cookie: u64,
        /// Most bytes of the result.
        pub maxcount: u32,
    }
}

xdr_struct! {
    /// LISTXATTRS4resok.
    pub struct ListxattrsOk {
        /// Cookie with which the listing continues.
        pub cookie: u64,
        /// Names.
        pub names: UpTo<Text, 4096>,
        /// Whether these are the last names.
        pub eof: bool,
    }
}
