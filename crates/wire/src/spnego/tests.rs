//! Tokens as Windows and Samba send them, round trips, and damage.

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

/// A server's NegTokenInit2 with negHints ([MS-SPNG] 2.2.1).
fn hint() -> Vec<u8> {
    hex("6048 06062b0601050502 a03e 303c
         a00e 300c 060a2b06010401823702020a
         a32a 3028 a026 1b24 6e6f745f646566696e65645f696e5f5246433431373840706c656173655f69676e6f7265")
}

#[test]
fn negotiation_hints_are_skipped() {
    let token = NegTokenInit::parse(&hint()).unwrap();
    assert_eq!((token.mech_types, token.mech_token), (vec![NTLMSSP], None));
    assert_eq!(token.mech_types_der, hex("300c 060a2b06010401823702020a"));
}

#[test]
fn what_we_emit_we_parse() {
    let init = NegTokenInit::new(&[MS_KERBEROS, KERBEROS, NTLMSSP], Some(vec![7; 300]));
    assert_eq!(Token::parse(&init.emit()), Ok(Token::Init(init)));
    for token in [
        NegTokenResp::default(),
        NegTokenResp { neg_state: Some(NegState::Reject), ..NegTokenResp::default() },
        NegTokenResp {
            neg_state: Some(NegState::AcceptIncomplete),
            supported_mech: Some(NTLMSSP),
            response_token: Some(vec![1; 200]),
            mech_list_mic: Some(vec![2; 16]),
        },
    ] {
        assert_eq!(Token::parse(&token.emit()), Ok(Token::Resp(token)));
    }
}

#[test]
fn accept_completed_is_nine_bytes() {
    let token = NegTokenResp { neg_state: Some(NegState::AcceptCompleted), ..NegTokenResp::default() };
    assert_eq!(token.emit(), hex("a107 3005 a003 0a0100"));
}

#[test]
fn damage() {
    let resp = NegTokenResp {
        neg_state: Some(NegState::AcceptIncomplete),
        supported_mech: Some(NTLMSSP),
        response_token: Some(vec![1; 200]),
        mech_list_mic: Some(vec![2; 16]),
    };
    for token in [hint(), NegTokenInit::new(&[NTLMSSP], Some(vec![7; 300])).emit(), resp.emit()] {
        for len in 0..token.len() {
            assert!(Token::parse(&token[..len]).is_err(), "cut to {len}");
        }
        for at in 0..token.len() {
            for value in 0..=255 {
                let mut damaged = token.clone();
                damaged[at] = value;
                let _ = Token::parse(&damaged);
            }
        }
    }
    assert!(NegTokenInit::parse(&hex("600e 06062b0601050502 a004 3002 a000")).is_err(), "no mechanisms");
    let many = NegTokenInit::new(&[NTLMSSP; MAX_MECHANISMS + 1], None);
    assert!(NegTokenInit::parse(&many.emit()).is_err(), "too many mechanisms");
}
