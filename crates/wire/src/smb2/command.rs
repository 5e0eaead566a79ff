//! The commands and their codes.
//!
//! Spec: [MS-SMB2] 2.2.1.1. Does not: dispatch.

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        /// What a message asks for.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Command {
            $($(#[$doc])* $name,)*
            /// A code of no command: the server answers STATUS_INVALID_PARAMETER.
            Unknown(u16),
        }

        impl Command {
            /// From its code.
            #[inline]
            pub const fn from_code(code: u16) -> Command {
                match code {
                    $($code => Command::$name,)*
                    other => Command::Unknown(other),
                }
            }

            /// Its code.
            #[inline]
            pub const fn code(self) -> u16 {
                match self {
                    $(Command::$name => $code,)*
                    Command::Unknown(other) => other,
                }
            }
        }
    };
}

commands! {
    /// Dialect, capabilities, algorithms.
    Negotiate = 0x00;
    /// One leg of authentication.
    SessionSetup = 0x01;
    /// Ends a session.
    Logoff = 0x02;
    /// Enters a share.
    TreeConnect = 0x03;
    /// Leaves a share.
    TreeDisconnect = 0x04;
    /// Opens or creates.
    Create = 0x05;
    /// Closes an open.
    Close = 0x06;
    /// Makes writes durable.
    Flush = 0x07;
    /// Reads bytes.
    Read = 0x08;
    /// Writes bytes.
    Write = 0x09;
    /// Byte-range locks.
    Lock = 0x0A;
    /// Control codes.
    Ioctl = 0x0B;
    /// Stops waiting for an earlier request; has no response of its own.
    Cancel = 0x0C;
    /// Are you there?
    Echo = 0x0D;
    /// Lists a directory.
    QueryDirectory = 0x0E;
    /// Watches a directory.
    ChangeNotify = 0x0F;
    /// Reads attributes.
    QueryInfo = 0x10;
    /// Changes attributes.
    SetInfo = 0x11;
    /// Gives up caching rights.
    OplockBreak = 0x12;
    /// What a server tells unasked (3.1.1).
    ServerToClient = 0x13;
}
