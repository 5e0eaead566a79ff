//! [`Xdr`], the trait of types with one XDR layout (RFC 4506 4): its implementations for basic types, lists, and the
//! macro that declares a struct of such types.

use super::{Decoder, Encoder, Malformed};

/// A type with one XDR layout.
pub trait Xdr: Sized {
    /// Reads one value from the stream.
    fn parse(d: &mut Decoder) -> Result<Self, Malformed>;
    /// Appends the value.
    fn emit(&self, e: &mut Encoder);
}

impl Xdr for () {
    fn parse(_: &mut Decoder) -> Result<(), Malformed> {
        Ok(())
    }
    fn emit(&self, _: &mut Encoder) {}
}

impl Xdr for u32 {
    fn parse(d: &mut Decoder) -> Result<u32, Malformed> {
        d.u32()
    }
    fn emit(&self, e: &mut Encoder) {
        e.u32(*self);
    }
}

impl Xdr for u64 {
    fn parse(d: &mut Decoder) -> Result<u64, Malformed> {
        d.u64()
    }
    fn emit(&self, e: &mut Encoder) {
        e.u64(*self);
    }
}

impl Xdr for bool {
    fn parse(d: &mut Decoder) -> Result<bool, Malformed> {
        d.bool()
    }
    fn emit(&self, e: &mut Encoder) {
        e.bool(*self);
    }
}

/// A verifier.
impl Xdr for [u8; 8] {
    fn parse(d: &mut Decoder) -> Result<[u8; 8], Malformed> {
        d.fixed()
    }
    fn emit(&self, e: &mut Encoder) {
        e.fixed(self);
    }
}

impl<T: Xdr> Xdr for Option<T> {
    fn parse(d: &mut Decoder) -> Result<Option<T>, Malformed> {
        d.optional(T::parse)
    }
    fn emit(&self, e: &mut Encoder) {
        e.optional(self.as_ref(), |e, value| value.emit(e));
    }
}

/// Reads a list with at most `limit` items, all of them in the stream.
///
/// # Errors
///
/// A count above the limit, or an item that does not parse.
pub fn list<T: Xdr>(d: &mut Decoder, limit: usize) -> Result<Vec<T>, Malformed> {
    let len = d.length(limit)?;
    // The vector grows with the items: the count is only a claim, whereas each item takes bytes of the stream.
    let mut items = Vec::new();
    for _ in 0..len {
        items.push(T::parse(d)?);
    }
    Ok(items)
}

/// Appends a list, its count first.
pub fn emit_list<T: Xdr>(items: &[T], e: &mut Encoder) {
    // No caller holds 2^32 items.
    e.u32(items.len() as u32);
    items.iter().for_each(|item| item.emit(e));
}

/// Declares a struct whose fields follow one another in XDR.
macro_rules! xdr_struct {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }
        impl $crate::xdr::Xdr for $name {
            fn parse(d: &mut $crate::xdr::Decoder) -> Result<$name, $crate::xdr::Malformed> {
                Ok($name { $($field: <$type as $crate::xdr::Xdr>::parse(d)?,)* })
            }
            fn emit(&self, e: &mut $crate::xdr::Encoder) {
                $($crate::xdr::Xdr::emit(&self.$field, e);)*
            }
        }
    };
}
pub(crate) use xdr_struct;
