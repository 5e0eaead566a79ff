//! Identity of a client before sessions: SETCLIENTID and SETCLIENTID_CONFIRM (RFC 7530 16.33, 16.34).

use super::{NetAddr, Opaque, Verifier};
use crate::xdr::xdr_struct;

xdr_struct! {
    /// nfs_client_id4, client_owner4: the same layout.
    pub struct ClientOwner {
        /// Verifier of the client's boot.
        pub verifier: Verifier,
        /// Identity of the client, constant over its boots.
        pub id: Opaque,
    }
}

xdr_struct! {
    /// cb_client4.
    pub struct CallbackClient {
        /// The callback program's number.
        pub program: u32,
        /// The address of the callback service.
        pub location: NetAddr,
    }
}

xdr_struct! {
    /// SETCLIENTID4args.
    pub struct Setclientid {
        /// The client's identity.
        pub client: ClientOwner,
        /// The callback service.
        pub callback: CallbackClient,
        /// Sent with each callback.
        pub callback_ident: u32,
    }
}

xdr_struct! {
    /// SETCLIENTID4resok, SETCLIENTID_CONFIRM4args: the same layout.
    pub struct Confirm {
        /// The client's short id.
        pub client: u64,
        /// Verifier of the record to confirm.
        pub verifier: Verifier,
    }
}
