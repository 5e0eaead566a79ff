//! A SPNEGO mechanism other than NTLM: it exchanges tokens until the client is authenticated.
//!
//! Spec: RFC 4178 3.2, 5. SPNEGO does not look into the tokens. Kerberos is the only such mechanism; the trait exists
//! so that tests can exercise SPNEGO with another one, without a realm.

use std::sync::Arc;

use weft_kerberos::{Context, Error, Keytab, Step};

/// One client's context.
pub(super) trait Mechanism {
    /// Processes the client's next token.
    fn step(&mut self, token: &[u8]) -> Result<Step, Error>;
    /// Computes the MIC of `message`.
    fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, Error>;
    /// Whether `mic` is the client's MIC of `message`.
    fn verify(&mut self, message: &[u8], mic: &[u8]) -> bool;
}

impl Mechanism for Context {
    fn step(&mut self, token: &[u8]) -> Result<Step, Error> {
        Context::step(self, token)
    }
    fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, Error> {
        Context::mic(self, message)
    }
    fn verify(&mut self, message: &[u8], mic: &[u8]) -> bool {
        Context::verify(self, message, mic)
    }
}

/// Creates the contexts.
pub(super) type Contexts = Arc<dyn Fn() -> Box<dyn Mechanism>>;

/// Creates contexts from a keytab.
pub(super) fn of(keytab: Arc<Keytab>) -> Contexts {
    Arc::new(move || Box::new(keytab.context()))
}
