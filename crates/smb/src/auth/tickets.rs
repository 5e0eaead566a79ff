//! A mechanism beside NTLM, as SPNEGO sees it: tokens go in and out until it knows who the client is.
//!
//! Spec: RFC 4178 3.2, 5. Does not: look into tokens. Kerberos is the one such mechanism; tests have
//! another, so that what SPNEGO does with it is tried where there is no realm.

use std::sync::Arc;

use weft_kerberos::{Context, Error, Keytab, Step};

/// One client's context.
pub(super) trait Mechanism {
    /// Takes the client's next token.
    fn step(&mut self, token: &[u8]) -> Result<Step, Error>;
    /// What proves that `message` comes from us.
    fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, Error>;
    /// Whether `mic` proves that `message` comes from the client.
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

/// Where contexts come from.
pub(super) type Contexts = Arc<dyn Fn() -> Box<dyn Mechanism>>;

/// Those of a keytab.
pub(super) fn of(keytab: Arc<Keytab>) -> Contexts {
    Arc::new(move || Box::new(keytab.context()))
}
