//! Who the client is, before sessions: SETCLIENTID and SETCLIENTID_CONFIRM.
//!
//! Spec: RFC 7530 16.33, 16.34. Does not: keep clients.

use super::{NetAddr, Opaque, Verifier};
use crate::xdr::xdr_struct;

xdr_struct! {
    /// nfs_client_id4, client_owner4: the same layout.
    pub struct ClientOwner {
        /// Of the client's run.
        pub verifier: Verifier,
        /// Which client, over all its runs.
        pub id: Opaque,
    }
}

xdr_struct! {
    /// cb_client4.
    pub struct CallbackClient {
        /// Its program.
        pub program: u32,
        /// Where it listens.
        pub location: NetAddr,
    }
}

xdr_struct! {
    /// SETCLIENTID4args.
    pub struct Setclientid {
        /// Who.
        pub client: ClientOwner,
        /// Where it can be called.
        pub callback: CallbackClient,
        /// Goes back with each call.
        pub callback_ident: u32,
    }
}

xdr_struct! {
    /// SETCLIENTID4resok, SETCLIENTID_CONFIRM4args: the same layout.
    pub struct Confirm {
        /// The client's short name.
        pub client: u64,
        /// Of the record that is to be confirmed.
        pub verifier: Verifier,
    }
}
