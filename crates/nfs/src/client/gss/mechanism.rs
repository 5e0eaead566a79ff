//! One context of GSS-API that we initiate. Kerberos is the only mechanism; the trait exists so that tests can establish
//! contexts without a realm.

use weft_kerberos::{Error, Initiator, Progress};

/// One context. [`Mechanism::step`] may block; the other calls only compute.
pub(crate) trait Mechanism: Send {
    /// Processes the server's token; an empty one begins.
    fn step(&mut self, token: &[u8]) -> Result<Progress, Error>;
    /// Computes the MIC of `message`.
    fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, Error>;
    /// Whether `mic` is the server's MIC of `message`.
    fn verify(&mut self, message: &[u8], mic: &[u8]) -> bool;
    /// Encrypts `message` for the server.
    fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, Error>;
    /// Decrypts the server's `token`.
    fn unwrap(&mut self, token: &[u8]) -> Option<Vec<u8>>;
}

impl Mechanism for Initiator {
    fn step(&mut self, token: &[u8]) -> Result<Progress, Error> {
        Initiator::step(self, token)
    }
    fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, Error> {
        Initiator::mic(self, message)
    }
    fn verify(&mut self, message: &[u8], mic: &[u8]) -> bool {
        Initiator::verify(self, message, mic)
    }
    fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, Error> {
        Initiator::wrap(self, message)
    }
    fn unwrap(&mut self, token: &[u8]) -> Option<Vec<u8>> {
        Initiator::unwrap(self, token)
    }
}

/// Makes contexts.
pub(crate) type Contexts = Box<dyn Fn() -> Result<Box<dyn Mechanism>, Error>>;

/// Makes contexts for the service `nfs` on this host (RFC 7530 3.2.1.1), with the ticket of the user.
pub(crate) fn of(host: String) -> Contexts {
    Box::new(move || Ok(Box::new(Initiator::new("nfs", &host)?.encrypting())))
}
