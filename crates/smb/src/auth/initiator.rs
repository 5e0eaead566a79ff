//! The client side of authentication.
//!
//! Spec: [MS-NLMP] 3.1.5.1, [MS-SPNG] 3.1.5. Owns the messages so far. Never falls back to anything weaker than NTLMv2
//! with a MIC.
//!
//! ```text
//! start() -> NegTokenInit(NEGOTIATE)      step(CHALLENGE) -> Some(AUTHENTICATE)      step(accept) -> None
//! ```

use subtle::ConstantTimeEq;
use weft_wire::ntlm::{
    Authenticate, AvFlags, AvId, AvPairs, Challenge, Flags, MIC, Negotiate, NtlmV2Response, utf16,
};
use weft_wire::spnego::{NTLMSSP, NegState, NegTokenInit, NegTokenResp};
use zeroize::Zeroizing;

use super::keys::{self, Side};
use super::{AuthError, Secret, SessionKey};

const WANTED: Flags = Flags(
    Flags::NEGOTIATE_UNICODE.0
        | Flags::REQUEST_TARGET.0
        | Flags::NEGOTIATE_SIGN.0
        | Flags::NEGOTIATE_SEAL.0
        | Flags::NEGOTIATE_NTLM.0
        | Flags::NEGOTIATE_ALWAYS_SIGN.0
        | Flags::NEGOTIATE_EXTENDED_SESSIONSECURITY.0
        | Flags::NEGOTIATE_TARGET_INFO.0
        | Flags::NEGOTIATE_VERSION.0
        | Flags::NEGOTIATE_128.0
        | Flags::NEGOTIATE_KEY_EXCH.0
        | Flags::NEGOTIATE_56.0,
);

/// The client's identity.
#[derive(Clone)]
pub struct Credentials {
    /// User name.
    pub user: String,
    /// Domain; empty for a local user of the server.
    pub domain: String,
    /// The password's hash.
    pub secret: Secret,
}

/// Random bytes that one authentication needs.
pub struct Nonces {
    /// ChallengeFromClient.
    pub client_challenge: [u8; 8],
    /// ExportedSessionKey.
    pub session_key: SessionKey,
}

/// One authentication in progress.
pub struct Initiator {
    credentials: Credentials,
    /// Service principal name: "cifs/host".
    target: String,
    nonces: Nonces,
    mech_types: Vec<u8>,
    state: State,
}

enum State {
    WaitChallenge { negotiate: Vec<u8> },
    WaitAccept { flags: Flags },
    Established,
    Failed,
}

impl Initiator {
    /// Starts; the second value is the first token. `host` is the server's name as the user gave it.
    pub fn start(credentials: Credentials, host: &str, nonces: Nonces) -> (Initiator, Vec<u8>) {
        let negotiate = Negotiate { flags: WANTED }.emit();
        let init = NegTokenInit::new(&[NTLMSSP], Some(negotiate.clone()));
        let token = init.emit();
        let initiator = Initiator {
            credentials,
            target: format!("cifs/{host}"),
            nonces,
            mech_types: init.mech_types_der,
            state: State::WaitChallenge { negotiate },
        };
        (initiator, token)
    }

    /// Processes the server's next token. Send the token in `Some`; `None` means success. `now` is a FILETIME.
    pub fn step(&mut self, token: &[u8], now: u64) -> Result<Option<Vec<u8>>, AuthError> {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::WaitChallenge { negotiate } => self.challenged(token, &negotiate, now).map(Some),
            State::WaitAccept { flags } => self.accepted(token, flags).map(|()| None),
            State::Established | State::Failed => Err(AuthError::Unexpected("authentication has ended")),
        }
    }

    /// ExportedSessionKey. Meaningful once [`Initiator::step`] has returned the last token. The server has proven that
    /// it knows the password only once a message signed with keys derived from this one has been verified.
    pub fn session_key(&self) -> &[u8; 16] {
        &self.nonces.session_key
    }

    fn challenged(&mut self, token: &[u8], negotiate: &[u8], now: u64) -> Result<Vec<u8>, AuthError> {
        let resp = NegTokenResp::parse(token)?;
        if resp.supported_mech.is_some_and(|mech| mech != NTLMSSP) {
            return Err(AuthError::NoMechanism);
        }
        let raw = resp.response_token.ok_or(AuthError::Unexpected("no responseToken"))?;
        let challenge = Challenge::parse(&raw)?;
        let flags = challenge.flags.intersection(WANTED);
        // Without these flags the session key would not be ours, or not protected by all of its bits.
        let needed = Flags::NEGOTIATE_UNICODE
            .union(Flags::NEGOTIATE_EXTENDED_SESSIONSECURITY)
            .union(Flags::NEGOTIATE_KEY_EXCH)
            .union(Flags::NEGOTIATE_SIGN)
            .union(Flags::NEGOTIATE_128)
            .union(Flags::NEGOTIATE_TARGET_INFO);
        if !flags.contains(needed) {
            return Err(AuthError::Unexpected(
                "the server's challenge is weaker than NTLMv2 with key exchange",
            ));
        }
        let offered = AvPairs::parse(&challenge.target_info)?;
        let time = offered.timestamp().unwrap_or(now);
        let (target, av_flags) = (utf16(&self.target), (offered.flags() | AvFlags::MIC).to_le_bytes());
        let mut pairs = offered;
        pairs.set(AvId::Flags, &av_flags);
        // No channel bindings: there is no TLS below.
        pairs.set(AvId::ChannelBindings, &[0; 16]);
        pairs.set(AvId::TargetName, &target);
        let temp = NtlmV2Response::emit_temp(time, self.nonces.client_challenge, &pairs.emit());

        let Credentials { user, domain, secret } = &self.credentials;
        let response_key = keys::response_key(secret, user, domain);
        let proof = keys::proof(&response_key, &challenge.server_challenge, &temp);
        let base_key = keys::session_base_key(&response_key, &proof);
        let mut nt_response = proof.to_vec();
        nt_response.extend(temp);
        let message = Authenticate {
            flags,
            // 3.1.5.1.2: zeros if the challenge has a timestamp; we never send LMv2.
            lm_response: vec![0; 24],
            nt_response,
            domain: domain.clone(),
            user: user.clone(),
            workstation: String::new(),
            session_key: keys::rc4k(&base_key, &self.nonces.session_key).to_vec(),
            mic: None,
        };
        let mut authenticate = message.emit();
        let mic = keys::mic(&self.nonces.session_key, negotiate, &raw, &authenticate);
        authenticate.get_mut(MIC).expect("room for a MIC, which emit leaves").copy_from_slice(&mic);

        let list_mic = keys::mech_list_mic(&self.nonces.session_key, flags, Side::Client, &self.mech_types);
        self.state = State::WaitAccept { flags };
        let resp = NegTokenResp {
            neg_state: None,
            supported_mech: None,
            response_token: Some(authenticate),
            mech_list_mic: Some(list_mic.to_vec()),
        };
        Ok(resp.emit())
    }

    fn accepted(&mut self, token: &[u8], flags: Flags) -> Result<(), AuthError> {
        // Some servers send no final token.
        if !token.is_empty() {
            let resp = NegTokenResp::parse(token)?;
            if resp.neg_state.is_some_and(|state| state != NegState::AcceptCompleted) {
                return Err(AuthError::Unexpected("the server did not complete the negotiation"));
            }
            // Optional, because we offered one mechanism only (RFC 4178 5).
            if let Some(mic) = resp.mech_list_mic {
                let key = &self.nonces.session_key;
                let expected =
                    Zeroizing::new(keys::mech_list_mic(key, flags, Side::Server, &self.mech_types));
                if !bool::from(mic.ct_eq(&expected[..])) {
                    return Err(AuthError::LogonFailure);
                }
            }
        }
        self.state = State::Established;
        Ok(())
    }
}
