//! Sessions: EXCHANGE_ID, CREATE_SESSION, SEQUENCE, BIND_CONN_TO_SESSION and other operations that minor version 1
//! introduced (RFC 8881 18.33 to 18.37, 18.46, 18.48 to 18.51).

use bytes::Bytes;

use super::client::ClientOwner;
use super::{Bitmap, MAX_OPAQUE, Opaque, Stateid, Status, Text, Time, UpTo};
use crate::rpc::{AuthSys, Flavor};
use crate::xdr::{Decoder, Encoder, Malformed, Xdr, xdr_struct};

/// sessionid4.
pub type SessionId = [u8; 16];

impl Xdr for SessionId {
    fn parse(d: &mut Decoder) -> Result<SessionId, Malformed> {
        d.fixed()
    }
    fn emit(&self, e: &mut Encoder) {
        e.fixed(self);
    }
}

/// Bits of `eia_flags` and `eir_flags`.
#[allow(missing_docs, reason = "the RFC's names")]
pub mod exchange_flag {
    pub const SUPP_MOVED_REFER: u32 = 0x1;
    pub const SUPP_MOVED_MIGR: u32 = 0x2;
    pub const SUPP_FENCE_OPS: u32 = 0x4;
    pub const BIND_PRINC_STATEID: u32 = 0x100;
    pub const USE_NON_PNFS: u32 = 0x1_0000;
    pub const USE_PNFS_MDS: u32 = 0x2_0000;
    pub const USE_PNFS_DS: u32 = 0x4_0000;
    pub const MASK_PNFS: u32 = 0x7_0000;
    pub const UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
    pub const CONFIRMED_R: u32 = 0x8000_0000;
}

/// Bits of `csa_flags` and `csr_flags`.
#[allow(missing_docs, reason = "the RFC's names")]
pub mod session_flag {
    pub const PERSIST: u32 = 1;
    pub const CONN_BACK_CHAN: u32 = 2;
    pub const CONN_RDMA: u32 = 4;
}

/// Bits of [`SequenceOk::flags`].
#[allow(missing_docs, reason = "the RFC's names")]
pub mod sequence_flag {
    pub const CB_PATH_DOWN: u32 = 0x1;
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x8;
    pub const EXPIRED_SOME_STATE_REVOKED: u32 = 0x10;
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x40;
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x100;
    pub const CB_PATH_DOWN_SESSION: u32 = 0x200;
    pub const BACKCHANNEL_FAULT: u32 = 0x400;
}

xdr_struct! {
    /// state_protect_ops4.
    pub struct ProtectOps {
        /// Operations that need the credential.
        pub enforce: Bitmap,
        /// Operations that the credential may always perform.
        pub allow: Bitmap,
    }
}

/// state_protect4_a. The parameters of SSV are parsed and discarded, because SSV is unsupported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProtectHow {
    /// SP4_NONE.
    None,
    /// SP4_MACH_CRED.
    MachCred(ProtectOps),
    /// SP4_SSV.
    Ssv,
}

impl Xdr for ProtectHow {
    fn parse(d: &mut Decoder) -> Result<ProtectHow, Malformed> {
        Ok(match d.u32()? {
            0 => ProtectHow::None,
            1 => ProtectHow::MachCred(ProtectOps::parse(d)?),
            2 => {
                ProtectOps::parse(d)?;
                UpTo::<Opaque, 32>::parse(d)?;
                UpTo::<Opaque, 32>::parse(d)?;
                let (_window, _handles) = (d.u32()?, d.u32()?);
                ProtectHow::Ssv
            }
            _ => return Err(Malformed("unknown state_protect_how4")),
        })
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            ProtectHow::None => e.u32(0),
            ProtectHow::MachCred(ops) => {
                e.u32(1);
                ops.emit(e);
            }
            ProtectHow::Ssv => {
                e.u32(2);
                ProtectOps { enforce: Bitmap::EMPTY, allow: Bitmap::EMPTY }.emit(e);
                [0; 4].iter().for_each(|word| e.u32(*word));
            }
        }
    }
}

xdr_struct! {
    /// nfs_impl_id4: informative, for people and logs.
    pub struct ImplId {
        /// Domain of the implementer.
        pub domain: Text,
        /// Name of the implementation.
        pub name: Text,
        /// When it was built.
        pub date: Time,
    }
}

xdr_struct! {
    /// EXCHANGE_ID4args.
    pub struct ExchangeId {
        /// The client's identity.
        pub client: ClientOwner,
        /// See [`exchange_flag`].
        pub flags: u32,
        /// Protection of the client's state.
        pub protect: ProtectHow,
        /// The client's implementation.
        pub implementation: UpTo<ImplId, 1>,
    }
}

xdr_struct! {
    /// EXCHANGE_ID4resok.
    pub struct ExchangeIdOk {
        /// The client's short id.
        pub client: u64,
        /// Sequence number of its next CREATE_SESSION.
        pub sequence: u32,
        /// See [`exchange_flag`].
        pub flags: u32,
        /// Protection of the client's state.
        pub protect: ProtectHow,
        /// so_minor_id.
        pub server_minor: u64,
        /// so_major_id.
        pub server_major: Opaque,
        /// eir_server_scope.
        pub scope: Opaque,
        /// The server's implementation.
        pub implementation: UpTo<ImplId, 1>,
    }
}

xdr_struct! {
    /// channel_attrs4.
    pub struct ChannelAttrs {
        /// ca_headerpadsize.
        pub header_pad: u32,
        /// Largest request in bytes, RPC header included.
        pub max_request: u32,
        /// Largest reply in bytes.
        pub max_response: u32,
        /// Largest reply that is cached for a retry.
        pub max_response_cached: u32,
        /// Most operations of a compound.
        pub max_operations: u32,
        /// Number of slots.
        pub max_requests: u32,
        /// ca_rdma_ird.
        pub rdma_ird: UpTo<u32, 1>,
    }
}

/// callback_sec_parms4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallbackSec {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS with this credential.
    Sys(AuthSys),
    /// RPCSEC_GSS: unsupported.
    Gss,
}

impl Xdr for CallbackSec {
    fn parse(d: &mut Decoder) -> Result<CallbackSec, Malformed> {
        Ok(match d.u32()? {
            0 => CallbackSec::None,
            1 => CallbackSec::Sys(AuthSys::parse_from(d)?),
            6 => {
                let _service = d.u32()?;
                d.opaque(MAX_OPAQUE)?;
                d.opaque(MAX_OPAQUE)?;
                CallbackSec::Gss
            }
            _ => return Err(Malformed("unknown flavour of a backchannel")),
        })
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            CallbackSec::None => e.u32(0),
            CallbackSec::Sys(sys) => {
                e.u32(1);
                sys.emit(e);
            }
            CallbackSec::Gss => [6, 1, 0, 0].iter().for_each(|word| e.u32(*word)),
        }
    }
}

xdr_struct! {
    /// CREATE_SESSION4args.
    pub struct CreateSession {
        /// The client's id.
        pub client: u64,
        /// From EXCHANGE_ID, then incremented by each request.
        pub sequence: u32,
        /// See [`session_flag`].
        pub flags: u32,
        /// Client to server.
        pub fore: ChannelAttrs,
        /// Server to client.
        pub back: ChannelAttrs,
        /// Number of the callback program.
        pub callback_program: u32,
        /// Credentials of callbacks, best first.
        pub callback_sec: UpTo<CallbackSec, 8>,
    }
}

xdr_struct! {
    /// CREATE_SESSION4resok.
    pub struct CreateSessionOk {
        /// The new session.
        pub session: SessionId,
        /// From the request.
        pub sequence: u32,
        /// See [`session_flag`].
        pub flags: u32,
        /// Client to server.
        pub fore: ChannelAttrs,
        /// Server to client.
        pub back: ChannelAttrs,
    }
}

xdr_struct! {
    /// SEQUENCE4args.
    pub struct Sequence {
        /// The session.
        pub session: SessionId,
        /// Sequence number of the slot, incremented by each request.
        pub sequence: u32,
        /// The slot.
        pub slot: u32,
        /// The highest slot in use.
        pub highest_slot: u32,
        /// Whether the reply should be cached.
        pub cache: bool,
    }
}

xdr_struct! {
    /// SEQUENCE4resok.
    pub struct SequenceOk {
        /// From the request.
        pub session: SessionId,
        /// From the request.
        pub sequence: u32,
        /// From the request.
        pub slot: u32,
        /// The highest slot of the session.
        pub highest_slot: u32,
        /// The highest slot that the client should use.
        pub target_highest_slot: u32,
        /// See [`sequence_flag`].
        pub flags: u32,
    }
}

xdr_struct! {
    /// BIND_CONN_TO_SESSION4args and its resok: the same layout.
    pub struct BindConn {
        /// The session.
        pub session: SessionId,
        /// channel_dir_from_client4 or channel_dir_from_server4.
        pub direction: u32,
        /// Whether to use RDMA on a connection that started without it.
        pub rdma: bool,
    }
}

xdr_struct! {
    /// BACKCHANNEL_CTL4args.
    pub struct BackchannelCtl {
        /// Number of the callback program.
        pub program: u32,
        /// Credentials, best first.
        pub sec: UpTo<CallbackSec, 8>,
    }
}

/// Most state ids of a TEST_STATEID that are parsed.
pub const MAX_TESTED: usize = 4096;

/// TEST_STATEID4args.
pub type TestStateid = UpTo<Stateid, MAX_TESTED>;
/// TEST_STATEID4resok.
pub type TestStateidOk = UpTo<Status, MAX_TESTED>;

/// secinfo4: a flavour; RPCSEC_GSS with its mechanism.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secinfo {
    /// Any other flavour.
    Flavor(Flavor),
    /// RPCSEC_GSS: mechanism, quality of protection, service.
    Gss(Bytes, u32, u32),
}

const RPCSEC_GSS: u32 = 6;

impl Xdr for Secinfo {
    fn parse(d: &mut Decoder) -> Result<Secinfo, Malformed> {
        Ok(match d.u32()? {
            RPCSEC_GSS => Secinfo::Gss(d.opaque(MAX_OPAQUE)?, d.u32()?, d.u32()?),
            flavor => Secinfo::Flavor(Flavor(flavor)),
        })
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            Secinfo::Flavor(flavor) => e.u32(flavor.0),
            Secinfo::Gss(mechanism, quality, service) => {
                e.u32(RPCSEC_GSS);
                e.opaque(mechanism);
                e.u32(*quality);
                e.u32(*service);
            }
        }
    }
}

/// SECINFO4resok.
pub type SecinfoOk = UpTo<Secinfo, 32>;
