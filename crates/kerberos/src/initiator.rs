//! The client side: authenticates to a service with a Kerberos ticket.
//!
//! Spec: RFC 2744 5.16 (gss_import_name), 5.19 (gss_init_sec_context); RFC 4121 4.1. Owns the service's name and the
//! context; both are released on drop. Never asks for a password. The ticket comes from the user's credential cache
//! (kinit); if the cache holds only a ticket-granting ticket, the library asks the KDC. That may block for seconds, so
//! call it off the cores.

use std::ptr;

use zeroize::Zeroizing;

use crate::Error;
use crate::bindings::*;
use crate::handle::Handle;
use crate::library::{Gss, buffer, empty, gss, oid};

/// A name allocated by the library.
struct Name {
    gss: &'static Gss,
    name: gss_name_t,
}

// SAFETY: a name is immutable, and only its owner releases it.
unsafe impl Send for Name {}

impl Name {
    /// Imports a host-based service name, `service@host`.
    fn of_service(gss: &'static Gss, service: &str) -> Result<Name, Error> {
        let (mut minor, mut name) = (0, ptr::null_mut());
        let kind = oid(HOSTBASED_SERVICE);
        // SAFETY: everything pointed to outlives the call and is only read; we release the name.
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
    /// The server has proven that it is the service the ticket was issued for.
    Done {
        /// To be sent to the server; usually empty.
        token: Vec<u8>,
        /// The session key; its length depends on the encryption type.
        key: Zeroizing<Vec<u8>>,
    },
}

/// A context that we initiate.
pub struct Initiator {
    handle: Handle,
    service: Name,
}

impl Initiator {
    /// A context for service `class` on `host`, such as `cifs` on `nas.example.org`.
    ///
    /// # Errors
    /// The library is missing.
    pub fn new(class: &str, host: &str) -> Result<Initiator, Error> {
        let gss = gss()?;
        let service = Name::of_service(gss, &format!("{class}@{host}"))?;
        Ok(Initiator { handle: Handle::new(gss), service })
    }

    /// Processes the server's next token; pass an empty one first. Authentication is mutual.
    ///
    /// # Errors
    /// There is no ticket, the KDC does not issue one for this service, or the server fails to prove its identity.
    pub fn step(&mut self, token: &[u8]) -> Result<Progress, Error> {
        let gss = self.handle.gss;
        let (mut minor, mut flags) = (0, 0);
        let mut output = empty();
        let krb5 = oid(KRB5);
        // SAFETY: everything pointed to outlives the call; the context is null at first and the library's own from then
        // on; null and 0 select the default credential, the default lifetime and no channel bindings.
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
            return Err(Error::Unexpected("the server did not authenticate itself"));
        }
        Ok(Progress::Done { token: answer, key: self.handle.key()? })
    }

    /// Computes the MIC of `message`.
    ///
    /// # Errors
    /// The context is incomplete or has expired.
    pub fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.handle.mic(message)
    }

    /// Whether `mic` is the server's MIC of `message`.
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
                Ok(_) => panic!("a ticket for a host that cannot exist"),
            },
        }
    }
}
