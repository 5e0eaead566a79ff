//! Hostile requests: truncated anywhere, and with any bytes changed. An error is the worst result.

use proptest::prelude::*;
use weft_wire::smb2::channel::Channel as Route;
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::fscc::file::Rename;
use weft_wire::smb2::query_info::{self, InfoType};
use weft_wire::smb2::{change_notify, flush, ioctl, lock, query_directory, read, set_info, write};

use super::*;

/// One request of each kind, on an open file and an open directory.
fn samples(file: FileId, dir: FileId) -> Vec<(Command, Vec<u8>)> {
    let body = |emit: &dyn Fn(&mut Vec<u8>)| {
        let mut out = vec![0; HEADER_LEN];
        emit(&mut out);
        out.split_off(HEADER_LEN)
    };
    let mut rename = Vec::new();
    Rename { replace_if_exists: true, root_directory: 0, name: "d\\g".into() }.emit(&mut rename);
    let create = Wish { disposition: CreateDisposition::OpenIf, ..Wish::file("d\\new") }.request();
    let read = read::Request {
        padding: 0,
        flags: read::Flags::NONE,
        length: 100,
        offset: 0,
        file,
        minimum_count: 0,
        channel: Route::None,
        remaining_bytes: 0,
    };
    let write = write::Request {
        offset: 0,
        file,
        channel: Route::None,
        remaining_bytes: 0,
        flags: write::Flags::NONE,
        data: Bytes::from_static(b"some data"),
    };
    let listing = query_directory::Request {
        class: FileClass::ID_BOTH_DIRECTORY,
        flags: query_directory::Flags::RESTART_SCANS,
        file_index: 0,
        file: dir,
        output_buffer_length: 4096,
        pattern: "f*".into(),
    };
    let query = query_info::Request {
        info_type: InfoType::FILE,
        class: FileClass::ALL.0,
        output_buffer_length: 4096,
        additional_information: 0,
        flags: 0,
        file,
        input: Bytes::new(),
    };
    let set = set_info::Request {
        info_type: InfoType::FILE,
        class: FileClass::RENAME.0,
        additional_information: 0,
        file,
        buffer: rename.into(),
    };
    let lock = lock::Request {
        sequence: 0,
        file,
        locks: vec![lock::Element {
            offset: 5,
            length: 5,
            flags: lock::Flags::EXCLUSIVE_LOCK | lock::Flags::FAIL_IMMEDIATELY,
        }],
    };
    let control = ioctl::Request {
        code: ioctl::CtlCode::SRV_ENUMERATE_SNAPSHOTS,
        file,
        input: Bytes::from_static(b"input"),
        max_input_response: 0,
        max_output_response: 100,
        flags: ioctl::Flags::IS_FSCTL,
    };
    let notify = change_notify::Request {
        flags: change_notify::Flags::NONE,
        output_buffer_length: 100,
        file: dir,
        completion_filter: 1,
    };
    vec![
        (Command::Create, body(&|out| create.emit(out))),
        (Command::Read, body(&|out| read.emit(out))),
        (Command::Write, body(&|out| (write.emit_head(out), out.extend_from_slice(&write.data)).0)),
        (Command::Flush, body(&|out| flush::Request { file, full_sync: false }.emit(out))),
        (Command::QueryDirectory, body(&|out| listing.emit(out))),
        (Command::QueryInfo, body(&|out| query.emit(out))),
        (Command::SetInfo, body(&|out| set.emit(out))),
        (Command::Lock, body(&|out| lock.emit(out))),
        (Command::Ioctl, body(&|out| control.emit(out))),
        (Command::ChangeNotify, body(&|out| notify.emit(out))),
    ]
}

async fn prepared() -> (Bench, Vec<(Command, Vec<u8>)>) {
    let b = Bench::new();
    b.mkdir("d").await;
    b.put("f", &[1; 300]).await;
    let (file, dir) = (b.open(&Wish::file("f")).await.unwrap(), b.open(&Wish::dir("")).await.unwrap());
    let samples = samples(file, dir);
    (b, samples)
}

/// A request that waits for an event that never comes is dropped, as when a connection ends.
async fn attack(b: &Bench, command: Command, body: &[u8]) {
    let cx = b.cx(command, |out| out.extend_from_slice(body));
    let _ = futures_util::future::poll_immediate(Box::pin(dispatch(&cx))).await;
}

#[test]
fn every_truncation() {
    let story = async {
        let (b, samples) = prepared().await;
        for (command, body) in samples {
            for len in 0..=body.len() {
                attack(&b, command, &body[..len]).await;
            }
        }
    };
    rt::block_on(story).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_changed(changes in prop::collection::vec((0usize..512, any::<u8>()), 1..6)) {
        rt::block_on(async {
            let (b, samples) = prepared().await;
            for (command, mut body) in samples {
                for &(at, value) in &changes {
                    let at = at % body.len();
                    body[at] = value;
                }
                attack(&b, command, &body).await;
            }
        }).unwrap();
    }
}
