//! LOCK, LOCKT, LOCKU, RELEASE_LOCKOWNER (RFC 7530 16.10 to 16.12, 16.37; RFC 8881 18.10 to 18.12).

use super::{Owner, Stateid};
use crate::xdr::{Decoder, Encoder, Malformed, Xdr, xdr_struct};

/// nfs_lock_type4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockType {
    /// WRITE_LT and WRITEW_LT.
    pub exclusive: bool,
    /// Whether the client will wait (READW_LT and WRITEW_LT).
    pub waits: bool,
}

impl Xdr for LockType {
    fn parse(d: &mut Decoder) -> Result<LockType, Malformed> {
        match d.u32()? {
            n @ 1..=4 => Ok(LockType { exclusive: n % 2 == 0, waits: n > 2 }),
            _ => Err(Malformed("unknown nfs_lock_type4")),
        }
    }
    fn emit(&self, e: &mut Encoder) {
        e.u32(match (self.waits, self.exclusive) {
            (false, false) => 1,
            (false, true) => 2,
            (true, false) => 3,
            (true, true) => 4,
        });
    }
}

/// locker4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Locker {
    /// open_to_lock_owner4: the first lock of an owner under an open.
    New {
        /// Sequence number of the open owner.
        open_seqid: u32,
        /// State id of the open.
        open_stateid: Stateid,
        /// Sequence number of the lock owner.
        lock_seqid: u32,
        /// The owner.
        owner: Owner,
    },
    /// exist_lock_owner4: another lock of an owner.
    Known {
        /// State id of the locks.
        stateid: Stateid,
        /// Sequence number of the lock owner.
        seqid: u32,
    },
}

impl Xdr for Locker {
    fn parse(d: &mut Decoder) -> Result<Locker, Malformed> {
        Ok(if d.bool()? {
            Locker::New {
                open_seqid: d.u32()?,
                open_stateid: Stateid::parse(d)?,
                lock_seqid: d.u32()?,
                owner: Owner::parse(d)?,
            }
        } else {
            Locker::Known { stateid: Stateid::parse(d)?, seqid: d.u32()? }
        })
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            Locker::New { open_seqid, open_stateid, lock_seqid, owner } => {
                e.bool(true);
                e.u32(*open_seqid);
                open_stateid.emit(e);
                e.u32(*lock_seqid);
                owner.emit(e);
            }
            Locker::Known { stateid, seqid } => {
                e.bool(false);
                stateid.emit(e);
                e.u32(*seqid);
            }
        }
    }
}

xdr_struct! {
    /// LOCK4args.
    pub struct Lock {
        /// Type of the lock.
        pub kind: LockType,
        /// Whether it reclaims a lock held before the server restarted.
        pub reclaim: bool,
        /// First byte.
        pub offset: u64,
        /// Length in bytes; all ones reaches to the end of the file, wherever that is.
        pub length: u64,
        /// The owner.
        pub locker: Locker,
    }
}

xdr_struct! {
    /// LOCK4denied: a conflicting lock.
    pub struct LockDenied {
        /// First byte.
        pub offset: u64,
        /// Length in bytes.
        pub length: u64,
        /// Type of the lock.
        pub kind: LockType,
        /// Whose.
        pub owner: Owner,
    }
}

xdr_struct! {
    /// LOCKT4args.
    pub struct Lockt {
        /// Type of the lock.
        pub kind: LockType,
        /// First byte.
        pub offset: u64,
        /// Length in bytes.
        pub length: u64,
        /// The owner that asks.
        pub owner: Owner,
    }
}

xdr_struct! {
    /// LOCKU4args.
    pub struct Locku {
        /// Ignored.
        pub kind: LockType,
        /// Sequence number of the lock owner.
        pub seqid: u32,
        /// State id of the locks.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Length in bytes.
        pub length: u64,
    }
}
