//! Credits, waiting requests, and clients that do not read.

use weft_machine::buf::MAX_BUF;
use weft_machine::rt;
use weft_machine::sim::{Sim, turns_of_others};
use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::fscc::directory;
use weft_wire::smb2::header::Flags;
use weft_wire::smb2::lock::{self, Element};
use weft_wire::smb2::{Command, FileId, HEADER_LEN, Header, Id, NtStatus, cancel, echo, query_directory};

use super::harness::*;

use std::time::Duration;

#[test]
fn a_message_id_is_good_for_one_request() {
    story(async {
        let world = World::new();
        for id in [0u64, 1, 5, 1_000_000, u64::MAX] {
            let mut client = world.client().await;
            let used = client.next_id;
            client.next_id = id;
            let request = client.request(Command::Echo, |out| echo::Request.emit(out));
            client.send(request);
            match id < used || id > 1000 {
                true => client.assert_closed().await,
                false => drop(client.recv().await.unwrap()),
            }
        }
        // In any order within the window, but only once.
        let mut client = world.client().await;
        let first = client.next_id;
        for id in [first + 3, first, first + 1, first + 2] {
            client.next_id = id;
            assert!(client.is_served().await);
        }
        client.next_id = first + 1;
        let request = client.request(Command::Echo, |out| echo::Request.emit(out));
        client.send(request);
        client.assert_closed().await;
    });
}

#[test]
fn a_request_of_many_credits_uses_them_all() {
    story(async {
        let mut client = World::new().client().await;
        let first = client.next_id;
        let request = client.request_charged(Command::Echo, 8, |out| echo::Request.emit(out));
        client.send(request);
        client.recv().await.unwrap();
        client.next_id = first + 7;
        let request = client.request(Command::Echo, |out| echo::Request.emit(out));
        client.send(request);
        client.assert_closed().await;
    });
}

#[test]
fn what_was_not_paid_for_is_refused() {
    story(async {
        let mut client = World::new().client().await;
        let file = client.open("f", CreateOptions::NONE).await;
        client.write(file, &vec![1; 200_000]).await;
        for (charge, length, status) in [
            (0, 65_536, NtStatus::SUCCESS),
            (1, 65_536, NtStatus::SUCCESS),
            (1, 65_537, NtStatus::INVALID_PARAMETER),
            (2, 65_537, NtStatus::SUCCESS),
            // More than NEGOTIATE announced, however much is paid.
            (60, 2 << 20, NtStatus::INVALID_PARAMETER),
        ] {
            let request =
                client.request_charged(Command::Read, charge, |out| read_request(file, length).emit(out));
            client.send(request);
            assert_eq!(client.recv().await.unwrap().0.status, status, "{charge} credits, {length} bytes");
        }
    });
}

#[test]
fn no_client_gets_more_credits_than_the_cap() {
    story(async {
        let world = World::with(|config| config.limits.credits = 100);
        let mut client = world.client().await;
        for _ in 0..50 {
            assert!(client.is_served().await);
        }
        assert!(client.credits - client.next_id <= 100, "{} of {}", client.credits, client.next_id);
        assert!(client.credits - client.next_id >= 50);
    });
}

/// A client that sends and never reads: the server stops reading requests, and continues when the client reads again.
#[test]
fn a_client_that_does_not_read_waits() {
    story(async {
        let world = World::with(|config| config.limits.credits = 32);
        let mut client = world.client().await;
        while client.credits - client.next_id < 32 {
            assert!(client.is_served().await);
        }
        client.wire.stalled.set(true);
        // It guesses the ids that it would be granted.
        for _ in 0..200 {
            let request = client.request(Command::Echo, |out| echo::Request.emit(out));
            client.send(request);
        }
        rt::sleep(Duration::from_secs(1)).await;
        assert!(client.wire.unreceived() >= 200 - 33, "{} left", client.wire.unreceived());
        assert!(!client.wire.closed_by_server.get());
        client.wire.release();
        for _ in 0..200 {
            client.recv().await.unwrap();
        }
        assert!(client.is_served().await);
    });
}

/// A folder whose listing is longer than a request of one credit may return.
async fn long_folder(client: &mut Client) -> FileId {
    for i in 0..150 {
        let file = client.open(&format!("{i:0200}"), CreateOptions::NONE).await;
        client.close(file).await;
    }
    client.open("", CreateOptions::DIRECTORY_FILE).await
}

fn listing(dir: FileId) -> query_directory::Request {
    query_directory::Request {
        class: FileClass::ID_BOTH_DIRECTORY,
        flags: query_directory::Flags::RESTART_SCANS,
        file_index: 0,
        file: dir,
        output_buffer_length: 1 << 16,
        pattern: "*".into(),
    }
}

/// Of 60 unread listings of 64 KiB, the server builds only as many as a connection may leave unsent, in buffers of the
/// pool.
#[test]
fn long_answers_that_nobody_reads_are_few_and_lie_in_the_pool() {
    story(async {
        let world = World::new();
        for (sign, seal) in [(false, false), (true, false), (false, true)] {
            let mut client = world.client().await;
            let dir = long_folder(&mut client).await;
            (client.sign, client.seal) = (sign, seal);
            while client.credits - client.next_id < 60 {
                assert!(client.is_served().await);
            }
            client.wire.stalled.set(true);
            for _ in 0..60 {
                let request = client.request(Command::QueryDirectory, |out| listing(dir).emit(out));
                client.send(request);
            }
            rt::sleep(Duration::from_secs(1)).await;
            let unread = client.wire.unread_bytes();
            assert!((200_000..400_000).contains(&unread), "{unread} bytes of answers");
            assert!(client.wire.unreceived() >= 50, "{} requests left", client.wire.unreceived());
            let held = world.pool.in_use_bytes();
            assert!(held >= unread, "{held} of {unread} bytes are the pool's");
            client.wire.release();
            for _ in 0..60 {
                let (header, bytes) = client.recv().await.unwrap();
                assert_eq!(header.status, NtStatus::SUCCESS);
                let buffer = query_directory::Response::parse(&bytes).unwrap().buffer;
                assert!(directory::parse(FileClass::ID_BOTH_DIRECTORY, &buffer).unwrap().len() > 100);
            }
            assert!(client.is_served().await);
            assert_eq!(world.pool.in_use_bytes(), 0);
            client.wire.hang_up();
        }
    });
}

/// A request that waits for a buffer is dropped when its client is gone.
#[test]
fn listings_of_a_client_that_has_gone_are_not_made() {
    story(async {
        let world = World::new();
        let mut client = world.client().await;
        let dir = long_folder(&mut client).await;
        let room = world.pool.share(MAX_BUF);
        client.wire.room.replace(Some(room.clone()));
        let taken = room.try_alloc(MAX_BUF).unwrap();
        client.wire.stalled.set(true);
        for _ in 0..20 {
            let request = client.request(Command::QueryDirectory, |out| listing(dir).emit(out));
            client.send(request);
        }
        let request = client.request(Command::Echo, |out| echo::Request.emit(out));
        client.send(request);
        rt::sleep(Duration::from_secs(1)).await;
        assert_eq!(client.wire.unreceived(), 0);
        let before = SENT.get();
        client.wire.broken.set(true);
        client.wire.release();
        client.wire.hang_up();
        drop(taken);
        rt::sleep(Duration::from_secs(1)).await;
        assert!(client.wire.closed_by_server.get());
        assert_eq!((SENT.get() - before, room.in_use_bytes()), (0, 0));
    });
}

/// The answer to a search that matches nothing takes as many turns as the folder is long.
#[test]
fn a_client_that_has_gone_is_noticed_although_its_request_uses_up_each_turn() {
    let turns = |goes: bool| {
        Sim::new(1).short_turns().run(async move {
            let mut client = World::new().client().await;
            let dir = long_folder(&mut client).await;
            let search = query_directory::Request { pattern: "zz*q".into(), ..listing(dir) };
            let request = client.request(Command::QueryDirectory, |out| search.emit(out));
            client.send(request);
            while client.wire.unreceived() > 0 {
                rt::yield_now().await;
            }
            if goes {
                client.wire.hang_up();
            }
            let mut turns = 0;
            while !client.wire.closed_by_server.get() && !client.wire.is_answered() {
                rt::yield_now().await;
                turns += 1;
            }
            assert_eq!(client.wire.closed_by_server.get(), goes);
            turns
        })
    };
    let (goes, stays) = (turns(true), turns(false));
    assert!(goes <= 5 && stays > 20, "{goes} and {stays} turns");
}

/// Receiving may wait for memory meanwhile, so the end of the channel goes unnoticed.
#[test]
fn what_is_in_flight_when_no_answer_can_be_sent_holds_nothing_that_others_wait_for() {
    story(async {
        let world = World::new();
        let mut client = world.client().await;
        let dir = long_folder(&mut client).await;
        let room = world.pool.share(MAX_BUF);
        client.wire.room.replace(Some(room.clone()));
        let taken = room.try_alloc(MAX_BUF).unwrap();
        client.wire.stalled.set(true);
        let list = client.request(Command::QueryDirectory, |out| listing(dir).emit(out));
        client.send(list);
        let echo = client.request(Command::Echo, |out| echo::Request.emit(out));
        client.send(echo);
        rt::sleep(Duration::from_secs(1)).await;
        client.wire.broken.set(true);
        client.wire.release();
        rt::sleep(Duration::from_secs(1)).await;
        drop(taken);
        assert!(!client.wire.closed_by_server.get(), "it is received from still");
        assert!(room.try_alloc(MAX_BUF).is_some(), "the listing has taken room");
        client.wire.hang_up();
        rt::sleep(Duration::from_secs(1)).await;
        assert!(client.wire.closed_by_server.get());
    });
}

/// Other connections of its address use the whole budget for answers: a listing waits, and requests without a buffer do
/// not.
#[test]
fn a_long_answer_waits_for_room_and_keeps_nothing_else_waiting() {
    story(async {
        let world = World::new();
        let mut client = world.client().await;
        let dir = long_folder(&mut client).await;
        let room = world.pool.share(MAX_BUF);
        client.wire.room.replace(Some(room.clone()));
        let taken = room.try_alloc(MAX_BUF).unwrap();
        let name = format!("{:0200}", 1);
        let create =
            client.request(Command::Create, |out| create_request(&name, CreateOptions::NONE).emit(out));
        let list = client.request(Command::QueryDirectory, |out| listing(dir).emit(out));
        let echo = client.request(Command::Echo, |out| echo::Request.emit(out));
        client.wire.send(link(vec![create, list, echo], false));
        // The file is open, and its client gets the answer.
        let first = client.recv().await.unwrap().0;
        assert_eq!((first.command, first.status), (Command::Create, NtStatus::SUCCESS));
        assert!(client.is_served().await);
        rt::sleep(Duration::from_secs(1)).await;
        assert!(!client.wire.is_answered());
        drop(taken);
        let rest = client.recv_all().await.unwrap();
        let rest: Vec<_> = rest.iter().map(|(header, _)| (header.command, header.status)).collect();
        assert_eq!(rest, [Command::QueryDirectory, Command::Echo].map(|c| (c, NtStatus::SUCCESS)));
        assert_eq!(room.in_use_bytes(), 0);
    });
}

fn lock_request(file: FileId) -> lock::Request {
    let exclusive = Element { offset: 0, length: 10, flags: lock::Flags::EXCLUSIVE_LOCK };
    lock::Request { sequence: 0, file, locks: vec![exclusive] }
}

/// One client holds a lock, another waits for it.
async fn waiting(world: &World, sign: bool, seal: bool) -> (Client, Client, u64, Header) {
    let mut holder = world.client().await;
    let file = holder.open("f", CreateOptions::NONE).await;
    assert_eq!(holder.status(Command::Lock, |out| lock_request(file).emit(out)).await, NtStatus::SUCCESS);
    let mut client = world.client().await;
    (client.sign, client.seal) = (sign, seal);
    let file = client.open("f", CreateOptions::NONE).await;
    let id = client.next_id;
    let (interim, _) = client.call(Command::Lock, |out| lock_request(file).emit(out)).await;
    (holder, client, id, interim)
}

#[test]
fn a_request_that_waits_says_so_and_can_be_cancelled() {
    story(async {
        for (sign, seal, by_async_id) in
            [(false, false, true), (false, false, false), (true, false, true), (false, true, true)]
        {
            let world = World::new();
            let (_holder, mut client, id, interim) = waiting(&world, sign, seal).await;
            assert_eq!(interim.status, NtStatus::PENDING);
            assert_eq!(interim.message_id, id);
            assert!(!interim.flags.contains(Flags::SIGNED), "an interim response is never signed");
            assert!(interim.credits > 0);
            let async_id = interim.async_id().expect("an AsyncId");
            // Others are served meanwhile, including on the same connection.
            assert!(client.is_served().await);
            let mut header = Header::request(Command::Cancel, if by_async_id { 0 } else { id });
            header.session_id = client.session;
            if by_async_id {
                header.id = Id::Async(async_id);
            }
            let mut request = header.to_bytes().to_vec();
            cancel::Request.emit(&mut request);
            client.send(request);
            let (answer, _) = client.recv().await.unwrap();
            assert_eq!((answer.status, answer.message_id), (NtStatus::CANCELLED, id));
            assert_eq!(answer.async_id(), Some(async_id));
            assert_eq!(answer.credits, 0, "they came with the interim response");
            assert_eq!(answer.flags.contains(Flags::SIGNED), sign && !seal);
            assert!(client.is_served().await);
        }
    });
}

#[test]
fn a_wait_ends_when_the_holder_goes() {
    story(async {
        let (holder, mut client, id, _) = waiting(&World::new(), false, false).await;
        holder.wire.hang_up();
        let (answer, _) = client.recv().await.unwrap();
        assert_eq!((answer.status, answer.message_id), (NtStatus::SUCCESS, id));
    });
}

#[test]
fn nobody_cancels_for_others() {
    story(async {
        let world = World::new();
        let (_holder, mut client, id, _) = waiting(&world, false, false).await;
        let mut header = Header::request(Command::Cancel, id);
        for session in [0, client.session ^ 1] {
            header.session_id = session;
            let mut request = header.to_bytes().to_vec();
            cancel::Request.emit(&mut request);
            client.wire.send(request);
        }
        // For a request that does not wait, or does not exist: no answer at all.
        header.session_id = client.session;
        header.message_id = 12_345;
        let mut request = header.to_bytes().to_vec();
        cancel::Request.emit(&mut request);
        client.wire.send(request);
        assert!(client.is_served().await, "and nothing before this answer");
    });
}

/// A related request need not name the session that encrypted its message (3.3.5.2.7.2); CANCEL uses its own SessionId.
#[test]
fn what_one_session_has_encrypted_cancels_nothing_of_another() {
    story(async {
        let world = World::new();
        let (_holder, mut client, id, _) = waiting(&world, false, false).await;
        let waits = std::mem::take(&mut client.session);
        client.keys = None;
        client.log_on("alice", PASSWORD).await.unwrap();
        client.seal = true;
        let mut header = Header::request(Command::Cancel, id);
        header.session_id = waits;
        let mut request = header.to_bytes().to_vec();
        cancel::Request.emit(&mut request);
        let echo = client.request(Command::Echo, |out| echo::Request.emit(out));
        client.send(link(vec![echo, request], true));
        let (answer, _) = client.recv().await.unwrap();
        assert_eq!(answer.command, Command::Echo);
        assert!(client.is_served().await, "and nothing before this answer");
    });
}

#[test]
fn the_end_of_a_connection_takes_its_waiting_requests_with_it() {
    story(async {
        let world = World::new();
        let (mut holder, mut client, _, _) = waiting(&world, false, false).await;
        client.wire.hang_up();
        client.assert_closed().await;
        rt::sleep(Duration::from_millis(1)).await;
        assert_eq!(world.server.session_count(), 1);
        assert!(holder.is_served().await);
    });
}

#[test]
fn long_requests_of_short_commands_end_the_connection() {
    story(async {
        let mut client = World::new().client().await;
        let request = client.request(Command::Echo, |out| {
            echo::Request.emit(out);
            out.resize(HEADER_LEN + (68 << 10) + 1, 0);
        });
        client.send(request);
        client.assert_closed().await;
    });
}

/// The cost of a request varies, so the server does not count requests before it yields to other tasks.
#[test]
fn others_have_their_turn_between_the_requests_of_a_connection() {
    let turns = |requests: usize, compound: bool| {
        turns_of_others(async move {
            let mut client = World::new().client().await;
            let echoes = (0..requests).map(|_| client.request(Command::Echo, |out| echo::Request.emit(out)));
            let echoes: Vec<_> = echoes.collect();
            match compound {
                true => client.send(link(echoes, false)),
                false => echoes.into_iter().for_each(|echo| client.send(echo)),
            }
            let mut answered = 0;
            while answered < requests {
                answered += client.recv_all().await.unwrap().len();
            }
        })
    };
    for compound in [false, true] {
        let (few, many) = (turns(1, compound), turns(15, compound));
        assert!(many >= few + 4, "{many} and {few}, in a compound: {compound}");
    }
}
