//! NSM version 1: hosts tell each other that they have restarted, so that locks are given back or taken again.
//!
//! What: arguments of NOTIFY, the one procedure that goes over a network, and of those that a host asks itself.
//! Spec: X/Open XNFS chapter 11 (Network Status Monitor). Does not: remember hosts.

use crate::nlm::Object;
use crate::xdr::xdr_struct;

/// The program number.
pub const PROGRAM: u32 = 100_024;
/// Its version.
pub const VERSION: u32 = 1;

/// Procedure numbers.
#[allow(missing_docs, reason = "the specification's names")]
pub mod procedure {
    pub const NULL: u32 = 0;
    pub const STAT: u32 = 1;
    pub const MON: u32 = 2;
    pub const UNMON: u32 = 3;
    pub const UNMON_ALL: u32 = 4;
    pub const SIMU_CRASH: u32 = 5;
    pub const NOTIFY: u32 = 6;
}

xdr_struct! {
    /// stat_chge: a host has changed its state.
    pub struct Change {
        /// The host, by the name that it gave to its locks.
        pub name: Object,
        /// Its state number: odd while it runs, and larger after every start.
        pub state: u32,
    }
}

xdr_struct! {
    /// sm_name.
    pub struct Name {
        /// A host.
        pub name: Object,
    }
}

xdr_struct! {
    /// sm_stat_res.
    pub struct StatAnswer {
        /// 0 where the host could be monitored.
        pub result: u32,
        /// Our own state number.
        pub state: u32,
    }
}
