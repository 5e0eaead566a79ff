//! Peers that break the rules: built by hand, they write arbitrary values wherever they can.

use super::*;

/// A peer built by hand: the other half of the segment, and the other end of the socket.
struct Raw {
    socket: Socket,
    segment: Words,
    /// (the peer's own half, the half of the queue pair under test).
    halves: (Half, Half),
    slab: OwnedFd,
    /// Its own bell, and the ringer of the queue pair's bell.
    _bells: (Doorbell, Ringer),
}

const RAW_SLAB: usize = 1 << 20;

fn raw(pool: &Pool) -> (Qp, Raw) {
    let (ours, theirs) = Socket::pair().unwrap();
    let segment = Words::create("test", SEGMENT_WORDS).unwrap();
    let ((our_bell, ring_ours), (their_bell, ring_theirs)) =
        (Doorbell::new().unwrap(), Doorbell::new().unwrap());
    let parts = Parts {
        side: Side::Connecting,
        link: Readable::new(ours).unwrap(),
        segment: segment.clone(),
        our_bell,
        their_bell: ring_theirs,
        pool: pool.clone(),
        slabs: PeerSlabs::default(),
        caps: Config::default().caps(),
        stall_limit: Duration::from_millis(20),
        peer: weft_machine::Peer::Local { uid: 0, pid: Some(0) },
    };
    let qp: Qp = ShmQueuePair::new(parts).unwrap();
    let halves = halves(&segment, Side::Accepting);
    (
        qp,
        Raw {
            socket: theirs,
            segment,
            halves,
            slab: memfd("raw", RAW_SLAB).unwrap(),
            _bells: (their_bell, ring_ours),
        },
    )
}

impl Raw {
    fn pass_slab(&self, number: u32) {
        self.socket.send(&Message::Slab { number }.emit(), &[self.slab.as_fd()]).unwrap();
    }

    fn posted(&self) -> weft_machine::shm::Producer<3> {
        weft_machine::shm::Producer::new(self.halves.0.recvs.clone(), self.halves.1.recvs_taken.clone())
    }

    fn news(&self) -> weft_machine::shm::Producer<3> {
        weft_machine::shm::Producer::new(self.halves.1.news.clone(), self.halves.0.news_taken.clone())
    }
}

#[test]
fn a_peer_that_dies_is_noticed_and_everything_flushes() {
    let world = world();
    run(async {
        let (qp, raw) = raw(&world.pool);
        qp.post(recv(&world.pool, 7)).unwrap();
        let region = qp.register(filled(&world.pool, 10, 1), Access::RemoteWrite).unwrap();
        // It dies in the middle of an access.
        raw.halves.0.hazard.store(u64::from(region.stag.0 & 0xfff) + 1, Ordering::Release);
        drop(raw);
        let (flushed, end) = completions(&qp).until_the_end().await;
        assert_eq!(flushed, [(7, WorkError::Flushed)]);
        assert_eq!(end, Disconnect::Lost(io::ErrorKind::ConnectionReset));
        assert_eq!(qp.invalidate(region.stag).unwrap().len(), 10);
    });
    assert_eq!(world.pool.in_use_bytes(), 0);
}

#[test]
fn what_a_peer_said_before_it_died_counts() {
    let world = world();
    run(async {
        let (qp, raw) = raw(&world.pool);
        qp.post(recv(&world.pool, 7)).unwrap();
        let Half { recvs, .. } = &raw.halves.1;
        let mut ring = weft_machine::shm::Consumer::<3>::new(recvs.clone(), raw.halves.0.recvs_taken.clone());
        let slot = Posted::parse(ring.pop().unwrap()).unwrap().slot;
        let news = News::Message { slot, len: 3, invalidated: None, solicited: false };
        raw.news().push(news.emit()).unwrap();
        drop(raw);
        let mut all = completions(&qp);
        assert_eq!(all.received().await.len(), 3);
        assert_eq!(all.until_the_end().await.1, Disconnect::Lost(io::ErrorKind::ConnectionReset));
    });
}

#[test]
fn a_peer_stopped_inside_our_memory_is_given_up_and_the_memory_kept() {
    let world = world();
    run(async {
        let (qp, raw) = raw(&world.pool);
        let region = qp.register(filled(&world.pool, 10, 1), Access::RemoteWrite).unwrap();
        raw.halves.0.hazard.store(u64::from(region.stag.0 & 0xfff) + 1, Ordering::Release);
        assert!(qp.invalidate(region.stag).is_none(), "not back yet");
        assert_eq!(completions(&qp).until_the_end().await.1, Disconnect::Lost(io::ErrorKind::TimedOut));
        drop(qp);
        assert!(quarantine::kept() > 0);
        assert!(world.pool.in_use_bytes() > 0);
        drop(raw);
        quarantine::sweep();
    });
    assert_eq!(world.pool.in_use_bytes(), 0);
}

/// It had passed its own end of the socket, which our unread data kept open: the memory was never freed.
#[test]
fn the_memory_of_a_given_up_peer_is_free_when_it_dies_whatever_it_has_passed() {
    let world = world();
    run(async {
        let (qp, raw) = raw(&world.pool);
        let region = qp.register(filled(&world.pool, 10, 1), Access::RemoteWrite).unwrap();
        raw.halves.0.hazard.store(u64::from(region.stag.0 & 0xfff) + 1, Ordering::Release);
        raw.socket.send(&Message::Slab { number: 0 }.emit(), &[raw.socket.as_fd()]).unwrap();
        drop(qp);
        assert!(world.pool.in_use_bytes() > 0);
        drop(raw);
        quarantine::sweep();
    });
    assert_eq!(world.pool.in_use_bytes(), 0);
}

#[test]
fn news_that_make_no_sense_end_the_connection() {
    let message = |slot, len| News::Message { slot, len, invalidated: None, solicited: false }.emit();
    for slot in [
        [0, 0, 0],
        [77, 0, 0],
        message(3, 1),
        message(511, 1),
        [1 | 512 << 16, 0, 0],
        [1 | 1 << 9, 1 << 32, 0],
        message(0, 4097),
        message(0, u32::MAX),
        [2, 99, 0],
    ] {
        let world = world();
        run(async {
            let (qp, raw) = raw(&world.pool);
            qp.post(recv(&world.pool, 7)).unwrap();
            raw.news().push(slot).unwrap();
            let end = completions(&qp).until_the_end().await.1;
            assert!(matches!(end, Disconnect::Violation(_)), "{slot:x?}: {end}");
        });
        assert_eq!(world.pool.in_use_bytes(), 0);
    }
}

#[test]
fn receive_buffers_outside_of_the_peers_slabs_end_the_connection() {
    let good = Posted { slot: 0, capacity: 4096, slab: 0, offset: 0 };
    for posted in [
        Posted { slab: 1, ..good },
        Posted { slab: u32::MAX, ..good },
        Posted { offset: RAW_SLAB as u64 - 3, ..good },
        Posted { offset: u64::MAX, ..good },
        Posted { offset: u64::MAX - 3, ..good },
    ] {
        let world = world();
        run(async {
            let (qp, raw) = raw(&world.pool);
            raw.pass_slab(0);
            raw.posted().push(posted.emit()).unwrap();
            qp.post(send(1, b"four")).unwrap();
            let (failed, end) = completions(&qp).until_the_end().await;
            assert_eq!(failed, [(1, WorkError::Flushed)]);
            assert!(matches!(end, Disconnect::Violation(_)), "{posted:?}: {end}");
        });
    }
}

#[test]
fn regions_outside_of_the_peers_slabs_end_the_connection() {
    for (slab, offset) in [(0, RAW_SLAB as u64), (0, u64::MAX), (0, RAW_SLAB as u64 - 1), (9, 0)] {
        for op in 0..3 {
            let world = world();
            run(async {
                let (qp, raw) = raw(&world.pool);
                raw.pass_slab(0);
                let stag = Stag(1 << 12 | 5);
                let rights = if op == 2 { 0b01 } else { 0b11 };
                let entry = &raw.halves.0.regions[5 * 4..];
                entry[1].store(slab << 32 | 0xffff_ffff, Ordering::Relaxed);
                entry[2].store(offset, Ordering::Relaxed);
                entry[0].store(u64::from(stag.0) << 32 | rights, Ordering::Release);
                let segment = Segment { stag, offset: 0, len: 100 };
                let range = FileRange { file: File::in_memory("t").unwrap(), offset: 0, len: 100 };
                let work = match op {
                    0 => write(1, Bytes::from_static(&[1; 100]), segment),
                    1 => write(1, Payload::File(range), segment),
                    _ => Work::Read { id: 1, into: world.pool.try_alloc(100).unwrap(), from: segment },
                };
                qp.post(work).unwrap();
                let (failed, end) = completions(&qp).until_the_end().await;
                assert_eq!(failed, [(1, WorkError::Flushed)]);
                assert!(matches!(end, Disconnect::Violation(_)), "{slab} {offset:#x} {op}: {end}");
            });
        }
    }
}

#[test]
fn slabs_that_are_no_slabs_end_the_connection() {
    let world = world();
    let unsealed = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let good = Message::Slab { number: 0 }.emit();
    let accept = Message::Accept { ird: 1, ord: 1, private_data: Bytes::new() }.emit();
    let bad_number = Message::Slab { number: 1024 }.emit();
    let memory = memfd("test", 4096).unwrap();
    let cases: [(&[u8], Option<&OwnedFd>); 6] = [
        (&good, None),
        (&good, Some(&unsealed)),
        (&bad_number, Some(&memory)),
        (&accept, Some(&memory)),
        (b"?", None),
        (&[0; MAX_MESSAGE + 1], None),
    ];
    for (n, (bytes, fd)) in cases.into_iter().enumerate() {
        run(async {
            let (qp, raw) = raw(&world.pool);
            let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
            raw.socket.send(bytes, &fds).unwrap();
            let end = completions(&qp).until_the_end().await.1;
            assert!(matches!(end, Disconnect::Violation(_)), "case {n}: {end}");
        });
    }
}

#[test]
fn set_up_survives_strangers() {
    let mut world = world();
    world.provider.config.setup_limit = Duration::from_millis(50);
    let segment = memfd("test", SEGMENT_BYTES).unwrap();
    let short = memfd("test", SEGMENT_BYTES - 8).unwrap();
    let good = Message::Request { ird: 1, ord: 1, private_data: Bytes::new() }.emit();
    let slab = Message::Slab { number: 0 }.emit();
    type Case<'a> = (&'a [u8], Vec<&'a OwnedFd>);
    let cases: [Case<'_>; 7] = [
        (b"GET / HTTP/1.1\r\n\r\n........", vec![]),
        (&good[..good.len() - 1], vec![&segment, &segment]),
        (&good, vec![]),
        (&good, vec![&segment]),
        (&good, vec![&short, &segment]),
        (&slab, vec![&segment]),
        // A peer that sends nothing.
        (b"", vec![]),
    ];
    run(async {
        let listener = world.provider.listen(any_port()).await.unwrap();
        let path = world.provider.config.dir.join(Provider::socket_name(listener.local_addr().port()));
        for (n, (bytes, fds)) in cases.into_iter().enumerate() {
            let stranger = Socket::connect(&path).unwrap();
            if !bytes.is_empty() {
                let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
                stranger.send(bytes, &fds).unwrap();
            }
            let result = listener.accept().await.unwrap().request().await;
            match (n, result.err().expect("a stranger was let in")) {
                (6, ConnectError::TimedOut(_)) => {}
                (6, other) => panic!("{other}"),
                (_, ConnectError::Violation(_) | ConnectError::Io(_)) => {}
                (_, other) => panic!("case {n}: {other}"),
            }
        }
        drop(Socket::connect(&path).unwrap());
        assert!(listener.accept().await.unwrap().request().await.is_err());
    });
}

#[test]
fn messages_survive_truncation_and_the_round_trip() {
    let private_data = Bytes::from_static(b"private");
    for message in [
        Message::Request { ird: 1, ord: 2, private_data: private_data.clone() },
        Message::Accept { ird: 65535, ord: 0, private_data: Bytes::new() },
        Message::Reject { private_data },
        Message::Slab { number: 0x0102_0304 },
    ] {
        let bytes = message.emit();
        assert_eq!(Message::parse(&bytes).unwrap(), message);
        for len in 0..24 {
            assert!(Message::parse(&bytes[..len]).is_err());
        }
    }
    assert!(Message::parse(&[Message::Slab { number: 0 }.emit(), vec![0; 509]].concat()).is_err());
}

fn any_refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(Refusal::InvalidStag),
        Just(Refusal::Bounds),
        Just(Refusal::Access),
        Just(Refusal::NotAssociated),
        Just(Refusal::NoBuffer),
        Just(Refusal::TooLong),
        Just(Refusal::TooManyReads),
        Just(Refusal::CannotInvalidate),
        (any::<u8>(), any::<u8>(), any::<u8>()).prop_map(|(layer, etype, code)| Refusal::Other {
            layer,
            etype,
            code
        }),
    ]
}

proptest! {
    #[test]
    fn slots_round_trip(
        slot in 0u16..512, len: u32, stag in proptest::option::of(any::<u32>()), solicited: bool,
        slab: u32, offset: u64, refusal in any_refusal(),
    ) {
        let message = News::Message { slot, len, invalidated: stag.map(Stag), solicited };
        for news in [message, News::Refused(refusal), News::Closed] {
            prop_assert_eq!(News::parse(news.emit()), Some(news));
        }
        let posted = Posted { slot, capacity: len, slab, offset };
        prop_assert_eq!(Posted::parse(posted.emit()), Some(posted));
    }

    #[test]
    fn any_bytes_parse_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..64), slot: [u64; 3]) {
        let _ = Message::parse(&bytes);
        let _ = News::parse(slot);
        let _ = Posted::parse(slot);
    }

    /// A peer that scribbles over the whole control segment, with values that are valid more often than by chance.
    #[test]
    fn scribbling_never_reaches_outside(
        words in proptest::collection::vec((0..SEGMENT_WORDS, any::<u64>(), 0u8..6), 1..200),
        works in proptest::collection::vec(0u8..6, 1..12),
    ) {
        let world = world();
        run(async {
            let (qp, raw) = raw(&world.pool);
            raw.pass_slab(0);
            for id in 0..4 {
                qp.post(recv(&world.pool, id)).unwrap();
            }
            let own = qp.register(filled(&world.pool, 100, 1), Access::RemoteWrite).unwrap();
            let mut words = words.into_iter();
            for work in works {
                for (at, value, shape) in words.by_ref().take(20) {
                    let word = match shape {
                        0 => &raw.segment[at],
                        1 => &raw.halves.1.news[at % 32],
                        2 => &raw.halves.0.recvs[at % 32],
                        _ => &raw.halves.0.regions[at % 32],
                    };
                    // Hazards are tested elsewhere, because they cost a second each.
                    let hazard = std::ptr::eq(word, &*raw.halves.0.hazard);
                    let value = match shape {
                        _ if hazard => 0,
                        0 => value,
                        1 | 2 => [1, 2, 3, value & 0xf, value & 0xfff_0fff, 1 | (value & 0xf) << 32][at % 6],
                        _ => [0b11 | 1 << 44 | (at as u64 % 8) << 32, value & 0xff_ffff, 0][at % 3],
                    };
                    word.store(value, Ordering::Release);
                }
                let segment = Segment { stag: Stag(1 << 12 | u32::from(work)), offset: 0, len: 100 };
                let work = match work {
                    0 | 1 => send(1, b"scribble"),
                    2 => write(1, Bytes::from_static(&[1; 100]), segment),
                    3 => Work::Read { id: 1, into: world.pool.try_alloc(100).unwrap(), from: segment },
                    4 => recv(&world.pool, 2),
                    _ => Work::Send {
                        id: 1, data: Vec::new(), invalidate: Some(segment.stag), solicited: false, signalled: false,
                    },
                };
                match qp.post(work) {
                    Ok(()) | Err((PostError::Closed | PostError::QueueFull, _)) => {}
                    Err((e, _)) => panic!("{e}"),
                }
                let mut out = Vec::new();
                let _ = poll_fn(|cx| std::task::Poll::Ready(qp.poll(cx, &mut out))).await;
            }
            let _ = qp.traffic();
            assert_eq!(qp.invalidate(own.stag).map(|buf| buf.len()), Some(100));
        });
        assert_eq!(world.pool.in_use_bytes(), 0);
    }
}
