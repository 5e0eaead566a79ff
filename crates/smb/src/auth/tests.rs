//! Known answers of [MS-NLMP] 4.2.4, both sides against each other, and attacks.

use std::sync::Arc;

use weft_wire::ntlm::{Authenticate, AvFlags, AvPairs, Challenge, Flags, MIC, Negotiate, NtlmV2Response};
use weft_wire::spnego::{KERBEROS, NTLMSSP, NegState, NegTokenInit, NegTokenResp};
use zeroize::Zeroizing;

use super::keys::Side;
use super::*;

#[test]
fn tables_of_users_agree_on_those_with_the_same_secret() {
    let table = |users: &[(&str, &str)]| {
        Users::new(users.iter().map(|(name, password)| (*name, Secret::password(password))))
    };
    let old = table(&[("alice", "one"), ("bob", "two"), ("eve", "three")]);
    let new = table(&[("Alice", "one"), ("bob", "changed")]);
    for (user, agree) in [("alice", true), ("bob", false), ("eve", false), ("nobody", true)] {
        assert_eq!((new.agree(&old, user), old.agree(&new, user)), (agree, agree), "{user}");
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

fn key(text: &str) -> [u8; 16] {
    hex(text).try_into().unwrap()
}

/// The temp of 4.2.4.1.3.
fn temp() -> Vec<u8> {
    hex("01 01 0000 00000000  0000000000000000  aaaaaaaaaaaaaaaa  00000000
         0200 0c00 44006f006d00610069006e00
         0100 0c00 530065007200760065007200
         0000 0000  00000000")
}

#[test]
fn ntlmv2_of_the_specification() {
    let secret = Secret::password("Password");
    assert_eq!(secret.0, key("a4f49c406510bdcab6824ee7c30fd852"), "4.2.2.1.2 NTOWFv1");
    let response_key = keys::response_key(&secret, "User", "Domain");
    assert_eq!(*response_key, key("0c868a403bfd7a93a3001ef22ef02e3f"), "4.2.4.1.1");
    let proof = keys::proof(&response_key, &[0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef], &temp());
    assert_eq!(proof, key("68cd0ab851e51c96aabc927bebef6a1c"), "4.2.4.2.2");
    let base = keys::session_base_key(&response_key, &proof);
    assert_eq!(*base, key("8de40ccadbc14a82f15cb0ad0de95ca3"), "4.2.4.1.2");
    assert_eq!(*keys::rc4k(&base, &[0x55; 16]), key("c5dad2544fc979909 4ce1ce90bc9d03e"), "4.2.4.2.3");
}

/// 4.2.4.4 seals its plaintext first and its checksum with the rest of the stream; a mechListMIC is the first use of
/// the stream. So this compares the checksum before sealing, and checks the seal key through the sealed plaintext.
#[test]
fn session_security_of_the_specification() {
    use rc4::{KeyInit, StreamCipher};
    let plaintext = hex("50006c00610069006e007400650078007400");
    let unsealed = keys::mech_list_mic(&[0x55; 16], Flags(0), Side::Client, &plaintext);
    assert_eq!(unsealed[..], hex("01000000 7035285 1f2564309 00000000"));
    let sealed = keys::mech_list_mic(
        &[0x55; 16],
        Flags::NEGOTIATE_KEY_EXCH.union(Flags::NEGOTIATE_128),
        Side::Client,
        &plaintext,
    );
    let mut expected = hex("70352851f2564309");
    rc4::Rc4::<rc4::consts::U16>::new((&key("59f600973cc4960a25480a7c196e4c58")).into())
        .apply_keystream(&mut expected);
    assert_eq!(sealed[4..12], expected);
}

#[test]
fn names_fold_one_character_for_one() {
    assert_eq!(keys::upper("straße ÿ"), "STRAßE Ÿ");
    let users = Users::new([("Jörg", Secret::password("x"))]);
    assert!(users.find("JÖRG").is_some() && users.find("jörg").is_some() && users.find("jorg").is_none());
}

const NOW: u64 = 133_000_000_000_000_000;

fn users() -> Arc<Users> {
    Arc::new(Users::new([("alice", Secret::password("secret")), ("bob", Secret::password("other"))]))
}

fn names() -> Arc<ServerNames> {
    ServerNames::new(["weft", "server.example"], || vec!["192.0.2.7".parse().unwrap()]).into()
}

fn acceptor() -> Acceptor {
    Acceptor::new(users(), "WEFT".into(), names(), *b"8 random")
}

fn initiator(user: &str, password: &str) -> (Initiator, Vec<u8>) {
    let credentials =
        Credentials { user: user.into(), domain: "DOM".into(), secret: Secret::password(password) };
    let nonces = Nonces { client_challenge: *b"clientch", session_key: Zeroizing::new([0x77; 16]) };
    Initiator::start(credentials, "server.example", nonces)
}

fn next(step: Result<Step, AuthError>) -> Vec<u8> {
    match step {
        Ok(Step::Continue(token)) => token,
        Ok(Step::Done(..)) => panic!("done too early"),
        Err(e) => panic!("{e}"),
    }
}

fn refused(step: Result<Step, AuthError>) -> AuthError {
    match step {
        Err(e) => e,
        Ok(_) => panic!("accepted"),
    }
}

/// Runs both sides up to the client's last token.
fn up_to_authenticate(user: &str, password: &str) -> (Acceptor, Initiator, Vec<u8>) {
    let mut acceptor = acceptor();
    let (mut initiator, token) = initiator(user, password);
    let challenge = next(acceptor.step(&token, NOW));
    let authenticate = initiator.step(&challenge, NOW).unwrap().unwrap();
    (acceptor, initiator, authenticate)
}

#[test]
fn both_sides_agree() {
    let (mut acceptor, mut initiator, token) = up_to_authenticate("ALICE", "secret");
    let Ok(Step::Done(token, login)) = acceptor.step(&token, NOW) else { panic!("refused") };
    assert_eq!(&*login.user, "alice", "as configured, not as typed");
    assert_eq!(*login.session_key, *initiator.session_key());
    assert_eq!(initiator.step(&token, NOW), Ok(None));
    assert!(initiator.step(&token, NOW).is_err(), "it has ended");
    assert!(acceptor.step(&token, NOW).is_err(), "it has ended");
}

#[test]
fn the_server_proves_itself_by_its_mech_list_mic() {
    let (mut acceptor, mut initiator, token) = up_to_authenticate("alice", "secret");
    let Ok(Step::Done(token, _)) = acceptor.step(&token, NOW) else { panic!("refused") };
    let mut resp = NegTokenResp::parse(&token).unwrap();
    resp.mech_list_mic.as_mut().unwrap()[5] ^= 1;
    assert_eq!(initiator.step(&resp.emit(), NOW), Err(AuthError::LogonFailure));
}

/// The last token of a client that called the server by this name.
fn called(host: &str) -> Result<Step, AuthError> {
    let mut acceptor = acceptor();
    let credentials =
        Credentials { user: "alice".into(), domain: "DOM".into(), secret: Secret::password("secret") };
    let nonces = Nonces { client_challenge: *b"clientch", session_key: Zeroizing::new([0x77; 16]) };
    let (mut initiator, token) = Initiator::start(credentials, host, nonces);
    let challenge = next(acceptor.step(&token, NOW));
    acceptor.step(&initiator.step(&challenge, NOW).unwrap().unwrap(), NOW)
}

#[test]
fn the_proof_says_which_server_it_is_for() {
    for (host, target) in [
        ("weft", Target::Ours),
        ("Server.Example", Target::Ours),
        ("192.0.2.7", Target::Ours),
        ("evil", Target::Other("cifs/evil".into())),
        ("192.0.2.8", Target::Other("cifs/192.0.2.8".into())),
    ] {
        let Ok(Step::Done(_, login)) = called(host) else { panic!("refused") };
        assert_eq!(login.target, target);
    }
}

/// A response whose AV pairs are `pairs` after those of the challenge, with a correct proof and no MIC.
fn proven_with(pairs: &[(weft_wire::ntlm::AvId, &[u8])]) -> Result<Target, AuthError> {
    let mut acceptor = acceptor();
    let challenge = next(acceptor.step(&Negotiate { flags: Flags(0xe208_8297) }.emit(), NOW));
    let offered = Challenge::parse(&challenge).unwrap();
    let mut av = AvPairs::parse(&offered.target_info).unwrap();
    pairs.iter().for_each(|(id, value)| av.set(*id, value));
    let temp = NtlmV2Response::emit_temp(NOW, [0; 8], &av.emit());
    let key = keys::response_key(&Secret::password("secret"), "alice", "");
    let mut nt_response = keys::proof(&key, &offered.server_challenge, &temp).to_vec();
    nt_response.extend(temp);
    let message = Authenticate {
        flags: offered.flags,
        lm_response: vec![0; 24],
        nt_response,
        domain: String::new(),
        user: "alice".into(),
        workstation: String::new(),
        session_key: vec![0; 16],
        mic: None,
    };
    match acceptor.step(&message.emit(), NOW)? {
        Step::Done(_, login) => Ok(login.target),
        Step::Continue(_) => panic!("not the end"),
    }
}

#[test]
fn a_proof_that_is_bound_to_a_channel_was_made_for_another_service() {
    use weft_wire::ntlm::{AvId, utf16};
    let evil = utf16("cifs/evil");
    assert_eq!(proven_with(&[]), Ok(Target::Unstated));
    assert_eq!(proven_with(&[(AvId::TargetName, b"")]), Ok(Target::Unstated));
    assert_eq!(
        proven_with(&[(AvId::ChannelBindings, &[0; 16])]),
        Ok(Target::Unstated),
        "2.2.2.1: there is none"
    );
    assert_eq!(proven_with(&[(AvId::ChannelBindings, &[7; 16])]), Err(AuthError::Bound));
    assert_eq!(proven_with(&[(AvId::TargetName, &evil)]), Ok(Target::Other("cifs/evil".into())));
    let untrusted = AvFlags::UNTRUSTED_TARGET.to_le_bytes();
    assert_eq!(proven_with(&[(AvId::TargetName, &evil), (AvId::Flags, &untrusted)]), Ok(Target::Unstated));
}

#[test]
fn wrong_password_and_unknown_user_are_the_same_failure() {
    for (user, password) in [("alice", "Secret"), ("bob", "secret"), ("eve", "secret"), ("eve", "")] {
        let (mut acceptor, _, token) = up_to_authenticate(user, password);
        assert_eq!(refused(acceptor.step(&token, NOW)), AuthError::LogonFailure, "{user}:{password}");
        assert!(acceptor.step(&token, NOW).is_err(), "no second guess on the same challenge");
    }
}

/// The secret that stands in for an unknown user is not a password.
#[test]
fn nobody_can_log_on_as_nobody() {
    let mut acceptor = acceptor();
    let credentials =
        Credentials { user: "eve".into(), domain: String::new(), secret: Secret::nt_hash([0; 16]) };
    let nonces = Nonces { client_challenge: [1; 8], session_key: Zeroizing::new([2; 16]) };
    let (mut initiator, token) = Initiator::start(credentials, "h", nonces);
    let challenge = next(acceptor.step(&token, NOW));
    let token = initiator.step(&challenge, NOW).unwrap().unwrap();
    assert_eq!(refused(acceptor.step(&token, NOW)), AuthError::LogonFailure);
}

/// Takes the client's last token apart, lets `change` tamper with the NTLM message, and reassembles it (without the
/// mechListMIC unless `keep_mic`).
fn tampered(keep_mic: bool, change: impl FnOnce(&mut Vec<u8>)) -> Result<Step, AuthError> {
    let (mut acceptor, _, token) = up_to_authenticate("alice", "secret");
    let mut resp = NegTokenResp::parse(&token).unwrap();
    change(resp.response_token.as_mut().unwrap());
    if !keep_mic {
        resp.mech_list_mic = None;
    }
    acceptor.step(&resp.emit(), NOW)
}

#[test]
fn a_wrong_mic_is_refused() {
    assert!(tampered(true, |_| ()).is_ok() && tampered(false, |_| ()).is_ok(), "the test itself");
    assert_eq!(refused(tampered(false, |m| m[MIC.start] ^= 1)), AuthError::LogonFailure);
    assert_eq!(refused(tampered(false, |m| m[MIC].fill(0))), AuthError::LogonFailure);
}

/// The MIC field is cut out and all offsets moved: the proven AV pairs still announce it.
#[test]
fn a_stripped_mic_is_refused() {
    let error = refused(tampered(false, |m| {
        for at in [12, 20, 28, 36, 44, 52] {
            let offset = u32::from_le_bytes(m[at + 4..at + 8].try_into().unwrap());
            m[at + 4..at + 8].copy_from_slice(&(offset - 16).to_le_bytes());
        }
        m.drain(MIC);
        assert_eq!(Authenticate::parse(m).unwrap().mic, None);
    }));
    assert_eq!(error, AuthError::LogonFailure);
}

/// The announcement is removed too: NTProofStr covers it.
#[test]
fn the_announcement_of_the_mic_is_proven() {
    let error = refused(tampered(false, |m| {
        let mut message = Authenticate::parse(m).unwrap();
        let flags = [6, 0, 4, 0, AvFlags::MIC as u8, 0, 0, 0];
        let at = message.nt_response.windows(8).position(|w| w == flags).unwrap();
        message.nt_response[at + 4] = 0;
        *m = message.emit();
    }));
    assert_eq!(error, AuthError::LogonFailure);
}

/// A client that computes a MIC and a session key from nothing but the challenge: everything right except the proof.
#[test]
fn a_right_mic_without_the_password_is_refused() {
    let mut acceptor = acceptor();
    let negotiate = Negotiate { flags: Flags(0xe208_8297) }.emit();
    let challenge = next(acceptor.step(&negotiate, NOW));
    let offered = Challenge::parse(&challenge).unwrap();
    let mut pairs = AvPairs::parse(&offered.target_info).unwrap();
    let flags = AvFlags::MIC.to_le_bytes();
    pairs.set(weft_wire::ntlm::AvId::Flags, &flags);
    let mut nt_response = vec![0; 16];
    nt_response.extend(NtlmV2Response::emit_temp(NOW, [0; 8], &pairs.emit()));
    let mut message = Authenticate {
        flags: offered.flags,
        lm_response: vec![0; 24],
        nt_response,
        domain: String::new(),
        user: "alice".into(),
        workstation: String::new(),
        session_key: vec![0; 16],
        mic: None,
    }
    .emit();
    let mic = keys::mic(&[0x77; 16], &negotiate, &challenge, &message);
    message[MIC].copy_from_slice(&mic);
    assert_eq!(refused(acceptor.step(&message, NOW)), AuthError::LogonFailure);
}

/// The response to one challenge is worthless for the next.
#[test]
fn a_replayed_authenticate_is_refused() {
    let (_, _, token) = up_to_authenticate("alice", "secret");
    let mut acceptor = Acceptor::new(users(), "WEFT".into(), names(), *b"8 others");
    let (_, first) = initiator("alice", "secret");
    next(acceptor.step(&first, NOW));
    assert_eq!(refused(acceptor.step(&token, NOW)), AuthError::LogonFailure);
}

#[test]
fn a_wrong_mech_list_mic_is_refused() {
    let (mut acceptor, _, token) = up_to_authenticate("alice", "secret");
    let mut resp = NegTokenResp::parse(&token).unwrap();
    resp.mech_list_mic.as_mut().unwrap()[4] ^= 1;
    assert_eq!(refused(acceptor.step(&resp.emit(), NOW)), AuthError::LogonFailure);
}

/// Linux sends NTLM messages without SPNEGO.
#[test]
fn bare_ntlm_is_answered_bare() {
    let (mut initiator, token) = initiator("alice", "secret");
    let spnego::Token::Init(init) = spnego::Token::parse(&token).unwrap() else { panic!() };
    let mut acceptor = acceptor();
    let challenge = next(acceptor.step(&init.mech_token.unwrap(), NOW));
    let wrapped = NegTokenResp { response_token: Some(challenge), ..NegTokenResp::default() };
    let token = initiator.step(&wrapped.emit(), NOW).unwrap().unwrap();
    let token = NegTokenResp::parse(&token).unwrap().response_token.unwrap();
    let Ok(Step::Done(token, login)) = acceptor.step(&token, NOW) else { panic!("refused") };
    assert_eq!((token.len(), *login.session_key), (0, *initiator.session_key()));
}

/// The package v9u-smb2 for Node.js logs on like this: without Unicode and without a MIC.
#[test]
fn a_client_of_oem_names_alone_is_answered_in_them() {
    let flags = Flags::NEGOTIATE_OEM.union(Flags::REQUEST_TARGET).union(Flags::NEGOTIATE_NTLM);
    for (user, password, right) in [("ALICE", "secret", true), ("alice", "wrong", false)] {
        let mut acceptor = acceptor();
        let challenge = next(acceptor.step(&Negotiate { flags }.emit(), NOW));
        let offered = Challenge::parse(&challenge).unwrap();
        assert!(offered.flags.contains(Flags::NEGOTIATE_OEM));
        assert!(!offered.flags.intersects(Flags::NEGOTIATE_UNICODE));
        assert!(challenge.windows(4).any(|name| name == b"WEFT"));
        let temp = NtlmV2Response::emit_temp(NOW, [0; 8], &offered.target_info);
        let key = keys::response_key(&Secret::password(password), user, "DOM");
        let mut nt_response = keys::proof(&key, &offered.server_challenge, &temp).to_vec();
        nt_response.extend(temp);
        let message = Authenticate {
            flags: offered.flags,
            lm_response: vec![0; 24],
            nt_response,
            domain: "DOM".into(),
            user: user.into(),
            workstation: String::new(),
            session_key: Vec::new(),
            mic: None,
        };
        let step = acceptor.step(&message.emit(), NOW);
        assert_eq!(matches!(step, Ok(Step::Done(_, login)) if &*login.user == "alice"), right);
    }
    let neither = Negotiate { flags: Flags::NEGOTIATE_NTLM }.emit();
    assert!(matches!(refused(acceptor().step(&neither, NOW)), AuthError::Unexpected(_)));
}

/// A client that prefers Kerberos is led to NTLM, and must then prove that nobody shortened its list.
#[test]
fn a_client_that_prefers_kerberos_must_send_a_mech_list_mic() {
    for with_mic in [true, false] {
        let (mut initiator, token) = initiator("alice", "secret");
        let spnego::Token::Init(ntlm) = spnego::Token::parse(&token).unwrap() else { panic!() };
        let init = NegTokenInit::new(&[KERBEROS, NTLMSSP], Some(b"a ticket".to_vec()));
        let mut acceptor = acceptor();
        let resp = NegTokenResp::parse(&next(acceptor.step(&init.emit(), NOW))).unwrap();
        assert_eq!((resp.neg_state, resp.supported_mech), (Some(NegState::RequestMic), Some(NTLMSSP)));
        let negotiate = NegTokenResp { response_token: ntlm.mech_token, ..NegTokenResp::default() };
        let challenge = next(acceptor.step(&negotiate.emit(), NOW));
        let token = initiator.step(&challenge, NOW).unwrap().unwrap();
        let mut resp = NegTokenResp::parse(&token).unwrap();
        let flags = Authenticate::parse(resp.response_token.as_ref().unwrap()).unwrap().flags;
        resp.mech_list_mic = with_mic.then(|| {
            keys::mech_list_mic(initiator.session_key(), flags, Side::Client, &init.mech_types_der).to_vec()
        });
        match acceptor.step(&resp.emit(), NOW) {
            Ok(Step::Done(..)) if with_mic => (),
            Err(AuthError::Unexpected(_)) if !with_mic => (),
            _ => panic!("with MIC: {with_mic}"),
        }
    }
}

#[test]
fn anonymous_and_ntlmv1_are_refused() {
    let all = Flags(0xe208_8297);
    let send_with = |flags: Flags, user: &str, lm_response: Vec<u8>, nt_response: Vec<u8>| {
        let mut acceptor = acceptor();
        next(acceptor.step(&Negotiate { flags: all }.emit(), NOW));
        let message = Authenticate {
            flags,
            lm_response,
            nt_response,
            domain: String::new(),
            user: user.into(),
            workstation: String::new(),
            session_key: vec![0; 16],
            mic: None,
        };
        refused(acceptor.step(&message.emit(), NOW))
    };
    let send = |user: &str, lm: Vec<u8>, nt: Vec<u8>| send_with(all, user, lm, nt);
    assert_eq!(send("", vec![0], vec![]), AuthError::Anonymous);
    assert_eq!(
        send_with(Flags(0), "", vec![], vec![]),
        AuthError::Anonymous,
        "smbj's, neither Unicode nor OEM"
    );
    assert_eq!(send("", vec![], vec![]), AuthError::Anonymous);
    assert_eq!(send("alice", vec![0; 24], vec![0; 24]), AuthError::Obsolete);
    assert_eq!(send("alice", vec![0; 24], vec![]), AuthError::Obsolete);
}

#[test]
fn a_client_without_ntlm_is_refused() {
    let init = NegTokenInit::new(&[KERBEROS], Some(vec![1]));
    assert_eq!(refused(acceptor().step(&init.emit(), NOW)), AuthError::NoMechanism);
}

/// A server whose challenge lacks key exchange or signing gets nothing.
#[test]
fn the_client_refuses_a_weakened_challenge() {
    for weakness in [Flags::NEGOTIATE_KEY_EXCH, Flags::NEGOTIATE_SIGN, Flags::NEGOTIATE_128] {
        let mut acceptor = acceptor();
        let (mut initiator, token) = initiator("alice", "secret");
        let mut resp = NegTokenResp::parse(&next(acceptor.step(&token, NOW))).unwrap();
        let mut challenge = Challenge::parse(resp.response_token.as_ref().unwrap()).unwrap();
        challenge.flags.0 &= !weakness.0;
        resp.response_token = Some(challenge.emit());
        assert!(matches!(initiator.step(&resp.emit(), NOW), Err(AuthError::Unexpected(_))));
    }
}

/// Every truncation of every token and every flipped byte yields an error, never a panic, on both sides.
#[test]
fn damaged_tokens_are_errors() {
    let mut acceptor = acceptor();
    let (_, first) = initiator("alice", "secret");
    let challenge = next(acceptor.step(&first, NOW));
    let (_, _, last) = up_to_authenticate("alice", "secret");
    for len in 0..first.len() {
        assert!(self::acceptor().step(&first[..len], NOW).is_err(), "first token cut to {len}");
    }
    for len in 0..last.len() {
        let (mut acceptor, _, _) = up_to_authenticate("alice", "secret");
        assert!(acceptor.step(&last[..len], NOW).is_err(), "last token cut to {len}");
    }
    for at in 0..last.len() {
        let (mut acceptor, _, _) = up_to_authenticate("alice", "secret");
        let mut damaged = last.clone();
        damaged[at] ^= 0x04;
        assert!(acceptor.step(&damaged, NOW).is_err(), "last token, byte {at}");
    }
    for len in 0..challenge.len() {
        let (mut initiator, _) = initiator("alice", "secret");
        assert!(initiator.step(&challenge[..len], NOW).is_err(), "challenge cut to {len}");
    }
}

/// A mechanism whose token is the claimed name, and whose MICs are sums.
struct Trusting;

impl tickets::Mechanism for Trusting {
    fn step(&mut self, token: &[u8]) -> Result<weft_kerberos::Step, weft_kerberos::Error> {
        let text = std::str::from_utf8(token).unwrap();
        let client =
            weft_kerberos::Principal::parse(text).ok_or(weft_kerberos::Error::Gss("no ticket".into()))?;
        let service = weft_kerberos::Principal::parse("cifs/host@R").unwrap();
        let (token, key) = (b"and I am I".to_vec(), Zeroizing::new(vec![7; 32]));
        Ok(weft_kerberos::Step::Done { token, client, service, key, lifetime: None })
    }
    fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, weft_kerberos::Error> {
        Ok([&[0], message].concat())
    }
    fn verify(&mut self, message: &[u8], mic: &[u8]) -> bool {
        *mic == *[&[1], message].concat()
    }
}

fn with_tickets() -> Acceptor {
    acceptor().with_contexts(Some(Arc::new(|| Box::new(Trusting))))
}

fn init(mechanisms: &[spnego::ObjectIdentifier], token: Option<&str>) -> (Vec<u8>, Vec<u8>) {
    let init = NegTokenInit::new(mechanisms, token.map(|token| token.as_bytes().to_vec()));
    (init.emit(), init.mech_types_der)
}

#[test]
fn a_ticket_is_taken_at_once_from_who_prefers_it() {
    for mech in [KERBEROS, spnego::MS_KERBEROS] {
        let (token, _) = init(&[mech, NTLMSSP], Some("alice@R"));
        let Ok(Step::Done(answer, login)) = with_tickets().step(&token, NOW) else { panic!("refused") };
        let answer = NegTokenResp::parse(&answer).unwrap();
        assert_eq!(answer.neg_state, Some(NegState::AcceptCompleted));
        assert_eq!(answer.supported_mech, Some(mech), "under the name by which the client knows it");
        assert_eq!(answer.response_token.as_deref(), Some(&b"and I am I"[..]));
        assert_eq!((&*login.user, *login.session_key, login.full_key.len()), ("alice", [7; 16], 32));
    }
    // A client that prefers NTLM gets NTLM, even if tickets are accepted.
    let (_, first) = initiator("alice", "secret");
    next(with_tickets().step(&first, NOW));
}

#[test]
fn a_ticket_proves_a_name_and_the_name_must_be_a_user_of_ours() {
    for who in ["nobody@R", "alice@OTHER", "alice/admin@R", "alice@r", "ALICE@R", "Alice@R", "no ticket"] {
        let (token, _) = init(&[KERBEROS], Some(who));
        let mut acceptor = with_tickets();
        let said = (refused(acceptor.step(&token, NOW)), acceptor.refused().clone());
        let expected = match who {
            "no ticket" => {
                let (detail, cause) = (Some("no ticket".into()), Some(weft_kerberos::Cause::Other));
                (AuthError::Ticket, Refused { detail, cause, ..Refused::default() })
            }
            // Principals that differ in case are different users, although users of ours ignore case.
            "ALICE@R" | "Alice@R" => {
                (AuthError::Spelling, Refused { principal: Some(who.into()), ..Refused::default() })
            }
            _ => (AuthError::Stranger, Refused { principal: Some(who.into()), ..Refused::default() }),
        };
        assert_eq!(said, expected);
        assert!(acceptor.step(&token, NOW).is_err(), "it has ended");
    }
    let (token, _) = init(&[KERBEROS], Some("alice@R"));
    assert_eq!(refused(acceptor().step(&token, NOW)), AuthError::NoMechanism, "without a keytab");
}

#[test]
fn a_principal_of_the_map_is_the_user_whom_its_line_names() {
    let log_on = |principals: &Principals, who: &str| {
        let (token, _) = init(&[KERBEROS], Some(who));
        match with_tickets().with_principals(Arc::new(principals.clone())).step(&token, NOW) {
            Ok(Step::Done(_, login)) => Ok((login.user.to_string(), login.is_ours, login.is_chosen)),
            Ok(Step::Continue(_)) => panic!("one token suffices"),
            Err(e) => Err(e),
        }
    };
    let mut principals = Principals::default();
    for (principal, user) in [("HTTP/host@R", "ALICE"), ("alice@OTHER", "svc"), ("root@R", "root")] {
        principals.map(principal, user).unwrap();
    }
    let stranger = || Err(AuthError::Stranger);
    assert_eq!(log_on(&principals, "HTTP/host@R"), Ok(("alice".into(), true, true)));
    assert_eq!(log_on(&principals, "alice@R"), Ok(("alice".into(), true, false)));
    for who in ["alice@OTHER", "root@R", "carol@R", "HTTP/host@OTHER"] {
        assert_eq!(log_on(&principals, who), stranger(), "{who}: no user of ours");
    }
    principals.mapped_may_be_system = true;
    assert_eq!(log_on(&principals, "alice@OTHER"), Ok(("svc".into(), false, true)));
    assert_eq!(log_on(&principals, "root@R"), Ok(("root".into(), false, true)));
    assert_eq!(log_on(&principals, "carol@R"), stranger());
    principals.all_may_be_system = true;
    assert_eq!(log_on(&principals, "carol@R"), Ok(("carol".into(), false, false)));
    for who in ["carol@OTHER", "carol/admin@R"] {
        assert_eq!(log_on(&principals, who), stranger(), "{who}");
    }
}

/// Removing a mechanism from a client's list, or adding one, is detected (RFC 4178 5).
#[test]
fn a_ticket_that_was_not_preferred_needs_a_mech_list_mic() {
    let other = spnego::SPNEGO;
    let begin = |acceptor: &mut Acceptor| {
        let (token, list) = init(&[other, KERBEROS], None);
        let answer = NegTokenResp::parse(&next(acceptor.step(&token, NOW))).unwrap();
        assert_eq!((answer.neg_state, answer.supported_mech), (Some(NegState::RequestMic), Some(KERBEROS)));
        list
    };
    let resp = |token: Option<&str>, mic: Option<Vec<u8>>| {
        let response_token = token.map(|token| token.as_bytes().to_vec());
        NegTokenResp { response_token, mech_list_mic: mic, ..NegTokenResp::default() }.emit()
    };
    let theirs = |list: &[u8]| [&[1], list].concat();
    // Our MIC goes out with the mechanism's last token, the client's comes next.
    let mut acceptor = with_tickets();
    let list = begin(&mut acceptor);
    let answer = next(acceptor.step(&resp(Some("alice@R"), None), NOW));
    let answer = NegTokenResp::parse(&answer).unwrap();
    assert_eq!(answer.neg_state, Some(NegState::AcceptIncomplete));
    assert_eq!(answer.mech_list_mic, Some([&[0], &list[..]].concat()));
    assert!(matches!(acceptor.step(&resp(None, Some(theirs(&list))), NOW), Ok(Step::Done(..))));
    // Both in one exchange.
    let mut acceptor = with_tickets();
    let list = begin(&mut acceptor);
    let step = acceptor.step(&resp(Some("alice@R"), Some(theirs(&list))), NOW);
    let Ok(Step::Done(answer, _)) = step else { panic!("refused") };
    assert!(NegTokenResp::parse(&answer).unwrap().mech_list_mic.is_some());
    // A wrong MIC, and none.
    for wrong in [Some(theirs(b"another list")), None] {
        let mut acceptor = with_tickets();
        begin(&mut acceptor);
        next(acceptor.step(&resp(Some("alice@R"), None), NOW));
        assert!(acceptor.step(&resp(None, wrong), NOW).is_err());
    }
}
