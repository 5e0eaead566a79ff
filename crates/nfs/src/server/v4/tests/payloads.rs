//! Requests whose payload is still with the client when they are carried out, and may be lost with the connection.

use std::io;
use std::rc::Rc;

use weft_machine::File;
use weft_machine::payload::Fetching;
use weft_transport::RemotePayload;

use super::disk::Disk;
use super::*;
use crate::server::tests::reply_to_distant;

/// A multiple of four, so that it has no padding.
const DATA: &[u8] = b"the data";

/// [`DATA`] in the client's memory.
#[derive(Debug)]
struct Afar {
    arrives: bool,
}

impl RemotePayload for Afar {
    fn len(&self) -> usize {
        DATA.len()
    }
    fn fill(&self, _: &File, _: u64, _: usize) -> Option<io::Result<()>> {
        None
    }
    fn fetch(&self) -> Fetching {
        let lost = || io::ErrorKind::ConnectionAborted.into();
        Box::pin(std::future::ready(self.arrives.then(|| Bytes::from_static(DATA)).ok_or_else(lost)))
    }
}

/// Sends these operations, one of which has [`DATA`] as its payload.
fn send_distant(server: &Server, ops: &[Op], arrives: bool) -> Answer {
    let mut message = call(2, 1, ops).to_vec();
    let at = message.windows(DATA.len()).position(|bytes| bytes == DATA).unwrap();
    message.drain(at..at + DATA.len());
    let (reply, mut d) = reply_to_distant(server, message.into(), Rc::new(Afar { arrives }));
    assert_eq!(reply, Reply::Success);
    let head = ReplyHead::parse(&mut d).unwrap();
    Answer { status: head.status, count: head.count, d }
}

fn write(stateid: Stateid, stable: Stable) -> Op {
    Op::Write(Write { stateid, offset: 0, stable, data: Bytes::from_static(DATA).into() })
}

/// The content of a file with this state.
fn content(client: &Modern<'_>, file: Handle, stateid: Stateid) -> Bytes {
    let mut answer = client.run(&[Op::Putfh(file), read_op(stateid, 0, 100)]);
    answer.ok::<()>(opnum::PUTFH);
    answer.ok::<bool>(opnum::READ);
    answer.d.opaque(100).unwrap()
}

#[test]
fn a_request_whose_payload_was_lost_is_carried_out_when_it_is_repeated() {
    for cache in [false, true] {
        let server = server();
        let a = Modern::new(&server, "a");
        let (file, stateid) = a.open("f", 3, 0);
        let next = || {
            a.sequence.set(a.sequence.get() + 1);
            a.sequence_op(a.sequence.get(), 0, cache)
        };
        let ops = [next(), Op::Putfh(file), write(stateid, Stable::Unstable)];
        for _ in 0..2 {
            let mut lost = send_distant(&server, &ops, false);
            assert_eq!((lost.status, lost.count), (Status::DELAY, 3), "cached: {cache}");
            lost.ok::<SequenceOk>(opnum::SEQUENCE);
        }
        assert_eq!(send_distant(&server, &ops, true).status, Status::OK, "cached: {cache}");
        // Now it was carried out, and is not carried out again; the number belongs to this request.
        let other = [ops[0].clone(), Op::Putfh(file), write_op(stateid, 5, DATA)];
        assert_eq!(send_distant(&server, &other, true).status, Status::SEQ_FALSE_RETRY);
        let kept = if cache { Status::OK } else { Status::RETRY_UNCACHED_REP };
        assert_eq!(send_distant(&server, &ops, false).status, kept);
        // A symbolic link's target.
        let link = Create {
            kind: CreateType::Link(LinkText(Bytes::from_static(DATA))),
            name: text("link"),
            attributes: Fattr::default(),
        };
        let ops = [next(), Op::Putfh(root(&server)), Op::Create(link)];
        assert_eq!(send_distant(&server, &ops, false).status, Status::DELAY);
        assert_eq!(send_distant(&server, &ops, true).status, Status::OK, "cached: {cache}");
        // The payload comes in the message itself, over another connection.
        let ops = [next(), Op::Putfh(file), write(stateid, Stable::Unstable)];
        assert_eq!(send_distant(&server, &ops, false).status, Status::DELAY);
        assert_eq!(send(&server, call(2, 1, &ops)).status, Status::OK, "cached: {cache}");
        // A client that has the answer continues with the next number.
        let ops = [next(), Op::Putfh(file), write(stateid, Stable::Unstable)];
        assert_eq!(send_distant(&server, &ops, false).status, Status::DELAY);
        assert_eq!(content(&a, file, stateid), DATA);
    }
}

#[test]
fn an_error_of_the_disk_is_the_answer_to_a_repetition() {
    let disk = Disk::new();
    let server = disk.serve(Limits::default());
    let a = Modern::new(&server, "a");
    let (file, stateid) = a.open("f", 3, 0);
    a.sequence.set(a.sequence.get() + 1);
    let ops = [a.sequence_op(a.sequence.get(), 0, true), Op::Putfh(file), write(stateid, Stable::FileSync)];
    disk.fail(true);
    assert_eq!(send_distant(&server, &ops, true).status, Status::IO);
    disk.fail(false);
    for arrives in [false, true] {
        let mut again = send_distant(&server, &ops, arrives);
        assert_eq!((again.status, again.count), (Status::IO, 3));
        again.ok::<SequenceOk>(opnum::SEQUENCE);
        again.ok::<()>(opnum::PUTFH);
        assert_eq!(again.next(opnum::WRITE), Status::IO);
    }
}

#[test]
fn what_a_request_has_changed_before_its_payload_was_lost_is_not_changed_again() {
    for cache in [false, true] {
        let server = server();
        let a = Modern::new(&server, "a");
        let (file, stateid) = a.open("f", 3, 0);
        a.open("g", 3, 0);
        a.sequence.set(a.sequence.get() + 1);
        let ops = [
            a.sequence_op(a.sequence.get(), 0, cache),
            Op::Putfh(root(&server)),
            Op::Remove(text("g")),
            Op::Putfh(file),
            write(stateid, Stable::Unstable),
        ];
        assert_eq!(send_distant(&server, &ops, false).status, Status::DELAY);
        let mut again = send_distant(&server, &ops, true);
        again.ok::<SequenceOk>(opnum::SEQUENCE);
        if !cache {
            assert_eq!(again.next(opnum::PUTFH), Status::RETRY_UNCACHED_REP);
            continue;
        }
        assert_eq!((again.status, again.count), (Status::DELAY, 5));
        again.ok::<()>(opnum::PUTFH);
        again.ok::<ChangeInfo>(opnum::REMOVE);
        again.ok::<()>(opnum::PUTFH);
        assert_eq!(again.next(opnum::WRITE), Status::DELAY);
        // The client repeats the WRITE as a request of its own.
        a.sequence.set(a.sequence.get() + 1);
        let ops =
            [a.sequence_op(a.sequence.get(), 0, true), Op::Putfh(file), write(stateid, Stable::Unstable)];
        assert_eq!(send_distant(&server, &ops, true).status, Status::OK);
        assert_eq!(content(&a, file, stateid), DATA);
    }
}
