//! DCE/RPC over named pipes: packets, NDR, and the calls of the interfaces that file clients use (C706 (DCE 1.1 RPC)
//! chapters 12 and 14, [MS-RPCE] 2.2).
//!
//! Each interface has its module, which names its specification. The SMB server's pipes keep bindings and handles, and
//! answer calls. NDR64, big-endian NDR and authentication are unsupported; the pipe's session is already authenticated.

pub mod lsarpc;
pub mod ndr;
pub mod pdu;
pub mod samr;
pub mod srvsvc;
pub mod wkssvc;

#[cfg(test)]
mod tests;

/// A malformed packet or call, with the rule that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed DCE/RPC: {0}")]
pub struct Malformed(pub &'static str);

impl From<crate::smb2::Malformed> for Malformed {
    fn from(e: crate::smb2::Malformed) -> Malformed {
        Malformed(e.0)
    }
}

/// An interface or a transfer syntax: UUID in wire order, and version (major in the low half).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Syntax {
    /// UUID.
    pub uuid: [u8; 16],
    /// Version.
    pub version: u32,
}

impl Syntax {
    /// The transfer syntax of 32-bit NDR: 8a885d04-1ceb-11c9-9fe8-08002b104860, version 2.
    pub const NDR: Syntax =
        Syntax::new(0x8a88_5d04, 0x1ceb, 0x11c9, [0x9f, 0xe8, 8, 0, 0x2b, 0x10, 0x48, 0x60], 2);
    /// The transfer syntax of NDR64: 71710533-beba-4937-8319-b5dbef9ccc36, version 1.
    pub const NDR64: Syntax =
        Syntax::new(0x7171_0533, 0xbeba, 0x4937, [0x83, 0x19, 0xb5, 0xdb, 0xef, 0x9c, 0xcc, 0x36], 1);

    /// The UUID `a-b-c-d` and a version.
    pub const fn new(a: u32, b: u16, c: u16, d: [u8; 8], version: u32) -> Syntax {
        let (a, b, c) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
        let uuid =
            [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]];
        Syntax { uuid, version }
    }

    /// Whether the syntax is in fact a bind-time feature negotiation ([MS-RPCE] 2.2.2.14): 6cb71c2c-9812-4540-....
    pub fn is_feature_negotiation(&self) -> bool {
        self.uuid[..8] == [0x2c, 0x1c, 0xb7, 0x6c, 0x12, 0x98, 0x40, 0x45]
    }
}

/// Status of a fault, which replaces an answer (C706 appendix E, [MS-RPCE] 2.2.2.9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultStatus(pub u32);

impl FaultStatus {
    /// The stub does not parse.
    pub const BAD_STUB_DATA: FaultStatus = FaultStatus(0x0000_06F7);
    /// `nca_s_op_rng_error`: no such operation.
    pub const OPERATION_OUT_OF_RANGE: FaultStatus = FaultStatus(0x1C01_0002);
    /// `nca_s_unk_if`: no such presentation context.
    pub const UNKNOWN_INTERFACE: FaultStatus = FaultStatus(0x1C01_0003);
    /// `nca_s_proto_error`: violation of the connection's protocol.
    pub const PROTOCOL_ERROR: FaultStatus = FaultStatus(0x1C01_000B);
    /// `nca_s_fault_context_mismatch`: no such handle.
    pub const CONTEXT_MISMATCH: FaultStatus = FaultStatus(0x1C00_001A);
    /// `nca_s_fault_remote_no_memory`: a limit of the server was reached.
    pub const NO_MEMORY: FaultStatus = FaultStatus(0x1C00_001B);
}

impl From<Malformed> for FaultStatus {
    fn from(_: Malformed) -> FaultStatus {
        FaultStatus::BAD_STUB_DATA
    }
}
