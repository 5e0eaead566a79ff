//! NTSTATUS codes: how an SMB server says what became of a request.
//!
//! Spec: [MS-ERREF] 2.3.1, [MS-SMB2] 3.3.5 (which code where). Owns: nothing.
//! Does not: list all 1,800; those that the server answers or that the client explains.

use super::field::codes;

codes! {
    /// A status code. The top two bits are the severity: success, information, warning, error.
    NtStatus: u32 {
        /// `STATUS_SUCCESS`.
        SUCCESS = 0x0000_0000;
        /// `STATUS_PENDING`.
        PENDING = 0x0000_0103;
        /// `STATUS_NOTIFY_CLEANUP`.
        NOTIFY_CLEANUP = 0x0000_010B;
        /// `STATUS_NOTIFY_ENUM_DIR`.
        NOTIFY_ENUM_DIR = 0x0000_010C;
        /// `STATUS_BUFFER_OVERFLOW`.
        BUFFER_OVERFLOW = 0x8000_0005;
        /// `STATUS_NO_MORE_FILES`.
        NO_MORE_FILES = 0x8000_0006;
        /// `STATUS_NO_MORE_ENTRIES`.
        NO_MORE_ENTRIES = 0x8000_001A;
        /// `STATUS_STOPPED_ON_SYMLINK`.
        STOPPED_ON_SYMLINK = 0x8000_002D;
        /// `STATUS_UNSUCCESSFUL`.
        UNSUCCESSFUL = 0xC000_0001;
        /// `STATUS_NOT_IMPLEMENTED`.
        NOT_IMPLEMENTED = 0xC000_0002;
        /// `STATUS_INVALID_INFO_CLASS`.
        INVALID_INFO_CLASS = 0xC000_0003;
        /// `STATUS_INFO_LENGTH_MISMATCH`.
        INFO_LENGTH_MISMATCH = 0xC000_0004;
        /// `STATUS_INVALID_HANDLE`.
        INVALID_HANDLE = 0xC000_0008;
        /// `STATUS_INVALID_PARAMETER`.
        INVALID_PARAMETER = 0xC000_000D;
        /// `STATUS_NO_SUCH_FILE`.
        NO_SUCH_FILE = 0xC000_000F;
        /// `STATUS_INVALID_DEVICE_REQUEST`.
        INVALID_DEVICE_REQUEST = 0xC000_0010;
        /// `STATUS_END_OF_FILE`.
        END_OF_FILE = 0xC000_0011;
        /// `STATUS_NO_MEDIA_IN_DEVICE`.
        NO_MEDIA_IN_DEVICE = 0xC000_0013;
        /// `STATUS_MORE_PROCESSING_REQUIRED`.
        MORE_PROCESSING_REQUIRED = 0xC000_0016;
        /// `STATUS_NO_MEMORY`.
        NO_MEMORY = 0xC000_0017;
        /// `STATUS_ACCESS_DENIED`.
        ACCESS_DENIED = 0xC000_0022;
        /// `STATUS_BUFFER_TOO_SMALL`.
        BUFFER_TOO_SMALL = 0xC000_0023;
        /// `STATUS_OBJECT_NAME_INVALID`.
        OBJECT_NAME_INVALID = 0xC000_0033;
        /// `STATUS_OBJECT_NAME_NOT_FOUND`.
        OBJECT_NAME_NOT_FOUND = 0xC000_0034;
        /// `STATUS_OBJECT_NAME_COLLISION`.
        OBJECT_NAME_COLLISION = 0xC000_0035;
        /// `STATUS_OBJECT_PATH_INVALID`.
        OBJECT_PATH_INVALID = 0xC000_0039;
        /// `STATUS_OBJECT_PATH_NOT_FOUND`.
        OBJECT_PATH_NOT_FOUND = 0xC000_003A;
        /// `STATUS_OBJECT_PATH_SYNTAX_BAD`.
        OBJECT_PATH_SYNTAX_BAD = 0xC000_003B;
        /// `STATUS_SHARING_VIOLATION`.
        SHARING_VIOLATION = 0xC000_0043;
        /// `STATUS_EAS_NOT_SUPPORTED`.
        EAS_NOT_SUPPORTED = 0xC000_004F;
    }
}

impl NtStatus {
    /// Whether the severity is "error".
    pub const fn is_error(self) -> bool {
        self.0 >> 30 == 3
    }

    /// Whether the severity is "success" or "information".
    pub const fn is_success(self) -> bool {
        self.0 >> 31 == 0
    }
}

impl std::fmt::Display for NtStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => write!(f, "STATUS_{name}"),
            None => write!(f, "NTSTATUS {:#010x}", self.0),
        }
    }
}

impl std::error::Error for NtStatus {}
