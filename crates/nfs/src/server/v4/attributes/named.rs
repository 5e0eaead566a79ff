//! GETATTR of a named attribute and of a named attribute directory: the file's values, except for a few of their own.
//!
//! See RFC 8881 5.3 and 5.8.2.

use siphasher::sip::SipHasher24;
use weft_wire::nfs4::{Attributes, Bitmap, FileType, Status, attr};

use super::of_node;
use crate::server::context::Node;
use crate::server::v4::compound::Compound;
use crate::server::v4::fs_object::FsObject;

/// The values of the named attribute directory of `of`.
pub(super) async fn values(c: &Compound<'_>, of: &Node<'_>, wanted: Bitmap) -> Result<Attributes, Status> {
    let known = of.attr().await?;
    let mut values = of_node(c, of, &known, wanted).await?;
    of_directory(&mut values, known.fileid);
    if wanted.has(attr::FILEHANDLE) {
        values.filehandle = Some(FsObject::Attributes(*of).handle(c.cx).await?);
    }
    Ok(values)
}

/// Replaces the values that differ between an attribute and its file.
pub(super) fn of_attribute(values: &mut Attributes, file: u64, name: &[u8]) {
    own(values, FileType::NAMEDATTR, fileid(file, Some(name)), 1);
}

/// The same for the directory.
fn of_directory(values: &mut Attributes, file: u64) {
    own(values, FileType::ATTRDIR, fileid(file, None), 2);
    let Attributes { size, space_used, mode, .. } = values;
    (*size, *space_used) = (size.map(|_| 0), space_used.map(|_| 0));
    // Whoever may read the directory may look names up in it.
    *mode = mode.map(|mode| mode & 0o666 | (mode & 0o444) >> 2);
}

fn own(values: &mut Attributes, kind: FileType, fileid: u64, links: u32) {
    macro_rules! put {
        ($($field:ident = $value:expr;)*) => {
            $(if let Some(value) = &mut values.$field { *value = $value; })*
        };
    }
    put! {
        kind = kind;
        fileid = fileid;
        mounted_on_fileid = fileid;
        numlinks = links;
        named_attr = false;
        case_insensitive = true;
    }
}

/// A file number for an attribute or, without a name, for its directory; a collision with a file's number is very
/// unlikely.
fn fileid(file: u64, name: Option<&[u8]>) -> u64 {
    let mut bytes = file.to_be_bytes().to_vec();
    bytes.extend(name.into_iter().flatten());
    SipHasher24::new().hash(&bytes) | 1 << 63
}
