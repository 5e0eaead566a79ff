//! The client side: authenticates to a service with a Kerberos ticket.
//!
//! Spec: RFC 2744 5.16 (gss_import_name), 5.19 (gss_init_sec_context); RFC 4121 4.1. Owns the service's name and the
//! context; both are released on drop. Never asks for a password. The ticket comes from the user's credential cache
//! (kinit); if the cache holds only a ticket-granting ticket, the library asks the KDC. That may block for seconds, so
//! call it off the cores.

use std::ptr;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::bindings::*;
use crate::handle::Handle;
use crate::library::{Gss, buffer, empty, gss, oid};
use crate::{Error, Principal};

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
        /// Whose ticket it is; `None` if the name has a form that we do not parse.
        client: Option<Principal>,
        /// Remaining lifetime of the context; `None` if it does not expire.
        lifetime: Option<Duration>,
    },
}

/// A context that we initiate.
pub struct Initiator {
    handle: Handle,
    service: Name,
    flags: OM_uint32,
}

impl Initiator {
    /// A context for service `class` on `host`, such as `cifs` on `nas.example.org`.
    ///
    /// # Errors
    /// The library is missing.
    pub fn new(class: &str, host: &str) -> Result<Initiator, Error> {
        let gss = gss()?;
        let service = Name::of_service(gss, &format!("{class}@{host}"))?;
        Ok(Initiator { handle: Handle::new(gss), service, flags: GSS_C_MUTUAL_FLAG | GSS_C_INTEG_FLAG })
    }

    /// The same for a context that encrypts.
    #[must_use]
    pub fn encrypting(self) -> Initiator {
        Initiator { flags: self.flags | GSS_C_CONF_FLAG, ..self }
    }

    /// Processes the server's next token; pass an empty one first. Authentication is mutual.
    ///
    /// # Errors
    /// There is no ticket, the KDC does not issue one for this service, or the server fails to prove its identity.
    pub fn step(&mut self, token: &[u8]) -> Result<Progress, Error> {
        let gss = self.handle.gss;
        let (mut minor, mut flags, mut seconds) = (0, 0, 0);
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
                self.flags,
                0,
                ptr::null(),
                &buffer(token),
                ptr::null_mut(),
                &mut output,
                &mut flags,
                &mut seconds,
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
        if self.flags & !flags & GSS_C_CONF_FLAG != 0 {
            return Err(Error::Unexpected("a context that cannot encrypt"));
        }
        let client = self.handle.client()?;
        let lifetime = (seconds != GSS_C_INDEFINITE).then(|| Duration::from_secs(seconds.into()));
        Ok(Progress::Done { token: answer, key: self.handle.key()?, client, lifetime })
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

    /// Encrypts `message` for the server.
    ///
    /// # Errors
    /// The context is incomplete or has expired.
    pub fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.handle.wrap(message)
    }

    /// Decrypts the server's `token`; `None` if it is not the server's, or not encrypted.
    pub fn unwrap(&mut self, token: &[u8]) -> Option<Vec<u8>> {
        self.handle.unwrap(token)
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
                Err(Error::Gss(failure)) => assert!(!failure.to_string().is_empty()),
                Err(e) => panic!("{e}"),
                Ok(_) => panic!("a ticket for a host that cannot exist"),
            },
        }
    }
}
