use super::*;

fn plan() -> Plan {
    Plan { op: Op::Write, mode: Mode::Bandwidth, check: true, both_ways: false, depth: 16, size: 65_536 }
}

fn messages() -> Vec<Message> {
    let addresses: Vec<RegionAddress> =
        (0..3).map(|n| RegionAddress { stag: 7 + n, offset: u64::from(n) << 40 }).collect();
    let full = vec![addresses[1]; MAX_ADDRESSES];
    vec![
        Message::Begin { addresses: Vec::new() },
        Message::Begin { addresses: addresses.clone() },
        Message::Ready { addresses: full },
        Message::Batch { operations: 1 << 40, first: 3, addresses: addresses.clone() },
        Message::Go,
        Message::Finish,
        Message::Done { operations: 9, mismatches: 1, cpu_ns: u64::MAX, addresses },
        Message::Consumed { operations: 5 },
    ]
}

#[test]
fn a_plan_in_bytes() {
    let bytes = b"WeftPerf\x00\x02\x02\x02\x00\x01\x00\x10\x00\x01\x00\x00";
    assert_eq!(plan().emit(), bytes);
    assert_eq!(Plan::parse(bytes), Ok(plan()));
}

#[test]
fn every_plan_comes_back() {
    for op in [Op::Send, Op::Write, Op::Read] {
        for mode in [Mode::Latency, Mode::Bandwidth, Mode::Idle] {
            for check in [false, true] {
                for both_ways in [false, true] {
                    let plan = Plan { op, mode, check, both_ways, ..plan() };
                    assert_eq!(Plan::parse(&plan.emit()), Ok(plan));
                }
            }
        }
    }
}

#[test]
fn answers_come_back() {
    assert_eq!(Welcome::parse(&Welcome.emit()), Ok(Welcome));
    for reason in [Reason::Version, Reason::Malformed, Reason::Limits, Reason::Busy, Reason::Other(77)] {
        let refusal = Refusal { version: 9, reason, max_depth: 128, max_size: 1 << 20 };
        assert_eq!(Refusal::parse(&refusal.emit()), Ok(refusal));
    }
}

#[test]
fn other_protocols_and_versions_are_told_apart() {
    assert_eq!(Plan::parse(b""), Err(Malformed::Magic));
    assert_eq!(Plan::parse(b"\0\0\0\x10\0\0\0\x10"), Err(Malformed::Magic));
    let mut newer = plan().emit();
    newer[9] = 3;
    newer.push(0);
    assert_eq!(Plan::parse(&newer), Err(Malformed::Version(3)));
    let mut unknown = plan().emit();
    unknown[12] = 0x80;
    assert_eq!(Plan::parse(&unknown), Err(Malformed::Unknown("flag")));
}

#[test]
fn every_message_comes_back_and_no_truncation_does() {
    for message in messages() {
        let bytes = message.emit();
        assert!(bytes.len() <= MAX_MESSAGE);
        assert_eq!(Message::parse(&bytes), Ok(message));
        for len in 0..bytes.len() {
            assert!(Message::parse(&bytes[..len]).is_err());
        }
        assert!(Message::parse(&[&bytes[..], &[0]].concat()).is_err());
    }
    for len in 0..plan().emit().len() {
        assert!(Plan::parse(&plan().emit()[..len]).is_err());
    }
}

#[test]
fn more_places_than_a_message_may_have_are_refused() {
    let mut bytes =
        Message::Ready { addresses: vec![RegionAddress { stag: 1, offset: 0 }; MAX_ADDRESSES] }.emit();
    bytes[2..4].copy_from_slice(&(MAX_ADDRESSES as u16 + 1).to_be_bytes());
    bytes.extend([0; 12]);
    assert!(matches!(Message::parse(&bytes), Err(Malformed::Length(_))));
}
