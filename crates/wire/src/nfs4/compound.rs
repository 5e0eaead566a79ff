//! COMPOUND: its header, the numbers of its operations, and each operation with its arguments (RFC 8881 16.2, 18; RFC
//! 7530 15.2; RFC 7862 section 15; RFC 8276 8.4).
//!
//! [`Op`] parses one operation at a time, so that a server executes the operations before a malformed one.

use super::*;

/// COMPOUND4args before its operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompoundHead {
    /// Returned with the reply.
    pub tag: Text,
    /// 0, 1 or 2.
    pub minor: u32,
    /// Number of operations that follow.
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
        /// Status of the last operation.
        pub status: Status,
        /// The request's tag.
        pub tag: Text,
        /// Number of results that follow.
        pub count: u32,
    }
}

/// Why an operation cannot be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoOp {
    /// The number is undefined in this minor version: NFS4ERR_OP_ILLEGAL, encoded as [`opnum::ILLEGAL`].
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
            /// Parses one operation of a compound of this minor version.
            ///
            /// # Errors
            ///
            /// A number that the minor version does not define, or arguments that do not parse.
            pub fn parse(d: &mut Decoder, minor: u32) -> Result<Op, NoOp> {
                let number = d.u32().map_err(|why| NoOp::BadXdr(opnum::ILLEGAL, why))?;
                match number {
                    $($number if ($first..=$last).contains(&minor) => Ok(Op::$name $((
                        <$args as Xdr>::parse(d).map_err(|why| NoOp::BadXdr(number, why))?
                    ))?),)*
                    _ => Err(NoOp::Illegal),
                }
            }

            /// Appends the operation.
            pub fn emit(&self, e: &mut Encoder) {
                e.u32(self.number());
                match self {
                    $(operations!(@pattern $name args $($args)?) => {
                        operations!(@emit args e $($args)?);
                    })*
                }
            }

            /// The operation's number.
            pub fn number(&self) -> u32 {
                match self {
                    $(Op::$name { .. } => $number,)*
                }
            }

            /// The operation's name, for people.
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
    /// Asks for the caller's rights.
    Access ACCESS = 3, 0..=2, u32;
    /// Ends an open.
    Close CLOSE = 4, 0..=2, Close;
    /// Makes writes durable.
    Commit COMMIT = 5, 0..=2, Commit;
    /// Makes anything but a regular file.
    Create CREATE = 6, 0..=2, Create;
    /// Releases delegations of an earlier boot.
    Delegpurge DELEGPURGE = 7, 0..=2, u64;
    /// Returns a delegation.
    Delegreturn DELEGRETURN = 8, 0..=2, Stateid;
    /// Reads attributes.
    Getattr GETATTR = 9, 0..=2, Bitmap;
    /// Returns the current handle.
    Getfh GETFH = 10, 0..=2;
    /// Adds a name for the saved file.
    Link LINK = 11, 0..=2, Text;
    /// Locks a range.
    Lock LOCK = 12, 0..=2, Lock;
    /// Tests whether a range could be locked.
    Lockt LOCKT = 13, 0..=2, Lockt;
    /// Unlocks a range.
    Locku LOCKU = 14, 0..=2, Locku;
    /// Looks up a name in the current directory.
    Lookup LOOKUP = 15, 0..=2, Text;
    /// Goes to the parent.
    Lookupp LOOKUPP = 16, 0..=2;
    /// Continues if attributes differ.
    Nverify NVERIFY = 17, 0..=2, Fattr;
    /// Opens a file.
    Open OPEN = 18, 0..=2, Open;
    /// Goes to the directory of named attributes.
    Openattr OPENATTR = 19, 0..=2, bool;
    /// Confirms an open owner.
    OpenConfirm OPEN_CONFIRM = 20, 0..=0, OpenConfirm;
    /// Reduces an open.
    OpenDowngrade OPEN_DOWNGRADE = 21, 0..=2, OpenDowngrade;
    /// Sets the current handle.
    Putfh PUTFH = 22, 0..=2, Handle;
    /// Goes to the public root.
    Putpubfh PUTPUBFH = 23, 0..=2;
    /// Goes to the root.
    Putrootfh PUTROOTFH = 24, 0..=2;
    /// Reads data.
    Read READ = 25, 0..=2, Read;
    /// Lists a directory.
    Readdir READDIR = 26, 0..=2, Readdir;
    /// Reads a link's target.
    Readlink READLINK = 27, 0..=2;
    /// Removes a name.
    Remove REMOVE = 28, 0..=2, Text;
    /// Moves a name.
    Rename RENAME = 29, 0..=2, Rename;
    /// Renews a lease.
    Renew RENEW = 30, 0..=0, u64;
    /// Returns to the saved handle.
    Restorefh RESTOREFH = 31, 0..=2;
    /// Saves the current handle.
    Savefh SAVEFH = 32, 0..=2;
    /// Security flavours of a name.
    Secinfo SECINFO = 33, 0..=2, Text;
    /// Sets attributes.
    Setattr SETATTR = 34, 0..=2, Setattr;
    /// Establishes a client id.
    Setclientid SETCLIENTID = 35, 0..=0, Setclientid;
    /// Confirms a client.
    SetclientidConfirm SETCLIENTID_CONFIRM = 36, 0..=0, Confirm;
    /// Continues if attributes are equal.
    Verify VERIFY = 37, 0..=2, Fattr;
    /// Writes data.
    Write WRITE = 38, 0..=2, Write;
    /// Releases a lock owner.
    ReleaseLockowner RELEASE_LOCKOWNER = 39, 0..=0, Owner;
    /// Changes the parameters of callbacks.
    BackchannelCtl BACKCHANNEL_CTL = 40, 1..=2, BackchannelCtl;
    /// Binds another connection to a session.
    BindConnToSession BIND_CONN_TO_SESSION = 41, 1..=2, BindConn;
    /// Establishes a client id.
    ExchangeId EXCHANGE_ID = 42, 1..=2, ExchangeId;
    /// Creates a session.
    CreateSession CREATE_SESSION = 43, 1..=2, CreateSession;
    /// Ends a session.
    DestroySession DESTROY_SESSION = 44, 1..=2, SessionId;
    /// Frees a state id that is no longer needed.
    FreeStateid FREE_STATEID = 45, 1..=2, Stateid;
    /// Directory delegation: unsupported.
    GetDirDelegation GET_DIR_DELEGATION = 46, 1..=2;
    /// pNFS: unsupported.
    Getdeviceinfo GETDEVICEINFO = 47, 1..=2;
    /// pNFS: unsupported.
    Getdevicelist GETDEVICELIST = 48, 1..=2;
    /// pNFS: unsupported.
    Layoutcommit LAYOUTCOMMIT = 49, 1..=2;
    /// pNFS: unsupported.
    Layoutget LAYOUTGET = 50, 1..=2;
    /// pNFS: unsupported.
    Layoutreturn LAYOUTRETURN = 51, 1..=2;
    /// Security flavours of the current handle (0) or its parent (1).
    SecinfoNoName SECINFO_NO_NAME = 52, 1..=2, u32;
    /// Selects session and slot.
    Sequence SEQUENCE = 53, 1..=2, Sequence;
    /// SSV: unsupported.
    SetSsv SET_SSV = 54, 1..=2;
    /// Tests the validity of state ids.
    TestStateid TEST_STATEID = 55, 1..=2, TestStateid;
    /// Requests a delegation without an open.
    WantDelegation WANT_DELEGATION = 56, 1..=2, WantDelegation;
    /// Destroys a client id.
    DestroyClientid DESTROY_CLIENTID = 57, 1..=2, u64;
    /// The client has reclaimed all state from before the restart.
    ReclaimComplete RECLAIM_COMPLETE = 58, 1..=2, bool;
    /// Reserves space.
    Allocate ALLOCATE = 59, 2..=2, Allocate;
    /// Copies a range of the saved file.
    Copy COPY = 60, 2..=2, Copy;
    /// Copies between servers: unsupported.
    CopyNotify COPY_NOTIFY = 61, 2..=2;
    /// Punches a hole.
    Deallocate DEALLOCATE = 62, 2..=2, Allocate;
    /// Announces future access.
    IoAdvise IO_ADVISE = 63, 2..=2, IoAdvise;
    /// pNFS: unsupported.
    Layouterror LAYOUTERROR = 64, 2..=2;
    /// pNFS: unsupported.
    Layoutstats LAYOUTSTATS = 65, 2..=2;
    /// Cancels a copy.
    OffloadCancel OFFLOAD_CANCEL = 66, 2..=2, Stateid;
    /// Returns the progress of a copy.
    OffloadStatus OFFLOAD_STATUS = 67, 2..=2, Stateid;
    /// Reads data and reports holes.
    ReadPlus READ_PLUS = 68, 2..=2, Read;
    /// Finds data or a hole.
    Seek SEEK = 69, 2..=2, Seek;
    /// Writes a pattern: unsupported.
    WriteSame WRITE_SAME = 70, 2..=2;
    /// Shares blocks with the saved file.
    Clone CLONE = 71, 2..=2, Clone_;
    /// Reads an extended attribute.
    Getxattr GETXATTR = 72, 2..=2, Text;
    /// Sets an extended attribute.
    Setxattr SETXATTR = 73, 2..=2, Setxattr;
    /// Lists extended attributes.
    Listxattrs LISTXATTRS = 74, 2..=2, Listxattrs;
    /// Removes an extended attribute.
    Removexattr REMOVEXATTR = 75, 2..=2, Text;
}
