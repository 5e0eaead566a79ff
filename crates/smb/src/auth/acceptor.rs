//! The server's side of authentication.
//!
//! Spec: [MS-NLMP] 3.2.5.1, [MS-SPNG] 3.2.5, RFC 4178 5 (mechListMIC).
//! Owns: the messages so far, which the MIC covers. Does not: keep state after an error; a failed acceptor refuses
//! every further token.
//!
//! A client may send NTLM messages bare, as Linux does, or wrapped in SPNEGO; the answers are wrapped alike.

use std::sync::Arc;

use subtle::{Choice, ConstantTimeEq};
use weft_wire::ntlm::{
    Authenticate, AvFlags, AvId, AvPairs, Challenge, Flags, Negotiate, NtlmV2Response, SIGNATURE, utf16,
};
use weft_wire::spnego::{NTLMSSP, NegState, NegTokenInit, NegTokenResp, Token};
use zeroize::Zeroizing;

use super::keys::{self, Side};
use super::{AuthError, SessionKey, Users};

/// What the challenge may offer; the client's wishes narrow it.
const OFFERED: Flags = Flags(
    Flags::NEGOTIATE_UNICODE.0
        | Flags::REQUEST_TARGET.0
        | Flags::NEGOTIATE_SIGN.0
        | Flags::NEGOTIATE_SEAL.0
        | Flags::NEGOTIATE_ALWAYS_SIGN.0
        | Flags::NEGOTIATE_EXTENDED_SESSIONSECURITY.0
        | Flags::NEGOTIATE_VERSION.0
        | Flags::NEGOTIATE_128.0
        | Flags::NEGOTIATE_KEY_EXCH.0
        | Flags::NEGOTIATE_56.0,
);

/// A user who proved to be one.
pub struct Login {
    /// The name as configured.
    pub user: Arc<str>,
    /// ExportedSessionKey.
    pub session_key: SessionKey,
}

/// What to do after a token.
pub enum Step {
    /// Send this and expect another token.
    Continue(Vec<u8>),
    /// Done. Send this (it may be empty).
    Done(Vec<u8>, Login),
}

/// One authentication in progress.
pub struct Acceptor {
    users: Arc<Users>,
    name: Arc<str>,
    server_challenge: [u8; 8],
    wrapping: Wrapping,
    state: State,
}

/// How the client wraps NTLM messages; known from its first token.
enum Wrapping {
    Unknown,
    Bare,
    Spnego {
        /// What the mechListMIC covers.
        mech_types: Vec<u8>,
        /// The client preferred another mechanism: without a MIC somebody may have removed it from the list
        /// (RFC 4178 5).
        mic_required: bool,
    },
}

enum State {
    WaitNegotiate,
    WaitAuthenticate { negotiate: Vec<u8>, challenge: Vec<u8>, flags: Flags },
    Ended,
}

impl Acceptor {
    /// Starts. `name` is the server's NetBIOS-like name; `server_challenge` must be random.
    pub fn new(users: Arc<Users>, name: Arc<str>, server_challenge: [u8; 8]) -> Acceptor {
        Acceptor { users, name, server_challenge, wrapping: Wrapping::Unknown, state: State::WaitNegotiate }
    }

    /// The token of the NEGOTIATE response: which mechanisms there are.
    pub fn hint() -> Vec<u8> {
        NegTokenInit::new(&[NTLMSSP], None).emit()
    }

    /// Takes the client's next token. `now` is a FILETIME (100 ns since 1601). After an error every call fails.
    pub fn step(&mut self, token: &[u8], now: u64) -> Result<Step, AuthError> {
        let state = std::mem::replace(&mut self.state, State::Ended);
        if token.starts_with(SIGNATURE) {
            if matches!(self.wrapping, Wrapping::Spnego { .. }) {
                return Err(AuthError::Unexpected("bare NTLM after SPNEGO"));
            }
            self.wrapping = Wrapping::Bare;
            return self.ntlm(state, token, None, now);
        }
        match (Token::parse(token)?, &self.wrapping) {
            (Token::Init(init), Wrapping::Unknown) => self.first(state, init, now),
            (Token::Resp(resp), Wrapping::Spnego { .. }) => {
                let token = resp.response_token.ok_or(AuthError::Unexpected("no responseToken"))?;
                self.ntlm(state, &token, resp.mech_list_mic.as_deref(), now)
            }
            _ => Err(AuthError::Unexpected("SPNEGO token out of order")),
        }
    }

    /// The user that the client's next token claims to prove, when it is the token that proves one.
    pub fn claimed_user(&self, token: &[u8]) -> Option<String> {
        let State::WaitAuthenticate { .. } = self.state else { return None };
        let user = |ntlm: &[u8]| Authenticate::parse(ntlm).ok().map(|message| message.user.to_string());
        match token.starts_with(SIGNATURE) {
            true => user(token),
            false => match Token::parse(token) {
                Ok(Token::Resp(resp)) => user(&resp.response_token?),
                _ => None,
            },
        }
    }

    fn first(&mut self, state: State, init: NegTokenInit, now: u64) -> Result<Step, AuthError> {
        if !init.mech_types.contains(&NTLMSSP) {
            return Err(AuthError::NoMechanism);
        }
        let preferred = init.mech_types[0] == NTLMSSP;
        self.wrapping = Wrapping::Spnego { mech_types: init.mech_types_der, mic_required: !preferred };
        match init.mech_token {
            // The optimistic token is for the preferred mechanism.
            Some(token) if preferred => self.ntlm(state, &token, None, now),
            _ => {
                self.state = state;
                let state = if preferred { NegState::AcceptIncomplete } else { NegState::RequestMic };
                let resp = NegTokenResp {
                    neg_state: Some(state),
                    supported_mech: Some(NTLMSSP),
                    ..NegTokenResp::default()
                };
                Ok(Step::Continue(resp.emit()))
            }
        }
    }

    fn ntlm(&mut self, state: State, token: &[u8], mic: Option<&[u8]>, now: u64) -> Result<Step, AuthError> {
        match state {
            State::WaitNegotiate => self.negotiate(token, now),
            State::WaitAuthenticate { negotiate, challenge, flags } => {
                let (login, flags) = self.authenticate(token, &negotiate, &challenge, flags)?;
                self.complete(login, flags, mic)
            }
            State::Ended => Err(AuthError::Unexpected("authentication has ended")),
        }
    }

    fn negotiate(&mut self, token: &[u8], now: u64) -> Result<Step, AuthError> {
        let wanted = Negotiate::parse(token)?.flags;
        if !wanted.contains(Flags::NEGOTIATE_UNICODE) {
            return Err(AuthError::Unexpected("2.2.2.5: NEGOTIATE without NEGOTIATE_UNICODE"));
        }
        let flags = wanted
            .intersection(OFFERED)
            .union(Flags::NEGOTIATE_NTLM)
            .union(Flags::TARGET_TYPE_SERVER)
            .union(Flags::NEGOTIATE_TARGET_INFO);
        let name = utf16(&self.name);
        let time = now.to_le_bytes();
        let mut pairs = AvPairs::default();
        // A server without a domain is its own: 2.2.2.1 wants both NetBIOS names.
        for id in [AvId::NbDomainName, AvId::NbComputerName, AvId::DnsDomainName, AvId::DnsComputerName] {
            pairs.set(id, &name);
        }
        pairs.set(AvId::Timestamp, &time);
        let challenge = Challenge {
            flags,
            target_name: self.name.to_string(),
            server_challenge: self.server_challenge,
            target_info: pairs.emit(),
        }
        .emit();
        self.state =
            State::WaitAuthenticate { negotiate: token.to_vec(), challenge: challenge.clone(), flags };
        Ok(Step::Continue(match self.wrapping {
            Wrapping::Spnego { mic_required, .. } => NegTokenResp {
                neg_state: Some(NegState::AcceptIncomplete),
                // Named once, in our first token.
                supported_mech: (!mic_required).then_some(NTLMSSP),
                response_token: Some(challenge),
                mech_list_mic: None,
            }
            .emit(),
            _ => challenge,
        }))
    }

    fn authenticate(
        &self,
        token: &[u8],
        negotiate: &[u8],
        challenge: &[u8],
        offered: Flags,
    ) -> Result<(Login, Flags), AuthError> {
        let message = Authenticate::parse(token)?;
        let flags = message.flags.intersection(offered);
        let lm_empty = matches!(message.lm_response[..], [] | [0]);
        if message.user.is_empty() && message.nt_response.is_empty() && lm_empty {
            return Err(AuthError::Anonymous);
        }
        if message.nt_response.len() <= 24 {
            return Err(AuthError::Obsolete);
        }
        let response = NtlmV2Response::parse(&message.nt_response)?;
        // From here on the same work is done for every user, known or not, and every outcome is one status.
        let found = self.users.find(&message.user);
        let secret = found.map_or(&self.users.nobody, |(_, secret)| secret);
        // 3.2.5.1.2: clients exist that leave the domain out of the response key.
        let keys = [message.domain.as_str(), ""].map(|domain| {
            let key = keys::response_key(secret, &message.user, domain);
            let proof = keys::proof(&key, &self.server_challenge, response.temp);
            (proof.ct_eq(&response.proof), key)
        });
        let [(with_domain, key), (without, bare_key)] = keys;
        let proven = with_domain | without;
        let response_key = if bool::from(with_domain) { key } else { bare_key };
        let base_key = keys::session_base_key(&response_key, &response.proof);
        let session_key = self.exported_key(&message, flags, &base_key)?;
        let intact = integrity(&message, &response, &session_key, [negotiate, challenge, token])?;
        match found {
            Some((user, _)) if bool::from(proven & intact) => {
                Ok((Login { user: user.clone(), session_key }, flags))
            }
            _ => Err(AuthError::LogonFailure),
        }
    }

    /// ExportedSessionKey: what the client sent encrypted, or the base key without key exchange.
    fn exported_key(
        &self,
        message: &Authenticate,
        flags: Flags,
        base_key: &[u8; 16],
    ) -> Result<SessionKey, AuthError> {
        let protects = flags.intersects(Flags::NEGOTIATE_SIGN.union(Flags::NEGOTIATE_SEAL));
        if !flags.contains(Flags::NEGOTIATE_KEY_EXCH) || (message.session_key.is_empty() && !protects) {
            return Ok(Zeroizing::new(*base_key));
        }
        match <&[u8; 16]>::try_from(&message.session_key[..]) {
            Ok(encrypted) => Ok(keys::rc4k(base_key, encrypted)),
            Err(_) => Err(AuthError::Unexpected("3.2.5.1.2: EncryptedRandomSessionKey is not 16 bytes")),
        }
    }

    fn complete(&self, login: Login, flags: Flags, mic: Option<&[u8]>) -> Result<Step, AuthError> {
        let Wrapping::Spnego { mech_types, mic_required } = &self.wrapping else {
            return Ok(Step::Done(Vec::new(), login));
        };
        let mic_of = |side| keys::mech_list_mic(&login.session_key, flags, side, mech_types);
        let mech_list_mic = match mic {
            Some(mic) if bool::from(mic.ct_eq(&mic_of(Side::Client))) => Some(mic_of(Side::Server).to_vec()),
            Some(_) => return Err(AuthError::LogonFailure),
            None if *mic_required => return Err(AuthError::Unexpected("RFC 4178 5: mechListMIC is missing")),
            None => None,
        };
        let resp = NegTokenResp {
            neg_state: Some(NegState::AcceptCompleted),
            mech_list_mic,
            ..NegTokenResp::default()
        };
        Ok(Step::Done(resp.emit(), login))
    }
}

/// Whether the MIC is right, where the proven response says that there is one.
fn integrity(
    message: &Authenticate,
    response: &NtlmV2Response<'_>,
    session_key: &[u8; 16],
    [negotiate, challenge, authenticate]: [&[u8]; 3],
) -> Result<Choice, AuthError> {
    if AvPairs::parse(response.av_pairs)?.flags() & AvFlags::MIC == 0 {
        return Ok(Choice::from(1));
    }
    // Announced and then left out is as wrong as a wrong one.
    let Some(mic) = message.mic else { return Ok(Choice::from(0)) };
    Ok(keys::mic(session_key, negotiate, challenge, authenticate).ct_eq(&mic))
}
