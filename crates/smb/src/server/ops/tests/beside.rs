//! Extended attributes, holes and copies, as clients request them.

use std::sync::atomic::Ordering;

use weft_store::opens::{Caching, Form, Opening, Rights};
use weft_wire::smb2::access::FileAttributes;
use weft_wire::smb2::create_context::RequestContext;
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::fscc::ea::FullEa;
use weft_wire::smb2::fsctl::{Chunk, Copied, CopyChunks, DuplicateExtents, Extent};
use weft_wire::smb2::ioctl::{self, CtlCode, Flags};
use weft_wire::smb2::query_info::{self, InfoType};
use weft_wire::smb2::set_info;

use super::*;

use self::recalled::Recalled;

#[path = "../../../../../store/src/opens/tests/recalled.rs"]
mod recalled;

async fn ctl(b: &Bench, file: FileId, code: CtlCode, input: &[u8]) -> Result<(NtStatus, Bytes), NtStatus> {
    let request = ioctl::Request {
        code,
        file,
        input: Bytes::copy_from_slice(input),
        max_input_response: 0,
        max_output_response: 4096,
        flags: Flags::IS_FSCTL,
    };
    let reply = b.answer(Command::Ioctl, |out| request.emit(out)).await.map_err(|failure| failure.status)?;
    Ok((reply.status, ioctl::Response::parse(&reply.message.into()).unwrap().output))
}

fn extent(offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    Extent { offset, len }.emit(&mut bytes);
    bytes
}

async fn copy(
    b: &Bench,
    (from, to): (FileId, FileId),
    code: CtlCode,
    chunks: &[(u64, u64, u32)],
) -> Result<(NtStatus, Copied), NtStatus> {
    let (_, key) = ctl(b, from, CtlCode::SRV_REQUEST_RESUME_KEY, b"").await?;
    assert_eq!(key.len(), 32);
    let chunks: Vec<_> = chunks.iter().map(|&(source, target, len)| Chunk { source, target, len }).collect();
    let mut input = Vec::new();
    CopyChunks { source: key[..24].try_into().unwrap(), count: chunks.len() as u32, chunks }.emit(&mut input);
    let (status, output) = ctl(b, to, code, &input).await?;
    Ok((status, Copied::parse(&output).unwrap()))
}

async fn content(b: &Bench, path: &str) -> Vec<u8> {
    let attr = b.vfs.lookup(weft_store::NodeId::ROOT, path.as_bytes(), false).await.unwrap();
    let file = b.vfs.open(attr.node, false).await.unwrap();
    file.read(0, 1 << 20).data().await.unwrap().into_chain(&Pool::new(1)).await.unwrap().concat()
}

#[test]
fn what_a_copy_has_changed_before_it_failed_shows_in_the_listing() {
    run(async |b| {
        b.put("from", b"0123456789").await;
        b.put("to", b"").await;
        let from = b.open(&Wish::file("from")).await.unwrap();
        let to = b.open(&Wish::file("to")).await.unwrap();
        let opens = b.vfs.opens().clone();
        opens.cache_directories();
        let listing = Opening::new(Rights::READ, Rights::ALL, opens.key());
        let listing = opens.try_open(weft_store::NodeId::ROOT, &listing).unwrap();
        let recalled = Arc::new(Recalled::default());
        listing.request(Form::Lease, Caching::RH, recalled.clone());
        let pieces = [(0, 0, 5), (8, 0, 3)];
        let (status, copied) = copy(&b, (from, to), CtlCode::SRV_COPYCHUNK, &pieces).await.unwrap();
        assert_eq!((status, copied.chunks), (NtStatus::INVALID_VIEW_SIZE, 1));
        b.close(to).await.unwrap();
        assert_eq!(recalled.0.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn the_server_copies_pieces_of_files() {
    run(async |b| {
        b.put("from", b"0123456789").await;
        b.put("to", b"").await;
        let from = b.open(&Wish::file("from")).await.unwrap();
        let to = b.open(&Wish::file("to")).await.unwrap();
        let pieces = [(0, 3, 4), (8, 0, 2)];
        let (status, copied) = copy(&b, (from, to), CtlCode::SRV_COPYCHUNK, &pieces).await.unwrap();
        assert_eq!(
            (status, copied),
            (NtStatus::SUCCESS, Copied { chunks: 2, chunk_bytes: 0, total_bytes: 6 })
        );
        assert_eq!(content(&b, "to").await, b"89\x000123");
        // Beyond the end of the source; the earlier chunks stay copied, and are reported.
        let (status, copied) =
            copy(&b, (from, to), CtlCode::SRV_COPYCHUNK, &[(0, 0, 1), (8, 0, 3)]).await.unwrap();
        assert_eq!((status, copied.chunks), (NtStatus::INVALID_VIEW_SIZE, 1));
        // A request beyond the limits is answered with the limits.
        for chunks in
            [&[(0, 0, 0)][..], &[(0, 0, 2 << 20)], &vec![(0, 0, 1); 257], &vec![(0, 0, 1 << 20); 17]]
        {
            let (status, limits) = copy(&b, (from, to), CtlCode::SRV_COPYCHUNK, chunks).await.unwrap();
            assert_eq!(status, NtStatus::INVALID_PARAMETER);
            assert_eq!(limits, Copied { chunks: 256, chunk_bytes: 1 << 20, total_bytes: 16 << 20 });
        }
    });
}

#[test]
fn who_copies_may_read_the_one_and_write_the_other() {
    run(async |b| {
        b.put("from", b"0123456789").await;
        b.put("to", b"").await;
        let reads = Wish { access: AccessMask::FILE_READ_DATA, ..Wish::file("from") };
        let from = b.open(&reads).await.unwrap();
        let writes = Wish { access: AccessMask::FILE_WRITE_DATA, ..Wish::file("to") };
        let to = b.open(&writes).await.unwrap();
        let one = [(0, 0, 1)];
        let (plain, write_only) = (CtlCode::SRV_COPYCHUNK, CtlCode::SRV_COPYCHUNK_WRITE);
        assert_eq!(copy(&b, (from, to), write_only, &one).await.unwrap().0, NtStatus::SUCCESS);
        assert_eq!(copy(&b, (from, to), plain, &one).await, Err(NtStatus::ACCESS_DENIED));
        assert_eq!(copy(&b, (from, from), plain, &one).await, Err(NtStatus::ACCESS_DENIED));
        assert_eq!(copy(&b, (to, to), write_only, &one).await, Err(NtStatus::ACCESS_DENIED));
        let forged = CopyChunks { source: [9; 24], count: 0, chunks: Vec::new() };
        let mut input = Vec::new();
        forged.emit(&mut input);
        assert_eq!(ctl(&b, to, write_only, &input).await, Err(NtStatus::OBJECT_NAME_NOT_FOUND));
        // A memory disk cannot share blocks.
        let both = b.open(&Wish::file("to")).await.unwrap();
        let mut input = Vec::new();
        DuplicateExtents { source: from, source_offset: 0, target_offset: 0, len: 1 }.emit(&mut input);
        let clone = ctl(&b, both, CtlCode::DUPLICATE_EXTENTS_TO_FILE, &input).await;
        assert_eq!(clone, Err(NtStatus::INVALID_DEVICE_REQUEST));
    });
}

#[test]
fn holes_are_told_of_files_that_are_marked() {
    run(async |b| {
        b.put("f", &[7; 64 << 10]).await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let ranges = async |input: Vec<u8>| {
            let (status, output) = ctl(&b, file, CtlCode::QUERY_ALLOCATED_RANGES, &input).await?;
            Ok::<_, NtStatus>((status, Extent::parse_list(&output)))
        };
        ctl(&b, file, CtlCode::SET_ZERO_DATA, &extent(0, 4096)).await.unwrap();
        let all = Extent { offset: 0, len: 64 << 10 };
        assert_eq!(ranges(extent(0, 1 << 30)).await.unwrap(), (NtStatus::SUCCESS, vec![all]));
        ctl(&b, file, CtlCode::SET_SPARSE, b"").await.unwrap();
        ctl(&b, file, CtlCode::SET_ZERO_DATA, &extent(8192, 16384)).await.unwrap();
        let data = [Extent { offset: 0, len: 8192 }, Extent { offset: 16384, len: 48 << 10 }];
        let (_, told) = ranges(extent(0, 1 << 30)).await.unwrap();
        // The space of the first zeros may or may not be kept.
        assert_eq!(told.last(), data.last());
        assert_eq!(told.first().map(|r| r.offset + r.len), Some(8192));
        assert_eq!(ranges(extent(8192, 8192)).await.unwrap().1, []);
        assert_eq!(ranges(extent(1, u64::MAX)).await, Err(NtStatus::INVALID_PARAMETER));
        let zero = async |input: Vec<u8>| ctl(&b, file, CtlCode::SET_ZERO_DATA, &input).await.map(drop);
        assert_eq!(zero(extent(2, 1)).await, Err(NtStatus::INVALID_PARAMETER));
        assert_eq!(zero(extent(0, 1 << 63)).await, Err(NtStatus::INVALID_PARAMETER));
        let summary = b.create(&Wish::file("f")).await.unwrap().summary;
        assert!(summary.attributes.contains(FileAttributes::SPARSE_FILE));
        ctl(&b, file, CtlCode::SET_SPARSE, &[0]).await.unwrap();
        let summary = b.create(&Wish::file("f")).await.unwrap().summary;
        assert!(!summary.attributes.contains(FileAttributes::SPARSE_FILE));
    });
}

async fn eas(b: &Bench, file: FileId, asked: &[u8], room: u32) -> Result<Vec<(String, Vec<u8>)>, NtStatus> {
    let request = query_info::Request {
        info_type: InfoType::FILE,
        class: FileClass::FULL_EA.0,
        output_buffer_length: room,
        additional_information: 0,
        flags: 0,
        file,
        input: Bytes::copy_from_slice(asked),
    };
    let message = b.ask(Command::QueryInfo, |out| request.emit(out)).await?;
    let list = FullEa::parse_list(&query_info::Response::parse(&message).unwrap().buffer).unwrap();
    Ok(list.into_iter().map(|ea| (String::from_utf8(ea.name).unwrap(), ea.value)).collect())
}

async fn set_eas(b: &Bench, file: FileId, list: &[(&str, &[u8])]) -> Result<(), NtStatus> {
    let request = set_info::Request {
        info_type: InfoType::FILE,
        class: FileClass::FULL_EA.0,
        additional_information: 0,
        file,
        buffer: ea_list(list),
    };
    b.ask(Command::SetInfo, |out| request.emit(out)).await.map(drop)
}

fn ea_list(list: &[(&str, &[u8])]) -> Bytes {
    let list: Vec<_> = list
        .iter()
        .map(|(name, value)| FullEa { flags: 0, name: (*name).into(), value: (*value).into() })
        .collect();
    let mut bytes = Vec::new();
    FullEa::emit_list(&list, &mut bytes);
    bytes.into()
}

#[test]
fn extended_attributes_are_those_that_everybody_sees() {
    run(async |b| {
        b.put("f", b"").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        assert_eq!(eas(&b, file, b"", 1000).await, Err(NtStatus::NO_EAS_ON_FILE));
        set_eas(&b, file, &[("COLOR", b"blue"), ("Size", b"7")]).await.unwrap();
        let node = b.vfs.lookup(weft_store::NodeId::ROOT, b"f", false).await.unwrap().node;
        assert_eq!(b.vfs.get_xattr(node, b"COLOR").await.unwrap(), b"blue");
        // Case is ignored, and an empty value removes the attribute.
        set_eas(&b, file, &[("color", b"red"), ("SIZE", b"")]).await.unwrap();
        assert_eq!(eas(&b, file, b"", 1000).await.unwrap(), [("COLOR".into(), b"red".to_vec())]);
        let asked = [&[12, 0, 0, 0, 5][..], b"color\0\0", &[0, 0, 0, 0, 1], b"X\0"].concat();
        let told = eas(&b, file, &asked, 1000).await.unwrap();
        assert_eq!(told, [("color".into(), b"red".to_vec()), ("X".into(), vec![])]);
        assert_eq!(eas(&b, file, b"", 10).await, Err(NtStatus::INFO_LENGTH_MISMATCH));
        for bad in ["a:b", "", "weft.dos", "WEFT.DOS", "\u{1}"] {
            assert_eq!(set_eas(&b, file, &[(bad, b"1")]).await, Err(NtStatus::INVALID_EA_NAME), "{bad}");
        }
        // [MS-FSA] 2.1.5.15.6: the first byte after the offset has the flags.
        for (flags, wanted) in [(0x80, Ok(())), (0x01, Err(NtStatus::INVALID_EA_NAME))] {
            let mut buffer = ea_list(&[("flagged", b"1")]).to_vec();
            buffer[4] = flags;
            let outcome = info::set(&b, file, FileClass::FULL_EA, |out| out.extend(buffer)).await;
            assert_eq!(outcome, wanted, "{flags}");
        }
        set_eas(&b, file, &[("flagged", b"")]).await.unwrap();
        let contexts = vec![RequestContext::ExtendedAttributes(ea_list(&[("A", b"1")]))];
        let made = Wish { disposition: CreateDisposition::Create, contexts, ..Wish::file("g") };
        let file = b.open(&made).await.unwrap();
        assert_eq!(eas(&b, file, b"", 1000).await.unwrap(), [("A".into(), b"1".to_vec())]);
    });
}
