use super::*;

fn name(text: &str) -> Name {
    Name::new(text.split('.')).unwrap()
}

fn record(of: &str, data: Data) -> Record {
    Record { name: name(of), class: CLASS_IN, flush: true, ttl: 120, data }
}

/// An announcement of one service, as other responders send it.
fn announcement() -> Message {
    Message {
        response: true,
        authoritative: true,
        answers: vec![
            record("_smb._tcp.local", Data::Ptr(name("nas._smb._tcp.local"))),
            record("nas._smb._tcp.local", Data::Srv { port: 445, target: name("nas.local") }),
            record("nas._smb._tcp.local", Data::Txt(b"\x0bmodel=Xserve".to_vec())),
            record("nas.local", Data::A([192, 0, 2, 7].into())),
        ],
        additional: vec![record("nas.local", Data::Aaaa("2001:db8::7".parse().unwrap()))],
        ..Message::default()
    }
}

#[test]
fn a_question_is_read_and_written() {
    // dns-sd -B _smb._tcp: PTR, answer by unicast wanted.
    let bytes = b"\0\0 \0\0 \0\x01 \0\0 \0\0 \0\0 \x04_smb\x04_tcp\x05local\0 \0\x0c \x80\x01";
    let bytes: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != b' ').collect();
    let message = Message::parse(&bytes).unwrap();
    let asked = Question { name: name("_SMB._tcp.Local"), kind: kind::PTR, class: CLASS_IN, unicast: true };
    assert!(!message.response && message.questions[0].name.is(&asked.name));
    assert_eq!((message.questions[0].kind, message.questions[0].unicast), (asked.kind, true));
    assert_eq!(message.emit(), bytes);
}

#[test]
fn names_are_compressed_and_come_back() {
    let message = announcement();
    let bytes = message.emit();
    assert_eq!(Message::parse(&bytes).unwrap(), message);
    assert_eq!(bytes.windows(5).filter(|part| part == b"local").count(), 1, "{bytes:?}");
    // The data that probes are compared by have no pointers.
    let srv = Data::Srv { port: 445, target: name("nas.local") };
    assert_eq!(srv.canonical(), b"\0\0\0\0\x01\xbd\x03nas\x05local\0");
    assert_eq!(Data::Txt(Vec::new()).canonical(), [0]);
}

#[test]
fn the_types_of_a_name_are_bits() {
    // RFC 6762 6.1: only A and AAAA.
    let nsec = Data::Nsec { next: name("a"), types: vec![kind::A, kind::AAAA] };
    assert_eq!(nsec.canonical(), b"\x01a\0\0\x04\x40\0\0\x08");
}

#[test]
fn no_name_is_endless() {
    let head = b"\0\0\0\0\0\x01\0\0\0\0\0\0";
    let refused = |name: &[u8]| Message::parse(&[&head[..], name, b"\0\x01\0\x01"].concat()).unwrap_err();
    // A pointer to itself, ahead, and to labels that lead to it again.
    assert_eq!(refused(b"\xc0\x0c"), Malformed::Name);
    assert_eq!(refused(b"\xc0\x0e\0"), Malformed::Name);
    assert_eq!(refused(b"\x01a\xc0\x0c"), Malformed::Name);
    assert_eq!(refused(b"\x40\0"), Malformed::Name);
    let long: Vec<u8> = (0..5).flat_map(|_| [&[60][..], &[b'x'; 60]].concat()).chain([0]).collect();
    assert_eq!(refused(&long), Malformed::Name);
    assert_eq!(Name::new(["a".repeat(64).as_str()]), None);
    assert_eq!(Name::new(vec!["abcdefg"; 32]), None);
    assert!(Name::new(vec!["abcdefg"; 31]).is_some());
}

#[test]
fn more_entries_than_the_limit_are_refused() {
    let mut bytes = b"\0\0\0\0\x02\x01\0\0\0\0\0\0".to_vec();
    bytes.extend(b"\0\0\x01\0\x01".repeat(513));
    assert_eq!(Message::parse(&bytes), Err(Malformed::TooMany));
    bytes[5] = 0;
    assert_eq!(Message::parse(&bytes).unwrap().questions.len(), MAX_ENTRIES);
}

#[test]
fn every_truncation_is_noticed() {
    let bytes = announcement().emit();
    for len in 0..bytes.len() {
        assert!(Message::parse(&bytes[..len]).is_err(), "{len}");
    }
    // Data that are longer or shorter than their type.
    let message =
        Message { answers: vec![record("a", Data::Other(kind::A, vec![1; 5]))], ..Message::default() };
    assert_eq!(Message::parse(&message.emit()), Err(Malformed::Data(kind::A)));
}

#[test]
fn equal_names_differ_in_case_only() {
    let (a, b) = (record("A.local", Data::Ptr(name("B.x"))), record("a.LOCAL", Data::Ptr(name("b.X"))));
    assert!(a.is_same(&b) && a != b);
    assert!(!a.is_same(&record("A.local", Data::Ptr(name("c.x")))));
    assert_eq!(name("a b.local").to_string(), "a b.local");
}
