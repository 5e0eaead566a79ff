//! NSM version 1 (X/Open XNFS chapter 11, Network Status Monitor): hosts notify each other of a restart, so that locks
//! are released or reclaimed.
//!
//! The module has the arguments of NOTIFY, the one procedure used over a network, and of the procedures that a host
//! calls on itself.

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
    /// stat_chge: a host's state has changed.
    pub struct Change {
        /// The host, under the name that its locks carry.
        pub name: Object,
        /// The host's state number: odd while it runs, and larger after every start.
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
        /// 0 if the host can be monitored.
        pub result: u32,
        /// The monitor's own state number.
        pub state: u32,
    }
}
