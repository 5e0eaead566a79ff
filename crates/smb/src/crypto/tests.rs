//! Known answers (RFC 4493, NIST SP800-38D, the published example sessions of [MS-SMB2]) and round trips.

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use weft_machine::buf;
use weft_wire::smb2::negotiate::{CipherId, SigningId};
use weft_wire::smb2::{Command, Dialect, HEADER_LEN, Header, header};

use super::gmac::Gmac;
use super::kdf::kdf;
use super::*;

/// Parses a hex string; blanks are ignored.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

/// The sample sessions of "SMB 2 and SMB 3 security in Windows 10: the anatomy of signing and cryptographic keys"
/// (Microsoft's open specifications blog).
#[test]
fn keys_of_a_3_0_session() {
    let session_key = hex("7CD451825D0450D235424E44BA6E78CC");
    let key = |label: &[u8], context: &[u8]| kdf(&session_key, label, context, 16).to_vec();
    assert_eq!(key(b"SMB2AESCMAC\0", b"SmbSign\0"), hex("0B7E9C5CAC36C0F6EA9AB275298CEDCE"));
    assert_eq!(key(b"SMB2AESCCM\0", b"ServerIn \0"), hex("FAD27796665B313EBB578F388632B4F7"));
    assert_eq!(key(b"SMB2AESCCM\0", b"ServerOut\0"), hex("B0F0427F7CEB416D1D9DCC0CD4F99447"));
}

#[test]
fn keys_of_a_3_1_1_session() {
    let session_key = hex("270E1BA896585EEB7AF3472D3B4C75A7");
    let preauth = hex("0DD13628CC3ED218EF9DF9772D436D0887AB9814BFAE63A80AA845F36909DB79
                       28622DDDAD522D9751640A459762C5A9D6BB084CBB3CE6BDADEF5D5BCE3C6C01");
    let key = |label: &[u8]| kdf(&session_key, label, &preauth, 16).to_vec();
    assert_eq!(key(b"SMBSigningKey\0"), hex("73FE7A9A77BEF0BDE49C650D8CCB5F76"));
    assert_eq!(key(b"SMBC2SCipherKey\0"), hex("629BCBC54422A0F572B97F45989B6073"));
    assert_eq!(key(b"SMBS2CCipherKey\0"), hex("E2AF0DCEFAC68DA71A0DFBD0D1350D74"));
}

#[test]
fn cmac_of_rfc_4493() {
    use aws_lc_rs::cmac;
    let key = cmac::Key::new(cmac::AES_128, &hex("2b7e1516 28aed2a6 abf71588 09cf4f3c")).unwrap();
    let tag = |message: &str| cmac::sign(&key, &hex(message)).unwrap().as_ref().to_vec();
    assert_eq!(tag(""), hex("bb1d6929 e9593728 7fa37d12 9b756746"));
    assert_eq!(tag("6bc1bee2 2e409f96 e93d7e11 7393172a"), hex("070a16b4 6b4d4144 f79bdd9d d04a287c"));
}

/// SP800-38D test case 1: no plaintext, no additional data, zero key and nonce.
#[test]
fn gmac_of_nothing() {
    assert_eq!(Gmac::new(&[0; 16]).tag([0; 12], &[&[]]).to_vec(), hex("58e2fccefa7e3061367f1d57a4e7455a"));
}

/// The tag of the parts equals the tag of the whole, however it is split.
#[test]
fn gmac_of_parts_is_gmac_of_the_whole() {
    let key = [0x2b; 16];
    let (gmac, nonce) = (Gmac::new(&key), [7; 12]);
    let message: Vec<u8> = (0..300_017u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let whole = |data: &[u8]| {
        let aead = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = aead.seal_in_place_separate_tag(nonce, Aad::from(data), &mut []).unwrap();
        <[u8; 16]>::try_from(tag.as_ref()).unwrap()
    };
    for len in [0, 1, 15, 16, 17, 64, 80, 4095, 4096, 4097, 4112, 65_536, 65_616, 262_144, 300_017] {
        let message = &message[..len];
        let expected = whole(message);
        assert_eq!(gmac.tag(nonce, &[message]), expected, "one part of {len}");
        for cut in [0, 16, 63, 64, 80, 112, 4096, 65_536] {
            let Some((a, b)) = message.split_at_checked(cut) else { continue };
            assert_eq!(gmac.tag(nonce, &[a, b]), expected, "{len} cut at {cut}");
            let (b, c) = b.split_at(b.len() / 2 / 16 * 16);
            assert_eq!(gmac.tag(nonce, &[a, b, c]), expected, "{len} cut at {cut} and again");
            assert_eq!(gmac.tag(nonce, &[a, b, &[], c]), expected, "{len} with an empty part");
        }
    }
}

fn message(len: usize) -> Vec<u8> {
    let mut message = Header::request(Command::Write, 42).to_bytes().to_vec();
    message.extend((0..len).map(|i| i as u8));
    message
}

#[test]
fn what_is_signed_verifies_and_nothing_else_does() {
    for algorithm in [SigningId::HMAC_SHA256, SigningId::AES_CMAC, SigningId::AES_GMAC] {
        let key = SigningKey::new(algorithm, &[3; 16]);
        for len in [0, 7, 48, 100_000] {
            let mut signed = message(len);
            key.sign(Sender::Client, &mut signed);
            assert!(Header::parse(&signed).unwrap().flags.contains(header::Flags::SIGNED));
            assert!(key.verify(Sender::Client, &signed), "{algorithm:?} of {len}");
            let other = SigningKey::new(algorithm, &[4; 16]);
            assert!(!other.verify(Sender::Client, &signed), "another key");
            for at in [0, 17, 24, 48, 63, signed.len() - 1] {
                let mut tampered = signed.clone();
                tampered[at] ^= 0x10;
                assert!(!key.verify(Sender::Client, &tampered), "{algorithm:?} of {len}, byte {at}");
            }
            assert!(!key.verify(Sender::Client, &signed[..signed.len() - 1]), "truncated");
            // In parts, like a WRITE whose payload is elsewhere.
            if len >= 48 {
                let mut head = message(len)[..HEADER_LEN + 48].to_vec();
                key.sign_parts(Sender::Client, &mut head, &[&signed[HEADER_LEN + 48..]]);
                assert_eq!(head, &signed[..HEADER_LEN + 48]);
            }
        }
        assert!(!key.verify(Sender::Client, &[0xFE; 20]), "shorter than a header");
    }
}

#[test]
fn gmac_depends_on_the_sender() {
    let key = SigningKey::new(SigningId::AES_GMAC, &[3; 16]);
    let mut signed = message(10);
    key.sign(Sender::Client, &mut signed);
    assert!(!key.verify(Sender::Server, &signed), "a reflected message");
}

#[test]
fn sealed_messages_open_on_the_other_side_only() {
    for (cipher, dialect) in [
        (CipherId::AES_128_GCM, Dialect::V3_1_1),
        (CipherId::AES_256_GCM, Dialect::V3_1_1),
        (CipherId::AES_128_CCM, Dialect::V3_1_1),
        (CipherId::AES_256_CCM, Dialect::V3_1_1),
        (CipherId::AES_128_CCM, Dialect::V3_0),
    ] {
        let profile = Profile { dialect, signing: SigningId::AES_GMAC, cipher: Some(cipher) };
        let mut preauth = Preauth::new();
        preauth.update(b"NEGOTIATE");
        let client = SessionKeys::derive(Role::Client, &profile, &[9; 16], &preauth);
        let server = SessionKeys::derive(Role::Server, &profile, &[9; 16], &preauth);
        let plain = message(5000);
        let mut sealed = vec![0; TRANSFORM_LEN];
        sealed.extend(&plain);
        client.sealer.as_ref().unwrap().seal(77, &mut sealed).unwrap();
        let header = transform(&sealed).unwrap();
        assert_eq!((header.session_id, header.original_message_size as usize), (77, plain.len()));
        let mut opened = vec![0; plain.len()];
        server.opener.as_ref().unwrap().open(&sealed, &mut opened).unwrap();
        assert_eq!(opened, plain);
        // A peer cannot reflect our own messages: the opener has the other direction's key.
        assert_eq!(client.opener.as_ref().unwrap().open(&sealed, &mut opened), Err(SealError::Forged));
        for at in [4, 20, 33, 36, 44, TRANSFORM_LEN, sealed.len() - 1] {
            let mut tampered = sealed.clone();
            tampered[at] ^= 1;
            assert_eq!(
                server.opener.as_ref().unwrap().open(&tampered, &mut opened),
                Err(SealError::Forged),
                "byte {at}"
            );
        }
        for len in 0..TRANSFORM_LEN + 10 {
            assert!(transform(&sealed[..len]).is_err(), "truncated to {len}");
        }
    }
}

#[test]
fn no_nonce_is_used_twice() {
    let sealer = Sealer::new(CipherId::AES_128_GCM, &[1; 16]);
    let nonces: std::collections::HashSet<_> = (0..1000)
        .map(|_| {
            let mut message = [0; TRANSFORM_LEN + 16];
            sealer.seal(1, &mut message).unwrap();
            transform(&message).unwrap().nonce
        })
        .collect();
    assert_eq!(nonces.len(), 1000);
}

#[test]
fn both_engines_agree() {
    let (aws, ring) = (Engine::AwsLc, Engine::Ring);
    for (cipher, key) in [(CipherId::AES_128_GCM, &[5u8; 16][..]), (CipherId::AES_256_GCM, &[6; 32])] {
        let seal = |engine| {
            let mut sealed = vec![0; TRANSFORM_LEN];
            sealed.extend(message(70_000));
            Sealer::with(engine, cipher, key).seal(1, &mut sealed).unwrap();
            sealed
        };
        assert_eq!(seal(aws), seal(ring));
        let (before, _) = buf::copies();
        let mut plain = vec![0; message(70_000).len()];
        Opener::with(aws, cipher, key).open(&seal(ring), &mut plain).unwrap();
        assert_eq!((&plain, buf::copies().0), (&message(70_000), before), "aws-lc opens without a copy");
        plain.fill(0);
        Opener::with(ring, cipher, key).open(&seal(aws), &mut plain).unwrap();
        assert_eq!((&plain, buf::copies().0), (&message(70_000), before + 1), "ring counts its one copy");
    }
}

#[test]
fn dialects_before_3_0_sign_with_the_session_key_and_never_seal() {
    let profile = Profile {
        dialect: Dialect::V2_1,
        signing: SigningId::HMAC_SHA256,
        cipher: Some(CipherId::AES_128_GCM),
    };
    let keys = SessionKeys::derive(Role::Server, &profile, &[8; 16], &Preauth::new());
    assert!(keys.sealer.is_none() && keys.opener.is_none());
    let mut signed = message(3);
    SigningKey::new(SigningId::HMAC_SHA256, &[8; 16]).sign(Sender::Client, &mut signed);
    assert!(keys.signing.verify(Sender::Client, &signed));
}

#[test]
fn the_preauth_chain_is_order_and_boundary_sensitive() {
    let chain = |messages: &[&[u8]]| {
        let mut preauth = Preauth::new();
        messages.iter().for_each(|m| preauth.update(m));
        *preauth.value()
    };
    assert_ne!(chain(&[b"a", b"b"]), chain(&[b"b", b"a"]));
    assert_ne!(chain(&[b"ab"]), chain(&[b"a", b"b"]));
    let mut parts = Preauth::new();
    parts.update_parts(&[b"a", b"b"]);
    assert_eq!(*parts.value(), chain(&[b"ab"]));
}

/// RFC 3610 has no vector with 11-byte nonces and 16-byte tags: this one was made with PyCryptodome.
#[test]
fn ccm_known_answer() {
    use super::ccm::Ccm;
    let ccm = Ccm::new(&hex("404142434445464748494a4b4c4d4e4f"));
    let aad: Vec<u8> = (0..32).collect();
    let mut body: Vec<u8> = (0x20..0x20 + 37).collect();
    let nonce = *b"\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a";
    let tag = ccm.seal(&nonce, &aad, &mut body);
    assert_eq!(body, hex("d6d28b1b24b85b4ffbe0998809dab62e35428a3cca41bdc880d80004b03a18e37ecd2758ab"));
    assert_eq!(tag.to_vec(), hex("036ada3dc7838085b038e73205b499d0"));
    assert!(ccm.open(&nonce, &aad, &tag, &mut body));
    assert_eq!(body, (0x20..0x20 + 37).collect::<Vec<u8>>());
}
