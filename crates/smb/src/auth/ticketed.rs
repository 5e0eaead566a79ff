//! The client side of authentication with a Kerberos ticket.
//!
//! Spec: [MS-SPNG] 3.1.5, RFC 4178 4.2, RFC 4121. Owns the context. It never falls back to a password: a caller that
//! asks for Kerberos gets Kerberos, or an error that says why not.
//!
//! ```text
//! start() -> NegTokenInit(AP-REQ)      step(AP-REP) -> None      or, if the server requires it: Some(mechListMIC) first
//! ```

use weft_kerberos::{Error, Initiator, Progress};
use weft_wire::spnego::{KERBEROS, NegState, NegTokenInit, NegTokenResp};
use zeroize::Zeroizing;

use super::AuthError;

/// Why authentication with a ticket failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TicketError {
    /// There is no ticket or no library, or the server failed to prove its identity.
    #[error("{0}")]
    Kerberos(#[from] Error),
    /// The server's token is not allowed here.
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
    /// Starts; the second value is the first token. `host` is the server's name as the KDC knows it. This may ask the
    /// KDC, which can take seconds.
    pub fn start(host: &str) -> Result<(Ticketed, Vec<u8>), TicketError> {
        let mut context = Initiator::new("cifs", host)?;
        let Progress::Continue(token) = context.step(b"")? else {
            return Err(AuthError::Unexpected("Kerberos completed without the server's answer").into());
        };
        let init = NegTokenInit::new(&[KERBEROS], Some(token));
        let token = init.emit();
        Ok((Ticketed { context, mech_types: init.mech_types_der, key: None }, token))
    }

    /// Processes the server's next token. Send the token in `Some`; `None` means success.
    pub fn step(&mut self, token: &[u8]) -> Result<Option<Vec<u8>>, TicketError> {
        let said = NegTokenResp::parse(token)?;
        if said.supported_mech.is_some_and(|mech| mech != KERBEROS) {
            return Err(AuthError::NoMechanism.into());
        }
        let mut answer = None;
        match (&self.key, said.response_token) {
            (None, Some(token)) => match self.context.step(&token)? {
                Progress::Continue(token) => return Ok(Some(response(Some(token), None))),
                Progress::Done { token, key, .. } => {
                    self.key = Some(key);
                    answer = Some(token).filter(|token| !token.is_empty());
                }
            },
            (None, None) => return Err(AuthError::Unexpected("the server did not prove its identity").into()),
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
            Some(_) => Err(AuthError::Unexpected("the server did not complete the negotiation").into()),
        }
    }

    /// The session key, 16 bytes or more, once [`Ticketed::step`] has returned `None`.
    pub fn key(&self) -> Option<&[u8]> {
        self.key.as_ref().map(|key| &key[..])
    }
}

fn response(response_token: Option<Vec<u8>>, mech_list_mic: Option<Vec<u8>>) -> Vec<u8> {
    NegTokenResp { neg_state: None, supported_mech: None, response_token, mech_list_mic }.emit()
}
