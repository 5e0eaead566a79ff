//! Doors, and requests that are not meant for them.

use weft_machine::{Pool, rt};
use weft_replica::journal::{self, Format, MIN_LOG_BYTES, Names, Side, Wall};
use weft_replica::record::{Header, Kind};
use weft_replica::status::{Phase, Role};
use weft_replica::{destination, peer};
use weft_store::Vfs;
use weft_store::backend::Shelf;
use weft_store::block::Block;
use weft_store::opens::{Opening, Range, Rights};
use weft_store::volume::plain::Plain;
use weft_wire::repl::control::{Era, Hello, MAX_MESSAGE, Sync, Welcome};

use super::*;

const PARTNERSHIP: [u8; 16] = [0xab; 16];
const SIZE: u64 = 1 << 20;

#[test]
fn names_lead_to_doors_and_back() {
    for target in [
        Target::Setup,
        Target::Measure,
        Target::Control(PARTNERSHIP),
        Target::Log(PARTNERSHIP, 7),
        Target::Volume(PARTNERSHIP, 9, 3),
    ] {
        assert_eq!(Target::parse(target.name().as_bytes()), Some(target));
    }
    let hex = hex(PARTNERSHIP);
    for name in ["", "setup2", &hex[1..], &format!("{hex},7,log"), &format!("{hex},0000000000000007,x")] {
        assert_eq!(Target::parse(name.as_bytes()), None, "{name}");
    }
    assert_eq!(Target::parse(format!("{hex},0000000000000007,1,2").as_bytes()), None);
}

/// Doors to a destination in memory that no source has claimed yet.
async fn doors() -> (Doors, Arc<Destination>) {
    let setup: Setup = Arc::new(|message| Box::pin(std::future::ready(message)));
    let doors = Doors::new(setup);
    let format = Format {
        partnership: PARTNERSHIP,
        role: Role::Destination,
        tag: 3,
        sizes: vec![SIZE],
        log_bytes: MIN_LOG_BYTES,
    };
    let ram = |bytes| -> Arc<dyn Block> { Arc::new(Plain::in_memory(bytes).unwrap()) };
    let journal = ram(journal::bytes(&format).unwrap());
    journal::format(&journal, &format).await.unwrap();
    let side = Side {
        journal,
        members: vec![ram(SIZE)],
        pool: Pool::new(16 << 20),
        log_memory: Default::default(),
        wall: Wall::new(1),
        names: Names::new("db", []),
        draw: 1,
    };
    let destination = Destination::open(side, destination::Config::default()).await.unwrap();
    doors.lead(PARTNERSHIP, Behind::Destination(destination.clone()));
    (doors, destination)
}

fn door(doors: &Doors, target: Target) -> Door {
    Door { doors: doors.clone(), target, session: Mutex::default() }
}

fn hello(partnership: [u8; 16], epoch: u64) -> Request {
    let eras = vec![Era { epoch, tag: 9, after: 0 }];
    Request::Hello(Hello {
        partnership,
        first: 1,
        last: 0,
        synchronous: true,
        adopt: true,
        sizes: vec![SIZE],
        eras,
    })
}

async fn ask(door: &Door, request: &Request) -> Response {
    let answer = door.exchange(request.emit().into(), MAX_MESSAGE).await.unwrap();
    Response::parse(&answer).unwrap()
}

async fn claim(doors: &Doors, epoch: u64) -> Welcome {
    match ask(&door(doors, Target::Control(PARTNERSHIP)), &hello(PARTNERSHIP, epoch)).await {
        Response::Welcome(welcome) => welcome,
        other => panic!("{other:?}"),
    }
}

fn append(sequence: u64) -> Vec<Bytes> {
    let kind = Kind::Zeroes { len: 512, keep_space: false };
    let header = Header {
        log: 1,
        life: 1,
        epoch: 1,
        sequence,
        member: 0,
        offset: 0,
        unix_ms: 0,
        settled: 0,
        claimed: 0,
        kind,
    };
    peer::append_bytes(&[Record { header, payload: Vec::new() }])
}

#[test]
fn what_is_no_request_is_refused_and_nothing_has_happened() {
    rt::block_on(async {
        let (doors, destination) = doors().await;
        let control = door(&doors, Target::Control(PARTNERSHIP));
        let whole = hello(PARTNERSHIP, 1).emit();
        for cut in 0..whole.len() {
            assert!(
                control.exchange(Bytes::copy_from_slice(&whole[..cut]), MAX_MESSAGE).await.is_err(),
                "{cut}"
            );
        }
        for bit in 0..8 * whole.len() {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(control.exchange(damaged.into(), MAX_MESSAGE).await.is_err(), "bit {bit}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        // An answer is not a request.
        let answer = Response::Done.emit();
        for wrong in [longer, vec![0; MAX_MESSAGE], vec![0xff; MAX_MESSAGE + 1], answer] {
            assert!(control.exchange(wrong.into(), MAX_MESSAGE).await.is_err());
        }
        assert_eq!(destination.status().epoch, 0, "nobody has claimed it");
        assert_eq!(claim(&doors, 1).await.last, 0);
    })
    .unwrap();
}

#[test]
fn an_answer_that_does_not_fit_is_not_cut() {
    rt::block_on(async {
        let (doors, _) = doors().await;
        let control = door(&doors, Target::Control(PARTNERSHIP));
        let message = Bytes::from(Request::Status.emit());
        let whole = control.exchange(message.clone(), MAX_MESSAGE).await.unwrap();
        assert!(control.exchange(message.clone(), whole.len()).await.is_ok());
        let short = control.exchange(message, whole.len() - 1).await;
        assert!(matches!(short, Err(Error::Invalid)), "{short:?}");
    })
    .unwrap();
}

#[test]
fn nothing_comes_before_a_hello() {
    rt::block_on(async {
        let (doors, destination) = doors().await;
        let control = door(&doors, Target::Control(PARTNERSHIP));
        let era = Era { epoch: 7, tag: 7, after: 0 };
        for session in [0, 1, u64::MAX] {
            for early in [
                Request::Begin { session, base: 0, sync: Sync::Initial },
                Request::Zero { session, member: 0, offset: 0, len: 512 },
                Request::Barrier { session },
                Request::Finish { session, at: 0 },
                Request::Checksums { session, member: 0, offset: 0, len: 512, piece: 512, after: 0 },
                Request::Diverged { session, member: 0, from: 0 },
                Request::Suspend { session },
                Request::Prepare { session },
                Request::TakeOver { session, era },
                Request::Beat { session },
            ] {
                let answer = ask(&control, &early).await;
                assert_eq!(answer, Response::Refused(Refusal::Session), "{early:?}");
            }
            let log = door(&doors, Target::Log(PARTNERSHIP, session));
            assert!(log.write(0, append(1)).await.is_err());
            let volume = door(&doors, Target::Volume(PARTNERSHIP, session, 0));
            assert!(volume.write(0, vec![Bytes::from_static(&[1; 512])]).await.is_err());
        }
        let status = destination.status();
        assert_eq!((status.last, status.epoch, status.consistent), (0, 0, false));
    })
    .unwrap();
}

#[test]
fn what_belongs_to_an_earlier_session_is_over_with_the_next() {
    rt::block_on(async {
        let (doors, destination) = doors().await;
        let control = door(&doors, Target::Control(PARTNERSHIP));
        let first = claim(&doors, 1).await.session;
        assert_eq!(
            ask(&control, &Request::Begin { session: first, base: 0, sync: Sync::Initial }).await,
            Response::Done
        );
        let log = door(&doors, Target::Log(PARTNERSHIP, first));
        log.write(0, append(1)).await.unwrap();
        // In the middle of a resync, and out of order: nothing that it has could be waited for, and it is not a valid
        // copy.
        assert_eq!(
            ask(&control, &Request::Finish { session: first, at: 2 }).await,
            Response::Refused(Refusal::Gap(1)),
            "it is finished before everything is there"
        );
        let second = claim(&doors, 2).await.session;
        assert_ne!(first, second);
        assert_eq!(
            ask(&control, &Request::Beat { session: first }).await,
            Response::Refused(Refusal::Session)
        );
        assert_eq!(
            ask(&control, &Request::Finish { session: first, at: 1 }).await,
            Response::Refused(Refusal::Session)
        );
        assert!(log.write(0, append(2)).await.is_err());
        let volume = door(&doors, Target::Volume(PARTNERSHIP, first, 0));
        assert!(volume.write(0, vec![Bytes::from_static(&[1; 512])]).await.is_err());
        // The earlier source is not admitted again.
        let earlier = ask(&control, &hello(PARTNERSHIP, 1)).await;
        assert!(matches!(earlier, Response::Refused(Refusal::Fenced(era)) if era.epoch == 2), "{earlier:?}");
        let status = destination.status();
        assert_eq!((status.last, status.consistent), (1, false));
    })
    .unwrap();
}

#[test]
fn whoever_is_of_another_partnership_is_not_listened_to() {
    rt::block_on(async {
        let (doors, _) = doors().await;
        let other = [0xcd; 16];
        // Through an existing door in the name of another partnership, and through a missing one.
        let control = door(&doors, Target::Control(PARTNERSHIP));
        assert_eq!(ask(&control, &hello(other, 1)).await, Response::Refused(Refusal::Partnership));
        assert!(doors.by_name(Target::Control(other).name().as_bytes(), true).is_none());
        let nobody = door(&doors, Target::Control(other));
        assert_eq!(ask(&nobody, &hello(other, 1)).await, Response::Refused(Refusal::Partnership));
        let session = claim(&doors, 1).await.session;
        let log = door(&doors, Target::Log(other, session));
        assert!(log.write(0, append(1)).await.is_err());
        // After it has ended, an open door leads nowhere.
        doors.shut(&PARTNERSHIP);
        assert_eq!(ask(&control, &Request::Beat { session }).await, Response::Refused(Refusal::Partnership));
    })
    .unwrap();
}

#[test]
fn doors_for_bytes_take_no_messages_and_the_other_way_round() {
    rt::block_on(async {
        let (doors, _) = doors().await;
        let session = claim(&doors, 1).await.session;
        let beat = Bytes::from(Request::Beat { session }.emit());
        for target in
            [Target::Measure, Target::Log(PARTNERSHIP, session), Target::Volume(PARTNERSHIP, session, 0)]
        {
            let answer = door(&doors, target).exchange(beat.clone(), MAX_MESSAGE).await;
            assert!(matches!(answer, Err(Error::NotSupported)), "{target:?}");
        }
        for target in [Target::Setup, Target::Control(PARTNERSHIP)] {
            assert!(matches!(door(&doors, target).write(0, append(1)).await, Err(Error::NotSupported)));
        }
        // Invalid data, and a truncated append.
        let log = door(&doors, Target::Log(PARTNERSHIP, session));
        let cut = append(1).concat();
        for wrong in [vec![0xa5; 4096], cut[..100].to_vec()] {
            assert!(log.write(0, vec![wrong.into()]).await.is_err());
        }
    })
    .unwrap();
}

#[test]
fn an_open_door_is_in_nobodys_way() {
    rt::block_on(async {
        let (doors, _) = doors().await;
        let vfs = Vfs::new(Shelf::new(doors));
        for name in [SETUP.to_owned(), MEASURE.to_owned(), hex(PARTNERSHIP), log_name(&PARTNERSHIP, 1)] {
            let mut held = Vec::new();
            for _ in 0..3 {
                let node = vfs.lookup(NodeId::ROOT, name.as_bytes(), true).await.unwrap().node;
                // Like an open with share access 0 and delete-on-close, and a lock of the whole file.
                let opening = Opening::new(Rights::ALL, Rights::NONE, vfs.opens().key());
                let open = vfs.opens().try_open(node, &opening).unwrap_or_else(|e| panic!("{name}: {e}"));
                open.set_delete_pending(true);
                open.try_lock(Range { offset: 0, len: u64::MAX }, true).unwrap();
                vfs.open(node, true).await.unwrap();
                held.push((open, node));
            }
            for (open, node) in held {
                assert_eq!(vfs.getattr(node).await.unwrap().node, node);
                drop(open.close());
            }
        }
    })
    .unwrap();
}

#[test]
fn a_file_leads_to_the_door_that_it_was_opened_for_or_nowhere() {
    let mut state = State::default();
    let setup = state.number(Target::Setup);
    let first = state.number(Target::Log(PARTNERSHIP, 0));
    assert_eq!(state.target(first), Some(Target::Log(PARTNERSHIP, 0)));
    let files: Vec<(NodeId, u64)> = (1..3 * MOST_TARGETS as u64)
        .map(|session| (state.number(Target::Log(PARTNERSHIP, session)), session))
        .collect();
    for (node, session) in &files {
        let target = Target::Log(PARTNERSHIP, *session);
        assert!(state.target(*node).is_none_or(|found| found == target), "{session}");
    }
    assert_eq!(
        state.target(files.last().unwrap().0),
        Some(Target::Log(PARTNERSHIP, files.last().unwrap().1))
    );
    assert_eq!((state.target(first), state.target(setup)), (None, Some(Target::Setup)));
    assert!(state.targets.len() <= MOST_TARGETS && state.slots.len() <= MOST_TARGETS);
    assert_eq!(state.target(NodeId::ROOT), None);
}

#[test]
fn a_digest_tells_no_single_byte() {
    rt::block_on(async {
        let (doors, _) = doors().await;
        let session = claim(&doors, 1).await.session;
        let control = door(&doors, Target::Control(PARTNERSHIP));
        let sums =
            |offset, len, piece| Request::Checksums { session, member: 0, offset, len, piece, after: 0 };
        for wrong in [sums(0, 512, 1), sums(0, 65_536, 65_535), sums(0, 1, 65_536), sums(1, 512, 65_536)] {
            assert_eq!(ask(&control, &wrong).await, Response::Refused(Refusal::Invalid), "{wrong:?}");
        }
        // What sources ask for: pieces of 64 KiB, and a shorter extent.
        for (right, count) in [(sums(0, SIZE, 65_536), 16), (sums(4096, 4096, 65_536), 1)] {
            let Response::Digests(digests) = ask(&control, &right).await else { panic!("{right:?}") };
            assert_eq!(digests.len(), count);
        }
    })
    .unwrap();
}

#[test]
fn a_copy_knows_at_once_that_the_connection_of_its_session_has_ended() {
    rt::block_on(async {
        let (doors, copy) = doors().await;
        let source = || copy.status().peers.remove(0);
        let first = door(&doors, Target::Control(PARTNERSHIP));
        let Response::Welcome(_) = ask(&first, &hello(PARTNERSHIP, 1)).await else { panic!("it is fresh") };
        // Its source has meanwhile reconnected.
        let second = door(&doors, Target::Control(PARTNERSHIP));
        let Response::Welcome(_) = ask(&second, &hello(PARTNERSHIP, 1)).await else { panic!("the same") };
        drop(first);
        assert_eq!((source().lost_ms, source().phase.is_connected()), (0, true));
        // Closing a door that was only used for questions ends nothing.
        drop(door(&doors, Target::Control(PARTNERSHIP)));
        assert_eq!(source().lost_ms, 0);
        drop(second);
        assert!(source().lost_ms > 0 && source().phase == Phase::WaitingForSource, "{:?}", source());
        // Whether it is alive is another question.
        assert!(!copy.is_source_silent());
        let third = door(&doors, Target::Control(PARTNERSHIP));
        let Response::Welcome(_) = ask(&third, &hello(PARTNERSHIP, 1)).await else { panic!("the same") };
        assert_eq!((source().lost_ms, source().phase.is_connected()), (0, true));
    })
    .unwrap();
}
