//! What the bits of an access mask and of a share mode stand for.
//!
//! Spec: [MS-FSA] 2.1.5.1.2.2 (sharing), 2.1.4.12 (oplocks).

use weft_store::opens::{Reach, Rights};
use weft_wire::smb2::access::{AccessMask, ShareAccess};

/// The rights for which the file's data must be open.
pub(super) const DATA: AccessMask = AccessMask(
    AccessMask::FILE_READ_DATA.0
        | AccessMask::FILE_WRITE_DATA.0
        | AccessMask::FILE_APPEND_DATA.0
        | AccessMask::FILE_EXECUTE.0,
);
pub(super) const WRITE_DATA: AccessMask =
    AccessMask(AccessMask::FILE_WRITE_DATA.0 | AccessMask::FILE_APPEND_DATA.0);

/// The rights that nobody has on a read-only file system.
pub(super) const CHANGING: AccessMask = AccessMask(
    AccessMask::FILE_WRITE_DATA.0
        | AccessMask::FILE_APPEND_DATA.0
        | AccessMask::FILE_WRITE_EA.0
        | AccessMask::FILE_DELETE_CHILD.0
        | AccessMask::FILE_WRITE_ATTRIBUTES.0
        | AccessMask::DELETE.0
        | AccessMask::WRITE_DAC.0
        | AccessMask::WRITE_OWNER.0,
);

/// The sharing rights that an access needs from others ([MS-FSA] 2.1.5.1.2.2).
pub(super) fn rights_of_access(access: AccessMask) -> Rights {
    Rights {
        read: access.intersects(AccessMask::FILE_READ_DATA | AccessMask::FILE_EXECUTE),
        write: access.intersects(WRITE_DATA),
        delete: access.contains(AccessMask::DELETE),
    }
}

pub(super) fn rights_of_share(share: ShareAccess) -> Rights {
    Rights {
        read: share.contains(ShareAccess::READ),
        write: share.contains(ShareAccess::WRITE),
        delete: share.contains(ShareAccess::DELETE),
    }
}

/// How much of a file an access touches ([MS-FSA] 2.1.4.12, case OPEN).
pub(super) fn reach_of(access: AccessMask) -> Reach {
    let attributes =
        AccessMask::FILE_READ_ATTRIBUTES | AccessMask::FILE_WRITE_ATTRIBUTES | AccessMask::SYNCHRONIZE;
    match access.without(attributes) {
        AccessMask::NONE => Reach::Attributes,
        AccessMask::READ_CONTROL => Reach::Security,
        _ => Reach::Data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_that_others_care_about() {
        assert_eq!(
            rights_of_access(AccessMask::FILE_READ_ATTRIBUTES | AccessMask::READ_CONTROL),
            Rights::NONE
        );
        assert_eq!(rights_of_access(AccessMask::FILE_EXECUTE), Rights::READ);
        assert_eq!(rights_of_access(AccessMask::FILE_APPEND_DATA), Rights::WRITE);
        assert_eq!(rights_of_access(AccessMask::FILE_ALL), Rights::ALL);
        assert!(!rights_of_share(ShareAccess::READ | ShareAccess::WRITE).delete);
    }
}
