//! The loaded library: its calls as functions, and its results as Rust values.
//!
//! Spec: RFC 2744 5. The library stays loaded for the rest of the process, so contexts and names never outlive it.
//! Memory that the library allocates is copied and released at once.

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;

use crate::bindings::*;
use crate::{Error, Failure};

const NAME: &str = "libgssapi_krb5.so.2";

/// The library's entry points.
pub struct Gss {
    pub acquire_cred_from: acquire_cred_from,
    pub accept_sec_context: accept_sec_context,
    pub import_name: import_name,
    pub init_sec_context: init_sec_context,
    pub inquire_context: inquire_context,
    pub inquire_by_oid: inquire_by_oid,
    display_name: display_name,
    display_status: display_status,
    pub get_mic: get_mic,
    pub verify_mic: verify_mic,
    pub wrap: wrap,
    pub unwrap: unwrap,
    pub delete_sec_context: delete_sec_context,
    pub release_cred: release_cred,
    pub release_name: release_name,
    release_buffer: release_buffer,
    release_buffer_set: release_buffer_set,
    _library: Library,
}

/// The library, loaded at the first call.
pub fn gss() -> Result<&'static Gss, Error> {
    static GSS: OnceLock<Result<Gss, Error>> = OnceLock::new();
    GSS.get_or_init(Gss::load).as_ref().map_err(Clone::clone)
}

impl Gss {
    fn load() -> Result<Gss, Error> {
        let missing = |e: libloading::Error| Error::Library(e.to_string());
        // SAFETY: the system's own GSSAPI; its initializers only set up locks and error tables.
        let library = unsafe { Library::new(NAME) }.map_err(missing)?;
        macro_rules! calls {
            ($($field:ident: $symbol:literal),* $(,)?) => {
                Gss {
                    $(
                        // SAFETY: the types in `bindings` match the header's declaration of this symbol, and the
                        // library is kept alive beside the pointer.
                        $field: *unsafe { library.get($symbol) }.map_err(missing)?,
                    )*
                    _library: library,
                }
            };
        }
        Ok(calls! {
            acquire_cred_from: b"gss_acquire_cred_from",
            accept_sec_context: b"gss_accept_sec_context",
            import_name: b"gss_import_name",
            init_sec_context: b"gss_init_sec_context",
            inquire_context: b"gss_inquire_context",
            inquire_by_oid: b"gss_inquire_sec_context_by_oid",
            display_name: b"gss_display_name",
            display_status: b"gss_display_status",
            get_mic: b"gss_get_mic",
            verify_mic: b"gss_verify_mic",
            wrap: b"gss_wrap",
            unwrap: b"gss_unwrap",
            delete_sec_context: b"gss_delete_sec_context",
            release_cred: b"gss_release_cred",
            release_name: b"gss_release_name",
            release_buffer: b"gss_release_buffer",
            release_buffer_set: b"gss_release_buffer_set",
        })
    }

    /// The error of a failed call, with the library's text.
    pub fn error(&self, major: OM_uint32, minor: OM_uint32) -> Error {
        let mech = if minor == 0 { String::new() } else { self.words(minor, GSS_C_MECH_CODE) };
        let text = if mech.is_empty() { self.words(major, GSS_C_GSS_CODE) } else { mech };
        let said = if text.is_empty() { format!("error {major:#x}, {minor}") } else { text };
        Error::Gss(Failure { said, major, minor })
    }

    fn words(&self, status: OM_uint32, kind: std::ffi::c_int) -> String {
        let (mut minor, mut more) = (0, 0);
        let mut text = empty();
        let krb5 = oid(KRB5);
        // SAFETY: all pointers are to locals that outlive the call; the text is copied and released below.
        let major = unsafe { (self.display_status)(&mut minor, status, kind, &krb5, &mut more, &mut text) };
        let words = self.take(text);
        if major & GSS_ERROR_MASK == 0 { String::from_utf8_lossy(&words).into_owned() } else { String::new() }
    }

    /// Copies a buffer that the library allocated, and releases it.
    pub fn take(&self, mut buffer: gss_buffer_desc) -> Vec<u8> {
        let bytes = bytes(&buffer).to_vec();
        let mut minor = 0;
        // SAFETY: the library filled it or left it empty; either may be released, once, and nobody uses it afterwards.
        unsafe { (self.release_buffer)(&mut minor, &mut buffer) };
        bytes
    }

    /// Copies the first buffer of a set, and releases the set.
    pub fn take_first(&self, mut set: *mut gss_buffer_set_desc) -> Option<Vec<u8>> {
        let mut first = None;
        // SAFETY: null, or a set that the library made, which lives until it is released below.
        if let Some(known) = unsafe { set.as_ref() }
            && known.count > 0
        {
            // SAFETY: `elements` points to `count` buffers, so a non-null one has a first.
            first = unsafe { known.elements.as_ref() }.map(|buffer| bytes(buffer).to_vec());
        }
        let mut minor = 0;
        // SAFETY: released once; null is allowed.
        unsafe { (self.release_buffer_set)(&mut minor, &mut set) };
        first
    }

    /// Converts a name to text, and releases it.
    pub fn take_name(&self, mut name: gss_name_t) -> Result<String, Error> {
        let mut minor = 0;
        let mut text = empty();
        // SAFETY: the library made the name; the name type is not requested.
        let major = unsafe { (self.display_name)(&mut minor, name, &mut text, ptr::null_mut()) };
        let words = self.take(text);
        let mut ignored = 0;
        // SAFETY: released once, and not used afterwards.
        unsafe { (self.release_name)(&mut ignored, &mut name) };
        if major & GSS_ERROR_MASK != 0 {
            return Err(self.error(major, minor));
        }
        String::from_utf8(words).map_err(|_| Error::Unexpected("a name that is not valid UTF-8"))
    }
}

/// Lends our bytes to the library for one call; the library does not write to them.
pub fn buffer(bytes: &[u8]) -> gss_buffer_desc {
    gss_buffer_desc { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
}

/// A buffer for the library to fill.
pub fn empty() -> gss_buffer_desc {
    gss_buffer_desc { length: 0, value: ptr::null_mut() }
}

/// An object identifier with static lifetime.
pub fn oid(elements: &'static [u8]) -> gss_OID_desc {
    gss_OID_desc { length: elements.len() as OM_uint32, elements: elements.as_ptr().cast::<c_void>() }
}

fn bytes(buffer: &gss_buffer_desc) -> &[u8] {
    match buffer.value.is_null() || buffer.length == 0 {
        true => &[],
        // SAFETY: the library reports that many bytes at this address, and they live until the buffer is released.
        false => unsafe { std::slice::from_raw_parts(buffer.value.cast::<u8>(), buffer.length) },
    }
}
