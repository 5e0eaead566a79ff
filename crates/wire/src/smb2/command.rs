//! The commands and their codes ([MS-SMB2] 2.2.1.1).

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        /// The command of a message.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Command {
            $($(#[$doc])* $name,)*
            /// An undefined code: the server answers STATUS_INVALID_PARAMETER.
            Unknown(u16),
        }

        impl Command {
            /// The command with this code.
            #[inline]
            pub const fn from_code(code: u16) -> Command {
                match code {
                    $($code => Command::$name,)*
                    other => Command::Unknown(other),
                }
            }

            /// The command's code.
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
    /// Negotiates dialect, capabilities, algorithms.
    Negotiate = 0x00;
    /// One leg of authentication.
    SessionSetup = 0x01;
    /// Ends a session.
    Logoff = 0x02;
    /// Connects to a share.
    TreeConnect = 0x03;
    /// Disconnects from a share.
    TreeDisconnect = 0x04;
    /// Opens or creates a file.
    Create = 0x05;
    /// Closes an open.
    Close = 0x06;
    /// Makes writes durable.
    Flush = 0x07;
    /// Reads bytes.
    Read = 0x08;
    /// Writes bytes.
    Write = 0x09;
    /// Locks and unlocks byte ranges.
    Lock = 0x0A;
    /// Executes a control code.
    Ioctl = 0x0B;
    /// Cancels an earlier request; has no response of its own.
    Cancel = 0x0C;
    /// Checks that the peer responds.
    Echo = 0x0D;
    /// Lists a directory.
    QueryDirectory = 0x0E;
    /// Watches a directory.
    ChangeNotify = 0x0F;
    /// Reads attributes.
    QueryInfo = 0x10;
    /// Changes attributes.
    SetInfo = 0x11;
    /// Breaks and acknowledges caching rights.
    OplockBreak = 0x12;
    /// An unsolicited notification by the server (3.1.1).
    ServerToClient = 0x13;
}
