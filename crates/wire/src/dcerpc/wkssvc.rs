//! The workstation service: the host's name ([MS-WKST] 2.2.5 structures, 3.2.4.1 NetrWkstaGetInfo). Other calls are
//! unsupported.

use super::ndr::Writer;
use super::srvsvc::ServerInfo;
use super::{Malformed, Syntax};

/// 6bffd098-a112-3610-9833-46c3f87e345a, version 1.0.
pub const INTERFACE: Syntax =
    Syntax::new(0x6bff_d098, 0xa112, 0x3610, [0x98, 0x33, 0x46, 0xc3, 0xf8, 0x7e, 0x34, 0x5a], 1);

/// NetrWkstaGetInfo.
pub const GET_INFO: u16 = 0;

/// The input of NetrWkstaGetInfo: the level. It has the form of NetrServerGetInfo's input.
pub fn parse_get_info(stub: &[u8]) -> Result<u32, Malformed> {
    super::srvsvc::parse_server_get_info(stub)
}

/// WKSTA_INFO_100 to 102.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkstationInfo {
    /// Name of the host.
    pub name: String,
    /// Its workgroup.
    pub group: String,
    /// The Windows version to which it corresponds.
    pub version: (u32, u32),
    /// Number of users logged on.
    pub users: u32,
}

impl WorkstationInfo {
    /// The levels that [`WorkstationInfo::emit`] supports.
    pub const LEVELS: [u32; 3] = [100, 101, 102];

    /// The answer at one of those levels.
    pub fn emit(&self, level: u32) -> Vec<u8> {
        let mut w = Writer::new();
        w.u32(level);
        w.parameter(|w| {
            w.u32(ServerInfo::PLATFORM);
            w.string_pointer(&self.name);
            w.string_pointer(&self.group);
            w.u32(self.version.0);
            w.u32(self.version.1);
            if level > 100 {
                w.string_pointer("");
            }
            if level > 101 {
                w.u32(self.users);
            }
        });
        w.u32(0);
        w.finish()
    }
}
