use proptest::prelude::*;

use super::*;

fn emit(value: &impl Xdr) -> Bytes {
    let mut e = Encoder::default();
    value.emit(&mut e);
    e.into_bytes()
}

fn mounted() -> MountResult {
    MountResult::Ok { handle: Handle::new(&[7; 24]).unwrap(), flavors: vec![Flavor::SYS, Flavor::NONE] }
}

fn exports() -> List<Export> {
    let export =
        |dir: &'static [u8], groups| Export { dir: DirPath(Bytes::from_static(dir)), groups: List(groups) };
    List(vec![export(b"/data", vec![]), export(b"/fast", vec![Name(Bytes::from_static(b"lab"))])])
}

fn dump() -> List<MountEntry> {
    let entry = MountEntry {
        hostname: Name(Bytes::from_static(b"box")),
        directory: DirPath(Bytes::from_static(b"/data")),
    };
    List(vec![entry.clone(), entry])
}

fn check<T: Xdr + PartialEq + std::fmt::Debug>(value: &T) {
    let bytes = emit(value);
    let mut d = Decoder::new(bytes.clone());
    assert_eq!(T::parse(&mut d).as_ref(), Ok(value));
    assert_eq!(d.end(), Ok(()));
    for len in 0..bytes.len() {
        assert!(T::parse(&mut Decoder::new(bytes.slice(..len))).is_err(), "{value:?} at {len}");
    }
}

#[test]
fn results_come_back_and_their_truncations_do_not() {
    check(&mounted());
    check(&MountResult::Failed(MountStatus::NOENT));
    check(&exports());
    check(&dump());
}

#[test]
fn an_export_list_as_it_lies_on_the_wire() {
    let expected = [
        0, 0, 0, 1, /**/ 0, 0, 0, 5, b'/', b'd', b'a', b't', b'a', 0, 0, 0, /**/ 0, 0, 0,
        0, //
        0, 0, 0, 1, /**/ 0, 0, 0, 5, b'/', b'f', b'a', b's', b't', 0, 0, 0, //
        0, 0, 0, 1, /**/ 0, 0, 0, 3, b'l', b'a', b'b', 0, /**/ 0, 0, 0, 0, //
        0, 0, 0, 0,
    ];
    assert_eq!(&emit(&exports())[..], &expected[..]);
}

#[test]
fn refusals_are_told_in_words() {
    let words = MountStatus::NOENT.to_string();
    assert_eq!(words, "the server exports no such path (MNT3ERR_NOENT)");
    assert_eq!(MountStatus(77).to_string(), "mountstat3 77");
}

proptest! {
    #[test]
    fn mutations_never_panic(at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        for bytes in [emit(&mounted()), emit(&exports()), emit(&dump())] {
            let mut bytes = bytes.to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let bytes = Bytes::from(bytes);
            let _ = MountResult::parse(&mut Decoder::new(bytes.clone()));
            let _ = List::<Export>::parse(&mut Decoder::new(bytes.clone()));
            let _ = List::<MountEntry>::parse(&mut Decoder::new(bytes));
        }
    }
}
