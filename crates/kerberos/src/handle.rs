//! What both sides have of a context that is being set up: who it is with, its key, and MICs.
//!
//! Spec: RFC 2744 5.15, 5.31 (MICs), 5.12 (inquiry). Owns: the library's context, deleted when dropped.
//! Does not: set it up: a server accepts (see `context`), a client initiates (see `initiator`).

use std::ptr;

use zeroize::Zeroizing;

use crate::bindings::*;
use crate::library::{Gss, buffer, empty, oid};
use crate::{Error, Principal};

/// A context of the library.
pub(crate) struct Handle {
    pub gss: &'static Gss,
    /// Null at first; the library's own from the first token on.
    pub context: gss_ctx_id_t,
}

// SAFETY: a context may be used by one thread after the other; all calls take `&mut self`.
unsafe impl Send for Handle {}

impl Handle {
    pub fn new(gss: &'static Gss) -> Handle {
        Handle { gss, context: ptr::null_mut() }
    }

    /// Who initiated, and for which service.
    pub fn names(&mut self) -> Result<(Principal, Principal), Error> {
        let gss = self.gss;
        let (mut minor, mut client, mut service) = (0, ptr::null_mut(), ptr::null_mut());
        // SAFETY: the context is complete; what is not asked for is null.
        let major = unsafe {
            (gss.inquire_context)(
                &mut minor,
                self.context,
                &mut client,
                &mut service,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        if major & GSS_ERROR_MASK != 0 {
            return Err(gss.error(major, minor));
        }
        let (client, service) = (gss.take_name(client), gss.take_name(service));
        let read = |name: String| Principal::parse(&name).ok_or(Error::Unexpected("a name without a realm"));
        Ok((read(client?)?, read(service?)?))
    }

    /// The key that both sides share, as long as its kind has it.
    pub fn key(&mut self) -> Result<Zeroizing<Vec<u8>>, Error> {
        let gss = self.gss;
        let (mut minor, mut set) = (0, ptr::null_mut());
        let which = oid(SESSION_KEY);
        // SAFETY: the context is complete; the set is released by `take_first`.
        let major = unsafe { (gss.inquire_by_oid)(&mut minor, self.context, &which, &mut set) };
        let key = gss.take_first(set).map(Zeroizing::new);
        match major & GSS_ERROR_MASK {
            0 => key.filter(|key| key.len() >= 16).ok_or(Error::Unexpected("a key of less than 16 bytes")),
            _ => Err(gss.error(major, minor)),
        }
    }

    /// What proves that `message` comes from us.
    pub fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let gss = self.gss;
        let mut minor = 0;
        let mut output = empty();
        // SAFETY: everything pointed to lives through the call.
        let major = unsafe {
            (gss.get_mic)(&mut minor, self.context, GSS_C_QOP_DEFAULT, &buffer(message), &mut output)
        };
        let mic = gss.take(output);
        if major & GSS_ERROR_MASK == 0 { Ok(mic) } else { Err(gss.error(major, minor)) }
    }

    /// Whether `mic` proves that `message` comes from the other side.
    pub fn verify(&mut self, message: &[u8], mic: &[u8]) -> bool {
        let gss = self.gss;
        let mut minor = 0;
        // SAFETY: everything pointed to lives through the call; the quality is not asked for.
        let major = unsafe {
            (gss.verify_mic)(&mut minor, self.context, &buffer(message), &buffer(mic), ptr::null_mut())
        };
        // Also no longer in order, or a second time, is wrong here.
        major == GSS_S_COMPLETE
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: null, or made by the library and deleted once; no token is wanted.
        unsafe { (self.gss.delete_sec_context)(&mut minor, &mut self.context, ptr::null_mut()) };
    }
}
