//! QUERY_INFO, and SET_INFO except for names.

use weft_store::vfs::NodeId;
use weft_wire::smb2::fscc::file::{self, Basic, EndOfFile, Standard};
use weft_wire::smb2::fscc::filesystem as fs;
use weft_wire::smb2::fscc::security::{Ace, AceFlags, Dacl, SecurityDescriptor, Sid};
use weft_wire::smb2::fscc::{FileClass, FsClass};
use weft_wire::smb2::query_info::{InfoType, Request, Response, SecurityInformation};
use weft_wire::smb2::{Filetime, error, set_info, utf16};

use super::*;

async fn query(b: &Bench, file: FileId, of: InfoType, class: u8, limit: u32) -> Result<Reply, NtStatus> {
    let request = Request {
        info_type: of,
        class,
        output_buffer_length: limit,
        additional_information: 7,
        flags: 0,
        file,
        input: Bytes::new(),
    };
    b.answer(Command::QueryInfo, |out| request.emit(out)).await.map_err(|failure| failure.status)
}

pub(super) async fn file_info(b: &Bench, file: FileId, class: FileClass) -> Result<Bytes, NtStatus> {
    let reply = query(b, file, InfoType::FILE, class.0, 4096).await?;
    assert_eq!(reply.status, NtStatus::SUCCESS);
    Ok(Response::parse(&reply.message.into()).unwrap().buffer)
}

async fn fs_info(b: &Bench, file: FileId, class: FsClass) -> Bytes {
    let reply = query(b, file, InfoType::FILESYSTEM, class.0, 4096).await.unwrap();
    Response::parse(&reply.message.into()).unwrap().buffer
}

pub(super) async fn standard(b: &Bench, file: FileId) -> Standard {
    Standard::parse(&file_info(b, file, FileClass::STANDARD).await.unwrap()).unwrap()
}

pub(super) async fn access(b: &Bench, file: FileId) -> AccessMask {
    file::Access::parse(&file_info(b, file, FileClass::ACCESS).await.unwrap()).unwrap().access
}

async fn basic(b: &Bench, file: FileId) -> Basic {
    Basic::parse(&file_info(b, file, FileClass::BASIC).await.unwrap()).unwrap()
}

async fn set_any(
    b: &Bench,
    file: FileId,
    info_type: InfoType,
    class: u8,
    buffer: Vec<u8>,
) -> Result<(), NtStatus> {
    let request =
        set_info::Request { info_type, class, additional_information: 7, file, buffer: buffer.into() };
    b.ask(Command::SetInfo, |out| request.emit(out)).await.map(drop)
}

pub(super) async fn set_security(
    b: &Bench,
    file: FileId,
    parts: SecurityInformation,
    buffer: &[u8],
) -> Result<(), NtStatus> {
    let request = set_info::Request {
        info_type: InfoType::SECURITY,
        class: 0,
        additional_information: parts.0,
        file,
        buffer: Bytes::copy_from_slice(buffer),
    };
    b.ask(Command::SetInfo, |out| request.emit(out)).await.map(drop)
}

pub(super) async fn set(
    b: &Bench,
    file: FileId,
    class: FileClass,
    emit: impl FnOnce(&mut Vec<u8>),
) -> Result<(), NtStatus> {
    let mut buffer = Vec::new();
    emit(&mut buffer);
    set_any(b, file, InfoType::FILE, class.0, buffer).await
}

/// Linux's cifs counts one character of the name and refuses a reply of 100 bytes ("buffer length 100 smaller than
/// minimum size 101"), so it could not mount. A buffer smaller than the structure with padding is too short, as for
/// Windows. A name that does not fit is truncated.
#[test]
fn all_information_is_as_long_as_the_structure_of_windows() {
    run(async |b| {
        b.put("file", b"12345").await;
        b.mkdir("dir").await;
        b.put("dir\\f", b"12345").await;
        let root = b.open(&Wish::dir("")).await.unwrap();
        let deep = b.open(&Wish::file("dir\\f")).await.unwrap();
        let file = b.open(&Wish::file("file")).await.unwrap();
        let (whole, cut) = (NtStatus::SUCCESS, NtStatus::BUFFER_OVERFLOW);
        for (file, limit, status, len, name) in [
            (root, 104, whole, 104, "\\\0"),
            (file, 104, cut, 104, "\\f"),
            (file, 4096, whole, 110, "\\file"),
            (deep, 4096, whole, 112, "\\dir\\f"),
        ] {
            let reply = query(&b, file, InfoType::FILE, FileClass::ALL.0, limit).await.unwrap();
            assert_eq!(reply.status, status, "{name}");
            let buffer = Response::parse(&reply.message.into()).unwrap().buffer;
            assert_eq!((buffer.len(), &*utf16::decode(&buffer[100..]).unwrap()), (len, name));
        }
        b.vfs.remove(NodeId::ROOT, b"file").await.unwrap();
        let all = file_info(&b, file, FileClass::ALL).await.unwrap();
        assert_eq!((all.len(), &all[96..]), (104, &[0; 8][..]), "what has no path has an empty one");
        let short = query(&b, file, InfoType::FILE, FileClass::ALL.0, 103).await;
        assert_eq!(short.err(), Some(NtStatus::INFO_LENGTH_MISMATCH));
    });
}

#[test]
fn what_is_known_about_a_file() {
    run(async |b| {
        b.mkdir("Dir").await;
        b.put("Dir\\File.txt", b"12345").await;
        let file = b.open(&Wish::file("dir\\file.TXT")).await.unwrap();
        let info = async |class| file_info(&b, file, class).await;
        let all = file::All::parse(&info(FileClass::ALL).await.unwrap()).unwrap();
        assert_eq!((all.standard.end_of_file, all.standard.number_of_links), (5, 1));
        assert_eq!((all.standard.directory, all.standard.delete_pending), (false, false));
        assert_eq!(all.basic, basic(&b, file).await);
        assert_eq!(all.access.access, AccessMask::FILE_ALL);
        let open = file::NetworkOpen::parse(&info(FileClass::NETWORK_OPEN).await.unwrap()).unwrap();
        assert_eq!((open.end_of_file, open.last_write_time), (5, all.basic.last_write_time));
        let streams = file::Stream::parse_list(&info(FileClass::STREAM).await.unwrap()).unwrap();
        assert_eq!((streams.len(), &streams[0].name[..], streams[0].size), (1, "::$DATA", 5));
        let name = file::Name::parse(&info(FileClass::NORMALIZED_NAME).await.unwrap()).unwrap();
        assert_eq!(name.name, "Dir\\File.txt");
        let short = file::Name::parse(&info(FileClass::ALTERNATE_NAME).await.unwrap()).unwrap();
        assert_eq!(short.name, "File.txt");
        let id = file::Id::parse(&info(FileClass::ID).await.unwrap()).unwrap();
        let internal = file::Internal::parse(&info(FileClass::INTERNAL).await.unwrap()).unwrap();
        assert_eq!(id.file_id[..8], internal.index_number.to_le_bytes());
        for class in [
            FileClass::EA,
            FileClass::POSITION,
            FileClass::MODE,
            FileClass::ALIGNMENT,
            FileClass::COMPRESSION,
        ] {
            info(class).await.unwrap();
        }
        assert_eq!(status(info(FileClass::FULL_EA).await), NtStatus::NO_EAS_ON_FILE);
        assert_eq!(status(info(FileClass::PIPE).await), NtStatus::NOT_SUPPORTED);
        // [MS-SMB2] 3.3.5.20.1, notes 415 and 416.
        for class in [1, 2, 3, 10, 11, 12, 13, 19, 20, 27, 31, 36, 37, 38, 39, 40, 50, 200] {
            assert_eq!(status(info(FileClass(class)).await), NtStatus::INVALID_INFO_CLASS, "{class}");
        }
        for class in [41, 43, 47, 49, 51, 53] {
            assert_eq!(status(info(FileClass(class)).await), NtStatus::NOT_SUPPORTED, "{class}");
        }
        let dir = b.open(&Wish::dir("dir")).await.unwrap();
        assert!(standard(&b, dir).await.directory);
        assert!(file_info(&b, dir, FileClass::STREAM).await.unwrap().is_empty());
        let blind = b
            .open(&Wish { access: AccessMask::FILE_READ_DATA, ..Wish::file("dir\\file.txt") })
            .await
            .unwrap();
        assert_eq!(status(file_info(&b, blind, FileClass::BASIC).await), NtStatus::ACCESS_DENIED);
        assert_eq!(standard(&b, blind).await.end_of_file, 5);
    });
}

#[test]
fn answers_are_cut_where_they_may_be() {
    run(async |b| {
        b.put("a rather long name.text", b"").await;
        let file = b.open(&Wish::file("a rather long name.text")).await.unwrap();
        let ask = async |class: FileClass, limit| query(&b, file, InfoType::FILE, class.0, limit).await;
        assert_eq!(status(ask(FileClass::BASIC, 39).await.map(drop)), NtStatus::INFO_LENGTH_MISMATCH);
        assert_eq!(ask(FileClass::BASIC, 40).await.unwrap().status, NtStatus::SUCCESS);
        assert_eq!(
            status(ask(FileClass::NORMALIZED_NAME, 3).await.map(drop)),
            NtStatus::INFO_LENGTH_MISMATCH
        );
        let cut = ask(FileClass::NORMALIZED_NAME, 10).await.unwrap();
        assert_eq!(cut.status, NtStatus::BUFFER_OVERFLOW);
        assert_eq!(Response::parse(&cut.message.into()).unwrap().buffer.len(), 10);
        assert_eq!(status(ask(FileClass::BASIC, u32::MAX).await.map(drop)), NtStatus::INVALID_PARAMETER);
    });
}

#[test]
fn what_is_known_about_the_file_system() {
    run(async |b| {
        let root = b.open(&Wish::dir("")).await.unwrap();
        let size = fs::Size::parse(&fs_info(&b, root, FsClass::SIZE).await).unwrap();
        let unit = u64::from(size.sectors_per_unit * size.bytes_per_sector);
        assert_eq!((size.total_units * unit, size.available_units), (DISK, size.total_units));
        let full = fs::FullSize::parse(&fs_info(&b, root, FsClass::FULL_SIZE).await).unwrap();
        assert_eq!(full.total_units, size.total_units);
        let volume = fs::Volume::parse(&fs_info(&b, root, FsClass::VOLUME).await).unwrap();
        assert_eq!(volume.label, "data");
        let attribute = fs::Attribute::parse(&fs_info(&b, root, FsClass::ATTRIBUTE).await).unwrap();
        assert_eq!(attribute.max_name_len, 255);
        assert!(attribute.attributes.contains(fs::FsAttributes::PERSISTENT_ACLS));
        fs::Device::parse(&fs_info(&b, root, FsClass::DEVICE).await).unwrap();
        fs::SectorSize::parse(&fs_info(&b, root, FsClass::SECTOR_SIZE).await).unwrap();
        let ask = async |of, class| query(&b, root, of, class, 4096).await.map(drop);
        assert_eq!(status(ask(InfoType::FILESYSTEM, FsClass::LABEL.0).await), NtStatus::NOT_SUPPORTED);
        assert_eq!(status(ask(InfoType::FILESYSTEM, 99).await), NtStatus::INVALID_INFO_CLASS);
        assert_eq!(status(ask(InfoType::QUOTA, 0).await), NtStatus::NOT_SUPPORTED);
        assert_eq!(status(ask(InfoType(9), 0).await), NtStatus::INVALID_PARAMETER);
        let set_fs = async |file, class: FsClass| {
            status(set_any(&b, file, InfoType::FILESYSTEM, class.0, vec![0; 48]).await)
        };
        assert_eq!(set_fs(root, FsClass::LABEL).await, NtStatus::NOT_SUPPORTED);
        assert_eq!(set_fs(root, FsClass::SIZE).await, NtStatus::INVALID_INFO_CLASS);
        // There are no quotas to enable, and the answer does not depend on the request's content.
        assert_eq!(set_fs(root, FsClass::CONTROL).await, NtStatus(0xC000_029C));
        assert_eq!(set_fs(root, FsClass::OBJECT_ID).await, NtStatus(0xC000_029C));
        let control = fs::Control::parse(&fs_info(&b, root, FsClass::CONTROL).await).unwrap();
        assert_eq!(control, fs::Control::UNLIMITED);
        let reader = b.open(&Wish { access: AccessMask::FILE_GENERIC_READ, ..Wish::dir("") }).await.unwrap();
        assert_eq!(set_fs(reader, FsClass::CONTROL).await, NtStatus::ACCESS_DENIED);
        assert_eq!(status(set_any(&b, root, InfoType::QUOTA, 0, vec![0; 48]).await), NtStatus::NOT_SUPPORTED);
    });
}

#[test]
fn security_is_shown_and_set_by_those_who_may() {
    run(async |b| {
        b.put("f", b"").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let reply = query(&b, file, InfoType::SECURITY, 0, 4096).await.unwrap();
        let descriptor =
            SecurityDescriptor::parse(&Response::parse(&reply.message.into()).unwrap().buffer).unwrap();
        assert!(descriptor.owner.is_some() && descriptor.group.is_some());
        let whoever_logged_on = Ace::allow(Sid::authenticated_users(), AccessMask::FILE_ALL, AceFlags::NONE);
        match &descriptor.dacl {
            Dacl::List(aces) => assert!(aces.contains(&whoever_logged_on), "{aces:?}"),
            other => panic!("{other:?}"),
        }
        let request = Request {
            info_type: InfoType::SECURITY,
            class: 0,
            output_buffer_length: 10,
            additional_information: SecurityInformation::DACL.0,
            flags: 0,
            file,
            input: Bytes::new(),
        };
        let failure = b.answer(Command::QueryInfo, |out| request.emit(out)).await.unwrap_err();
        assert_eq!(failure.status, NtStatus::BUFFER_TOO_SMALL);
        assert!(matches!(failure.data, error::Response::Contexts(_)));
        let sacl = Request { additional_information: SecurityInformation::SACL.0, ..request };
        assert_eq!(status(b.ask(Command::QueryInfo, |out| sacl.emit(out)).await), NtStatus::ACCESS_DENIED);
        let bytes = SecurityDescriptor::default().to_bytes();
        let sacl = set_security(&b, file, SecurityInformation::SACL, &bytes).await;
        assert_eq!(status(sacl), NtStatus::ACCESS_DENIED);
        let reader =
            b.open(&Wish { access: AccessMask::FILE_GENERIC_READ, ..Wish::file("f") }).await.unwrap();
        for part in [SecurityInformation::DACL, SecurityInformation::OWNER, SecurityInformation::GROUP] {
            assert_eq!(status(set_security(&b, reader, part, &bytes).await), NtStatus::ACCESS_DENIED);
        }
    });
}

#[test]
fn times_and_attributes_are_set() {
    run(async |b| {
        b.put("f", b"").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let before = basic(&b, file).await;
        let change = |change: fn(&mut Basic)| {
            let mut basic = Basic::default();
            change(&mut basic);
            let b = &b;
            async move { set(b, file, FileClass::BASIC, |out| basic.emit(out)).await }
        };
        const THEN: Filetime = Filetime(130_000_000_000_000_000);
        // Only what the request names changes.
        change(|_| ()).await.unwrap();
        assert_eq!(basic(&b, file).await, before);
        change(|set| set.last_write_time = THEN).await.unwrap();
        let after = basic(&b, file).await;
        assert_eq!((after.last_write_time, after.last_access_time), (THEN, before.last_access_time));
        // A time that was set survives writes through this handle.
        payload::write(&b, file, 0, b"x").await.unwrap();
        b.close(file).await.unwrap();
        let file = b.open(&Wish::file("f")).await.unwrap();
        assert_eq!(basic(&b, file).await.last_write_time, THEN);
        let set_on = |file, basic: Basic| {
            let b = &b;
            async move { set(b, file, FileClass::BASIC, |out| basic.emit(out)).await }
        };
        // -1 keeps the current time, -2 releases it.
        set_on(file, Basic { last_write_time: Filetime::FREEZE, ..Basic::default() }).await.unwrap();
        payload::write(&b, file, 0, b"x").await.unwrap();
        set_on(file, Basic { last_write_time: Filetime::THAW, ..Basic::default() }).await.unwrap();
        payload::write(&b, file, 0, b"x").await.unwrap();
        assert!(b.close(file).await.unwrap().summary.unwrap().last_write_time > before.last_write_time);
        let file = b.open(&Wish::file("f")).await.unwrap();
        let attributes = |attributes| Basic { attributes, ..Basic::default() };
        set_on(file, attributes(FileAttributes::READONLY)).await.unwrap();
        assert!(basic(&b, file).await.attributes.contains(FileAttributes::READONLY));
        set_on(file, attributes(FileAttributes::NORMAL)).await.unwrap();
        assert_eq!(basic(&b, file).await.attributes, FileAttributes::NORMAL);
        let odd = FileAttributes::HIDDEN | FileAttributes::SYSTEM;
        set_on(file, attributes(odd)).await.unwrap();
        assert_eq!(basic(&b, file).await.attributes, odd);
        // Creation and change time as the client sets them, the latter until somebody else writes.
        let set_times = Basic { creation_time: THEN, change_time: THEN, ..Basic::default() };
        set_on(file, set_times).await.unwrap();
        let now = basic(&b, file).await;
        assert_eq!((now.creation_time, now.change_time, now.attributes), (THEN, THEN, odd));
        payload::write(&b, file, 0, b"y").await.unwrap();
        assert_eq!(basic(&b, file).await.change_time, THEN);
        let other = b.open(&Wish::file("f")).await.unwrap();
        payload::write(&b, other, 0, b"z").await.unwrap();
        let now = basic(&b, other).await;
        assert!(now.creation_time == THEN && now.change_time > THEN);
        b.close(other).await.unwrap();
        assert_eq!(
            status(set_on(file, attributes(FileAttributes::DIRECTORY)).await),
            NtStatus::INVALID_PARAMETER
        );
        let past = Basic { last_write_time: Filetime(1 << 63), ..Basic::default() };
        assert_eq!(status(set_on(file, past).await), NtStatus::INVALID_PARAMETER);
        let reader = b.open(&Wish { access: AccessMask::FILE_READ_DATA, ..Wish::file("f") }).await.unwrap();
        assert_eq!(status(set_on(reader, Basic::default()).await), NtStatus::ACCESS_DENIED);
    });
}

#[test]
fn sizes_are_set() {
    run(async |b| {
        b.put("f", &[1; 10_000]).await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let size = async |size| {
            set(&b, file, FileClass::END_OF_FILE, |out| EndOfFile { end_of_file: size }.emit(out)).await
        };
        let allocate = async |bytes| {
            set(&b, file, FileClass::ALLOCATION, |out| file::Allocation { allocation_size: bytes }.emit(out))
                .await
        };
        size(20_000).await.unwrap();
        assert_eq!(standard(&b, file).await.end_of_file, 20_000);
        assert_eq!(payload::read(&b, file, 9_999, 2).await.unwrap(), [1, 0]);
        // Allocating beyond the end changes nothing; below it, truncates to whole units.
        allocate(1 << 20).await.unwrap();
        assert_eq!(standard(&b, file).await.end_of_file, 20_000);
        allocate(4097).await.unwrap();
        assert_eq!(standard(&b, file).await.end_of_file, 8192);
        allocate(0).await.unwrap();
        assert_eq!(standard(&b, file).await.end_of_file, 0);
        assert_eq!(status(allocate(DISK * 2).await), NtStatus::DISK_FULL);
        for beyond in [DISK * 2, 1 << 62] {
            assert_eq!(status(size(beyond).await), NtStatus::DISK_FULL);
        }
        assert_eq!(status(size(1 << 63).await), NtStatus::INVALID_PARAMETER);
        let root = b.open(&Wish::dir("")).await.unwrap();
        let answer =
            set(&b, root, FileClass::END_OF_FILE, |out| EndOfFile { end_of_file: 0 }.emit(out)).await;
        assert_eq!(status(answer), NtStatus::INVALID_PARAMETER);
        let short = set(&b, file, FileClass::END_OF_FILE, |out| out.extend([0; 7])).await;
        assert_eq!(status(short), NtStatus::INFO_LENGTH_MISMATCH);
        let nothing = set(&b, file, FileClass::END_OF_FILE, |_| ()).await;
        assert_eq!(status(nothing), NtStatus::INVALID_PARAMETER);
        for (class, wanted) in [
            (FileClass::FULL_EA, NtStatus::EA_LIST_INCONSISTENT),
            (FileClass::SHORT_NAME, NtStatus::NOT_SUPPORTED),
            (FileClass::STANDARD, NtStatus::INVALID_INFO_CLASS),
            (FileClass(200), NtStatus::INVALID_INFO_CLASS),
        ] {
            assert_eq!(status(set(&b, file, class, |out| out.extend([0; 8])).await), wanted);
        }
        set(&b, file, FileClass::POSITION, |out| out.extend([0; 8])).await.unwrap();
        // [MS-FSA] 2.1.5.15.10.
        let position = |to: i64| move |out: &mut Vec<u8>| out.extend(to.to_le_bytes());
        let before = set(&b, file, FileClass::POSITION, position(-1)).await;
        assert_eq!(status(before), NtStatus::INVALID_PARAMETER);
        set(&b, file, FileClass::POSITION, position(511)).await.unwrap();
        let options = CreateOptions::NO_INTERMEDIATE_BUFFERING;
        let access = AccessMask::FILE_READ_DATA;
        let unbuffered = b.open(&Wish { options, access, ..Wish::file("f") }).await.unwrap();
        let between = set(&b, unbuffered, FileClass::POSITION, position(511)).await;
        assert_eq!(status(between), NtStatus::INVALID_PARAMETER);
        set(&b, unbuffered, FileClass::POSITION, position(512)).await.unwrap();
    });
}

#[test]
fn nobody_has_a_quota_and_the_volume_has_a_number() {
    run(async |b| {
        let root = b.open(&Wish::dir("")).await.unwrap();
        let control = fs::Control::parse(&fs_info(&b, root, FsClass::CONTROL).await).unwrap();
        assert_eq!(control, fs::Control::UNLIMITED);
        let id = fs::ObjectId::parse(&fs_info(&b, root, FsClass::OBJECT_ID).await).unwrap();
        let file = b.open(&Wish { disposition: CreateDisposition::Create, ..Wish::file("f") }).await.unwrap();
        let of_file = file::Id::parse(&file_info(&b, file, FileClass::ID).await.unwrap()).unwrap();
        assert_eq!(id.object_id[..8], of_file.volume_serial_number.to_le_bytes());
    });
}

#[test]
fn a_time_that_a_client_has_set_is_shown_although_it_writes() {
    run(async |b| {
        b.put("f", b"1").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let set_time = Basic { last_write_time: Filetime::from_unix(1_000_000, 0), ..Basic::default() };
        set(&b, file, FileClass::BASIC, |out| set_time.emit(out)).await.unwrap();
        payload::write(&b, file, 0, b"2").await.unwrap();
        assert_eq!(basic(&b, file).await.last_write_time, set_time.last_write_time);
    });
}

/// Sets the change time, together with attributes, which may be none.
async fn set_change(b: &Bench, file: FileId, change_time: Filetime, attributes: FileAttributes) {
    let basic = Basic { change_time, attributes, ..Basic::default() };
    set(b, file, FileClass::BASIC, |out| basic.emit(out)).await.unwrap();
}

#[test]
fn a_time_of_change_stays_until_it_is_let_go() {
    run(async |b| {
        b.put("f", b"1").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let long_ago = Filetime::from_unix(1_000_000, 0);
        set_change(&b, file, long_ago, FileAttributes::NONE).await;
        assert_eq!(basic(&b, file).await.change_time, long_ago);
        // [MS-FSA] 2.1.5.15.2: UserSetChangeTime.
        set_change(&b, file, Filetime::FREEZE, FileAttributes::HIDDEN).await;
        payload::write(&b, file, 0, b"2").await.unwrap();
        set_change(&b, file, Filetime::ZERO, FileAttributes::ARCHIVE).await;
        assert_eq!(basic(&b, file).await.change_time, long_ago);
        // Nor does closing the handle change it.
        b.close(file).await.unwrap();
        let file = b.open(&Wish::file("f")).await.unwrap();
        assert_eq!(basic(&b, file).await.change_time, long_ago);
        set_change(&b, file, Filetime::FREEZE, FileAttributes::NONE).await;
        set_change(&b, file, Filetime::THAW, FileAttributes::NONE).await;
        assert_eq!(basic(&b, file).await.change_time, long_ago, "nothing has changed yet");
        set_change(&b, file, Filetime::ZERO, FileAttributes::HIDDEN).await;
        assert!(basic(&b, file).await.change_time > long_ago);
    });
}

#[test]
fn a_rename_shows_in_the_time_of_change_when_its_handle_is_closed() {
    run(async |b| {
        b.put("f", b"1").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let before = basic(&b, file).await.change_time;
        names::rename(&b, file, "g", false).await.unwrap();
        assert_eq!(basic(&b, file).await.change_time, before);
        // Later changes show at once.
        payload::write(&b, file, 0, b"2").await.unwrap();
        assert!(basic(&b, file).await.change_time > before);
        let before = basic(&b, file).await.change_time;
        names::rename(&b, file, "h", false).await.unwrap();
        assert_eq!(basic(&b, file).await.change_time, before);
        let closed = b.close(file).await.unwrap().summary.unwrap();
        assert!(closed.change_time > before);
    });
}
