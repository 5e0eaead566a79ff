//! Copies with tokens.

use weft_store::backend::Dir;
use weft_store::rights::Right;
use weft_wire::smb2::ioctl::{self, CtlCode, Flags};
use weft_wire::smb2::offload::{OffloadRead, OffloadReadAnswer, OffloadWrite, OffloadWriteAnswer, Token};

use super::*;

async fn ctl(b: &Bench, asker: Asker<'_>, request: ioctl::Request) -> Result<Bytes, NtStatus> {
    let reply = dispatch(&b.cx_of(asker, Command::Ioctl, |out| request.emit(out)))
        .await
        .map_err(|failure| failure.status)?;
    Ok(ioctl::Response::parse(&reply.message.into()).unwrap().output)
}

fn request(file: FileId, code: CtlCode, input: Vec<u8>) -> ioctl::Request {
    ioctl::Request {
        code,
        file,
        input: input.into(),
        max_input_response: 0,
        max_output_response: 4096,
        flags: Flags::IS_FSCTL,
    }
}

async fn read(b: &Bench, file: FileId, offset: u64, len: u64) -> Result<OffloadReadAnswer, NtStatus> {
    let mut input = Vec::new();
    OffloadRead { size: OffloadRead::LEN, ttl_ms: 0, offset, len }.emit(&mut input);
    let output = ctl(b, b.asker(), request(file, CtlCode::OFFLOAD_READ, input)).await?;
    Ok(OffloadReadAnswer::parse(&output).unwrap())
}

fn writing(file: FileId, token: &Token, (offset, len, transfer_offset): (u64, u64, u64)) -> ioctl::Request {
    let token = Some(token.clone());
    let mut input = Vec::new();
    OffloadWrite { size: OffloadWrite::LEN, offset, len, transfer_offset, token }.emit(&mut input);
    request(file, CtlCode::OFFLOAD_WRITE, input)
}

async fn write(b: &Bench, file: FileId, token: &Token, range: (u64, u64, u64)) -> Result<u64, NtStatus> {
    let output = ctl(b, b.asker(), writing(file, token, range)).await?;
    Ok(OffloadWriteAnswer::parse(&output).unwrap().len)
}

async fn content(b: &Bench, path: &str) -> Vec<u8> {
    let attr = b.vfs.lookup(weft_store::NodeId::ROOT, path.as_bytes(), false).await.unwrap();
    let file = b.vfs.open(attr.node, false).await.unwrap();
    file.read(0, 1 << 20).data().await.unwrap().into_chain(&Pool::new(1)).await.unwrap().concat()
}

/// On a memory disk and in a folder.
fn everywhere(story: impl AsyncFn(Bench)) {
    run(&story);
    let dir = tempfile::tempdir().unwrap();
    rt::block_on(story(Bench::with(Dir::open(dir.path()).unwrap().into(), Dialect::V3_0, false))).unwrap();
}

#[test]
fn a_token_stands_for_bytes() {
    everywhere(async |b| {
        let source: Vec<u8> = (0..5000u32).map(|n| n as u8).collect();
        b.put("from", &source).await;
        b.put("to", &[0xa5; 5000]).await;
        let from = b.open(&Wish::file("from")).await.unwrap();
        let to = b.open(&Wish::file("to")).await.unwrap();
        // Sectors of 512 bytes: the last one counts as a whole.
        let answer = read(&b, from, 512, 1 << 20).await.unwrap();
        assert_eq!((answer.len, answer.zero_beyond), (4608, true));
        assert!(!read(&b, from, 0, 1024).await.unwrap().zero_beyond);
        assert_eq!(write(&b, to, &answer.token, (1024, 1024, 512)).await, Ok(1024));
        assert_eq!(content(&b, "to").await[1024..2048], source[1024..2048]);
        // More than the token covers, and more than the file has room for; the file does not grow.
        assert_eq!(write(&b, to, &answer.token, (512, 1 << 20, 0)).await, Ok(4608));
        let copied = content(&b, "to").await;
        assert_eq!((copied.len(), &copied[512..]), (5000, &source[512..]));
        assert_eq!(copied[..512], [0xa5; 512]);
        // The source may be closed meanwhile.
        b.close(from).await.unwrap();
        b.put("longer", &[0xa5; 8192]).await;
        let longer = b.open(&Wish::file("longer")).await.unwrap();
        assert_eq!(write(&b, longer, &answer.token, (0, 8192, 0)).await, Ok(4608));
        assert_eq!(content(&b, "longer").await[4488..4608], [0; 120], "beyond its end are zeros");
        assert_eq!(content(&b, "longer").await[4608..], [0xa5; 3584]);
        // A well-known token writes zeros.
        assert_eq!(write(&b, longer, &Token::Zeros, (0, 512, 0)).await, Ok(512));
        assert_eq!(content(&b, "longer").await[..512], [0; 512]);
    });
}

#[test]
fn a_token_is_good_until_its_file_changes() {
    everywhere(async |b| {
        b.put("from", &[1; 4096]).await;
        b.put("to", &[0; 4096]).await;
        let from = b.open(&Wish::file("from")).await.unwrap();
        let to = b.open(&Wish::file("to")).await.unwrap();
        let token = read(&b, from, 0, 4096).await.unwrap().token;
        payload::write(&b, from, 0, &[2; 10]).await.unwrap();
        assert_eq!(write(&b, to, &token, (0, 4096, 0)).await, Err(NtStatus::INVALID_TOKEN));
        assert_eq!(content(&b, "to").await, [0; 4096]);
        let token = read(&b, from, 0, 4096).await.unwrap().token;
        assert_eq!(write(&b, to, &token, (0, 4096, 0)).await, Ok(4096));
        // Within one file the copy itself changes it.
        let token = read(&b, to, 0, 512).await.unwrap().token;
        assert_eq!(write(&b, to, &token, (1024, 512, 0)).await, Ok(512));
        assert_eq!(content(&b, "to").await[1024..1034], [2; 10]);
        assert_eq!(write(&b, to, &token, (1024, 512, 0)).await, Err(NtStatus::INVALID_TOKEN));
    });
}

#[test]
fn a_token_is_its_users_and_nobody_makes_one_up() {
    run(async |b| {
        b.put("from", &[1; 4096]).await;
        b.put("to", &[0; 4096]).await;
        let from = b.open(&Wish::file("from")).await.unwrap();
        let to = b.open(&Wish::file("to")).await.unwrap();
        let token = read(&b, from, 0, 4096).await.unwrap().token;
        let Token::Own { kind, id } = &token else { panic!("zeros") };
        for at in 0..id.len() {
            let mut other = id.clone();
            other[at] ^= 1;
            let other = Token::Own { kind: *kind, id: other };
            assert_eq!(write(&b, to, &other, (0, 512, 0)).await, Err(NtStatus::INVALID_TOKEN), "{at}");
        }
        for len in 0..id.len() {
            let other = Token::Own { kind: *kind, id: id[..len].to_vec() };
            assert_eq!(write(&b, to, &other, (0, 512, 0)).await, Err(NtStatus::INVALID_TOKEN));
        }
        // Another user who has seen the token.
        let other = b.another_session("mallory");
        let tree = other.connect(b.tree.share.clone(), Right::Write, 10).unwrap();
        let mallory = || Asker { session: &other, tree: tree.id, ..b.asker() };
        let cx = b.cx_of(mallory(), Command::Create, |out| Wish::file("to").request().emit(out));
        let opened = dispatch(&cx).await.ok().unwrap().message.into();
        let his = create::Response::parse(&opened).unwrap().file;
        let theft = ctl(&b, mallory(), writing(his, &token, (0, 512, 0))).await;
        assert_eq!(status(theft), NtStatus::INVALID_TOKEN);
        assert_eq!(content(&b, "to").await, [0; 4096]);
        // The limit of tokens per user.
        for _ in 1..512 {
            read(&b, from, 0, 512).await.unwrap();
        }
        assert_eq!(status(read(&b, from, 0, 512).await), NtStatus::INSUFFICIENT_RESOURCES);
        assert_eq!(b.server.handles.tokens.len(), 512);
    });
}

#[test]
fn what_is_not_copied_by_token() {
    run(async |b| {
        b.put("f", &[1; 4096]).await;
        b.put("short", &[1; 511]).await;
        b.mkdir("d").await;
        let f = b.open(&Wish::file("f")).await.unwrap();
        let short = b.open(&Wish::file("short")).await.unwrap();
        let dir = b.open(&Wish::dir("d")).await.unwrap();
        let invalid = Err(NtStatus::INVALID_PARAMETER);
        for (offset, len) in [(1, 512), (0, 511), (u64::MAX - 511, 512)] {
            assert_eq!(read(&b, f, offset, len).await.map(|answer| answer.len), invalid);
            assert_eq!(write(&b, f, &Token::Zeros, (offset, len, 0)).await, invalid);
        }
        assert_eq!(write(&b, f, &Token::Zeros, (0, 512, 1)).await, invalid);
        assert_eq!(read(&b, short, 0, 512).await.map(|answer| answer.len), invalid);
        assert_eq!(write(&b, short, &Token::Zeros, (0, 512, 0)).await, invalid);
        assert_eq!(status(read(&b, f, 4096, 512).await), NtStatus::END_OF_FILE);
        assert_eq!(status(write(&b, f, &Token::Zeros, (4096, 512, 0)).await), NtStatus::END_OF_FILE);
        let (no_read, no_write) =
            (NtStatus::OFFLOAD_READ_FILE_NOT_SUPPORTED, NtStatus::OFFLOAD_WRITE_FILE_NOT_SUPPORTED);
        assert_eq!(status(read(&b, dir, 0, 512).await), no_read);
        assert_eq!(status(write(&b, dir, &Token::Zeros, (0, 512, 0)).await), no_write);
        // An empty range.
        assert_eq!(read(&b, f, 0, 0).await.unwrap().token, Token::Zeros);
        assert_eq!(write(&b, f, &Token::Zeros, (0, 0, 0)).await, Ok(0));
        // Access rights and the size of the output buffer are checked.
        let reader = Wish { access: AccessMask::FILE_READ_DATA, ..Wish::file("f") };
        let reader = b.open(&reader).await.unwrap();
        assert_eq!(status(write(&b, reader, &Token::Zeros, (0, 512, 0)).await), NtStatus::ACCESS_DENIED);
        let mut small = request(f, CtlCode::OFFLOAD_READ, vec![0; 31]);
        assert_eq!(status(ctl(&b, b.asker(), small.clone()).await), NtStatus::BUFFER_TOO_SMALL);
        small.input = vec![0; 32].into();
        small.max_output_response = 527;
        assert_eq!(status(ctl(&b, b.asker(), small).await), NtStatus::BUFFER_TOO_SMALL);
        // A sparse file is copied hole by hole.
        ctl(&b, b.asker(), request(f, CtlCode::SET_SPARSE, Vec::new())).await.unwrap();
        assert_eq!(status(read(&b, f, 0, 512).await), no_read);
        assert_eq!(status(write(&b, f, &Token::Zeros, (0, 512, 0)).await), no_write);
    });
}
