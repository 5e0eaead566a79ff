//! OPEN and the operations on an open: OPEN_CONFIRM, OPEN_DOWNGRADE, CLOSE (RFC 7530 16.16, 16.18, 16.19, 16.2; RFC
//! 8881 18.16, 18.18, 18.2).

use super::acl::Ace;
use super::basic::below;
use super::{Bitmap, ChangeInfo, Fattr, Owner, Stateid, Text, Verifier};
use crate::xdr::{Decoder, Encoder, Malformed, Xdr, xdr_struct};

/// Bits of `share_access` and `share_deny`.
#[allow(missing_docs, reason = "the RFC's names")]
pub mod share {
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const BOTH: u32 = 3;
    pub const WANT_DELEG_MASK: u32 = 0xff00;
    pub const WANT_READ_DELEG: u32 = 0x0100;
    pub const WANT_WRITE_DELEG: u32 = 0x0200;
    pub const WANT_ANY_DELEG: u32 = 0x0300;
    pub const WANT_NO_DELEG: u32 = 0x0400;
    pub const WANT_CANCEL: u32 = 0x0500;
    pub const WANT_SIGNAL: u32 = 0x1_0000;
    pub const WANT_PUSH: u32 = 0x2_0000;
    /// From RFC 9754.
    pub const WANT_DELEG_TIMESTAMPS: u32 = 0x10_0000;
    /// From RFC 9754.
    pub const WANT_OPEN_XOR_DELEG: u32 = 0x20_0000;
}

/// Bits of [`OpenOk::flags`].
#[allow(missing_docs, reason = "the RFC's names")]
pub mod open_flag {
    pub const CONFIRM: u32 = 2;
    pub const LOCKTYPE_POSIX: u32 = 4;
    pub const PRESERVE_UNLINKED: u32 = 8;
    pub const MAY_NOTIFY_LOCK: u32 = 0x20;
}

/// createhow4: what happens to an existing file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// Opens an existing file.
    Unchecked(Fattr),
    /// Fails if the file exists.
    Guarded(Fattr),
    /// Opens an existing file if it was created with this verifier.
    Exclusive(Verifier),
    /// Like `Exclusive`, with attributes (minor version 1).
    Exclusive41(Verifier, Fattr),
}

/// openflag4: `None` does not create.
pub type OpenHow = Option<CreateHow>;

fn parse_how(d: &mut Decoder) -> Result<OpenHow, Malformed> {
    if below(d.u32()?, 2, "unknown opentype4")? == 0 {
        return Ok(None);
    }
    Ok(Some(match d.u32()? {
        0 => CreateHow::Unchecked(Fattr::parse(d)?),
        1 => CreateHow::Guarded(Fattr::parse(d)?),
        2 => CreateHow::Exclusive(d.fixed()?),
        3 => CreateHow::Exclusive41(d.fixed()?, Fattr::parse(d)?),
        _ => return Err(Malformed("unknown createmode4")),
    }))
}

fn emit_how(how: &OpenHow, e: &mut Encoder) {
    let Some(how) = how else { return e.u32(0) };
    e.u32(1);
    match how {
        CreateHow::Unchecked(attributes) => {
            e.u32(0);
            attributes.emit(e);
        }
        CreateHow::Guarded(attributes) => {
            e.u32(1);
            attributes.emit(e);
        }
        CreateHow::Exclusive(verifier) => {
            e.u32(2);
            e.fixed(verifier);
        }
        CreateHow::Exclusive41(verifier, attributes) => {
            e.u32(3);
            e.fixed(verifier);
            attributes.emit(e);
        }
    }
}

/// open_claim4: the file, and the basis of the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// CLAIM_NULL: this name in the current directory.
    Null(Text),
    /// CLAIM_PREVIOUS: the current file, open before the server restarted, with a delegation of this type.
    Previous(u32),
    /// CLAIM_DELEGATE_CUR: this name, under a delegation.
    DelegateCur(Stateid, Text),
    /// CLAIM_DELEGATE_PREV: this name, under a delegation of the client's earlier run.
    DelegatePrev(Text),
    /// CLAIM_FH: the current file.
    Fh,
    /// CLAIM_DELEG_CUR_FH: the current file, under a delegation.
    DelegCurFh(Stateid),
    /// CLAIM_DELEG_PREV_FH: the current file, under a delegation of the client's earlier run.
    DelegPrevFh,
}

impl Xdr for Claim {
    fn parse(d: &mut Decoder) -> Result<Claim, Malformed> {
        Ok(match d.u32()? {
            0 => Claim::Null(Text::parse(d)?),
            1 => Claim::Previous(d.u32()?),
            2 => Claim::DelegateCur(Stateid::parse(d)?, Text::parse(d)?),
            3 => Claim::DelegatePrev(Text::parse(d)?),
            4 => Claim::Fh,
            5 => Claim::DelegCurFh(Stateid::parse(d)?),
            6 => Claim::DelegPrevFh,
            _ => return Err(Malformed("unknown open_claim_type4")),
        })
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            Claim::Null(name) => {
                e.u32(0);
                name.emit(e);
            }
            Claim::Previous(delegation) => {
                e.u32(1);
                e.u32(*delegation);
            }
            Claim::DelegateCur(stateid, name) => {
                e.u32(2);
                stateid.emit(e);
                name.emit(e);
            }
            Claim::DelegatePrev(name) => {
                e.u32(3);
                name.emit(e);
            }
            Claim::Fh => e.u32(4),
            Claim::DelegCurFh(stateid) => {
                e.u32(5);
                stateid.emit(e);
            }
            Claim::DelegPrevFh => e.u32(6),
        }
    }
}

/// OPEN4args.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Sequence number of the owner; unused from minor version 1 on.
    pub seqid: u32,
    /// Requested access, and wishes for a delegation.
    pub access: u32,
    /// Access denied to others.
    pub deny: u32,
    /// The owner.
    pub owner: Owner,
    /// Whether and how to create the file.
    pub how: OpenHow,
    /// The file.
    pub claim: Claim,
}

impl Xdr for Open {
    fn parse(d: &mut Decoder) -> Result<Open, Malformed> {
        Ok(Open {
            seqid: d.u32()?,
            access: d.u32()?,
            deny: d.u32()?,
            owner: Owner::parse(d)?,
            how: parse_how(d)?,
            claim: Claim::parse(d)?,
        })
    }
    fn emit(&self, e: &mut Encoder) {
        e.u32(self.seqid);
        e.u32(self.access);
        e.u32(self.deny);
        self.owner.emit(e);
        emit_how(&self.how, e);
        self.claim.emit(e);
    }
}

/// nfs_space_limit4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceLimit {
    /// NFS_LIMIT_SIZE.
    Size(u64),
    /// NFS_LIMIT_BLOCKS: number of blocks, and bytes per block.
    Blocks(u32, u32),
}

impl Xdr for SpaceLimit {
    fn parse(d: &mut Decoder) -> Result<SpaceLimit, Malformed> {
        match d.u32()? {
            1 => d.u64().map(SpaceLimit::Size),
            2 => Ok(SpaceLimit::Blocks(d.u32()?, d.u32()?)),
            _ => Err(Malformed("unknown limit_by4")),
        }
    }
    fn emit(&self, e: &mut Encoder) {
        match *self {
            SpaceLimit::Size(bytes) => {
                e.u32(1);
                e.u64(bytes);
            }
            SpaceLimit::Blocks(blocks, bytes) => {
                e.u32(2);
                e.u32(blocks);
                e.u32(bytes);
            }
        }
    }
}

/// open_delegation4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delegation {
    /// OPEN_DELEGATE_NONE.
    None,
    /// OPEN_DELEGATE_READ: the state id, whether it is already being recalled, who may open without asking the server,
    /// and whether the client maintains the times (OPEN_DELEGATE_READ_ATTRS_DELEG, RFC 9754).
    Read(Stateid, bool, Ace, bool),
    /// OPEN_DELEGATE_WRITE: the same, with a limit on the data that the client may cache.
    Write(Stateid, bool, SpaceLimit, Ace, bool),
    /// OPEN_DELEGATE_NONE_EXT: the reason (why_no_delegation4), and whether the server will notify the client when a
    /// delegation becomes available.
    NoneExt(u32, bool),
}

/// why_no_delegation4.
#[allow(missing_docs, reason = "the RFC's names")]
pub mod why_no_delegation {
    pub const NOT_WANTED: u32 = 0;
    pub const CONTENTION: u32 = 1;
    pub const RESOURCE: u32 = 2;
    pub const NOT_SUPP_FTYPE: u32 = 3;
    pub const CANCELLED: u32 = 7;
}

impl Xdr for Delegation {
    fn parse(d: &mut Decoder) -> Result<Delegation, Malformed> {
        Ok(match d.u32()? {
            0 => Delegation::None,
            kind @ (1 | 4) => Delegation::Read(Stateid::parse(d)?, d.bool()?, Ace::parse(d)?, kind == 4),
            kind @ (2 | 5) => {
                let (stateid, recall) = (Stateid::parse(d)?, d.bool()?);
                Delegation::Write(stateid, recall, SpaceLimit::parse(d)?, Ace::parse(d)?, kind == 5)
            }
            3 => match d.u32()? {
                why @ (why_no_delegation::CONTENTION | why_no_delegation::RESOURCE) => {
                    Delegation::NoneExt(why, d.bool()?)
                }
                why => Delegation::NoneExt(why, false),
            },
            _ => return Err(Malformed("unknown open_delegation_type4")),
        })
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            Delegation::None => e.u32(0),
            Delegation::Read(stateid, recall, who, times) => {
                e.u32(if *times { 4 } else { 1 });
                stateid.emit(e);
                e.bool(*recall);
                who.emit(e);
            }
            Delegation::Write(stateid, recall, limit, who, times) => {
                e.u32(if *times { 5 } else { 2 });
                stateid.emit(e);
                e.bool(*recall);
                limit.emit(e);
                who.emit(e);
            }
            Delegation::NoneExt(why, news) => {
                e.u32(3);
                e.u32(*why);
                if matches!(*why, why_no_delegation::CONTENTION | why_no_delegation::RESOURCE) {
                    e.bool(*news);
                }
            }
        }
    }
}

/// deleg_claim4: the file, named without an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelegClaim {
    /// CLAIM_FH: the current file.
    Fh,
    /// CLAIM_DELEG_PREV_FH: the current file, under a delegation of the client's earlier run.
    PrevFh,
    /// CLAIM_PREVIOUS: the client had a delegation of this type before the server restarted.
    Previous(u32),
}

impl Xdr for DelegClaim {
    fn parse(d: &mut Decoder) -> Result<DelegClaim, Malformed> {
        match d.u32()? {
            1 => d.u32().map(DelegClaim::Previous),
            4 => Ok(DelegClaim::Fh),
            6 => Ok(DelegClaim::PrevFh),
            _ => Err(Malformed("unknown claim of a delegation")),
        }
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            DelegClaim::Previous(kind) => {
                e.u32(1);
                e.u32(*kind);
            }
            DelegClaim::Fh => e.u32(4),
            DelegClaim::PrevFh => e.u32(6),
        }
    }
}

xdr_struct! {
    /// WANT_DELEGATION4args.
    pub struct WantDelegation {
        /// Wishes, as in [`share`].
        pub want: u32,
        /// The file.
        pub claim: DelegClaim,
    }
}

xdr_struct! {
    /// OPEN4resok.
    pub struct OpenOk {
        /// State id of the open.
        pub stateid: Stateid,
        /// The directory before and after.
        pub change: ChangeInfo,
        /// See [`open_flag`].
        pub flags: u32,
        /// Attributes that were set.
        pub attrset: Bitmap,
        /// A delegation.
        pub delegation: Delegation,
    }
}

xdr_struct! {
    /// OPEN_CONFIRM4args.
    pub struct OpenConfirm {
        /// State id of the open.
        pub stateid: Stateid,
        /// Sequence number of the owner.
        pub seqid: u32,
    }
}

xdr_struct! {
    /// OPEN_DOWNGRADE4args.
    pub struct OpenDowngrade {
        /// State id of the open.
        pub stateid: Stateid,
        /// Sequence number of the owner.
        pub seqid: u32,
        /// Remaining access.
        pub access: u32,
        /// Access still denied to others.
        pub deny: u32,
    }
}

xdr_struct! {
    /// CLOSE4args.
    pub struct Close {
        /// Sequence number of the owner.
        pub seqid: u32,
        /// State id of the open.
        pub stateid: Stateid,
    }
}
