//! The part of a security context that acceptor (`context`) and initiator (`initiator`) share: peer names, key and
//! MICs and encryption.
//!
//! Spec: RFC 2744 5.15, 5.31 (MICs), 5.34, 5.35 (encryption), 5.12 (inquiry). Owns the library's context, which is deleted on drop.

use std::ptr;

use zeroize::Zeroizing;

use crate::bindings::*;
use crate::library::{Gss, buffer, empty, oid};
use crate::{Error, Principal};

/// A context allocated by the library.
pub(crate) struct Handle {
    pub gss: &'static Gss,
    /// Null at first; set by the library at the first token.
    pub context: gss_ctx_id_t,
}

// SAFETY: a context may move between threads if only one uses it at a time; all calls take `&mut self`.
unsafe impl Send for Handle {}

impl Handle {
    pub fn new(gss: &'static Gss) -> Handle {
        Handle { gss, context: ptr::null_mut() }
    }

    /// The initiator, and the service that it authenticated to.
    pub fn names(&mut self) -> Result<(Principal, Principal), Error> {
        let [client, service] = self.inquire()?;
        let read = |name: String| Principal::parse(&name).ok_or(Error::Unexpected("a name without a realm"));
        Ok((read(client?)?, read(service?)?))
    }

    /// The initiator; `None` if its name has a form that we do not parse. At the initiator, the service may have no realm.
    pub fn client(&mut self) -> Result<Option<Principal>, Error> {
        let [client, _service] = self.inquire()?;
        Ok(Principal::parse(&client?))
    }

    /// Both names as text.
    fn inquire(&mut self) -> Result<[Result<String, Error>; 2], Error> {
        let gss = self.gss;
        let (mut minor, mut client, mut service) = (0, ptr::null_mut(), ptr::null_mut());
        // SAFETY: the context is complete; results that we do not need are null.
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
        Ok([gss.take_name(client), gss.take_name(service)])
    }

    /// The session key; its length depends on the encryption type.
    pub fn key(&mut self) -> Result<Zeroizing<Vec<u8>>, Error> {
        let gss = self.gss;
        let (mut minor, mut set) = (0, ptr::null_mut());
        let which = oid(SESSION_KEY);
        // SAFETY: the context is complete; the set is released by `take_first`.
        let major = unsafe { (gss.inquire_by_oid)(&mut minor, self.context, &which, &mut set) };
        let key = gss.take_first(set).map(Zeroizing::new);
        match major & GSS_ERROR_MASK {
            0 => key.filter(|key| key.len() >= 16).ok_or(Error::Unexpected("a key shorter than 16 bytes")),
            _ => Err(gss.error(major, minor)),
        }
    }

    /// Computes the MIC of `message`.
    pub fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let gss = self.gss;
        let mut minor = 0;
        let mut output = empty();
        // SAFETY: everything pointed to outlives the call.
        let major = unsafe {
            (gss.get_mic)(&mut minor, self.context, GSS_C_QOP_DEFAULT, &buffer(message), &mut output)
        };
        let mic = gss.take(output);
        if major & GSS_ERROR_MASK == 0 { Ok(mic) } else { Err(gss.error(major, minor)) }
    }

    /// Whether `mic` is the peer's MIC of `message`.
    pub fn verify(&mut self, message: &[u8], mic: &[u8]) -> bool {
        let gss = self.gss;
        let mut minor = 0;
        // SAFETY: everything pointed to outlives the call; the quality of protection is not requested.
        let major = unsafe {
            (gss.verify_mic)(&mut minor, self.context, &buffer(message), &buffer(mic), ptr::null_mut())
        };
        // Supplementary bits (out of sequence, duplicate) count as failures here.
        major == GSS_S_COMPLETE
    }

    /// Encrypts `message`.
    pub fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let gss = self.gss;
        let (mut minor, mut encrypted) = (0, 0);
        let mut output = empty();
        // SAFETY: everything pointed to outlives the call.
        let major = unsafe {
            (gss.wrap)(
                &mut minor,
                self.context,
                1,
                GSS_C_QOP_DEFAULT,
                &buffer(message),
                &mut encrypted,
                &mut output,
            )
        };
        let token = gss.take(output);
        match (major & GSS_ERROR_MASK, encrypted) {
            (0, 0) => Err(Error::Unexpected("a token that is not encrypted")),
            (0, _) => Ok(token),
            _ => Err(gss.error(major, minor)),
        }
    }

    /// Decrypts the peer's `token`; `None` if it is not the peer's, or not encrypted.
    pub fn unwrap(&mut self, token: &[u8]) -> Option<Vec<u8>> {
        let gss = self.gss;
        let (mut minor, mut encrypted) = (0, 0);
        let mut output = empty();
        // SAFETY: everything pointed to outlives the call; the quality of protection is not requested.
        let major = unsafe {
            (gss.unwrap)(
                &mut minor,
                self.context,
                &buffer(token),
                &mut output,
                &mut encrypted,
                ptr::null_mut(),
            )
        };
        let message = gss.take(output);
        (major == GSS_S_COMPLETE && encrypted != 0).then_some(message)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: null, or made by the library and deleted once; no output token is requested.
        unsafe { (self.gss.delete_sec_context)(&mut minor, &mut self.context, ptr::null_mut()) };
    }
}
