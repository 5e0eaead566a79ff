//! READ, WRITE and FLUSH.

use weft_machine::Payload;
use weft_store::backend::Dir;
use weft_transport::Stag;
use weft_wire::smb2::channel::{Channel as Route, Descriptor};
use weft_wire::smb2::rdma_transform::{Crypto, RdmaTransformId, Transformed};
use weft_wire::smb2::read::RESPONSE_DATA_AT;
use weft_wire::smb2::{flush, read, write};

use super::*;

fn read_request(file: FileId, offset: u64, length: u32) -> read::Request {
    read::Request {
        padding: 0x50,
        flags: read::Flags::NONE,
        length,
        offset,
        file,
        minimum_count: 0,
        channel: Route::None,
        remaining_bytes: 0,
    }
}

pub(super) async fn read(b: &Bench, file: FileId, offset: u64, length: u32) -> Result<Vec<u8>, NtStatus> {
    let request = read_request(file, offset, length);
    let reply = b.answer(Command::Read, |out| request.emit(out)).await.map_err(|failure| failure.status)?;
    assert_eq!(reply.message.len(), RESPONSE_DATA_AT);
    let Some(payload) = reply.payload else { return Ok(Vec::new()) };
    // A small READ inside the message may have been read at once.
    assert!(payload.len() <= 16 << 10 || matches!(payload, Payload::File(_)), "read before it was wanted");
    Ok(payload.into_chain(&b.server.config.pool).await.unwrap().concat())
}

pub(super) async fn write(b: &Bench, file: FileId, offset: u64, data: &[u8]) -> Result<u32, NtStatus> {
    let request = write_request(file, offset, data);
    send(b, &request).await.map(|response| response.count)
}

fn write_request(file: FileId, offset: u64, data: &[u8]) -> write::Request {
    write::Request {
        offset,
        file,
        channel: Route::None,
        remaining_bytes: 0,
        flags: write::Flags::NONE,
        data: Bytes::copy_from_slice(data),
    }
}

async fn send(b: &Bench, request: &write::Request) -> Result<write::Response, NtStatus> {
    let emit = |out: &mut Vec<u8>| {
        request.emit_head(out);
        out.extend_from_slice(&request.data);
    };
    b.ask(Command::Write, emit).await.map(|message| write::Response::parse(&message).unwrap())
}

fn descriptors(lengths: &[u32]) -> impl Iterator<Item = Descriptor> {
    lengths.iter().enumerate().map(|(i, &length)| Descriptor { offset: 0x1000, token: 40 + i as u32, length })
}

#[test]
fn what_is_written_is_read() {
    run(async |b| {
        let file = b.open(&Wish { disposition: CreateDisposition::Create, ..Wish::file("f") }).await.unwrap();
        assert_eq!(write(&b, file, 5, b"hello").await, Ok(5));
        assert_eq!(write(&b, file, 0, b"").await, Ok(0));
        assert_eq!(read(&b, file, 0, 100).await.unwrap(), b"\0\0\0\0\0hello");
        assert_eq!(read(&b, file, 7, 2).await.unwrap(), b"ll");
        assert_eq!(read(&b, file, 3, 0).await.unwrap(), b"");
        assert_eq!(status(read(&b, file, 10, 1).await), NtStatus::END_OF_FILE);
        // At the end of the file, wherever that is.
        assert_eq!(write(&b, file, u64::MAX, b"!").await, Ok(1));
        assert_eq!(read(&b, file, 5, 100).await.unwrap(), b"hello!");
        let mut least = read_request(file, 0, 100);
        least.minimum_count = 12;
        assert_eq!(status(b.ask(Command::Read, |out| least.emit(out)).await), NtStatus::END_OF_FILE);
        least.minimum_count = 11;
        assert!(b.ask(Command::Read, |out| least.emit(out)).await.is_ok());
        let flush = flush::Request { file, full_sync: false };
        b.ask(Command::Flush, |out| flush.emit(out)).await.unwrap();
        let through = write::Request { flags: write::Flags::WRITE_THROUGH, ..write_request(file, 0, b"H") };
        send(&b, &through).await.unwrap();
        assert_eq!(read(&b, file, 0, 1).await.unwrap(), b"H");
    });
}

/// Linux with encryption over SMB Direct: an inline `READ` of 1 MiB, although its transport accepts 173,910 bytes per
/// message.
#[test]
fn an_inline_read_longer_than_a_message_is_answered_in_part() {
    run(async |b| {
        let content: Vec<u8> = (0..3 << 20).map(|i: u32| (i >> 7) as u8).collect();
        b.put("f", &content).await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let most = (1 << 20) - 164;
        assert!(read(&b, file, 0, 2 << 20).await.unwrap() == content[..most]);
        assert!(read(&b, file, most as u64, most as u32).await.unwrap() == content[most..2 * most]);
        let mut least = read_request(file, 0, 2 << 20);
        least.minimum_count = most as u32 + 1;
        assert_eq!(status(b.ask(Command::Read, |out| least.emit(out)).await), NtStatus::INVALID_PARAMETER);
        least.minimum_count = most as u32;
        assert!(b.ask(Command::Read, |out| least.emit(out)).await.is_ok());
    });
}

#[test]
fn rights_and_ranges_are_checked() {
    run(async |b| {
        b.put("f", b"content").await;
        b.mkdir("d").await;
        let with = |access| Wish { access, ..Wish::file("f") };
        let reader = b.open(&with(AccessMask::FILE_READ_DATA)).await.unwrap();
        let writer = b.open(&with(AccessMask::FILE_WRITE_DATA)).await.unwrap();
        let appender = b.open(&with(AccessMask::FILE_APPEND_DATA)).await.unwrap();
        let looker = b.open(&with(AccessMask::FILE_READ_ATTRIBUTES)).await.unwrap();
        let dir = b.open(&Wish::dir("d")).await.unwrap();
        assert_eq!(status(write(&b, reader, 0, b"x").await), NtStatus::ACCESS_DENIED);
        assert_eq!(status(read(&b, writer, 0, 1).await), NtStatus::ACCESS_DENIED);
        assert_eq!(status(read(&b, looker, 0, 1).await), NtStatus::ACCESS_DENIED);
        // An append-only open writes at the given offset, and at the end if it asks for that ([MS-SMB2] 3.3.5.13, note
        // 364).
        for offset in [0, 7, u64::MAX] {
            assert_eq!(write(&b, appender, offset, b"!").await, Ok(1));
        }
        assert_eq!(read(&b, reader, 0, 100).await.unwrap(), b"!ontent!!");
        assert_eq!(status(read(&b, dir, 0, 1).await), NtStatus::INVALID_DEVICE_REQUEST);
        assert_eq!(status(write(&b, dir, 0, b"x").await), NtStatus::INVALID_DEVICE_REQUEST);
        for offset in [1 << 63, u64::MAX - 1] {
            assert_eq!(status(read(&b, reader, offset, 10).await), NtStatus::INVALID_PARAMETER);
            assert_eq!(status(write(&b, writer, offset, b"x").await), NtStatus::INVALID_PARAMETER);
        }
        assert_eq!(status(read(&b, reader, 0, (8 << 20) + 1).await), NtStatus::INVALID_PARAMETER);
        assert_eq!(status(write(&b, writer, DISK, b"x").await), NtStatus::DISK_FULL);
        // [MS-FSA] 2.1.5.4: beyond Open.File.Volume.MaxFileSize.
        for offset in [16 << 40, 1 << 62] {
            assert_eq!(status(write(&b, writer, offset, b"x").await), NtStatus::INVALID_PARAMETER);
        }
        let flush = |file| flush::Request { file, full_sync: false };
        assert_eq!(
            status(b.ask(Command::Flush, |out| flush(reader).emit(out)).await),
            NtStatus::ACCESS_DENIED
        );
        b.ask(Command::Flush, |out| flush(appender).emit(out)).await.unwrap();
        b.ask(Command::Flush, |out| flush(dir).emit(out)).await.unwrap();
    });
}

/// All data that several clients append at the same time, each on its own core, arrives once and untorn.
#[test]
fn what_is_appended_at_the_same_time_lies_one_behind_the_other() {
    const WRITERS: u16 = 4;
    const RECORDS: u16 = 100;
    /// Long enough that others arrive during the write.
    const RECORD: usize = 64 << 10;

    let dir = tempfile::tempdir().unwrap();
    for vfs in [Vfs::from(Ram::new(DISK)), Vfs::from(Dir::open(dir.path()).unwrap())] {
        let server = server(Offers::default(), vfs);
        let bench = || Bench::on(server.clone(), Dialect::V3_1_1, false);
        rt::block_on(async { bench().put("log", b"").await }).unwrap();
        let start = std::sync::Barrier::new(usize::from(WRITERS));
        std::thread::scope(|threads| {
            for writer in 0..WRITERS {
                let (server, start) = (server.clone(), &start);
                threads.spawn(move || {
                    rt::block_on(async {
                        let b = Bench::on(server, Dialect::V3_1_1, false);
                        let file = b.open(&Wish::file("log")).await.unwrap();
                        start.wait();
                        for record in 0..RECORDS {
                            let mark = (writer * RECORDS + record).to_le_bytes();
                            let written = write(&b, file, u64::MAX, &mark.repeat(RECORD / 2)).await;
                            assert_eq!(written, Ok(RECORD as u32));
                        }
                    })
                    .unwrap();
                });
            }
        });
        rt::block_on(async {
            let b = bench();
            let file = b.open(&Wish::file("log")).await.unwrap();
            let mut marks = Vec::new();
            for at in 0..u64::from(WRITERS * RECORDS) {
                let record = read(&b, file, at * RECORD as u64, RECORD as u32).await.unwrap();
                assert!(record.len() == RECORD && record[2..] == record[..RECORD - 2], "a record is torn");
                marks.push(u16::from_le_bytes([record[0], record[1]]));
            }
            let end = u64::from(WRITERS * RECORDS) * RECORD as u64;
            assert_eq!(status(read(&b, file, end, 1).await), NtStatus::END_OF_FILE);
            marks.sort_unstable();
            assert!(marks.into_iter().eq(0..WRITERS * RECORDS), "a record is lost");
        })
        .unwrap();
    }
}

#[test]
fn an_rdma_read_goes_into_the_clients_memory() {
    run(async |b| {
        b.put("f", &[7; 5000]).await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let mut request = read_request(file, 1000, 6000);
        request.channel = Route::RdmaV1(descriptors(&[3000, 3000]).collect());
        let reply = b.answer(Command::Read, |out| request.emit(out)).await.unwrap();
        let response = read::Response::parse(&reply.message.into()).unwrap();
        assert_eq!((response.data.len(), response.data_remaining), (0, 4000));
        assert_eq!(reply.payload.unwrap().len(), 4000);
        // Only as much of it as is filled.
        let segments: Vec<_> = reply.segments.iter().map(|s| (s.stag, s.offset, s.len)).collect();
        assert_eq!(segments, [(Stag(40), 0x1000, 3000), (Stag(41), 0x1000, 1000)]);
        assert_eq!(reply.invalidate, None);
        request.channel = Route::RdmaV1Invalidate(descriptors(&[6000]).collect());
        let reply = b.answer(Command::Read, |out| request.emit(out)).await.unwrap();
        assert_eq!(reply.invalidate, Some(Stag(40)));
        // A failure invalidates too.
        request.offset = 5000;
        let failure = b.answer(Command::Read, |out| request.emit(out)).await.unwrap_err();
        assert_eq!((failure.status, failure.invalidate), (NtStatus::END_OF_FILE, Some(Stag(40))));
        request.offset = 0;
        request.length = 6001;
        assert_eq!(status(b.ask(Command::Read, |out| request.emit(out)).await), NtStatus::INVALID_PARAMETER);
        request.length = 0;
        assert_eq!(status(b.ask(Command::Read, |out| request.emit(out)).await), NtStatus::INVALID_PARAMETER);
    });
}

#[test]
fn an_rdma_write_is_fetched_from_the_clients_memory() {
    run(async |b| {
        let file = b.open(&Wish { disposition: CreateDisposition::Create, ..Wish::file("f") }).await.unwrap();
        let mut request = write::Request {
            remaining_bytes: 4000,
            channel: Route::RdmaV1Invalidate(descriptors(&[3000, 3000]).collect()),
            ..write_request(file, 100, b"")
        };
        let reply = b.answer(Command::Write, |out| request.emit_head(out)).await.unwrap();
        assert_eq!(reply.invalidate, Some(Stag(40)));
        assert_eq!(write::Response::parse(&reply.message.into()).unwrap().count, 4000);
        let fetched: Vec<_> = b.client.fetched.borrow().iter().map(|s| (s.stag, s.len)).collect();
        assert_eq!(fetched, [(Stag(40), 3000), (Stag(41), 1000)]);
        assert_eq!(read(&b, file, 100, 5000).await.unwrap(), b.client.memory[..4000]);
        for (remaining, data) in [(6001, &b""[..]), (0, b""), (10, b"inline too")] {
            request.remaining_bytes = remaining;
            request.data = Bytes::copy_from_slice(data);
            let emit = |out: &mut Vec<u8>| {
                request.emit_head(out);
                out.extend_from_slice(&request.data);
            };
            let failure = b.answer(Command::Write, emit).await.unwrap_err();
            assert_eq!((failure.status, failure.invalidate), (NtStatus::INVALID_PARAMETER, Some(Stag(40))));
        }
    });
}

#[test]
fn an_rdma_write_goes_straight_into_a_file_in_memory_where_the_transport_reaches_it() {
    run(async |b| {
        b.client.reaches_files.set(true);
        let file = b.open(&Wish { disposition: CreateDisposition::Create, ..Wish::file("f") }).await.unwrap();
        let reader = b.open(&Wish { access: AccessMask::FILE_READ_DATA, ..Wish::file("f") }).await.unwrap();
        let mut request = write::Request {
            remaining_bytes: 4000,
            channel: Route::RdmaV1(descriptors(&[3000, 3000]).collect()),
            flags: write::Flags::WRITE_THROUGH,
            ..write_request(file, 100, b"")
        };
        assert_eq!(send(&b, &request).await.unwrap().count, 4000);
        assert_eq!(read(&b, file, 100, 5000).await.unwrap(), b.client.memory[..4000]);
        // Refusals are unchanged.
        request.offset = DISK;
        assert_eq!(status(send(&b, &request).await), NtStatus::DISK_FULL);
        (request.offset, request.file) = (0, reader);
        assert_eq!(status(send(&b, &request).await), NtStatus::ACCESS_DENIED);
        assert!(b.client.fetched.borrow().is_empty());
        assert_eq!(read(&b, file, 0, 100).await.unwrap(), [0; 100]);
    });
}

/// Payload of an encrypted session must not move by RDMA if nothing would encrypt it.
#[test]
fn an_encrypted_session_gets_no_rdma() {
    run(async |b| {
        b.put("f", b"secret").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        for channel in [
            Route::RdmaV1(descriptors(&[64]).collect()),
            Route::RdmaV1Invalidate(descriptors(&[64]).collect()),
        ] {
            let request = read::Request { channel: channel.clone(), ..read_request(file, 0, 6) };
            let sealed = || Asker { sealed: true, ..b.asker() };
            let cx = b.cx_of(sealed(), Command::Read, |out| request.emit(out));
            assert_eq!(dispatch(&cx).await.unwrap_err().status, NtStatus::INVALID_PARAMETER);
            let request = write::Request { channel, remaining_bytes: 6, ..write_request(file, 0, b"") };
            let cx = b.cx_of(sealed(), Command::Write, |out| request.emit_head(out));
            assert_eq!(dispatch(&cx).await.unwrap_err().status, NtStatus::INVALID_PARAMETER);
            assert!(b.client.fetched.borrow().is_empty());
        }
        assert_eq!(read(&b, file, 0, 6).await.unwrap(), b"secret");
    });
}

/// Never negotiated in these tests.
fn transformed(kind: RdmaTransformId) -> Route {
    let (signature, nonce) = (Bytes::from_static(&[0; 16]), Bytes::from_static(&[0; 12]));
    let crypto = Crypto { kind, signature, nonce };
    Route::RdmaTransform(Transformed { crypto, revoke: false, descriptors: descriptors(&[64]).collect() })
}

#[test]
fn channels_that_the_connection_does_not_have() {
    let story = async |dialect, rdma, channel: Route| {
        let b = Bench::with(Ram::new(DISK).into(), dialect, rdma);
        b.put("f", b"content").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let request = read::Request { channel, ..read_request(file, 0, 7) };
        b.answer(Command::Read, |out| request.emit(out)).await.map(|reply| reply.segments.len())
    };
    let v1 = || Route::RdmaV1(descriptors(&[64]).collect());
    let invalidate = || Route::RdmaV1Invalidate(descriptors(&[64]).collect());
    let refused = [
        (Dialect::V3_1_1, false, v1()),
        (Dialect::V3_0, true, invalidate()),
        (Dialect::V3_1_1, true, transformed(RdmaTransformId::ENCRYPTION)),
        (Dialect::V3_1_1, true, transformed(RdmaTransformId::SIGNING)),
        (Dialect::V3_1_1, true, Route::Unknown(9)),
    ];
    for (dialect, rdma, channel) in refused {
        let answer = rt::block_on(story(dialect, rdma, channel)).unwrap();
        assert_eq!(answer.unwrap_err().status, NtStatus::INVALID_PARAMETER);
    }
    assert_eq!(rt::block_on(story(Dialect::V3_0, true, v1())).unwrap().unwrap(), 1);
    // Reserved, so ignored.
    assert_eq!(rt::block_on(story(Dialect::V2_1, false, v1())).unwrap().unwrap(), 0);
}
