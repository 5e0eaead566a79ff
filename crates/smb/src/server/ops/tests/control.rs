//! IOCTL.

use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::ioctl::{
    CtlCode, Flags, NetworkInterface, Request, Response, ValidateNegotiateRequest, ValidateNegotiateResponse,
};

use super::*;

pub(super) fn request(code: CtlCode, file: FileId, input: Vec<u8>) -> Request {
    Request {
        code,
        file,
        input: input.into(),
        max_input_response: 0,
        max_output_response: 4096,
        flags: Flags::IS_FSCTL,
    }
}

pub(super) async fn control(b: &Bench, request: &Request) -> Result<Bytes, NtStatus> {
    let message = b.ask(Command::Ioctl, |out| request.emit(out)).await?;
    let response = Response::parse(&message).unwrap();
    assert_eq!((response.code, response.file), (request.code, request.file));
    Ok(response.output)
}

#[test]
fn the_server_tells_where_it_listens() {
    run(async |b| {
        let ask = |code| request(code, FileId::RELATED, Vec::new());
        let endpoints = control(&b, &ask(CtlCode::WEFT_ENDPOINTS)).await.unwrap();
        assert_eq!(&endpoints[..], b"iwarp 127.0.0.1:5445\n");
        let output = control(&b, &ask(CtlCode::QUERY_NETWORK_INTERFACE_INFO)).await.unwrap();
        let interfaces = NetworkInterface::parse_list(&output).unwrap();
        assert_eq!((interfaces.len(), interfaces[0].index, interfaces[0].rdma), (1, 3, true));
        let small = Request { max_output_response: 10, ..ask(CtlCode::QUERY_NETWORK_INTERFACE_INFO) };
        assert_eq!(status(control(&b, &small).await), NtStatus::BUFFER_TOO_SMALL);
    });
}

#[test]
fn controls_that_are_not_here_say_what_the_specification_says() {
    run(async |b| {
        b.put("f", b"").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let none = FileId::RELATED;
        for (code, on, wanted) in [
            (CtlCode::DFS_GET_REFERRALS, none, NtStatus(0xC000_019C)),
            (CtlCode::DFS_GET_REFERRALS, file, NtStatus::INVALID_PARAMETER),
            (CtlCode::QUERY_NETWORK_INTERFACE_INFO, file, NtStatus::INVALID_PARAMETER),
            (CtlCode::PIPE_WAIT, none, NtStatus::OBJECT_NAME_NOT_FOUND),
            (CtlCode::PIPE_TRANSCEIVE, file, NtStatus::NOT_SUPPORTED),
            (CtlCode::SET_ZERO_DATA, file, NtStatus::INVALID_PARAMETER),
            (CtlCode::SRV_COPYCHUNK, file, NtStatus::INVALID_PARAMETER),
            (CtlCode::SET_COMPRESSION, file, NtStatus::INVALID_PARAMETER),
            (CtlCode::GET_REPARSE_POINT, file, NtStatus::NOT_A_REPARSE_POINT),
            (CtlCode(0x0014_0000), file, NtStatus::INVALID_DEVICE_REQUEST),
            (CtlCode::SET_SPARSE, none, NtStatus::FILE_CLOSED),
        ] {
            assert_eq!(status(control(&b, &request(code, on, Vec::new())).await), wanted, "{code:?}");
        }
        let snapshots = request(CtlCode::SRV_ENUMERATE_SNAPSHOTS, file, Vec::new());
        // On Windows the end of the list takes two bytes.
        assert_eq!(control(&b, &snapshots).await.unwrap()[..], [[0; 8], [2, 0, 0, 0, 0, 0, 0, 0]].concat());
        let io = Request { flags: Flags::NONE, ..snapshots.clone() };
        assert_eq!(status(control(&b, &io).await), NtStatus::NOT_SUPPORTED);
        let huge = Request { max_output_response: u32::MAX, ..snapshots };
        assert_eq!(status(control(&b, &huge).await), NtStatus::INVALID_PARAMETER);
    });
}

#[test]
fn negotiate_is_validated() {
    let story = async |dialect, change: fn(&mut ValidateNegotiateRequest), room| {
        let b = Bench::with(Ram::new(DISK).into(), dialect, false);
        let mut said = ValidateNegotiateRequest {
            capabilities: Capabilities::LARGE_MTU,
            guid: [9; 16],
            security_mode: SecurityMode::SIGNING_ENABLED,
            dialects: vec![Dialect::V2_1, Dialect::V3_0],
        };
        change(&mut said);
        let mut input = Vec::new();
        said.emit(&mut input);
        let request = Request {
            max_output_response: room,
            ..request(CtlCode::VALIDATE_NEGOTIATE_INFO, FileId::RELATED, input)
        };
        let answer = control(&b, &request).await;
        assert_eq!(answer.is_err(), b.connection.is_ended());
        answer.ok()
    };
    let run = |dialect, change, room| rt::block_on(story(dialect, change, room)).unwrap();
    let output = run(Dialect::V3_0, |_| (), 24).unwrap();
    let response = ValidateNegotiateResponse::parse(&output).unwrap();
    assert_eq!((response.dialect, response.guid), (Dialect::V3_0, [7; 16]));
    // Any contradiction ends the connection.
    assert!(run(Dialect::V3_0, |_| (), 23).is_none());
    assert!(run(Dialect::V3_1_1, |_| (), 24).is_none());
    assert!(run(Dialect::V3_0, |said| said.dialects.push(Dialect::V3_1_1), 24).is_none(), "a downgrade");
    assert!(run(Dialect::V3_0, |said| said.guid[0] = 0, 24).is_none());
    assert!(run(Dialect::V3_0, |said| said.capabilities = Capabilities::NONE, 24).is_none());
    assert!(run(Dialect::V3_0, |said| said.security_mode = SecurityMode::NONE, 24).is_none());
    assert!(run(Dialect::V3_0, |said| said.dialects.clear(), 24).is_none());
}

#[test]
fn relative_links_can_be_read() {
    run(async |b| {
        use weft_store::vfs::{Exists, Make, NodeId, SetAttr};
        for (name, target) in [("in", "d/f"), ("out", "/etc/passwd")] {
            let make = Make::Symlink(target.into());
            b.vfs
                .create(NodeId::ROOT, name.as_bytes(), make, Exists::Fail, SetAttr::default())
                .await
                .unwrap();
        }
        let link = async |path| {
            let wish = Wish {
                access: AccessMask::FILE_READ_ATTRIBUTES,
                options: CreateOptions::OPEN_REPARSE_POINT,
                ..Wish::file(path)
            };
            let file = b.open(&wish).await.unwrap();
            control(&b, &request(CtlCode::GET_REPARSE_POINT, file, Vec::new())).await
        };
        let data = link("in").await.unwrap();
        assert_eq!(data[..4], [0x0C, 0, 0, 0xA0]);
        assert_eq!(usize::from(u16::from_le_bytes([data[4], data[5]])), data.len() - 8);
        assert_eq!(weft_wire::smb2::utf16::decode(&data[20..]).unwrap(), "d\\f");
        assert_eq!(status(link("out").await), NtStatus::ACCESS_DENIED);
    });
}

/// REPARSE_DATA_BUFFER of a link ([MS-FSCC] 2.1.2.4).
pub(super) fn link_to(target: &str, flags: u32) -> Vec<u8> {
    let mut path = Vec::new();
    weft_wire::smb2::utf16::encode(target, &mut path);
    let len = path.len() as u16;
    let mut data = 0xA000_000Cu32.to_le_bytes().to_vec();
    for field in [len + 12, 0, 0, len, 0, len] {
        data.extend(field.to_le_bytes());
    }
    data.extend(flags.to_le_bytes());
    data.extend(path);
    data
}

#[test]
fn clients_make_links() {
    run(async |b| {
        use weft_store::vfs::NodeId;
        b.mkdir("d").await;
        b.put("d\\f", b"content").await;
        let make = async |wish: Wish<'_>, data: Vec<u8>| {
            let wish = Wish { disposition: CreateDisposition::OpenIf, ..wish };
            let file = b.open(&wish).await.unwrap();
            let made = control(&b, &request(CtlCode::SET_REPARSE_POINT, file, data.clone())).await;
            if made.is_ok() {
                // From then on the handle refers to the link.
                let tag = info::file_info(&b, file, FileClass::ATTRIBUTE_TAG).await.unwrap();
                assert_eq!(tag[4..], data[..4]);
                let told = control(&b, &request(CtlCode::GET_REPARSE_POINT, file, Vec::new())).await;
                assert_eq!(told.unwrap()[..4], data[..4]);
            }
            b.close(file).await.unwrap();
            made.map(drop)
        };
        let link = async |path: &str| {
            let options = CreateOptions::OPEN_REPARSE_POINT;
            let opened = b.create(&Wish { options, ..Wish::file(path) }).await.unwrap();
            let data = control(&b, &request(CtlCode::GET_REPARSE_POINT, opened.file, Vec::new())).await;
            b.close(opened.file).await.unwrap();
            (opened.summary.attributes, data.unwrap())
        };
        let target = async |name: &str| {
            let node = b.vfs.lookup(NodeId::ROOT, name.as_bytes(), false).await.unwrap().node;
            String::from_utf8(b.vfs.readlink(node).await.unwrap()).unwrap()
        };
        make(Wish::file("to file"), link_to("d\\.\\f", 1)).await.unwrap();
        make(Wish::dir("to dir"), link_to("d", 1)).await.unwrap();
        make(Wish::file("away"), link_to("\\??\\UNC\\host\\share\\f", 0)).await.unwrap();
        assert_eq!(target("to file").await, "d/./f");
        assert_eq!(target("to dir").await, "d/");
        assert_eq!(target("away").await, "\\??\\UNC\\host\\share\\f");
        let link_attributes = FileAttributes::REPARSE_POINT;
        let (attributes, data) = link("to file").await;
        assert_eq!(attributes, link_attributes | FileAttributes::ARCHIVE);
        assert_eq!(data, link_to("d\\.\\f", 1));
        assert_eq!(link("to dir").await.0, link_attributes | FileAttributes::DIRECTORY);
        let shown = weft_wire::smb2::utf16::decode(&link("away").await.1[20..]).unwrap();
        assert_eq!(shown, "\\??\\UNC\\host\\share\\f\\\\host\\share\\f");
        assert_eq!(status(b.open(&Wish::file("to file")).await), NtStatus::STOPPED_ON_SYMLINK);
        // Setting attributes of a link does not convert it.
        let options = CreateOptions::OPEN_REPARSE_POINT;
        let file = b.open(&Wish { options, ..Wish::file("to dir") }).await.unwrap();
        let shown =
            weft_wire::smb2::fscc::file::Basic { attributes: link("to dir").await.0, ..Default::default() };
        info::set(&b, file, FileClass::BASIC, |out| shown.emit(out)).await.unwrap();
        b.close(file).await.unwrap();
        // A link becomes an empty file again, if the client knows what it is.
        let file = b.open(&Wish { options, ..Wish::file("away") }).await.unwrap();
        let tag = |tag: u32| [&tag.to_le_bytes()[..], &[0; 4]].concat();
        let unlink = async |data| control(&b, &request(CtlCode::DELETE_REPARSE_POINT, file, data)).await;
        assert_eq!(status(unlink(tag(0xA000_0003)).await), NtStatus(0xC000_0277));
        assert_eq!(status(unlink(vec![0; 7]).await), NtStatus(0xC000_0278));
        unlink(tag(0xA000_000C)).await.unwrap();
        // And it is a file again.
        assert_eq!(status(unlink(tag(0xA000_000C)).await), NtStatus::NOT_A_REPARSE_POINT);
        let told = control(&b, &request(CtlCode::GET_REPARSE_POINT, file, Vec::new())).await;
        assert_eq!(status(told), NtStatus::NOT_A_REPARSE_POINT);
        assert_eq!(info::standard(&b, file).await.end_of_file, 0);
        b.close(file).await.unwrap();
        let file = b.open(&Wish::file("away")).await.unwrap();
        let again = control(&b, &request(CtlCode::DELETE_REPARSE_POINT, file, tag(0xA000_000C))).await;
        assert_eq!(status(again), NtStatus::NOT_A_REPARSE_POINT);
        b.close(file).await.unwrap();
        // Delete-on-close deletes the link, not the file that it replaced.
        let doomed = Wish {
            options: CreateOptions::DELETE_ON_CLOSE,
            disposition: CreateDisposition::Create,
            ..Wish::file("doomed")
        };
        let file = b.open(&doomed).await.unwrap();
        control(&b, &request(CtlCode::SET_REPARSE_POINT, file, link_to("d", 1))).await.unwrap();
        assert!(b.vfs.lookup(NodeId::ROOT, b"doomed", false).await.is_ok());
        b.close(file).await.unwrap();
        assert!(b.vfs.lookup(NodeId::ROOT, b"doomed", false).await.is_err());
        // A link to a directory is removed like a directory.
        let options = CreateOptions::OPEN_REPARSE_POINT | CreateOptions::DELETE_ON_CLOSE;
        let as_file = Wish { options: options | CreateOptions::NON_DIRECTORY_FILE, ..Wish::file("to dir") };
        assert_eq!(status(b.open(&as_file).await), NtStatus::FILE_IS_A_DIRECTORY);
        let gone =
            b.open(&Wish { options: options | CreateOptions::DIRECTORY_FILE, ..as_file }).await.unwrap();
        b.close(gone).await.unwrap();
        assert!(b.exists("d\\f").await);
        // A directory that is not empty is not converted, and no link may leave the share.
        assert_eq!(status(make(Wish::file("d\\f"), link_to("x", 1)).await), NtStatus(0xC000_0278));
        assert_eq!(status(make(Wish::dir("d"), link_to("x", 1)).await), NtStatus::DIRECTORY_NOT_EMPTY);
        assert_eq!(status(make(Wish::file("d\\g"), link_to("..\\..\\x", 1)).await), NtStatus::ACCESS_DENIED);
        assert_eq!(
            status(make(Wish::file("d\\g"), link_to("a\\..\\..\\..\\x", 1)).await),
            NtStatus::ACCESS_DENIED
        );
        make(Wish::file("d\\g"), link_to("..\\x", 1)).await.unwrap();
        assert_eq!(status(make(Wish::file("h"), link_to("\\x", 1)).await), NtStatus(0xC000_0278));
        assert_eq!(status(make(Wish::file("h"), vec![0; 7]).await), NtStatus(0xC000_0278));
    });
}
