//! COMPOUND: its header, the numbers of its operations, and each operation with its arguments.
//!
//! What: [`Op`] parses one operation at a time, so that a server carries out what comes before a broken one.
//! Spec: RFC 8881 16.2, 18; RFC 7530 15.2; RFC 7862 section 15; RFC 8276 8.4. Does not: carry out.

use super::*;

/// COMPOUND4args before its operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompoundHead {
    /// Comes back with the reply.
    pub tag: Text,
    /// 0, 1 or 2.
    pub minor: u32,
    /// How many operations follow.
    pub count: u32,
}

impl Xdr for CompoundHead {
    fn parse(d: &mut Decoder) -> Result<CompoundHead, Malformed> {
        Ok(CompoundHead { tag: Text::parse(d)?, minor: d.u32()?, count: d.u32()? })
    }
    fn emit(&self, e: &mut Encoder) {
        self.tag.emit(e);
        e.u32(self.minor);
        e.u32(self.count);
    }
}

xdr_struct! {
    /// COMPOUND4res before its results.
    pub struct ReplyHead {
        /// Of the last operation.
        pub status: Status,
        /// As asked.
        pub tag: Text,
        /// How many results follow.
        pub count: u32,
    }
}

/// Why an operation cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoOp {
    /// Its number means nothing in this minor version: NFS4ERR_OP_ILLEGAL, as [`opnum::ILLEGAL`].
    Illegal,
    /// Its arguments do not parse: NFS4ERR_BADXDR.
    BadXdr(u32, Malformed),
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident $number_name:ident = $number:literal, $first:literal..=$last:literal $(, $args:ty)?;)*) => {
        /// Numbers of operations.
        #[allow(missing_docs, reason = "the RFC's names")]
        pub mod opnum {
            $(pub const $number_name: u32 = $number;)*
            pub const ILLEGAL: u32 = 10044;
        }

        /// An operation and its arguments.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Op {
            $($(#[$doc])* $name $(($args))?,)*
        }

        impl Op {
            /// Takes one off the stream of a compound of this minor version.
            ///
            /// # Errors
            /// A number that the minor version does not have, or arguments that do not parse.
            pub fn parse(d: &mut Decoder, minor: u32) -> Result<Op, NoOp> {
                let number = d.u32().map_err(|why| NoOp::BadXdr(opnum::ILLEGAL, why))?;
                match number {
                    $($number if ($first..=$last).contains(&minor) => Ok(Op::$name $((
                        <$args as Xdr>::parse(d).map_err(|why| NoOp::BadXdr(number, why))?
                    ))?),)*
                    _ => Err(NoOp::Illegal),
                }
            }

            /// Appends it.
            pub fn emit(&self, e: &mut Encoder) {
                e.u32(self.number());
                match self {
                    $(operations!(@pattern $name args $($args)?) => {
                        operations!(@emit args e $($args)?);
                    })*
                }
            }

            /// Its number.
            pub fn number(&self) -> u32 {
                match self {
                    $(Op::$name { .. } => $number,)*
                }
            }

            /// Its name, for people.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Op::$name { .. } => stringify!($number_name),)*
                }
            }
        }
    };
    (@pattern $name:ident $args:ident) => { Op::$name };
    (@pattern $name:ident $args:ident $type:ty) => { Op::$name($args) };
    (@emit $args:ident $e:ident) => {};
    (@emit $args:ident $e:ident $type:ty) => { $args.emit($e) };
}

operations! {
    /// What the caller may do.
    Access ACCESS = 3, 0..=2, u32;
    /// Ends an open.
    Close CLOSE = 4, 0..=2, Close;
    /// Makes writes durable.
    Commit COMMIT = 5, 0..=2, Commit;
    /// Makes anything but a regular file.
    Create CREATE = 6, 0..=2, Create;
    /// Gives up delegations of an earlier run.
    Delegpurge DELEGPURGE = 7, 0..=2, u64;
    /// Gives back a delegation.
    Delegreturn DELEGRETURN = 8, 0..=2, Stateid;
    /// Attributes.
    Getattr GETATTR = 9, 0..=2, Bitmap;
    /// The current handle.
    Getfh GETFH = 10, 0..=2;
    /// A further name for the saved file.
    Link LINK = 11, 0..=2, Text;
    /// Locks a range.
    Lock LOCK = 12, 0..=2, Lock;
    /// Asks whether a range could be locked.
    Lockt LOCKT = 13, 0..=2, Lockt;
    /// Unlocks a range.
    Locku LOCKU = 14, 0..=2, Locku;
    /// Down.
    Lookup LOOKUP = 15, 0..=2, Text;
    /// Up.
    Lookupp LOOKUPP = 16, 0..=2;
    /// Goes on if attributes differ.
    Nverify NVERIFY = 17, 0..=2, Fattr;
    /// Opens a file.
    Open OPEN = 18, 0..=2, Open;
    /// To the directory of named attributes.
    Openattr OPENATTR = 19, 0..=2, bool;
    /// Confirms an owner.
    OpenConfirm OPEN_CONFIRM = 20, 0..=0, OpenConfirm;
    /// Reduces an open.
    OpenDowngrade OPEN_DOWNGRADE = 21, 0..=2, OpenDowngrade;
    /// Sets the current handle.
    Putfh PUTFH = 22, 0..=2, Handle;
    /// To the public root.
    Putpubfh PUTPUBFH = 23, 0..=2;
    /// To the root.
    Putrootfh PUTROOTFH = 24, 0..=2;
    /// Reads.
    Read READ = 25, 0..=2, Read;
    /// Lists.
    Readdir READDIR = 26, 0..=2, Readdir;
    /// A link's target.
    Readlink READLINK = 27, 0..=2;
    /// Removes a name.
    Remove REMOVE = 28, 0..=2, Text;
    /// Moves a name.
    Rename RENAME = 29, 0..=2, Rename;
    /// Renews a lease.
    Renew RENEW = 30, 0..=0, u64;
    /// Back to the saved handle.
    Restorefh RESTOREFH = 31, 0..=2;
    /// Saves the current handle.
    Savefh SAVEFH = 32, 0..=2;
    /// Security flavours of a name.
    Secinfo SECINFO = 33, 0..=2, Text;
    /// Sets attributes.
    Setattr SETATTR = 34, 0..=2, Setattr;
    /// Names a client.
    Setclientid SETCLIENTID = 35, 0..=0, Setclientid;
    /// Confirms a client.
    SetclientidConfirm SETCLIENTID_CONFIRM = 36, 0..=0, Confirm;
    /// Goes on if attributes are the same.
    Verify VERIFY = 37, 0..=2, Fattr;
    /// Writes.
    Write WRITE = 38, 0..=2, Write;
    /// Forgets an owner of locks.
    ReleaseLockowner RELEASE_LOCKOWNER = 39, 0..=0, Owner;
    /// Changes how the client is called.
    BackchannelCtl BACKCHANNEL_CTL = 40, 1..=2, BackchannelCtl;
    /// Another connection for a session.
    BindConnToSession BIND_CONN_TO_SESSION = 41, 1..=2, BindConn;
    /// Names a client.
    ExchangeId EXCHANGE_ID = 42, 1..=2, ExchangeId;
    /// Makes a session.
    CreateSession CREATE_SESSION = 43, 1..=2, CreateSession;
    /// Ends a session.
    DestroySession DESTROY_SESSION = 44, 1..=2, SessionId;
    /// Forgets a state that is of no use.
    FreeStateid FREE_STATEID = 45, 1..=2, Stateid;
    /// Delegation of a directory: not here.
    GetDirDelegation GET_DIR_DELEGATION = 46, 1..=2;
    /// pNFS: not here.
    Getdeviceinfo GETDEVICEINFO = 47, 1..=2;
    /// pNFS: not here.
    Getdevicelist GETDEVICELIST = 48, 1..=2;
    /// pNFS: not here.
    Layoutcommit LAYOUTCOMMIT = 49, 1..=2;
    /// pNFS: not here.
    Layoutget LAYOUTGET = 50, 1..=2;
    /// pNFS: not here.
    Layoutreturn LAYOUTRETURN = 51, 1..=2;
    /// Security flavours of the current handle (0) or its parent (1).
    SecinfoNoName SECINFO_NO_NAME = 52, 1..=2, u32;
    /// Names session and slot.
    Sequence SEQUENCE = 53, 1..=2, Sequence;
    /// SSV: not here.
    SetSsv SET_SSV = 54, 1..=2;
    /// What became of states.
    TestStateid TEST_STATEID = 55, 1..=2, TestStateid;
    /// A delegation without an open.
    WantDelegation WANT_DELEGATION = 56, 1..=2, WantDelegation;
    /// Forgets a client.
    DestroyClientid DESTROY_CLIENTID = 57, 1..=2, u64;
    /// All states of before the restart are back.
    ReclaimComplete RECLAIM_COMPLETE = 58, 1..=2, bool;
    /// Reserves space.
    Allocate ALLOCATE = 59, 2..=2, Allocate;
    /// Copies from the saved file.
    Copy COPY = 60, 2..=2, Copy;
    /// Copies between servers: not here.
    CopyNotify COPY_NOTIFY = 61, 2..=2;
    /// Punches a hole.
    Deallocate DEALLOCATE = 62, 2..=2, Allocate;
    /// Says what will be read.
    IoAdvise IO_ADVISE = 63, 2..=2, IoAdvise;
    /// pNFS: not here.
    Layouterror LAYOUTERROR = 64, 2..=2;
    /// pNFS: not here.
    Layoutstats LAYOUTSTATS = 65, 2..=2;
    /// Ends a copy.
    OffloadCancel OFFLOAD_CANCEL = 66, 2..=2, Stateid;
    /// How far a copy is.
    OffloadStatus OFFLOAD_STATUS = 67, 2..=2, Stateid;
    /// Reads, and tells holes.
    ReadPlus READ_PLUS = 68, 2..=2, Read;
    /// Finds data or a hole.
    Seek SEEK = 69, 2..=2, Seek;
    /// Writes a pattern: not here.
    WriteSame WRITE_SAME = 70, 2..=2;
    /// Shares blocks with the saved file.
    Clone CLONE = 71, 2..=2, Clone_;
    /// An extended attribute's value.
    Getxattr GETXATTR = 72, 2..=2, Text;
    /// Sets one.
    Setxattr SETXATTR = 73, 2..=2, Setxattr;
    /// Lists them.
    Listxattrs LISTXATTRS = 74, 2..=2, Listxattrs;
    /// Removes one.
    Removexattr REMOVEXATTR = 75, 2..=2, Text;
}
