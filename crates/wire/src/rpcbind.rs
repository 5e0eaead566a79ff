//! rpcbind (RFC 1833 sections 2 and 3): maps a program to the address that serves it. Version 2 is the port mapper.
//!
//! [`Mapping`] belongs to version 2, [`Binding`] to versions 3 and 4. The table itself lives elsewhere. Forwarded calls
//! (CALLIT, BCAST, INDIRECT) are not supported.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;

use crate::xdr::{Decoder, Encoder, Malformed, Xdr, xdr_struct};

/// The program number (RFC 1833 2.1).
pub const PROGRAM: u32 = 100_000;
/// The port mapper's version.
pub const PORTMAP: u32 = 2;
/// The versions with universal addresses.
pub const RPCBIND: [u32; 2] = [3, 4];
/// The port on which rpcbind listens (RFC 1833 2.2).
pub const PORT: u16 = 111;
/// Longest string, in bytes.
pub const MAX_TEXT: usize = 255;

/// Procedure numbers (RFC 1833 2.2.1, 3.2): those up to DUMP mean the same in all versions.
#[allow(missing_docs, reason = "the RFC's names")]
pub mod procedure {
    pub const NULL: u32 = 0;
    pub const SET: u32 = 1;
    pub const UNSET: u32 = 2;
    /// Named GETADDR from version 3 on.
    pub const GETPORT: u32 = 3;
    pub const DUMP: u32 = 4;
    pub const GETTIME: u32 = 6;
    pub const UADDR2TADDR: u32 = 7;
    pub const TADDR2UADDR: u32 = 8;
    /// Version 4.
    pub const GETVERSADDR: u32 = 9;
    /// Version 4.
    pub const GETADDRLIST: u32 = 11;
}

/// Protocol numbers of version 2.
#[allow(missing_docs, reason = "the RFC's names")]
pub mod protocol {
    pub const TCP: u32 = 6;
    pub const UDP: u32 = 17;
}

/// A string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub Bytes);

impl From<String> for Text {
    fn from(text: String) -> Text {
        Text(text.into())
    }
}

impl From<&'static str> for Text {
    fn from(text: &'static str) -> Text {
        Text(Bytes::from_static(text.as_bytes()))
    }
}

impl Xdr for Text {
    fn parse(d: &mut Decoder) -> Result<Text, Malformed> {
        d.opaque(MAX_TEXT).map(Text)
    }
    fn emit(&self, e: &mut Encoder) {
        e.opaque(&self.0);
    }
}

xdr_struct! {
    /// mapping (version 2).
    pub struct Mapping {
        /// Program number.
        pub program: u32,
        /// Program version.
        pub version: u32,
        /// One of [`protocol`].
        pub protocol: u32,
        /// Port; 0 means none.
        pub port: u32,
    }
}

xdr_struct! {
    /// rpcb (versions 3 and 4).
    pub struct Binding {
        /// Program number.
        pub program: u32,
        /// Program version.
        pub version: u32,
        /// "tcp", "udp", "tcp6", "udp6", "rdma", "rdma6".
        pub netid: Text,
        /// Universal address.
        pub address: Text,
        /// The user who registered it.
        pub owner: Text,
    }
}

xdr_struct! {
    /// rpcb_entry: one address of a program (version 4).
    pub struct Address {
        /// Universal address.
        pub address: Text,
        /// Network identifier.
        pub netid: Text,
        /// One of [`semantics`].
        pub semantics: u32,
        /// "inet" or "inet6".
        pub family: Text,
        /// "tcp", "udp" or "-".
        pub protocol: Text,
    }
}

/// nc_semantics: connectionless, or connection-oriented with an orderly release.
#[allow(missing_docs, reason = "the RFC's names")]
pub mod semantics {
    pub const CLTS: u32 = 1;
    pub const COTS_ORD: u32 = 3;
}

/// A universal address (RFC 5665 5.2.3): the host in its own notation, then both bytes of the port, separated by dots.
pub fn universal(addr: SocketAddr) -> String {
    let [high, low] = addr.port().to_be_bytes();
    format!("{}.{high}.{low}", addr.ip())
}

/// Parses a universal address; `None` when the text is not one.
pub fn from_universal(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let (rest, low) = text.rsplit_once('.')?;
    let (host, high) = rest.rsplit_once('.')?;
    let host: IpAddr = host.parse().ok()?;
    let port = u16::from_be_bytes([high.parse().ok()?, low.parse().ok()?]);
    Some(SocketAddr::new(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Xdr + PartialEq + std::fmt::Debug>(value: &T) {
        let mut e = Encoder::default();
        value.emit(&mut e);
        let bytes = e.into_bytes();
        let mut d = Decoder::new(bytes.clone());
        assert_eq!(T::parse(&mut d).as_ref(), Ok(value));
        assert_eq!(d.end(), Ok(()));
        for len in 0..bytes.len() {
            assert!(T::parse(&mut Decoder::new(bytes.slice(..len))).is_err(), "{value:?} at {len}");
        }
    }

    #[test]
    fn what_is_emitted_comes_back_and_its_truncations_do_not() {
        check(&Mapping { program: 100_003, version: 3, protocol: protocol::TCP, port: 2049 });
        let (netid, address) = (Text::from("tcp"), Text::from("127.0.0.1.8.1"));
        check(&Binding {
            program: 1,
            version: 2,
            netid: netid.clone(),
            address: address.clone(),
            owner: "me".into(),
        });
        let (semantics, family, protocol) = (semantics::COTS_ORD, "inet".into(), "tcp".into());
        check(&Address { address, netid, semantics, family, protocol });
    }

    #[test]
    fn universal_addresses() {
        for (text, addr) in [("10.1.2.3.8.1", "10.1.2.3:2049"), ("::1.0.111", "[::1]:111")] {
            let addr: SocketAddr = addr.parse().unwrap();
            assert_eq!(universal(addr), text);
            assert_eq!(from_universal(text.as_bytes()), Some(addr));
        }
        for text in ["", "1", "10.1.2.3", "10.1.2.3.256.1", "10.1.2.3.8.x", "host.8.1", "\u{e9}.8.1"] {
            assert_eq!(from_universal(text.as_bytes()), None, "{text}");
        }
        assert_eq!(from_universal(&[0xff, b'.', b'8', b'.', b'1']), None);
    }
}
