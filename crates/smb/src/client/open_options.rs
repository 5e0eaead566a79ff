//! How a file is opened.
//!
//! Spec: [MS-SMB2] 2.2.13 (CREATE).

use weft_wire::smb2::access::{AccessMask, FileAttributes, ShareAccess};
use weft_wire::smb2::create::{self, CreateDisposition, CreateOptions, OplockLevel};
use weft_wire::smb2::create_context::RequestContext;

/// How to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Requested access.
    pub access: AccessMask,
    /// Access that others may have meanwhile.
    pub share: ShareAccess,
    /// What to do if the file exists, and if not.
    pub disposition: CreateDisposition,
    /// Further options.
    pub options: CreateOptions,
    /// A new file gets an ACL for its owner alone, if the server has security descriptors; an existing file is
    /// unchanged.
    pub private: bool,
}

impl OpenOptions {
    /// An existing file, for reading.
    pub fn read() -> OpenOptions {
        OpenOptions {
            access: AccessMask::FILE_GENERIC_READ,
            share: ShareAccess::ALL,
            disposition: CreateDisposition::Open,
            options: CreateOptions::NON_DIRECTORY_FILE,
            private: false,
        }
    }

    /// An existing file, for reading and writing.
    pub fn write() -> OpenOptions {
        OpenOptions { access: AccessMask::FILE_GENERIC_READ | AccessMask::FILE_GENERIC_WRITE, ..Self::read() }
    }

    /// A file that is created if it does not exist, for reading and writing.
    pub fn create() -> OpenOptions {
        OpenOptions { disposition: CreateDisposition::OpenIf, ..Self::write() }
    }

    /// A file that is created, or truncated if it exists, for reading and writing.
    pub fn truncate() -> OpenOptions {
        OpenOptions { disposition: CreateDisposition::OverwriteIf, ..Self::write() }
    }

    /// A file that must not exist, for reading and writing.
    pub fn create_new() -> OpenOptions {
        OpenOptions { disposition: CreateDisposition::Create, ..Self::write() }
    }

    /// A file for new content: created if missing, for reading, writing, renaming and deleting. Nobody else may write,
    /// rename or delete it meanwhile.
    pub fn draft() -> OpenOptions {
        let write = Self::write();
        OpenOptions {
            access: write.access | AccessMask::DELETE,
            share: ShareAccess::READ,
            disposition: CreateDisposition::Create,
            ..write
        }
    }

    /// A new, empty file that is deleted on close, to see which properties the server gives new files.
    pub fn passing() -> OpenOptions {
        let options = CreateOptions::NON_DIRECTORY_FILE | CreateOptions::DELETE_ON_CLOSE;
        OpenOptions { options, ..Self::draft() }
    }

    /// A file or link, for deletion.
    pub fn delete() -> OpenOptions {
        let options = CreateOptions::NON_DIRECTORY_FILE | CreateOptions::OPEN_REPARSE_POINT;
        Self { options, ..Self::anything(AccessMask::DELETE | AccessMask::FILE_READ_ATTRIBUTES) }
    }

    /// A file, to change its access control list.
    pub fn protect() -> OpenOptions {
        Self::anything(AccessMask::READ_CONTROL | AccessMask::WRITE_DAC)
    }

    /// A file, to read its access control list.
    pub fn look() -> OpenOptions {
        Self::anything(AccessMask::READ_CONTROL)
    }

    /// The CREATE request for these options, with these contexts.
    pub(super) fn request(self, name: String, contexts: Vec<RequestContext>) -> create::Request {
        create::Request {
            oplock: OplockLevel::NONE,
            impersonation: 2,
            desired_access: self.access,
            attributes: FileAttributes::NORMAL,
            share_access: self.share,
            disposition: self.disposition,
            options: self.options,
            name,
            contexts,
        }
    }

    pub(super) fn directory(access: AccessMask) -> OpenOptions {
        OpenOptions { access, options: CreateOptions::DIRECTORY_FILE, ..Self::read() }
    }

    pub(super) fn anything(access: AccessMask) -> OpenOptions {
        OpenOptions { access, options: CreateOptions::OPEN_REPARSE_POINT, ..Self::read() }
    }
}
