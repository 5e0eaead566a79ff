//! Named pipes: calls on IPC$ as clients make them, and hostile ones.

use futures_util::future::join;
use weft_store::rights::Right;
use weft_wire::dcerpc::ndr::Handle;
use weft_wire::dcerpc::pdu::{self, Bind, BindAck, Context, PacketType, Verdict};
use weft_wire::dcerpc::{FaultStatus, Syntax, lsarpc, srvsvc};
use weft_wire::smb2::channel::Channel;
use weft_wire::smb2::ioctl::{self, CtlCode};
use weft_wire::smb2::{read, write};

use super::*;
use crate::server::held::TREE_BYTES;

/// A bench whose tree is IPC$.
fn on_ipc(story: impl AsyncFnOnce(Bench)) {
    run(async |mut b| {
        b.tree = b.session.connect(None, Right::Write, 10).unwrap();
        story(b).await;
    });
}

fn bind(transfers: &[Syntax], interface: Syntax) -> Bytes {
    let context = Context { id: 3, interface, transfers: transfers.to_vec() };
    let mut out = Vec::new();
    Bind { max_xmit: 4280, max_recv: 4280, group: 0, contexts: vec![context] }.emit(
        PacketType::BIND,
        1,
        &mut out,
    );
    out.into()
}

fn request(opnum: u16, stub: &[u8]) -> Bytes {
    fragment(opnum, stub, pdu::Flags::WHOLE)
}

fn fragment(opnum: u16, stub: &[u8], flags: pdu::Flags) -> Bytes {
    let mut out = Vec::new();
    pdu::Request { context: 3, opnum, stub: Bytes::copy_from_slice(stub) }.emit(flags, 2, &mut out);
    out.into()
}

impl Bench {
    async fn pipe(&self, name: &str) -> Result<FileId, NtStatus> {
        self.open(&Wish { options: CreateOptions::NONE, ..Wish::file(name) }).await
    }

    async fn pipe_write(&self, file: FileId, data: &Bytes) -> Result<(), NtStatus> {
        let request = write::Request {
            offset: 0,
            file,
            channel: Channel::None,
            remaining_bytes: 0,
            flags: write::Flags::NONE,
            data: data.clone(),
        };
        self.ask(Command::Write, |out| {
            request.emit_head(out);
            out.extend_from_slice(data);
        })
        .await
        .map(|_| ())
    }

    /// The bytes read, and whether their message continues.
    async fn pipe_read(&self, file: FileId, length: u32) -> Result<(Bytes, bool), NtStatus> {
        let reply = self.answer(Command::Read, |out| read_request(file, length).emit(out)).await;
        let reply = reply.map_err(|failure| failure.status)?;
        let data = reply.payload.expect("data").into_chain(&self.server.config.pool).await.unwrap();
        Ok((data.concat().into(), reply.status == NtStatus::BUFFER_OVERFLOW))
    }

    async fn transceive(&self, file: FileId, input: Bytes, room: u32) -> Result<(Bytes, bool), NtStatus> {
        let request = ioctl::Request {
            code: CtlCode::PIPE_TRANSCEIVE,
            file,
            input,
            max_input_response: 0,
            max_output_response: room,
            flags: ioctl::Flags::IS_FSCTL,
        };
        let reply = self.answer(Command::Ioctl, |out| request.emit(out)).await;
        let reply = reply.map_err(|failure| failure.status)?;
        let more = reply.status == NtStatus::BUFFER_OVERFLOW;
        Ok((ioctl::Response::parse(&reply.message.into()).unwrap().output, more))
    }

    /// A pipe with a bound interface.
    async fn bound(&self, name: &str, interface: Syntax) -> FileId {
        let file = self.pipe(name).await.unwrap();
        let (ack, _) = self.transceive(file, bind(&[Syntax::NDR], interface), 4280).await.unwrap();
        assert_eq!(BindAck::parse(&ack).unwrap().verdicts, [Verdict::Accepted(Syntax::NDR)]);
        file
    }
}

fn read_request(file: FileId, length: u32) -> read::Request {
    read::Request {
        padding: 0,
        flags: read::Flags::NONE,
        length,
        offset: 0,
        file,
        minimum_count: 0,
        channel: Channel::None,
        remaining_bytes: 0,
    }
}

#[test]
fn a_client_lists_the_shares() {
    on_ipc(async |b| {
        let user = crate::server::User::new("tester", crate::auth::Secret::password("of the test"));
        b.server.replace_users(&[user], &[]).await;
        for name in ["srvsvc", "SRVSVC", "\\srvsvc", "PIPE\\srvsvc"] {
            let file = b.bound(name, srvsvc::INTERFACE).await;
            let call = request(srvsvc::SHARE_ENUM, &srvsvc::client::share_enum("\\\\weft", 0));
            let (answer, more) = b.transceive(file, call, 4280).await.unwrap();
            assert!(!more);
            let stub = pdu::Response::parse(&answer).unwrap().stub;
            let (shares, _, outcome) = srvsvc::client::parse_shares(&stub).unwrap();
            let names: Vec<_> = shares.iter().map(|(name, kind, _)| (name.as_str(), *kind)).collect();
            assert_eq!((names, outcome), (vec![("data", srvsvc::TYPE_DISK), ("IPC$", srvsvc::TYPE_IPC)], 0));
            b.close(file).await.unwrap();
            assert_eq!(status(b.pipe_read(file, 10).await), NtStatus::FILE_CLOSED);
        }
        assert_eq!(status(b.pipe("spoolss").await), NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}

#[test]
fn a_message_may_be_read_in_pieces() {
    on_ipc(async |b| {
        let file = b.pipe("lsarpc").await.unwrap();
        let packet = bind(&[Syntax::NDR], lsarpc::INTERFACE);
        // Also when written in pieces.
        b.pipe_write(file, &packet.slice(..10)).await.unwrap();
        b.pipe_write(file, &packet.slice(10..)).await.unwrap();
        let (head, more) = b.pipe_read(file, 16).await.unwrap();
        assert!(more);
        // Unread data prevents a transceive.
        assert_eq!(status(b.transceive(file, packet.clone(), 4280).await), NtStatus::PIPE_BUSY);
        let (tail, more) = b.pipe_read(file, 4280).await.unwrap();
        assert!(!more);
        BindAck::parse(&[head, tail].concat()).unwrap();
        let call = request(lsarpc::OPEN_POLICY2, &[]);
        let (head, more) = b.transceive(file, call, 24).await.unwrap();
        assert_eq!((head.len(), more), (24, true));
        let (tail, more) = b.pipe_read(file, 4280).await.unwrap();
        assert_eq!((tail.len(), more), (24, false));
    });
}

#[test]
fn a_read_waits_for_its_write_and_can_be_cancelled() {
    on_ipc(async |b| {
        let file = b.pipe("srvsvc").await.unwrap();
        let packet = bind(&[Syntax::NDR], srvsvc::INTERFACE);
        let (read, _) = join(b.pipe_read(file, 4280), b.pipe_write(file, &packet)).await;
        BindAck::parse(&read.unwrap().0).unwrap();
        assert_eq!(b.client.sent.get(), 1, "STATUS_PENDING");

        let cx = b.cx(Command::Read, |out| read_request(file, 10).emit(out));
        let stop = async { b.connection.waiting.cancel(cx.header().message_id, b.session.id) };
        let (read, ()) = join(dispatch(&cx), stop).await;
        assert_eq!(read.unwrap_err().status, NtStatus::CANCELLED);

        // Closing the pipe, or leaving the share, ends the waiting reads.
        let (read, _) = join(b.pipe_read(file, 10), b.close(file)).await;
        assert_eq!(status(read), NtStatus::PIPE_BROKEN);
        let file = b.pipe("srvsvc").await.unwrap();
        let (read, left) = join(b.pipe_read(file, 10), b.session.disconnect(b.tree.id)).await;
        assert_eq!((status(read), left), (NtStatus::PIPE_BROKEN, true));
    });
}

#[test]
fn what_is_not_spoken_is_refused_by_name() {
    on_ipc(async |b| {
        for (transfers, interface, wanted) in [
            (&[Syntax::NDR64][..], srvsvc::INTERFACE, Verdict::NoTransfer),
            (&[Syntax::NDR], Syntax { version: 9, ..srvsvc::INTERFACE }, Verdict::NoInterface),
            (&[Syntax::NDR], lsarpc::INTERFACE, Verdict::NoInterface),
            (&[Syntax::NDR64, Syntax::NDR], srvsvc::INTERFACE, Verdict::Accepted(Syntax::NDR)),
            (
                &[Syntax::new(0x6cb7_1c2c, 0x9812, 0x4540, [3, 0, 0, 0, 0, 0, 0, 0], 1)],
                srvsvc::INTERFACE,
                Verdict::Features(0),
            ),
        ] {
            let file = b.pipe("srvsvc").await.unwrap();
            let (ack, _) = b.transceive(file, bind(transfers, interface), 4280).await.unwrap();
            assert_eq!(BindAck::parse(&ack).unwrap().verdicts, [wanted]);
        }
        let file = b.bound("lsarpc", lsarpc::INTERFACE).await;
        let mut stub = Handle([9; 20]).0.to_vec();
        stub.extend_from_slice(&[5, 0]);
        for (opnum, stub, wanted) in [
            (9999, &[][..], FaultStatus::OPERATION_OUT_OF_RANGE),
            (lsarpc::LOOKUP_NAMES, &[], FaultStatus::BAD_STUB_DATA),
            (lsarpc::QUERY_INFORMATION_POLICY, &stub, FaultStatus::CONTEXT_MISMATCH),
        ] {
            let (fault, _) = b.transceive(file, request(opnum, stub), 4280).await.unwrap();
            assert_eq!(pdu::parse_fault(&fault).unwrap(), wanted);
        }
    });
}

#[test]
fn a_hostile_client_gets_nowhere_and_costs_little() {
    on_ipc(async |b| {
        // A fragment longer than the limit.
        let file = b.bound("srvsvc", srvsvc::INTERFACE).await;
        let mut long = request(srvsvc::SHARE_ENUM, &[0; 100]).to_vec();
        long[8..10].copy_from_slice(&60_000u16.to_le_bytes());
        let (fault, _) = b.transceive(file, long.into(), 4280).await.unwrap();
        assert_eq!(pdu::parse_fault(&fault).unwrap(), FaultStatus::PROTOCOL_ERROR);
        let more = request(srvsvc::SHARE_ENUM, &[]);
        assert_eq!(status(b.pipe_write(file, &more).await), NtStatus::PIPE_DISCONNECTED);

        // Endless fragments: the call is aborted at its limit.
        let file = b.bound("srvsvc", srvsvc::INTERFACE).await;
        let mut flags = pdu::Flags::FIRST;
        let mut sent = 0;
        while b.pipe_write(file, &fragment(srvsvc::SHARE_ENUM, &[0; 4096], flags)).await.is_ok() {
            flags = pdu::Flags::NONE;
            sent += 4096;
            assert!(sent <= 1 << 20, "no limit");
        }
        let (fault, _) = b.pipe_read(file, 4280).await.unwrap();
        assert_eq!(pdu::parse_fault(&fault).unwrap(), FaultStatus::PROTOCOL_ERROR);

        // Calls whose answers are never read.
        let file = b.bound("srvsvc", srvsvc::INTERFACE).await;
        let call = request(srvsvc::SHARE_ENUM, &srvsvc::client::share_enum("", 0));
        let mut calls = 0;
        while b.pipe_write(file, &call).await.is_ok() {
            calls += 1;
            assert!(calls < 100_000, "no limit");
        }

        // Endless handles and pipes.
        let file = b.bound("lsarpc", lsarpc::INTERFACE).await;
        for given in 0.. {
            let (answer, _) = b.transceive(file, request(lsarpc::OPEN_POLICY2, &[]), 4280).await.unwrap();
            if pdu::parse_fault(&answer) == Ok(FaultStatus::NO_MEMORY) {
                break;
            }
            assert!(given < 1000, "no limit");
        }
        let mut pipes = 0;
        while b.pipe("samr").await.is_ok() {
            pipes += 1;
            assert!(pipes < 1000, "no limit");
        }
    });
}

#[test]
fn damaged_packets_end_the_pipe_at_worst() {
    on_ipc(async |b| {
        let packets = [
            bind(&[Syntax::NDR], srvsvc::INTERFACE),
            request(srvsvc::SHARE_ENUM, &srvsvc::client::share_enum("x", 0)),
        ];
        let mut seed = 7u32;
        for round in 0..600 {
            let file = b.pipe("srvsvc").await.unwrap();
            for packet in &packets {
                let mut damaged = packet.to_vec();
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (seed >> 8) as usize % damaged.len();
                match round % 2 {
                    0 => damaged[at] = seed as u8,
                    _ => damaged.truncate(at),
                }
                // Any answer will do, as long as there is one at once.
                let _ = b.pipe_write(file, &damaged.into()).await;
            }
            b.close(file).await.unwrap();
        }
        b.bound("srvsvc", srvsvc::INTERFACE).await;
    });
}

#[test]
fn what_waits_in_pipes_is_bounded_and_given_back() {
    on_ipc(async |mut b| {
        let budget = b.server.held.clone();
        let before = budget.used_bytes();
        let first = fragment(srvsvc::SHARE_ENUM, &[0; 4000], pdu::Flags::FIRST);
        let more = fragment(srvsvc::SHARE_ENUM, &[0; 4000], pdu::Flags::NONE);
        let begun: Bytes =
            std::iter::once(first).chain((0..120).map(|_| more.clone())).collect::<Vec<_>>().concat().into();
        let mut refused = 0;
        let mut trees = Vec::new();
        // Twice as much as the budget allows.
        while refused < 100 {
            b.tree = b.session.connect(None, Right::Write, 100).unwrap();
            trees.push(b.tree.id);
            for _ in 0..64 {
                let Ok(file) = b.pipe("srvsvc").await else {
                    refused += 1;
                    continue;
                };
                let bound = b.pipe_write(file, &bind(&[Syntax::NDR], srvsvc::INTERFACE)).await;
                refused += usize::from(bound.is_err() || b.pipe_write(file, &begun).await.is_err());
            }
            // The part for a single address.
            assert!(budget.used_bytes() <= (256 << 20) / 5);
        }
        b.tree = b.session.connect(None, Right::Write, 100).unwrap();
        for tree in trees {
            b.session.disconnect(tree).await;
        }
        assert_eq!(budget.used_bytes(), before + TREE_BYTES);
        // There is room again.
        b.bound("srvsvc", srvsvc::INTERFACE).await;
    });
}

#[test]
fn many_calls_in_one_write_end_the_pipe() {
    on_ipc(async |b| {
        let file = b.bound("srvsvc", srvsvc::INTERFACE).await;
        let call = request(srvsvc::SHARE_ENUM, &srvsvc::client::share_enum("\\\\weft", 0));
        b.pipe_write(file, &vec![&call[..]; 64].concat().into()).await.unwrap();
        for _ in 0..64 {
            b.pipe_read(file, 4280).await.unwrap();
        }
        b.pipe_write(file, &vec![&call[..]; 10_000].concat().into()).await.unwrap();
        let mut answers = 0;
        while b.pipe_read(file, 4280).await.is_ok() {
            answers += 1;
        }
        assert_eq!(answers, 65);
        assert_eq!(status(b.pipe_write(file, &call).await), NtStatus::PIPE_DISCONNECTED);
    });
}
