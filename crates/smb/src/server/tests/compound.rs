//! Several requests in one message.

use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::header::Flags;
use weft_wire::smb2::{Command, FileId, Header, Id, NtStatus, create, echo, read};

use super::harness::*;

const ALL_ONES: u64 = u64::MAX;

/// A related request takes session, tree and file from the previous one; clients fill in all ones.
fn anonymous(client: &mut Client, command: Command, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let (session, tree) = (client.session, client.tree);
    (client.session, client.tree) = (ALL_ONES, u32::MAX);
    let request = client.request(command, body);
    (client.session, client.tree) = (session, tree);
    request
}

fn create_read_close(client: &mut Client, name: &str) -> Vec<u8> {
    let name = name.to_owned();
    let create = client.request(Command::Create, |out| create_request(&name, CreateOptions::NONE).emit(out));
    let read = anonymous(client, Command::Read, |out| read_request(FileId::RELATED, 100).emit(out));
    let close = anonymous(client, Command::Close, |out| close_request(FileId::RELATED).emit(out));
    link(vec![create, read, close], true)
}

#[test]
fn related_requests_inherit() {
    story(async {
        let world = World::new();
        for (sign, seal) in [(false, false), (true, false), (false, true)] {
            let mut client = world.client().await;
            (client.sign, client.seal) = (sign, seal);
            let file = client.open("f", CreateOptions::NONE).await;
            // An odd length: the READ response in the middle has to be padded.
            client.write(file, b"odd").await;
            let mut compound = create_read_close(&mut client, "f");
            if sign {
                sign_each(client.keys.as_ref().unwrap(), &mut compound);
            }
            match seal {
                true => client.send(compound),
                false => client.wire.send(compound),
            }
            let responses = client.recv_all().await.unwrap();
            let commands: Vec<_> = responses.iter().map(|(h, _)| (h.command, h.status)).collect();
            assert_eq!(
                commands,
                [Command::Create, Command::Read, Command::Close].map(|c| (c, NtStatus::SUCCESS))
            );
            for (i, (header, bytes)) in responses.iter().enumerate() {
                assert_eq!(header.flags.contains(Flags::RELATED_OPERATIONS), i > 0);
                assert_eq!(header.flags.contains(Flags::SIGNED), sign, "each by itself");
                assert_eq!((header.session_id, header.id), (client.session, Id::tree(client.tree)));
                assert!(bytes.len().is_multiple_of(8), "3.3.4.1.3: the last one, too");
            }
            assert_eq!(&read::Response::parse(&responses[1].1).unwrap().data[..], b"odd");
            // The file is closed.
            let file = create::Response::parse(&responses[0].1).unwrap().file;
            assert_eq!(client.read(file, 1).await.0, NtStatus::FILE_CLOSED);
        }
    });
}

#[test]
fn a_related_request_means_the_file_before_it_whatever_file_it_names() {
    story(async {
        let mut client = World::new().client().await;
        let gone = client.open("f", CreateOptions::NONE).await;
        client.close(gone).await;
        let create =
            client.request(Command::Create, |out| create_request("f", CreateOptions::NONE).emit(out));
        let close = anonymous(&mut client, Command::Close, |out| close_request(gone).emit(out));
        client.wire.send(link(vec![create, close], true));
        let responses = client.recv_all().await.unwrap();
        assert!(responses.iter().all(|(header, _)| header.status == NtStatus::SUCCESS));
    });
}

#[test]
fn a_failure_is_handed_on() {
    story(async {
        let mut client = World::new().client().await;
        let compound = create_read_close(&mut client, r"no\such\place");
        client.wire.send(compound);
        let responses = client.recv_all().await.unwrap();
        let statuses: Vec<_> = responses.iter().map(|(h, _)| h.status).collect();
        assert_eq!(statuses, [NtStatus::OBJECT_PATH_NOT_FOUND; 3]);
    });
}

#[test]
fn without_a_file_before_there_is_no_handle() {
    story(async {
        let mut client = World::new().client().await;
        let echo = client.request(Command::Echo, |out| echo::Request.emit(out));
        let close = anonymous(&mut client, Command::Close, |out| close_request(FileId::RELATED).emit(out));
        client.wire.send(link(vec![echo, close], true));
        let responses = client.recv_all().await.unwrap();
        assert_eq!(responses[0].0.status, NtStatus::SUCCESS);
        assert_eq!(responses[1].0.status, NtStatus::INVALID_HANDLE);
    });
}

#[test]
fn unrelated_requests_stand_alone() {
    story(async {
        let mut client = World::new().client().await;
        let bad =
            client.request(Command::Create, |out| create_request(r"no\such", CreateOptions::NONE).emit(out));
        let echo = client.request(Command::Echo, |out| echo::Request.emit(out));
        let lost = anonymous(&mut client, Command::Close, |out| close_request(FileId::RELATED).emit(out));
        client.wire.send(link(vec![bad, echo, lost], false));
        let responses = client.recv_all().await.unwrap();
        let statuses: Vec<_> = responses.iter().map(|(h, _)| h.status).collect();
        assert_eq!(
            statuses,
            [NtStatus::OBJECT_PATH_NOT_FOUND, NtStatus::SUCCESS, NtStatus::USER_SESSION_DELETED]
        );
    });
}

#[test]
fn where_styles_are_mixed_each_is_taken_at_its_word_and_nothing_relates_to_nothing() {
    story(async {
        let mut client = World::new().client().await;
        let echoes: Vec<_> =
            (0..3).map(|_| client.request(Command::Echo, |out| echo::Request.emit(out))).collect();
        let mut compound = link(echoes, true);
        // The third is not related.
        let second = u32::from_le_bytes(compound[20..24].try_into().unwrap()) as usize;
        let third =
            second + u32::from_le_bytes(compound[second + 20..second + 24].try_into().unwrap()) as usize;
        compound[third + 16] = 0;
        client.wire.send(compound);
        let responses = client.recv_all().await.unwrap();
        let statuses: Vec<_> = responses.iter().map(|(h, _)| h.status).collect();
        assert_eq!(statuses, [NtStatus::SUCCESS; 3]);

        let mut alone = client.request(Command::Echo, |out| echo::Request.emit(out));
        alone[16] = 4;
        client.wire.send(alone);
        assert_eq!(client.recv().await.unwrap().0.status, NtStatus::INVALID_PARAMETER);
    });
}

#[test]
fn links_that_lead_nowhere_end_the_connection() {
    story(async {
        let world = World::new();
        for next in [1u32, 8, 63, 64, 65, 72, 1000, u32::MAX, 0x8000_0000] {
            let mut client = world.client().await;
            let mut request = client.request(Command::Echo, |out| echo::Request.emit(out));
            request[20..24].copy_from_slice(&next.to_le_bytes());
            client.wire.send(request);
            client.assert_closed().await;
        }
    });
}

#[test]
fn a_compound_has_a_limit() {
    story(async {
        let world = World::with(|config| config.limits.compound = 4);
        for (count, closed) in [(4, false), (5, true)] {
            let mut client = world.client().await;
            let echoes: Vec<_> =
                (0..count).map(|_| client.request(Command::Echo, |out| echo::Request.emit(out))).collect();
            client.wire.send(link(echoes, false));
            match closed {
                true => client.assert_closed().await,
                false => assert_eq!(client.recv_all().await.unwrap().len(), 4),
            }
        }
    });
}

/// More payload than the transport carries in one message: the answers arrive in several, and none is lost.
#[test]
fn long_answers_are_sent_apart() {
    story(async {
        let world = World::new();
        let mut client = world.client().await;
        let file = client.open("f", CreateOptions::NONE).await;
        for _ in 0..20 {
            assert!(client.is_served().await);
        }
        client.write(file, &vec![3; 600_000]).await;
        for seal in [false, true] {
            client.seal = seal;
            let reads: Vec<_> = (0..3)
                .map(|_| {
                    client.request_charged(Command::Read, 10, |out| read_request(file, 600_000).emit(out))
                })
                .collect();
            client.send(link(reads, false));
            let mut lengths = Vec::new();
            while lengths.len() < 3 {
                for (header, bytes) in client.recv_all().await.unwrap() {
                    assert_eq!(header.status, NtStatus::SUCCESS);
                    lengths.push(read::Response::parse(&bytes).unwrap().data.len());
                }
            }
            assert_eq!(lengths, [600_000; 3]);
        }
    });
}

#[test]
fn a_session_is_not_set_up_in_a_compound() {
    story(async {
        let world = World::new();
        let mut client = world.connect();
        client.negotiate(Offer::default()).await;
        client.credits = 10;
        let setup = client.request(Command::SessionSetup, |out| {
            out.extend([25, 0, 0, 1]);
            out.resize(out.len() + 21, 0);
        });
        client.wire.send(setup);
        let (header, _): (Header, _) = client.recv().await.unwrap();
        assert!(header.status.is_error(), "an empty token");
        let echo = client.request(Command::Echo, |out| echo::Request.emit(out));
        let setup = client.request(Command::SessionSetup, |out| {
            out.extend([25, 0, 0, 1]);
            out.resize(out.len() + 21, 0);
        });
        client.wire.send(link(vec![echo, setup], false));
        let responses = client.recv_all().await.unwrap();
        assert_eq!(responses[1].0.status, NtStatus::INVALID_PARAMETER);
    });
}

#[test]
fn what_fails_on_an_open_file_leaves_it_open() {
    story(async {
        let mut client = World::new().client().await;
        let create =
            client.request(Command::Create, |out| create_request("f", CreateOptions::NONE).emit(out));
        let read = anonymous(&mut client, Command::Read, |out| read_request(FileId::RELATED, 10).emit(out));
        let close = anonymous(&mut client, Command::Close, |out| close_request(FileId::RELATED).emit(out));
        client.wire.send(link(vec![create, read, close], true));
        let responses = client.recv_all().await.unwrap();
        let statuses: Vec<_> = responses.iter().map(|(h, _)| h.status).collect();
        assert_eq!(statuses, [NtStatus::SUCCESS, NtStatus::END_OF_FILE, NtStatus::SUCCESS]);
    });
}

#[test]
fn a_command_that_is_none_is_answered_behind_another() {
    story(async {
        let mut client = World::new().client().await;
        let echo = client.request(Command::Echo, |out| echo::Request.emit(out));
        let mut odd = client.request(Command::Echo, |out| echo::Request.emit(out));
        odd[12] = 255;
        client.wire.send(link(vec![echo, odd], true));
        let responses = client.recv_all().await.unwrap();
        let statuses: Vec<_> = responses.iter().map(|(h, _)| h.status).collect();
        assert_eq!(statuses, [NtStatus::SUCCESS, NtStatus::INVALID_PARAMETER]);
        let mut odd = client.request(Command::Echo, |out| echo::Request.emit(out));
        odd[12] = 255;
        client.wire.send(odd);
        client.assert_closed().await;
    });
}

#[test]
fn a_create_in_front_of_others_tells_its_client_to_wait() {
    story(async {
        let world = World::new();
        let mut holder = world.client().await;
        let wish = create_request("f", CreateOptions::NONE);
        let wish = create::Request { oplock: create::OplockLevel::BATCH, ..wish };
        let (header, body) = holder.call(Command::Create, |out| wish.emit(out)).await;
        assert_eq!(header.status, NtStatus::SUCCESS);
        let held = create::Response::parse(&body).unwrap().file;
        let mut client = world.client().await;
        let compound = create_read_close(&mut client, "f");
        client.wire.send(compound);
        // 3.3.5.2.7, note 266.
        let (interim, _) = client.recv().await.unwrap();
        assert_eq!((interim.command, interim.status), (Command::Create, NtStatus::PENDING));
        let (header, _) = holder.recv().await.unwrap();
        assert_eq!(header.command, Command::OplockBreak);
        assert_eq!(holder.close(held).await, NtStatus::SUCCESS);
        let responses = client.recv_all().await.unwrap();
        let commands: Vec<_> = responses.iter().map(|(h, _)| h.command).collect();
        assert_eq!(commands, [Command::Create, Command::Read, Command::Close]);
        assert_eq!((responses[0].0.status, responses[0].0.id), (NtStatus::SUCCESS, interim.id));
        assert!(matches!(responses[1].0.id, Id::Sync { .. }));
    });
}
