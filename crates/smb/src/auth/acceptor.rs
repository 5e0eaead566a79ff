//! The server side of authentication.
//!
//! Spec: [MS-NLMP] 3.2.5.1, [MS-SPNG] 3.2.5, RFC 4178 5 (mechListMIC), RFC 4121 through [`weft_kerberos`]. Owns the
//! messages so far, which the MIC covers. An error ends the authentication: a failed acceptor refuses every further
//! token.
//!
//! A client may send NTLM messages bare, as Linux does, or wrapped in SPNEGO; the server answers in kind.

use std::sync::Arc;
use std::time::Duration;

use subtle::{Choice, ConstantTimeEq};
use weft_kerberos::{Cause, Keytab, Principals};
use weft_wire::ntlm::{
    Authenticate, AvFlags, AvId, AvPairs, Challenge, Flags, Negotiate, NtlmV2Response, SIGNATURE, utf16,
};
use weft_wire::spnego::{
    KERBEROS, MS_KERBEROS, NTLMSSP, NegState, NegTokenInit, NegTokenResp, ObjectIdentifier, Token,
};
use zeroize::Zeroizing;

use super::keys::{self, Side};
use super::tickets::{self, Contexts, Mechanism};
use super::{AuthError, ServerNames, SessionKey, Target, Users};

/// The flags that the challenge may offer; the client's flags narrow them.
const OFFERED: Flags = Flags(
    Flags::REQUEST_TARGET.0
        | Flags::NEGOTIATE_SIGN.0
        | Flags::NEGOTIATE_SEAL.0
        | Flags::NEGOTIATE_ALWAYS_SIGN.0
        | Flags::NEGOTIATE_EXTENDED_SESSIONSECURITY.0
        | Flags::NEGOTIATE_VERSION.0
        | Flags::NEGOTIATE_128.0
        | Flags::NEGOTIATE_KEY_EXCH.0
        | Flags::NEGOTIATE_56.0,
);

/// The longest NEGOTIATE_MESSAGE: its fixed part, a domain and a workstation (2.2.1.1). It is kept for the MIC.
const MAX_NEGOTIATE_BYTES: usize = 2048;
/// The longest list of mechanisms; the list is kept for the mechListMIC. Clients offer up to five.
const MAX_MECH_TYPES_BYTES: usize = 1024;

/// An authenticated user.
pub struct Login {
    /// The name as configured.
    pub user: Arc<str>,
    /// ExportedSessionKey, or the first 16 bytes of the Kerberos key.
    pub session_key: SessionKey,
    /// The full key; longer than `session_key` with Kerberos.
    pub full_key: Zeroizing<Vec<u8>>,
    /// How long the log-on is valid; `None` if it does not expire.
    pub lifetime: Option<Duration>,
    /// Whether the user is one of ours; otherwise it must be an account of the system.
    pub is_ours: bool,
    /// Whether an administrator has chosen the user for this proof: by a password here, or by a line of the map of
    /// principals.
    pub is_chosen: bool,
    /// The server that the client meant. A Kerberos ticket is issued for a service in our keytab, hence for us.
    pub target: Target,
}

impl Login {
    fn ntlm(user: Arc<str>, session_key: SessionKey, target: Target) -> Login {
        let full_key = Zeroizing::new(session_key.to_vec());
        Login { user, session_key, full_key, lifetime: None, is_ours: true, is_chosen: true, target }
    }
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
    tickets: Option<Contexts>,
    principals: Arc<Principals>,
    name: Arc<str>,
    names: Arc<ServerNames>,
    server_challenge: [u8; 8],
    wrapping: Wrapping,
    state: State,
    refused: Refused,
}

/// Details of a refusal, for the log; they come from the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// The principal that the ticket was issued to.
    pub principal: Option<String>,
    /// The mechanism's own error text.
    pub detail: Option<String>,
    /// What Kerberos found wrong.
    pub cause: Option<Cause>,
    /// Whether the user of an NTLM response is one of ours.
    pub is_user: bool,
    /// Whether that user's password was right: then something else of the message is not.
    pub is_proven: bool,
}

/// How the client wraps NTLM messages; known from its first token.
enum Wrapping {
    Unknown,
    Bare,
    Spnego {
        /// The bytes that the mechListMIC covers.
        mech_types: Vec<u8>,
        /// The client preferred another mechanism: without a MIC an attacker may have removed it from the list (RFC
        /// 4178 5).
        mic_required: bool,
    },
}

enum State {
    WaitNegotiate,
    /// Kerberos, under the OID that the client used.
    Kerberos {
        context: Box<dyn Mechanism>,
        mech: ObjectIdentifier,
        named: bool,
    },
    /// Kerberos has succeeded; the client must still prove that nobody removed another mechanism from its list.
    WaitMic {
        context: Box<dyn Mechanism>,
        login: Login,
    },
    WaitAuthenticate {
        negotiate: Vec<u8>,
        challenge: Vec<u8>,
        flags: Flags,
    },
    Ended,
}

impl State {
    fn is_kerberos(&self) -> bool {
        matches!(self, State::Kerberos { .. } | State::WaitMic { .. })
    }
}

impl Acceptor {
    /// Starts. `name` is the server's NetBIOS-like name, `names` are those by which clients may call it;
    /// `server_challenge` must be random.
    pub fn new(
        users: Arc<Users>,
        name: Arc<str>,
        names: Arc<ServerNames>,
        server_challenge: [u8; 8],
    ) -> Acceptor {
        let (wrapping, state) = (Wrapping::Unknown, State::WaitNegotiate);
        let (refused, principals) = (Refused::default(), Arc::default());
        Acceptor { users, tickets: None, principals, name, names, server_challenge, wrapping, state, refused }
    }

    /// Also accepts tickets for the services in this keytab.
    pub fn with_keytab(self, keytab: Option<Arc<Keytab>>) -> Acceptor {
        self.with_contexts(keytab.map(tickets::of))
    }

    /// Decides by these rules which user a ticket's principal is.
    pub fn with_principals(self, principals: Arc<Principals>) -> Acceptor {
        Acceptor { principals, ..self }
    }

    pub(super) fn with_contexts(self, tickets: Option<Contexts>) -> Acceptor {
        Acceptor { tickets, ..self }
    }

    /// The token of the NEGOTIATE response, which lists the mechanisms.
    pub fn hint(kerberos: bool) -> Vec<u8> {
        let all = [MS_KERBEROS, KERBEROS, NTLMSSP];
        NegTokenInit::new(if kerberos { &all } else { &all[2..] }, None).emit()
    }

    /// Processes the client's next token. `now` is a FILETIME (100 ns since 1601). After an error every call fails.
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
            (Token::Resp(resp), Wrapping::Spnego { .. }) if state.is_kerberos() => self.ticket(state, resp),
            (Token::Resp(resp), Wrapping::Spnego { .. }) => {
                let token = resp.response_token.ok_or(AuthError::Unexpected("no responseToken"))?;
                self.ntlm(state, &token, resp.mech_list_mic.as_deref(), now)
            }
            _ => Err(AuthError::Unexpected("SPNEGO token out of order")),
        }
    }

    /// The token for a client that is let in without proof, after [`AuthError::Anonymous`].
    pub fn unproven(&self) -> Vec<u8> {
        match self.wrapping {
            Wrapping::Spnego { .. } => {
                NegTokenResp { neg_state: Some(NegState::AcceptCompleted), ..NegTokenResp::default() }.emit()
            }
            Wrapping::Bare | Wrapping::Unknown => Vec::new(),
        }
    }

    /// Details for the log after an error.
    pub fn refused(&self) -> &Refused {
        &self.refused
    }

    /// The user that the client's next token claims to be, if that token carries the proof.
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
        if init.mech_types_der.len() > MAX_MECH_TYPES_BYTES {
            return Err(AuthError::Unexpected("limit reached: length of the mechanism list"));
        }
        // The client's order decides. Kerberos under either of its OIDs is one mechanism.
        let is_kerberos = |mech: &ObjectIdentifier| [KERBEROS, MS_KERBEROS].contains(mech);
        let ours =
            |mech: &ObjectIdentifier| *mech == NTLMSSP || (self.tickets.is_some() && is_kerberos(mech));
        let found = init.mech_types.iter().copied().enumerate().find(|(_, mech)| ours(mech));
        let (at, mech) = found.ok_or(AuthError::NoMechanism)?;
        if let Some(context) = self.tickets.clone().filter(|_| is_kerberos(&mech)) {
            let preferred = at == 0;
            self.wrapping = Wrapping::Spnego { mech_types: init.mech_types_der, mic_required: !preferred };
            let state = State::Kerberos { context: context(), mech, named: false };
            return match init.mech_token.filter(|_| preferred) {
                Some(token) => {
                    let token = NegTokenResp { response_token: Some(token), ..NegTokenResp::default() };
                    self.ticket(state, token)
                }
                None => {
                    let neg_state = if preferred { NegState::AcceptIncomplete } else { NegState::RequestMic };
                    if let State::Kerberos { context, mech, .. } = state {
                        self.state = State::Kerberos { context, mech, named: true };
                    }
                    let resp = NegTokenResp {
                        neg_state: Some(neg_state),
                        supported_mech: Some(mech),
                        ..NegTokenResp::default()
                    };
                    Ok(Step::Continue(resp.emit()))
                }
            };
        }
        let preferred = at == 0;
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

    /// Processes a Kerberos token, or the MIC of the mechanism list.
    fn ticket(&mut self, state: State, resp: NegTokenResp) -> Result<Step, AuthError> {
        let Wrapping::Spnego { mech_types, mic_required } = &self.wrapping else {
            return Err(AuthError::Unexpected("Kerberos without SPNEGO"));
        };
        let refused = &mut self.refused;
        let mut kerberos = |e: weft_kerberos::Error| {
            refused.detail = Some(e.to_string());
            if let weft_kerberos::Error::Gss(failure) = &e {
                refused.cause = Some(failure.cause());
            }
            AuthError::Ticket
        };
        let (mut context, login, token, mech) = match state {
            State::WaitMic { context, login } => (context, login, None, None),
            State::Kerberos { mut context, mech, named } => {
                let token = resp.response_token.ok_or(AuthError::Unexpected("no responseToken"))?;
                let name = (!named).then_some(mech);
                match context.step(&token).map_err(&mut kerberos)? {
                    weft_kerberos::Step::Continue(token) => {
                        self.state = State::Kerberos { context, mech, named: true };
                        let resp = NegTokenResp {
                            neg_state: Some(NegState::AcceptIncomplete),
                            supported_mech: name,
                            response_token: Some(token),
                            mech_list_mic: None,
                        };
                        return Ok(Step::Continue(resp.emit()));
                    }
                    weft_kerberos::Step::Done { token, client, service, key, lifetime } => {
                        let claimed = self.principals.claimed(&client, &service);
                        let found = claimed.map(|claimed| match self.users.find(claimed.name) {
                            Some((user, _)) if claimed.is(user) => Ok((user.clone(), true, claimed.mapped)),
                            Some(_) => Err(AuthError::Spelling),
                            None if claimed.may_be_system => {
                                Ok((Arc::from(claimed.name), false, claimed.mapped))
                            }
                            None => Err(AuthError::Stranger),
                        });
                        let (user, is_ours, is_chosen) = match found.unwrap_or(Err(AuthError::Stranger)) {
                            Ok(found) => found,
                            Err(why) => {
                                self.refused.principal = Some(format!("{}@{}", client.name, client.realm));
                                return Err(why);
                            }
                        };
                        let session_key = key.first_chunk::<16>().ok_or(AuthError::Ticket)?;
                        let session_key = Zeroizing::new(*session_key);
                        let target = Target::Ours;
                        let login =
                            Login { user, session_key, full_key: key, lifetime, is_ours, is_chosen, target };
                        (context, login, Some(token).filter(|token| !token.is_empty()), name)
                    }
                }
            }
            _ => return Err(AuthError::Unexpected("a Kerberos token out of order")),
        };
        let proven = match &resp.mech_list_mic {
            Some(mic) if context.verify(mech_types, mic) => true,
            Some(_) => return Err(AuthError::Ticket),
            None => false,
        };
        let first = token.is_some() || mech.is_some();
        if *mic_required && !proven && !first {
            return Err(AuthError::Unexpected("RFC 4178 5: mechListMIC is missing"));
        }
        let done = proven || !*mic_required;
        // RFC 4178 5: our MIC goes out with the token that completes the mechanism, or in answer to the client's.
        let mech_list_mic = match proven || *mic_required {
            true => Some(context.mic(mech_types).map_err(kerberos)?),
            false => None,
        };
        let answer = NegTokenResp {
            neg_state: Some(if done { NegState::AcceptCompleted } else { NegState::AcceptIncomplete }),
            supported_mech: mech,
            response_token: token,
            mech_list_mic: mech_list_mic.filter(|_| proven || first),
        }
        .emit();
        if done {
            return Ok(Step::Done(answer, login));
        }
        self.state = State::WaitMic { context, login };
        Ok(Step::Continue(answer))
    }

    fn ntlm(&mut self, state: State, token: &[u8], mic: Option<&[u8]>, now: u64) -> Result<Step, AuthError> {
        match state {
            State::WaitNegotiate => self.negotiate(token, now),
            State::WaitAuthenticate { negotiate, challenge, flags } => {
                let (login, flags) = self.authenticate(token, &negotiate, &challenge, flags)?;
                self.complete(login, flags, mic)
            }
            State::Kerberos { .. } | State::WaitMic { .. } => {
                Err(AuthError::Unexpected("NTLM after Kerberos"))
            }
            State::Ended => Err(AuthError::Unexpected("authentication has ended")),
        }
    }

    fn negotiate(&mut self, token: &[u8], now: u64) -> Result<Step, AuthError> {
        if token.len() > MAX_NEGOTIATE_BYTES {
            return Err(AuthError::Unexpected("limit reached: length of a NEGOTIATE_MESSAGE"));
        }
        let wanted = Negotiate::parse(token)?.flags;
        // 2.2.2.5: Unicode takes precedence over OEM names; some clients have only OEM.
        let charset = match () {
            () if wanted.contains(Flags::NEGOTIATE_UNICODE) => Flags::NEGOTIATE_UNICODE,
            () if wanted.contains(Flags::NEGOTIATE_OEM) => Flags::NEGOTIATE_OEM,
            () => return Err(AuthError::Unexpected("2.2.2.5: NEGOTIATE without UNICODE and OEM")),
        };
        let flags = wanted
            .intersection(OFFERED)
            .union(charset)
            .union(Flags::NEGOTIATE_NTLM)
            .union(Flags::TARGET_TYPE_SERVER)
            .union(Flags::NEGOTIATE_TARGET_INFO);
        let name = utf16(&self.name);
        let time = now.to_le_bytes();
        let mut pairs = AvPairs::default();
        // A server without a domain is its own domain: 2.2.2.1 requires both NetBIOS names.
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
                // Sent once, in our first token.
                supported_mech: (!mic_required).then_some(NTLMSSP),
                response_token: Some(challenge),
                mech_list_mic: None,
            }
            .emit(),
            _ => challenge,
        }))
    }

    fn authenticate(
        &mut self,
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
        // From here on every user, known or not, costs the same work, and every failure has the same status.
        let found = self.users.find(&message.user);
        let secret = found.map_or(&self.users.nobody, |(_, secret)| secret);
        // 3.2.5.1.2: some clients leave the domain out of the response key.
        let keys = [message.domain.as_str(), ""].map(|domain| {
            let key = keys::response_key(secret, &message.user, domain);
            let proof = keys::proof(&key, &self.server_challenge, response.temp);
            (proof.ct_eq(&response.proof), key)
        });
        let [(with_domain, key), (without, bare_key)] = keys;
        let proven = with_domain | without;
        (self.refused.is_user, self.refused.is_proven) = (found.is_some(), proven.into());
        let response_key = if bool::from(with_domain) { key } else { bare_key };
        let base_key = keys::session_base_key(&response_key, &response.proof);
        let session_key = self.exported_key(&message, flags, &base_key)?;
        let intact = integrity(&message, &response, &session_key, [negotiate, challenge, token])?;
        match found {
            Some((user, _)) if bool::from(proven & intact) => {
                let target = self.target(&response)?;
                Ok((Login::ntlm(user.clone(), session_key, target), flags))
            }
            _ => Err(AuthError::LogonFailure),
        }
    }

    /// 3.2.5.1.2: the server that the proven response names.
    fn target(&self, response: &NtlmV2Response<'_>) -> Result<Target, AuthError> {
        let pairs = AvPairs::parse(response.av_pairs)?;
        // 2.2.2.1: all zeros mean none. SMB has no TLS channel, so any other value was made for a service that does.
        if pairs.find(AvId::ChannelBindings).is_some_and(|hash| hash.iter().any(|byte| *byte != 0)) {
            return Err(AuthError::Bound);
        }
        if pairs.flags() & AvFlags::UNTRUSTED_TARGET != 0 {
            return Ok(Target::Unstated);
        }
        let Some(name) = pairs.find(AvId::TargetName) else { return Ok(Target::Unstated) };
        let units: Vec<u16> =
            name.chunks_exact(2).filter_map(|c| Some(u16::from_le_bytes(c.try_into().ok()?))).collect();
        Ok(self.names.judge(&String::from_utf16_lossy(&units)))
    }

    /// ExportedSessionKey: the key that the client sent encrypted, or the base key without key exchange.
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

/// Whether the MIC is right, if the proven response announces one.
fn integrity(
    message: &Authenticate,
    response: &NtlmV2Response<'_>,
    session_key: &[u8; 16],
    [negotiate, challenge, authenticate]: [&[u8]; 3],
) -> Result<Choice, AuthError> {
    if AvPairs::parse(response.av_pairs)?.flags() & AvFlags::MIC == 0 {
        return Ok(Choice::from(1));
    }
    // A MIC that is announced but missing counts as wrong.
    let Some(mic) = message.mic else { return Ok(Choice::from(0)) };
    Ok(keys::mic(session_key, negotiate, challenge, authenticate).ct_eq(&mic))
}
