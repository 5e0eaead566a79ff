//! A keytab, and the security contexts that clients establish with it.
//!
//! Spec: RFC 2744 5.1 (gss_accept_sec_context); RFC 4121 (the tokens). Owns the acceptor's credential and one context
//! per client; both are released on drop. Accepting a ticket blocks for a few milliseconds: it reads the keytab and
//! records the ticket in the replay cache.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::bindings::*;
use crate::handle::Handle;
use crate::library::{Gss, buffer, empty, gss, oid};
use crate::{Error, Principal};

/// The keys of our services, shared by all connections.
pub struct Keytab {
    gss: &'static Gss,
    credential: gss_cred_id_t,
}

// SAFETY: RFC 2744 allows one credential to establish several contexts, and MIT's library guards credentials with its
// own locks. The last reference to be dropped releases it.
unsafe impl Send for Keytab {}
// SAFETY: as above; it is only read.
unsafe impl Sync for Keytab {}

impl std::fmt::Debug for Keytab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keytab")
    }
}

impl Keytab {
    /// Opens a keytab; clients may present tickets for any service in it.
    ///
    /// # Errors
    /// The library is missing, or the keytab does not exist or is empty.
    pub fn open(path: &Path) -> Result<Arc<Keytab>, Error> {
        let gss = gss()?;
        let mut value = b"FILE:".to_vec();
        value.extend_from_slice(path.as_os_str().as_bytes());
        let value = CString::new(value).map_err(|_| Error::Unexpected("a path that contains a NUL byte"))?;
        let element = gss_key_value_element_desc { key: c"keytab".as_ptr(), value: value.as_ptr() };
        let store = gss_key_value_set_desc { count: 1, elements: &element };
        let krb5 = oid(KRB5);
        let mechanisms = gss_OID_set_desc { count: 1, elements: &krb5 };
        let (mut minor, mut credential) = (0, ptr::null_mut());
        // SAFETY: everything pointed to outlives the call and is only read; results that we do not need are null.
        let major = unsafe {
            (gss.acquire_cred_from)(
                &mut minor,
                ptr::null_mut(),
                GSS_C_INDEFINITE,
                &mechanisms,
                GSS_C_ACCEPT,
                &store,
                &mut credential,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        match major & GSS_ERROR_MASK {
            0 => Ok(Arc::new(Keytab { gss, credential })),
            _ => Err(gss.error(major, minor)),
        }
    }

    /// A context for one client.
    pub fn context(self: &Arc<Keytab>) -> Context {
        Context { handle: Handle::new(self.gss), keytab: self.clone() }
    }
}

impl Drop for Keytab {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: acquired once, released once; every context holds a reference to us.
        unsafe { (self.gss.release_cred)(&mut minor, &mut self.credential) };
    }
}

/// One client's context.
pub struct Context {
    /// Declared before the keytab because it must be dropped first.
    handle: Handle,
    keytab: Arc<Keytab>,
}

/// What to do after a token.
pub enum Step {
    /// Send this and expect another.
    Continue(Vec<u8>),
    /// The client is authenticated.
    Done {
        /// Proves our identity to the client; send it unless it is empty.
        token: Vec<u8>,
        /// The authenticated client.
        client: Principal,
        /// The service that the ticket was issued for.
        service: Principal,
        /// The session key; its length depends on the encryption type.
        key: Zeroizing<Vec<u8>>,
        /// Remaining lifetime of the ticket; `None` if it does not expire.
        lifetime: Option<Duration>,
    },
}

impl Context {
    /// Processes the client's next token.
    ///
    /// # Errors
    /// The ticket is for another service, expired, not yet valid or replayed, or the token is malformed.
    pub fn step(&mut self, token: &[u8]) -> Result<Step, Error> {
        let gss = self.keytab.gss;
        let (mut minor, mut flags, mut seconds) = (0, 0, 0);
        let mut output = empty();
        // SAFETY: everything pointed to outlives the call; the context is null at first and the library's own from then
        // on; the name, the mechanism and delegated credentials are not requested.
        let major = unsafe {
            (gss.accept_sec_context)(
                &mut minor,
                &mut self.handle.context,
                self.keytab.credential,
                &buffer(token),
                ptr::null(),
                ptr::null_mut(),
                ptr::null_mut(),
                &mut output,
                &mut flags,
                &mut seconds,
                ptr::null_mut(),
            )
        };
        let answer = gss.take(output);
        if major & GSS_ERROR_MASK != 0 {
            return Err(gss.error(major, minor));
        }
        if major & GSS_S_CONTINUE_NEEDED != 0 {
            return Ok(Step::Continue(answer));
        }
        if flags & GSS_C_ANON_FLAG != 0 {
            return Err(Error::Gss("the client is anonymous".into()));
        }
        let (client, service) = self.handle.names()?;
        Ok(Step::Done {
            token: answer,
            client,
            service,
            key: self.handle.key()?,
            lifetime: (seconds != GSS_C_INDEFINITE).then(|| Duration::from_secs(seconds.into())),
        })
    }

    /// Computes the MIC of `message`.
    ///
    /// # Errors
    /// The context is incomplete or has expired.
    pub fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.handle.mic(message)
    }

    /// Whether `mic` is the client's MIC of `message`.
    pub fn verify(&mut self, message: &[u8], mic: &[u8]) -> bool {
        self.handle.verify(message, mic)
    }

    /// Encrypts `message` for the client.
    ///
    /// # Errors
    /// The context is incomplete or has expired, or its encryption type cannot encrypt.
    pub fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.handle.wrap(message)
    }

    /// Decrypts the client's `token`; `None` if it is not the client's, or not encrypted.
    pub fn unwrap(&mut self, token: &[u8]) -> Option<Vec<u8>> {
        self.handle.unwrap(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_said() {
        match Keytab::open(Path::new("/nonexistent/keytab")) {
            Err(Error::Gss(failure)) => assert!(!failure.to_string().is_empty()),
            // Without the library the error says what to install.
            Err(Error::Library(said)) => assert!(said.contains("libgssapi")),
            Err(Error::Unexpected(what)) => panic!("{what}"),
            // Some versions read the file only when the first ticket arrives.
            Ok(keytab) => assert!(keytab.context().step(b"no ticket").is_err()),
        }
    }
}
