//! The client's side of authentication by a Kerberos ticket.
//!
//! Spec: [MS-SPNG] 3.1.5, RFC 4178 4.2, RFC 4121. Owns: the context.
//! Does not: fall back to a password: who asks for Kerberos gets Kerberos, or an error that says why not.
//!
//! ```text
//! start() -> NegTokenInit(AP-REQ)      step(AP-REP) -> None      or, where the server wants it: Some(mechListMIC) first
//! ```

use weft_kerberos::{Error, Initiator, Progress};
use weft_wire::spnego::{KERBEROS, NegState, NegTokenInit, NegTokenResp};
use zeroize::Zeroizing;

use super::AuthError;

/// Why a ticket did not do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TicketError {
    /// No ticket, no library, or a server that is not who it should be.
    #[error("{0}")]
    Kerberos(#[from] Error),
    /// The server's token has no place here.
    #[error("{0}")]
    Auth(#[from] AuthError),
}

impl From<weft_wire::spnego::Malformed> for TicketError {
    fn from(malformed: weft_wire::spnego::Malformed) -> TicketError {
        AuthError::from(malformed).into()
    }
}

/// One authentication in progress.
pub struct Ticketed {
    context: Initiator,
    mech_types: Vec<u8>,
    key: Option<Zeroizing<Vec<u8>>>,
}

impl Ticketed {
    /// Starts; the second value is the first token. `host` is the server's name as the KDC knows it. May ask the KDC, so it
    /// may take seconds.
    pub fn start(host: &str) -> Result<(Ticketed, Vec<u8>), TicketError> {
        let mut context = Initiator::new("cifs", host)?;
        let Progress::Continue(token) = context.step(b"")? else {
            return Err(AuthError::Unexpected("a ticket that needs no answer").into());
        };
        let init = NegTokenInit::new(&[KERBEROS], Some(token));
        let token = init.emit();
        Ok((Ticketed { context, mech_types: init.mech_types_der, key: None }, token))
    }

    /// Takes the server's next token. `Some` is to be sent; `None` means that we are done.
    pub fn step(&mut self, token: &[u8]) -> Result<Option<Vec<u8>>, TicketError> {
        let said = NegTokenResp::parse(token)?;
        if said.supported_mech.is_some_and(|mech| mech != KERBEROS) {
            return Err(AuthError::NoMechanism.into());
        }
        let mut answer = None;
        match (&self.key, said.response_token) {
            (None, Some(token)) => match self.context.step(&token)? {
                Progress::Continue(token) => return Ok(Some(response(Some(token), None))),
                Progress::Done { token, key } => {
                    self.key = Some(key);
                    answer = Some(token).filter(|token| !token.is_empty());
                }
            },
            (None, None) => return Err(AuthError::Unexpected("no proof of the server").into()),
            (Some(_), _) => {}
        }
        if let Some(mic) = said.mech_list_mic
            && !self.context.verify(&self.mech_types, &mic)
        {
            return Err(AuthError::LogonFailure.into());
        }
        match said.neg_state {
            Some(NegState::AcceptCompleted) if answer.is_none() => Ok(None),
            None | Some(NegState::AcceptIncomplete | NegState::RequestMic) => {
                let mic = self.context.mic(&self.mech_types)?;
                Ok(Some(response(answer, Some(mic))))
            }
            Some(_) => Err(AuthError::Unexpected("the server does not complete").into()),
        }
    }

    /// The key of the session, once [`Ticketed::step`] has given `None`: 16 bytes or more.
    pub fn key(&self) -> Option<&[u8]> {
        self.key.as_ref().map(|key| &key[..])
    }
}

fn response(response_token: Option<Vec<u8>>, mech_list_mic: Option<Vec<u8>>) -> Vec<u8> {
    NegTokenResp { neg_state: None, supported_mech: None, response_token, mech_list_mic }.emit()
}
