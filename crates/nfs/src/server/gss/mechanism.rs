//! One context of GSS-API. Kerberos is the only mechanism; the trait exists so that tests can establish contexts without a
//! realm.

use std::sync::Arc;

use weft_kerberos::{Context, Error, Keytab, Step};

/// One context. [`Mechanism::step`] may block; the other calls only compute.
pub(super) trait Mechanism: Send {
    /// Processes the client's token.
    fn step(&mut self, token: &[u8]) -> Result<Step, Error>;
    /// Computes the MIC of `message`.
    fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, Error>;
    /// Whether `mic` is the client's MIC of `message`.
    fn verify(&mut self, message: &[u8], mic: &[u8]) -> bool;
    /// Encrypts `message` for the client.
    fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, Error>;
    /// Decrypts the client's `token`.
    fn unwrap(&mut self, token: &[u8]) -> Option<Vec<u8>>;
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
    fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, Error> {
        Context::wrap(self, message)
    }
    fn unwrap(&mut self, token: &[u8]) -> Option<Vec<u8>> {
        Context::unwrap(self, token)
    }
}

/// Makes contexts.
pub(super) type Contexts = Box<dyn Fn() -> Box<dyn Mechanism> + Send + Sync>;

/// Makes contexts from a keytab.
pub(super) fn of(keytab: Arc<Keytab>) -> Contexts {
    Box::new(move || Box::new(keytab.context()))
}
