//! A client's ticket for a service, shown to it.
//!
//! Spec: RFC 2744 5.16 (gss_import_name), 5.19 (gss_init_sec_context); RFC 4121 4.1.
//! Owns: the service's name and the context; both are released when dropped.
//! Does not: ask for passwords: the ticket comes from the user's credential cache (kinit), or is asked of the KDC with what
//! is there, which may take seconds: call it where that hurts nobody.

use std::ptr;

use zeroize::Zeroizing;

use crate::Error;
use crate::bindings::*;
use crate::handle::Handle;
use crate::library::{Gss, buffer, empty, gss, oid};

/// A name of the library.
struct Name {
    gss: &'static Gss,
    name: gss_name_t,
}

// SAFETY: a name does not change after it was made, and only its owner releases it.
unsafe impl Send for Name {}

impl Name {
    /// `service@host`.
    fn of_service(gss: &'static Gss, service: &str) -> Result<Name, Error> {
        let (mut minor, mut name) = (0, ptr::null_mut());
        let kind = oid(HOSTBASED_SERVICE);
        // SAFETY: everything pointed to lives through the call and is only read; the name is ours to release.
        let major = unsafe { (gss.import_name)(&mut minor, &buffer(service.as_bytes()), &kind, &mut name) };
        if major & GSS_ERROR_MASK == 0 { Ok(Name { gss, name }) } else { Err(gss.error(major, minor)) }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: made by the library, released once.
        unsafe { (self.gss.release_name)(&mut minor, &mut self.name) };
    }
}

/// What to do after a token.
pub enum Progress {
    /// Send this and expect another.
    Continue(Vec<u8>),
    /// The server has proven that it is who the ticket is for.
    Done {
        /// To be sent to the server; mostly empty.
        token: Vec<u8>,
        /// The key that both sides share, as long as its kind has it.
        key: Zeroizing<Vec<u8>>,
    },
}

/// One context that we set up.
pub struct Initiator {
    handle: Handle,
    service: Name,
}

impl Initiator {
    /// For the service `class` of `host`, as in `cifs` of `nas.example.org`.
    ///
    /// # Errors
    /// There is no library.
    pub fn new(class: &str, host: &str) -> Result<Initiator, Error> {
        let gss = gss()?;
        let service = Name::of_service(gss, &format!("{class}@{host}"))?;
        Ok(Initiator { handle: Handle::new(gss), service })
    }

    /// Takes the server's next token, an empty one at first. The server proves itself, too.
    ///
    /// # Errors
    /// There is no ticket, or the KDC gives none for this service; the server is not who the ticket is for.
    pub fn step(&mut self, token: &[u8]) -> Result<Progress, Error> {
        let gss = self.handle.gss;
        let (mut minor, mut flags) = (0, 0);
        let mut output = empty();
        let krb5 = oid(KRB5);
        // SAFETY: everything pointed to lives through the call; the context is null at first and the library's own from
        // then on; the default credential, the default lifetime and no channel bindings are null and 0.
        let major = unsafe {
            (gss.init_sec_context)(
                &mut minor,
                ptr::null_mut(),
                &mut self.handle.context,
                self.service.name,
                &krb5,
                GSS_C_MUTUAL_FLAG | GSS_C_INTEG_FLAG,
                0,
                ptr::null(),
                &buffer(token),
                ptr::null_mut(),
                &mut output,
                &mut flags,
                ptr::null_mut(),
            )
        };
        let answer = gss.take(output);
        if major & GSS_ERROR_MASK != 0 {
            return Err(gss.error(major, minor));
        }
        if major & GSS_S_CONTINUE_NEEDED != 0 {
            return Ok(Progress::Continue(answer));
        }
        if flags & GSS_C_MUTUAL_FLAG == 0 {
            return Err(Error::Unexpected("a server that has not proven itself"));
        }
        Ok(Progress::Done { token: answer, key: self.handle.key()? })
    }

    /// What proves that `message` comes from us.
    ///
    /// # Errors
    /// The context is not complete, or has expired.
    pub fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.handle.mic(message)
    }

    /// Whether `mic` proves that `message` comes from the server.
    pub fn verify(&mut self, message: &[u8], mic: &[u8]) -> bool {
        self.handle.verify(message, mic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_ticket_is_told_so() {
        match Initiator::new("cifs", "host.invalid") {
            Err(Error::Library(said)) => assert!(said.contains("libgssapi")),
            Err(e) => panic!("{e}"),
            Ok(mut initiator) => match initiator.step(b"") {
                Err(Error::Gss(said)) => assert!(!said.is_empty()),
                Err(e) => panic!("{e}"),
                Ok(_) => panic!("a ticket for a host that cannot be"),
            },
        }
    }
}
