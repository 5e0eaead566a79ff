//! The messages of [MS-NLMP] 4.2.4.3, round trips, and damage.

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

fn challenge() -> Vec<u8> {
    hex("4e544c4d53535000 02000000  0c000c00 38000000  33828ae2  0123456789abcdef 0000000000000000
         24002400 44000000  0600701700 00000f  530065007200760065007200
         02000c00 44006f006d00610069006e00  01000c00 530065007200760065007200  00000000")
}

fn authenticate() -> Vec<u8> {
    hex("4e544c4d53535000 03000000  18001800 6c000000  54005400 84000000  0c000c00 48000000
         08000800 54000000  10001000 5c000000  10001000 d8000000  358288e2  0501280a0000000f
         44006f006d00610069006e00  5500730065007200  43004f004d0050005500540045005200
         86c35097ac9cec102554764a57cccc19 aaaaaaaaaaaaaaaa
         68cd0ab851e51c96aabc927bebef6a1c 0101000000000000 0000000000000000 aaaaaaaaaaaaaaaa 00000000
         02000c00 44006f006d00610069006e00  01000c00 530065007200760065007200  00000000 00000000
         c5dad2544fc97990 94ce1ce90bc9d03e")
}

#[test]
fn challenge_of_the_specification() {
    let message = Challenge::parse(&challenge()).unwrap();
    assert_eq!(message.target_name, "Server");
    assert_eq!(message.server_challenge, [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
    let pairs = AvPairs::parse(&message.target_info).unwrap();
    assert_eq!(pairs.find(AvId::NbDomainName), Some(&utf16("Domain")[..]));
    assert_eq!(pairs.find(AvId::NbComputerName), Some(&utf16("Server")[..]));
    assert_eq!((pairs.flags(), pairs.timestamp()), (0, None));
    // All but the version, which is our own.
    let mut emitted = message.emit();
    emitted[48..56].copy_from_slice(&challenge()[48..56]);
    assert_eq!(emitted, challenge());
}

#[test]
fn authenticate_of_the_specification() {
    let message = Authenticate::parse(&authenticate()).unwrap();
    assert_eq!(
        (&*message.domain, &*message.user, &*message.workstation),
        ("Domain", "User", "COMPUTER"),
        "4.2.1"
    );
    assert_eq!(message.mic, None, "the payload begins where a MIC would be");
    assert_eq!(message.session_key, hex("c5dad2544fc9799094ce1ce90bc9d03e"));
    let response = NtlmV2Response::parse(&message.nt_response).unwrap();
    assert_eq!(response.proof[..], hex("68cd0ab851e51c96aabc927bebef6a1c"));
    assert_eq!((response.client_challenge, response.timestamp), ([0xaa; 8], 0));
    let temp = NtlmV2Response::emit_temp(0, [0xaa; 8], &AvPairs::parse(response.av_pairs).unwrap().emit());
    assert_eq!(temp, response.temp);
}

#[test]
fn what_we_emit_we_parse() {
    let negotiate = Negotiate { flags: Flags(0xe208_8297) };
    assert_eq!(Negotiate::parse(&negotiate.emit()), Ok(negotiate));
    for mic in [[0; 16], [9; 16]] {
        let message = Authenticate {
            flags: Flags::NEGOTIATE_UNICODE,
            lm_response: vec![0; 24],
            nt_response: vec![1; 90],
            domain: "Dömain".into(),
            user: "👤".into(),
            workstation: String::new(),
            session_key: vec![2; 16],
            mic: Some(mic),
        };
        let emitted = message.emit();
        assert_eq!(emitted[MIC], mic);
        assert!(Authenticate::parse(&emitted) == Ok(message));
    }
}

#[test]
fn oem_names_are_ascii() {
    let message = Authenticate {
        flags: Flags::NEGOTIATE_OEM,
        lm_response: Vec::new(),
        nt_response: vec![1; 90],
        domain: "DOM".into(),
        user: "alice".into(),
        workstation: "HOST".into(),
        session_key: Vec::new(),
        mic: None,
    };
    let mut emitted = message.emit();
    let parsed = Authenticate::parse(&emitted).unwrap();
    assert_eq!((&*parsed.domain, &*parsed.user, &*parsed.workstation), ("DOM", "alice", "HOST"));
    let at = emitted.windows(5).position(|name| name == b"alice").unwrap();
    emitted[at] = 0xe4;
    assert!(Authenticate::parse(&emitted).is_err(), "of some code page");
    let neither = Authenticate { flags: Flags(0), ..message };
    assert!(Authenticate::parse(&neither.emit()).is_err(), "of no encoding");
}

#[test]
fn av_pairs_replace_in_place_and_append() {
    let list = hex("0600 0400 01000000  0200 0200 4400  0000 0000  ffff");
    let mut pairs = AvPairs::parse(&list).unwrap();
    pairs.set(AvId::Flags, &[3, 0, 0, 0]);
    pairs.set(AvId::TargetName, &[]);
    assert_eq!(pairs.emit(), hex("0600 0400 03000000  0200 0200 4400  0900 0000  0000 0000"));
    assert_eq!(AvPairs::parse(&[]).unwrap(), AvPairs::default());
    assert!(AvPairs::parse(&list[..8]).is_err(), "no end mark");
}

#[test]
fn debug_shows_no_responses() {
    let shown = format!("{:?}", Authenticate::parse(&authenticate()).unwrap());
    assert!(shown.contains("User") && !shown.contains("104") && !shown.contains("proof"), "{shown}");
}

/// Every cut through the fixed part or a field is an error; damage gives an error or another message, never a panic.
#[test]
fn damage() {
    for (message, parse) in [
        (Negotiate { flags: Flags(7) }.emit(), (|m| Negotiate::parse(m).map(drop)) as fn(&[u8]) -> _),
        (challenge(), |m| Challenge::parse(m).map(drop)),
        (authenticate(), |m| Authenticate::parse(m).map(drop)),
        (authenticate()[0x84..0xd8].to_vec(), |m| NtlmV2Response::parse(m).map(drop)),
    ] {
        assert_eq!(parse(&message), Ok(()));
        let needed = match message[8] {
            1 => 16,
            // The four zeros at the end of temp come after the end mark.
            _ if !message.starts_with(SIGNATURE) => message.len() - 4,
            _ => message.len(),
        };
        for len in 0..needed {
            assert!(parse(&message[..len]).is_err(), "cut to {len} of {}", message.len());
        }
        for at in 0..message.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = message.clone();
                damaged[at] = value;
                let _ = parse(&damaged);
            }
        }
    }
    let mut long = challenge();
    long.resize(MAX_MESSAGE + 1, 0);
    assert!(Challenge::parse(&long).is_err());
}
