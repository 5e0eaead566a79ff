//! Decisions, inheritance, permissions.

use weft_machine::rt;
use weft_wire::security::{SecurityDescriptor, Sid};
use weft_wire::smb2::access::AccessMask;

use super::posix::Process;
use super::*;
use crate::backend::Ram;
use crate::vfs::{Error, Exists, Kind, Make, NodeId, SetAttr, SetXattr, Vfs};

mod chmod;

const ALICE: &str = "S-1-5-21-1-2-3-1001";
const BOB: &str = "S-1-5-21-1-2-3-1002";

fn token(user: &str) -> Token {
    Token {
        user: user.parse().unwrap(),
        group: "S-1-5-21-1-2-3-513".parse().unwrap(),
        others: vec![Sid::everyone(), Sid::authenticated_users()],
    }
}

fn descriptor(text: &str) -> SecurityDescriptor {
    text.replace("ALICE", ALICE).replace("BOB", BOB).parse().unwrap()
}

fn may(text: &str, user: &str) -> AccessMask {
    granted(&descriptor(text), &token(user))
}

#[test]
fn entries_count_in_their_order() {
    let read = AccessMask::FILE_GENERIC_READ;
    assert_eq!(may("O:BOBD:(A;;FR;;;ALICE)", ALICE), read);
    assert_eq!(may("O:BOBD:(D;;0x1;;;WD)(A;;FR;;;ALICE)", ALICE), read.without(AccessMask::FILE_READ_DATA));
    assert_eq!(may("O:BOBD:(A;;FR;;;ALICE)(D;;0x1;;;WD)", ALICE), read);
    assert_eq!(may("O:BOBD:(A;;FA;;;CO)(A;IO;FA;;;ALICE)", ALICE), AccessMask::NONE);
    assert_eq!(may("O:BOBD:(A;;0x80000000;;;ALICE)", ALICE), read);
    assert_eq!(may("O:BOBD:NO_ACCESS_CONTROL", ALICE), AccessMask::FILE_ALL);
    assert_eq!(may("O:BOBD:", ALICE), AccessMask::NONE);
    assert_eq!(may("O:BOB", ALICE), AccessMask::NONE);
}

#[test]
fn an_owner_can_always_let_himself_in_again_unless_it_is_said_otherwise() {
    assert_eq!(may("O:ALICED:", ALICE), OWNERS);
    assert_eq!(may("O:ALICED:(D;;FA;;;WD)", ALICE), OWNERS);
    assert_eq!(may("O:ALICED:(A;;0x1;;;OW)", ALICE), AccessMask::FILE_READ_DATA);
    assert_eq!(may("O:ALICED:(A;IO;0x1;;;OW)", ALICE), OWNERS);
    assert_eq!(may("O:BOBD:(A;;FA;;;OW)", ALICE), AccessMask::NONE);
}

#[test]
fn a_directory_adds_to_what_lies_in_it() {
    let of = |directory| from_above(may(directory, ALICE));
    assert_eq!(of("D:(A;;0x40;;;WD)"), AccessMask::DELETE);
    assert_eq!(of("D:(A;;0x1;;;WD)"), AccessMask::FILE_READ_ATTRIBUTES);
    assert_eq!(of("D:(A;;0x2;;;WD)"), AccessMask::NONE);
}

#[test]
fn entries_are_handed_down_by_their_flags() {
    // Flags of the directory's entry, of a file's in it, of a directory's in it; [MS-DTYP] 2.5.3.4.4.
    for (above, file, container) in [
        ("OI", Some(""), Some("OIIO")),
        ("CI", None, Some("CI")),
        ("OICI", Some(""), Some("OICI")),
        ("OINP", Some(""), None),
        ("CINP", None, Some("")),
        ("OICINP", Some(""), Some("")),
        ("OIIO", Some(""), Some("OIIO")),
        ("CIIO", None, Some("CI")),
        ("OICIIO", Some(""), Some("OICI")),
    ] {
        let directory = descriptor(&format!("O:BOBD:(A;{above};FR;;;BOB)"));
        for (is_container, expected) in [(false, file), (true, container)] {
            let entries = expected.map_or(String::new(), |flags| format!("(A;{flags};FR;;;{BOB})"));
            let made = inherit::created(&directory, None, is_container, &token(ALICE));
            let wanted = format!("O:{ALICE}G:{}D:{entries}", token(ALICE).group);
            assert_eq!(made.to_string(), wanted, "{above}, container: {is_container}");
        }
    }
}

#[test]
fn creators_take_the_place_that_is_kept_for_them() {
    let made =
        |above: &str, container| inherit::created(&descriptor(above), None, container, &token(ALICE)).dacl;
    let of = |text: &str| descriptor(text).dacl;
    assert_eq!(made("D:(A;OICI;0x10000000;;;CO)", false), of("D:(A;;FA;;;ALICE)"));
    let both = of("D:(A;;FA;;;ALICE)(A;OICIIO;0x10000000;;;CO)");
    assert_eq!(made("D:(A;OICI;0x10000000;;;CO)", true), both);
    // Nothing to inherit: the creator's own entry, and the system's.
    assert_eq!(made("D:(A;;FR;;;BOB)", false), of("D:(A;;FA;;;ALICE)(A;;FA;;;SY)"));
    assert_eq!(made("D:NO_ACCESS_CONTROL", false), of("D:(A;;FA;;;ALICE)(A;;FA;;;SY)"));
}

#[test]
fn inheritance_is_noted_where_it_is_automatic() {
    let directory = inherit::canonical(descriptor("D:ARAI(A;OI;FR;;;BOB)"));
    assert_eq!(directory.to_string(), format!("D:AI(A;OI;FR;;;{BOB})"));
    let made = inherit::created(&directory, None, false, &token(ALICE));
    assert_eq!((made.control, made.dacl), {
        let wanted = descriptor("D:AI(A;ID;FR;;;BOB)");
        (wanted.control, wanted.dacl)
    });
    // Half of a request is ignored.
    assert_eq!(inherit::canonical(descriptor("D:AI(A;;FR;;;WD)")).to_string(), "D:(A;;FR;;;WD)");
    assert_eq!(inherit::canonical(descriptor("D:PAR(A;;FR;;;WD)")).to_string(), "D:P(A;;FR;;;WD)");
}

#[test]
fn what_a_creator_asks_for_is_what_it_gets() {
    let asked = descriptor("O:ALICED:(A;;0x80000000;;;BOB)");
    let made = inherit::created(&descriptor("D:(A;OI;FA;;;WD)"), Some(asked), false, &token(ALICE));
    assert_eq!(made.to_string(), format!("O:{ALICE}G:{}D:(A;;FR;;;{BOB})", token(ALICE).group));
}

#[test]
fn permissions_that_come_closest() {
    let mode = |text: &str, before| posix::mode(&descriptor(text), before, 100);
    assert_eq!(mode("D:(A;;FA;;;WD)", 0o600), 0o677);
    assert_eq!(mode("D:(A;;FA;;;ALICE)", 0o777), 0o700);
    assert_eq!(mode("D:(A;;FR;;;WD)(A;;FW;;;S-1-22-2-100)", 0o644), 0o664);
    assert_eq!(mode("D:(D;;0x1;;;WD)(A;;FA;;;WD)", 0o755), 0o733);
    assert_eq!(mode("D:(A;;FA;;;WD)", 0o444), 0o455, "a read-only file stays one");
}

/// A share, and a file in it.
fn story(story: impl AsyncFnOnce(Vfs, crate::vfs::Attr)) {
    rt::block_on(async {
        let vfs: Vfs = Ram::new(1 << 20).into();
        let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        let attr = vfs.create(NodeId::ROOT, b"f", Make::File, Exists::Fail, set).await.unwrap().attr;
        story(vfs, attr).await;
    })
    .unwrap();
}

#[test]
fn what_nobody_has_protected_is_shared() {
    story(async |vfs, attr| {
        for user in [ALICE, BOB] {
            let guard = look(&vfs, &attr, &token(user)).await.unwrap();
            assert!(!guard.stored);
            assert_eq!(guard.grants(&token(user)), AccessMask::FILE_ALL);
            assert_eq!(guard.descriptor.owner, Some(token(user).user), "it belongs to whoever asks");
        }
        // For another Unix user's file, its permissions decide.
        let process = Process { uid: 7, gid: 7 };
        let other = crate::vfs::Attr { uid: 1000, gid: 100, ..attr };
        let descriptor = posix::synthesised(&other, &token(ALICE), process);
        let granted = granted(&descriptor, &token(ALICE));
        assert!(
            granted.contains(AccessMask::FILE_READ_DATA) && !granted.contains(AccessMask::FILE_WRITE_DATA)
        );
        assert_eq!(descriptor.owner, Some(Sid::unix_user(1000)));
    });
}

#[test]
fn a_descriptor_stays_with_its_file() {
    story(async |vfs, attr| {
        let wanted = descriptor("O:ALICEG:S-1-1-0D:P(A;;FA;;;ALICE)");
        keep(&vfs, attr.node, &wanted).await.unwrap();
        let guard = look(&vfs, &attr, &token(BOB)).await.unwrap();
        assert_eq!((guard.stored, &guard.descriptor), (true, &wanted));
        assert_eq!(guard.grants(&token(BOB)), AccessMask::NONE);
        assert_eq!(vfs.getattr(attr.node).await.unwrap().mode & 0o777, 0o600);
        // A later version's format is not interpreted.
        for value in [&[][..], &[2, 0, 0, 0, 1], &[1, 0, 0, 0], &[1, 0, 0, 0, 9, 9]] {
            vfs.set_xattr(attr.node, XATTR, value, SetXattr::Either).await.unwrap();
            let guard = look(&vfs, &attr, &token(ALICE)).await.unwrap();
            assert_eq!(guard.grants(&token(ALICE)), AccessMask::NONE, "{value:?}");
        }
    });
}

#[test]
fn links_have_no_descriptor() {
    story(async |vfs, _| {
        let make = Make::Symlink(b"f".to_vec());
        let link = vfs.create(NodeId::ROOT, b"l", make, Exists::Fail, SetAttr::default()).await.unwrap().attr;
        assert_eq!(link.kind, Kind::Symlink);
        assert!(!look(&vfs, &link, &token(ALICE)).await.unwrap().stored);
        let refused = keep(&vfs, link.node, &SecurityDescriptor::default()).await;
        assert!(matches!(refused, Err(Error::NotSupported | Error::Invalid | Error::Access)), "{refused:?}");
    });
}
