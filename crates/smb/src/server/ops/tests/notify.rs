//! CHANGE_NOTIFY: what is reported, when, and how a request ends.

use futures_util::future::join;
use weft_wire::smb2::change_notify::{Flags, Request, Response};
use weft_wire::smb2::fscc::notify::{Action, Change};

use super::*;

/// FILE_NOTIFY_CHANGE_FILE_NAME and DIR_NAME.
const NAMES: u32 = 3;

async fn notify(bench: &Bench, dir: FileId, tree: bool, room: u32) -> Result<Vec<Change>, NtStatus> {
    let flags = if tree { Flags::WATCH_TREE } else { Flags::NONE };
    let request = Request { flags, output_buffer_length: room, file: dir, completion_filter: NAMES };
    let reply = bench.answer(Command::ChangeNotify, |out| request.emit(out)).await;
    let reply = reply.map_err(|failure| failure.status)?;
    if reply.status != NtStatus::SUCCESS {
        return Err(reply.status);
    }
    Ok(Change::parse_list(&Response::parse(&reply.message.into()).unwrap().buffer).unwrap())
}

fn change(action: Action, name: &str) -> Change {
    Change { action, name: name.into() }
}

#[test]
fn changes_between_two_requests_are_kept() {
    run(async |bench| {
        bench.mkdir("d").await;
        let dir = bench.open(&Wish::dir("d")).await.unwrap();
        // The first request decides what is watched, and waits.
        let (told, ()) = join(notify(&bench, dir, true, 1000), bench.put("d\\a", b"1")).await;
        assert_eq!(told.unwrap(), [change(Action::ADDED, "a")]);
        bench.mkdir("d\\e").await;
        bench.put("d\\e\\b", b"2").await;
        bench.vfs.remove(weft_store::NodeId::ROOT, b"none").await.unwrap_err();
        let told = notify(&bench, dir, false, 1000).await.unwrap();
        assert_eq!(told, [change(Action::ADDED, "e"), change(Action::ADDED, "e\\b")]);
    });
}

#[test]
fn requests_of_one_open_are_answered_in_order() {
    run(async |bench| {
        bench.mkdir("d").await;
        let dir = bench.open(&Wish::dir("d")).await.unwrap();
        let both = join(notify(&bench, dir, false, 1000), notify(&bench, dir, false, 1000));
        let makes = async {
            bench.mkdir("d\\first").await;
            weft_machine::rt::yield_now().await;
            bench.mkdir("d\\second").await;
        };
        let ((first, second), ()) = join(both, makes).await;
        assert_eq!(first.unwrap(), [change(Action::ADDED, "first")]);
        assert_eq!(second.unwrap(), [change(Action::ADDED, "second")]);
    });
}

#[test]
fn what_does_not_fit_is_not_cut() {
    run(async |bench| {
        bench.mkdir("d").await;
        let dir = bench.open(&Wish::dir("d")).await.unwrap();
        let (told, ()) = join(notify(&bench, dir, false, 20), bench.mkdir("d\\long name")).await;
        assert_eq!(told, Err(NtStatus::NOTIFY_ENUM_DIR));
        // The first request's buffer size applies to the open: a larger one later changes nothing.
        bench.mkdir("d\\another").await;
        assert_eq!(notify(&bench, dir, false, 1000).await, Err(NtStatus::NOTIFY_ENUM_DIR));
        bench.mkdir("d\\x").await;
        assert_eq!(notify(&bench, dir, false, 1000).await.unwrap(), [change(Action::ADDED, "x")]);
    });
}

#[test]
fn a_wait_ends_with_the_open_or_the_directory() {
    run(async |bench| {
        bench.mkdir("d").await;
        let dir = bench.open(&Wish::dir("d")).await.unwrap();
        let (told, closed) = join(notify(&bench, dir, false, 1000), bench.close(dir)).await;
        closed.unwrap();
        assert_eq!(told, Err(NtStatus::NOTIFY_CLEANUP));
        let dir = bench.open(&Wish::dir("d")).await.unwrap();
        let goes = Wish {
            options: CreateOptions::DIRECTORY_FILE | CreateOptions::DELETE_ON_CLOSE,
            ..Wish::dir("d")
        };
        let other = bench.open(&goes).await.unwrap();
        let (told, closed) = join(notify(&bench, dir, false, 1000), bench.close(other)).await;
        closed.unwrap();
        assert_eq!(told, Err(NtStatus::DELETE_PENDING));
        assert_eq!(notify(&bench, dir, false, 1000).await, Err(NtStatus::DELETE_PENDING));
    });
}

#[test]
fn files_are_not_watched() {
    run(async |bench| {
        bench.put("f", b"1").await;
        let file = bench.open(&Wish::file("f")).await.unwrap();
        assert_eq!(notify(&bench, file, false, 1000).await, Err(NtStatus::INVALID_PARAMETER));
        bench.mkdir("d").await;
        let wish = Wish { access: AccessMask::FILE_READ_ATTRIBUTES, ..Wish::dir("d") };
        let blind = bench.open(&wish).await.unwrap();
        assert_eq!(notify(&bench, blind, false, 1000).await, Err(NtStatus::ACCESS_DENIED));
    });
}

#[test]
fn a_connection_has_so_many_requests_waiting_and_no_more() {
    use crate::server::requests::{Cancel, MAX_WAITING};
    run(async |bench| {
        bench.mkdir("d").await;
        let dir = bench.open(&Wish::dir("d")).await.unwrap();
        let (told, ()) = join(notify(&bench, dir, false, 1000), bench.mkdir("d\\c")).await;
        assert_eq!(told.unwrap(), [change(Action::ADDED, "c")]);
        let waiting = &bench.connection.waiting;
        for id in 0..MAX_WAITING as u64 {
            waiting.enter(1_000_000 + id, bench.session.id, Rc::<Cancel>::default());
        }
        // [MS-SMB2] 3.3.4.2, note 242.
        let refused = notify(&bench, dir, false, 1000).await;
        assert_eq!(refused.unwrap_err(), NtStatus::INSUFFICIENT_RESOURCES);
        // A refused request does not start a watch.
        let other = bench.open(&Wish::dir("d")).await.unwrap();
        let before = bench.server.held.used_bytes();
        let refused = notify(&bench, other, false, 1000).await;
        assert_eq!(refused.unwrap_err(), NtStatus::INSUFFICIENT_RESOURCES);
        assert_eq!(bench.server.held.used_bytes(), before);
        // A request that need not wait is answered.
        bench.mkdir("d\\e").await;
        assert_eq!(notify(&bench, dir, false, 1000).await.unwrap(), [change(Action::ADDED, "e")]);
        waiting.leave(1_000_000);
        let (told, ()) = join(notify(&bench, dir, false, 1000), bench.mkdir("d\\f")).await;
        assert_eq!(told.unwrap(), [change(Action::ADDED, "f")]);
    });
}
