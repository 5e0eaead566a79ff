//! Permissions that are set where there is a descriptor (RFC 8881 6.4.1.1).

use super::*;
use crate::access::chmod;
use crate::vfs::Attr;
use weft_wire::security::Ace;

const READ: AccessMask = AccessMask::FILE_READ_DATA;
const WRITE: AccessMask = AccessMask(AccessMask::FILE_WRITE_DATA.0 | AccessMask::FILE_APPEND_DATA.0);
const EXECUTE: AccessMask = AccessMask::FILE_EXECUTE;

/// Somebody's rights to read, write and execute, as permission bits.
fn bits(descriptor: &SecurityDescriptor, token: &Token) -> u32 {
    let granted = granted(descriptor, token);
    let bit = |needed, bit| if granted.contains(needed) { bit } else { 0 };
    bit(READ, 4) | bit(WRITE, 2) | bit(EXECUTE, 1)
}

fn somebody(user: Sid, group: Sid) -> Token {
    Token { user, group, others: vec![Sid::everyone()] }
}

/// The owner, a member of the group, a stranger, and BOB, who is named.
fn all_bits(descriptor: &SecurityDescriptor, attr: &Attr) -> [u32; 4] {
    let nobodys = Sid::unix_group(65_000);
    let who = [
        somebody(Sid::unix_user(attr.uid), nobodys.clone()),
        somebody(Sid::unix_user(65_001), Sid::unix_group(attr.gid)),
        somebody(Sid::unix_user(65_002), nobodys.clone()),
        somebody(BOB.parse().unwrap(), nobodys),
    ];
    who.map(|token| bits(descriptor, &token))
}

#[test]
fn a_descriptor_says_what_the_permissions_say_that_were_set_after_it() {
    // The earlier list, the permissions set now, and BOB's resulting rights.
    let table = [
        ("O:ALICED:(A;;FA;;;WD)", 0o640, 0),
        ("O:ALICED:(A;;FA;;;WD)", 0o604, 4),
        ("O:ALICED:(A;;FA;;;BOB)", 0o640, 4),
        ("O:ALICED:(A;;FA;;;BOB)", 0o670, 7),
        ("O:ALICED:(A;;FA;;;BOB)", 0o600, 0),
        // Others have more rights than the group: named users do not get rights that the group lacks.
        ("O:ALICED:(A;;FA;;;BOB)", 0o607, 0),
        ("O:ALICED:(A;;FR;;;BOB)", 0o670, 4),
        ("O:ALICED:(D;;0x2;;;BOB)(A;;FA;;;WD)", 0o666, 4),
        ("O:ALICED:(A;;FR;;;BOB)(D;;FA;;;WD)", 0o755, 5),
        ("O:ALICED:(D;;FA;;;WD)", 0o077, 7),
        ("O:ALICED:(A;;FA;;;OW)", 0o400, 0),
        ("O:ALICED:NO_ACCESS_CONTROL", 0o640, 0),
        ("O:ALICED:", 0o751, 1),
        ("D:(A;;FA;;;S-1-22-2-100)", 0o704, 4),
        ("O:S-1-22-1-1000G:S-1-22-2-100D:(A;;FA;;;S-1-22-1-1000)", 0o000, 0),
    ];
    story(async |vfs, made| {
        for (before, mode, bob) in table {
            let mut value = vec![1, 0, 0, 0];
            descriptor(before).emit(&mut value);
            vfs.set_xattr(made.node, XATTR, &value, SetXattr::Either).await.unwrap();
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            let attr = chmod::set(&vfs, &made, set.clone()).await.unwrap();
            assert_eq!(attr.mode & 0o777, mode);
            let after = stored(&vfs, &attr).await.unwrap().unwrap();
            let expected = [mode >> 6 & 7, mode >> 3 & 7, mode & 7, bob];
            assert_eq!(all_bits(&after, &attr), expected, "{before} then {mode:o}: {after}");
            assert_eq!(after.owner, descriptor(before).owner);
            // Setting it again changes nothing.
            chmod::set(&vfs, &made, set).await.unwrap();
            assert_eq!(stored(&vfs, &attr).await.unwrap().unwrap(), after, "{before} then {mode:o} twice");
        }
    });
}

#[test]
fn what_is_for_children_and_rights_of_other_kinds_stay() {
    story(async |vfs, _| {
        let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        let dir = vfs.create(NodeId::ROOT, b"d", Make::Dir, Exists::Fail, set).await.unwrap().attr;
        let before = descriptor("O:ALICED:(A;OICI;FA;;;BOB)(A;OIIO;FR;;;WD)(A;;0x10000;;;WD)");
        keep(&vfs, dir.node, &before).await.unwrap();
        let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        let attr = chmod::set(&vfs, &dir, set).await.unwrap();
        let after = stored(&vfs, &attr).await.unwrap().unwrap();
        assert_eq!(all_bits(&after, &attr), [7, 0, 0, 0]);
        let Dacl::List(list) = &after.dacl else { panic!("{after}") };
        let whole = AccessMask::FILE_ALL;
        let heirs = AceFlags::OBJECT_INHERIT | AceFlags::CONTAINER_INHERIT | AceFlags::INHERIT_ONLY;
        assert!(list.contains(&Ace::allow(BOB.parse().unwrap(), whole, heirs)), "{after}");
        let files = AceFlags::OBJECT_INHERIT | AceFlags::INHERIT_ONLY;
        assert!(list.contains(&Ace::allow(Sid::everyone(), AccessMask::FILE_GENERIC_READ, files)));
        assert!(list.contains(&Ace::allow(Sid::everyone(), AccessMask::DELETE, AceFlags::NONE)));
        // A user with all rights except those that the bits decide may still delete it.
        let bob = somebody(BOB.parse().unwrap(), Sid::unix_group(65_000));
        assert!(granted(&after, &bob).contains(AccessMask::DELETE | AccessMask::WRITE_DAC));
    });
}

#[test]
fn a_file_without_a_descriptor_gets_none() {
    story(async |vfs, attr| {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        chmod::set(&vfs, &attr, set).await.unwrap();
        assert_eq!(stored(&vfs, &attr).await.unwrap(), None);
    });
}
