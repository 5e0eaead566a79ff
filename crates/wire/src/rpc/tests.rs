use proptest::prelude::*;

use super::*;

/// RFC 5531: xid 7, CALL, RPC 2, NFS v3 READ, AUTH_SYS, AUTH_NONE.
const CALL_BYTES: &[u8] = &[
    0, 0, 0, 7, /**/ 0, 0, 0, 0, /**/ 0, 0, 0, 2, /**/ 0, 1, 0x86, 0xa3, /**/ 0, 0, 0, 3,
    /**/ 0, 0, 0, 6, //
    0, 0, 0, 1, /**/ 0, 0, 0, 32, //
    0, 0, 0, 9, /**/ 0, 0, 0, 3, b'b', b'o', b'x', 0, /**/ 0, 0, 3, 0xe8, /**/ 0, 0, 0,
    100, //
    0, 0, 0, 2, /**/ 0, 0, 0, 4, /**/ 0, 0, 0, 24, //
    0, 0, 0, 0, /**/ 0, 0, 0, 0,
];

fn parse(bytes: &[u8]) -> Result<Call, NotACall> {
    Call::parse(&mut Decoder::new(Bytes::copy_from_slice(bytes)))
}

#[test]
fn a_call_with_unix_ids() {
    let call = parse(CALL_BYTES).unwrap();
    assert_eq!((call.xid, call.program, call.version, call.procedure), (7, 100_003, 3, 6));
    let Credential::Sys(sys) = &call.credential else { panic!("{call:?}") };
    assert_eq!((sys.stamp, sys.uid, sys.gid, sys.gids()), (9, 1000, 100, &[4, 24][..]));
    assert_eq!(&sys.machine_name[..], b"box");
    let mut e = Encoder::default();
    call.emit(&mut e);
    assert_eq!(&e.into_bytes()[..], CALL_BYTES);
}

#[test]
fn every_truncation_is_an_error() {
    for len in 0..CALL_BYTES.len() {
        assert!(parse(&CALL_BYTES[..len]).is_err(), "{len}");
    }
}

#[test]
fn another_rpc_version_can_be_answered() {
    let mut bytes = CALL_BYTES.to_vec();
    bytes[11] = 3;
    assert_eq!(parse(&bytes), Err(NotACall::RpcVersion { xid: 7 }));
}

#[test]
fn a_broken_credential_can_be_answered() {
    let seventeen_groups = {
        let mut bytes = CALL_BYTES.to_vec();
        bytes[55] = 17;
        bytes
    };
    assert_eq!(parse(&seventeen_groups), Err(NotACall::Auth { xid: 7, stat: AuthStat::BADCRED }));
    let bytes_behind_the_groups = {
        let mut bytes = CALL_BYTES.to_vec();
        bytes[55] = 1;
        bytes
    };
    assert_eq!(parse(&bytes_behind_the_groups), Err(NotACall::Auth { xid: 7, stat: AuthStat::BADCRED }));
}

#[test]
fn an_unknown_flavour_is_skipped_but_not_beyond_400_bytes() {
    let call = |len: usize| {
        let mut e = Encoder::default();
        for word in [7, 0, 2, 1, 1, 1, 5] {
            e.u32(word);
        }
        e.opaque(&vec![0; len]);
        e.u32(0);
        e.u32(0);
        e.into_bytes()
    };
    assert_eq!(parse(&call(400)).unwrap().credential, Credential::Other(Flavor(5)));
    assert!(matches!(parse(&call(401)), Err(NotACall::Malformed(_))));
}

const REPLIES: [Reply; 8] = [
    Reply::Success,
    Reply::ProgramUnavailable,
    Reply::ProgramMismatch { low: 3, high: 3 },
    Reply::ProcedureUnavailable,
    Reply::GarbageArgs,
    Reply::SystemError,
    Reply::RpcMismatch { low: 2, high: 2 },
    Reply::AuthError(AuthStat::TOOWEAK),
];

#[test]
fn replies_come_back_and_their_truncations_do_not() {
    for reply in REPLIES {
        let mut e = Encoder::default();
        reply.emit(5, &mut e);
        let bytes = e.into_bytes();
        let mut d = Decoder::new(bytes.clone());
        assert_eq!(Reply::parse(&mut d), Ok((5, reply)));
        assert_eq!(d.end(), Ok(()));
        for len in 0..bytes.len() {
            assert!(Reply::parse(&mut Decoder::new(bytes.slice(..len))).is_err(), "{reply:?} {len}");
        }
    }
}

#[test]
fn fragment_headers() {
    let last = Fragment::parse([0x80, 0, 1, 0]);
    assert_eq!(last, Fragment { last: true, len: 256 });
    assert_eq!(last.emit(), Some([0x80, 0, 1, 0]));
    assert_eq!(Fragment { last: false, len: 1 << 31 }.emit(), None);
}

proptest! {
    #[test]
    fn mutations_never_panic(at in 0..CALL_BYTES.len(), flip in 1..=255_u8, cut in 0..CALL_BYTES.len()) {
        let mut bytes = CALL_BYTES.to_vec();
        bytes[at] ^= flip;
        let _ = parse(&bytes);
        let _ = parse(&bytes[..cut]);
        let _ = Reply::parse(&mut Decoder::new(Bytes::from(bytes)));
    }
}

#[test]
fn the_probe_of_tls_is_one_call_and_nothing_else() {
    let probe = [
        0x80, 0, 0, 40, /**/ 1, 2, 3, 4, /**/ 0, 0, 0, 0, /**/ 0, 0, 0, 2, /**/ 0, 1,
        0x86, 0xa3, /**/ 0, 0, 0, 3, /**/ 0, 0, 0, 0, /**/ 0, 0, 0, 7, /**/ 0, 0, 0, 0,
        /**/ 0, 0, 0, 0, /**/ 0, 0, 0, 0,
    ];
    assert_eq!(probe.len(), Fragment::BYTES + Probe::BYTES);
    assert_eq!(Probe::parse(&probe), Some(Probe { xid: 0x0102_0304 }));
    let expected = [
        0x80, 0, 0, 32, /**/ 1, 2, 3, 4, /**/ 0, 0, 0, 1, /**/ 0, 0, 0, 0, /**/ 0, 0, 0,
        0, /**/ 0, 0, 0, 8, b'S', b'T', b'A', b'R', b'T', b'T', b'L', b'S', /**/ 0, 0, 0, 0,
    ];
    assert_eq!(Probe { xid: 0x0102_0304 }.accept(), &expected[..]);
    for len in 0..probe.len() {
        assert_eq!(Probe::parse(&probe[..len]), None);
    }
    // Other first messages of a connection: another length, procedure, flavour or RPC version.
    for at in [0, 3, 11, 15, 27, 31, 35] {
        let mut other = probe;
        other[at] ^= 1;
        assert_eq!(Probe::parse(&other), None, "byte {at}");
    }
}

#[test]
fn refusals_are_told_in_words_with_the_names_of_the_specification() {
    let stronger = Reply::AuthError(AuthStat::TOOWEAK).to_string();
    assert_eq!(
        stronger,
        "the server refuses who is calling: it wants stronger authentication (AUTH_TOOWEAK)"
    );
    assert!(Reply::AuthError(AuthStat(77)).to_string().ends_with("auth_stat 77"));
    let versions = Reply::ProgramMismatch { low: 3, high: 4 }.to_string();
    assert_eq!(versions, "the server has only versions 3 to 4 of this RPC program (PROG_MISMATCH)");
}

/// RFC 2203: a credential of version 1 for DATA, sequence 5, privacy, handle "hndl", with a MIC of 8 bytes.
const GSS_CALL: &[u8] = &[
    0, 0, 0, 7, /**/ 0, 0, 0, 0, /**/ 0, 0, 0, 2, /**/ 0, 1, 0x86, 0xa3, /**/ 0, 0, 0, 4,
    /**/ 0, 0, 0, 1, //
    0, 0, 0, 6, /**/ 0, 0, 0, 24, /**/ 0, 0, 0, 1, /**/ 0, 0, 0, 0, /**/ 0, 0, 0, 5,
    /**/ 0, 0, 0, 3, //
    0, 0, 0, 4, b'h', b'n', b'd', b'l', //
    0, 0, 0, 6, /**/ 0, 0, 0, 8, /**/ 1, 2, 3, 4, 5, 6, 7, 8,
];

#[test]
fn a_call_in_a_gss_context_knows_what_its_verifier_covers() {
    let call = parse(GSS_CALL).unwrap();
    let Credential::Gss(gss) = &call.credential else { panic!("{call:?}") };
    assert_eq!((gss.procedure, gss.sequence, gss.service), (gss::Procedure::Data, 5, gss::Service::Privacy));
    assert_eq!((&gss.handle[..], &gss.mic[..]), (&b"hndl"[..], &[1, 2, 3, 4, 5, 6, 7, 8][..]));
    assert_eq!(gss.covered_bytes, GSS_CALL.len() - 16);
    let mut e = Encoder::default();
    call.emit(&mut e);
    assert_eq!(&e.into_bytes()[..], GSS_CALL);
}

#[test]
fn a_call_is_signed_up_to_its_verifier() {
    let call = parse(GSS_CALL).unwrap();
    let mut e = Encoder::default();
    let signed = call.clone().emit_signed(&mut e, |header| {
        assert_eq!(header, &GSS_CALL[..GSS_CALL.len() - 16]);
        Ok::<_, ()>(vec![1, 2, 3, 4, 5, 6, 7, 8])
    });
    assert_eq!((signed, &e.into_bytes()[..]), (Ok(()), GSS_CALL));
    assert_eq!(call.emit_signed(&mut Encoder::default(), |_| Err("no key")), Err("no key"));
}

#[test]
fn a_truncated_gss_call_is_an_error() {
    for len in 0..GSS_CALL.len() {
        assert!(parse(&GSS_CALL[..len]).is_err(), "{len}");
    }
}

#[test]
fn a_broken_gss_credential_can_be_answered() {
    // Version, gss_proc, service, length of the handle, and a verifier of AUTH_NONE.
    for (at, value) in [(35, 2), (39, 4), (47, 0), (47, 4), (51, 65), (51, 5), (59, 0)] {
        let mut bytes = GSS_CALL.to_vec();
        bytes[at] = value;
        let refused = Err(NotACall::Auth { xid: 7, stat: AuthStat::BADCRED });
        assert_eq!(parse(&bytes), refused, "byte {at}");
    }
}

#[test]
fn gss_bodies_have_honest_lengths() {
    let body = |bytes: &[u8]| Decoder::new(Bytes::copy_from_slice(bytes));
    let whole = [0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0, /**/ 0, 0, 0, 2, 9, 9, 0, 0];
    let parsed = <gss::Integrity as crate::xdr::Xdr>::parse(&mut body(&whole)).unwrap();
    assert_eq!((&parsed.body[..], &parsed.mic[..]), (&[1, 2, 3, 4, 5][..], &[9, 9][..]));
    for len in 0..whole.len() {
        assert!(<gss::Integrity as crate::xdr::Xdr>::parse(&mut body(&whole[..len])).is_err(), "{len}");
    }
    let long = [0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4];
    assert!(<gss::Integrity as crate::xdr::Xdr>::parse(&mut body(&long)).is_err());
    assert!(<gss::Privacy as crate::xdr::Xdr>::parse(&mut body(&long)).is_err());
    let token = [&[0, 1, 0, 1][..], &[0; 0x1_0004]].concat();
    assert!(<gss::InitToken as crate::xdr::Xdr>::parse(&mut body(&token)).is_err(), "above the limit");
}

#[test]
fn a_reply_in_a_gss_context_has_a_verifier() {
    let mut e = Encoder::default();
    Reply::Success.emit_verified(7, &[1, 2, 3, 4], &mut e);
    let expected = [
        0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, /**/ 0, 0, 0, 6, 0, 0, 0, 4, 1, 2, 3, 4, /**/ 0, 0, 0,
        0,
    ];
    assert_eq!(&e.into_bytes()[..], expected);
    let read = |bytes: &[u8]| Reply::parse_verified(&mut Decoder::new(Bytes::copy_from_slice(bytes)));
    assert_eq!(read(&expected), Ok((7, Reply::Success, Some(Bytes::from_static(&[1, 2, 3, 4])))));
    let mut e = Encoder::default();
    Reply::Success.emit(7, &mut e);
    assert_eq!(e.len(), Reply::SUCCESS_BYTES);
    assert_eq!(read(&e.into_bytes()), Ok((7, Reply::Success, None)));
    let mut e = Encoder::default();
    Reply::AuthError(AuthStat::GSS_CREDPROBLEM).emit(7, &mut e);
    assert_eq!(read(&e.into_bytes()), Ok((7, Reply::AuthError(AuthStat::GSS_CREDPROBLEM), None)));
}
