use super::*;

fn check<T: Xdr + PartialEq + std::fmt::Debug>(value: &T) {
    let mut e = Encoder::default();
    value.emit(&mut e);
    let bytes = e.into_bytes();
    let mut d = Decoder::new(bytes.clone());
    assert_eq!(T::parse(&mut d).as_ref(), Ok(value));
    assert_eq!(d.end(), Ok(()));
    for len in 0..bytes.len() {
        assert!(T::parse(&mut Decoder::new(bytes.slice(..len))).is_err(), "{value:?} at {len}");
    }
}

fn object(bytes: &'static [u8]) -> Object {
    Object(Bytes::from_static(bytes))
}

fn lock() -> Lock {
    let file = Handle::new(&[7; 40]).unwrap();
    Lock { caller: object(b"box"), file, owner: object(b"5@box"), svid: 5, offset: 1 << 40, length: 0 }
}

#[test]
fn what_is_emitted_comes_back_and_its_truncations_do_not() {
    let cookie = object(b"\0\0\0\x01");
    check(&LockArgs {
        cookie: cookie.clone(),
        block: true,
        exclusive: true,
        lock: lock(),
        reclaim: false,
        state: 3,
    });
    check(&CancelArgs { cookie: cookie.clone(), block: true, exclusive: false, lock: lock() });
    check(&TestArgs { cookie: cookie.clone(), exclusive: false, lock: lock() });
    check(&UnlockArgs { cookie: cookie.clone(), lock: lock() });
    check(&Answer { cookie: cookie.clone(), status: Status::BLOCKED });
    let holder = Holder { exclusive: true, svid: 9, owner: object(b"9"), offset: 0, length: 1 };
    check(&TestAnswer { cookie: cookie.clone(), outcome: Err(holder) });
    check(&TestAnswer { cookie: cookie.clone(), outcome: Ok(Status::GRANTED) });
    let file = Handle::new(&[7; 40]).unwrap();
    let share = Share { caller: object(b"box"), file, owner: object(b"o"), deny: 2, access: 1 };
    check(&ShareArgs { cookie: cookie.clone(), share, reclaim: false });
    check(&ShareAnswer { cookie, status: Status::GRANTED, sequence: 0 });
    check(&Notify { name: object(b"box"), state: 4 });
}

#[test]
fn a_lock_as_it_lies_on_the_wire() {
    let mut e = Encoder::default();
    UnlockArgs { cookie: object(b"\x01\x02"), lock: lock() }.emit(&mut e);
    let mut expected =
        vec![0, 0, 0, 2, 1, 2, 0, 0, /**/ 0, 0, 0, 3, b'b', b'o', b'x', 0, /**/ 0, 0, 0, 40];
    expected.extend([7; 40]);
    expected.extend([0, 0, 0, 5, b'5', b'@', b'b', b'o', b'x', 0, 0, 0, /**/ 0, 0, 0, 5]);
    expected.extend([0, 0, 1, 0, 0, 0, 0, 0, /**/ 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(e.into_bytes(), expected);
}
