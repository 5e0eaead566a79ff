//! What every server must do with this client.

use bytes::Bytes;
use futures_util::future::try_join_all;
use weft_machine::buf;
use weft_wire::smb2::{Filetime, NtStatus};

use super::super::*;

/// Bytes without a repeating pattern.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&next());
    }
    out.truncate(len);
    out
}

/// Every operation once, in a directory of its own.
pub async fn tell(session: &Session, share: &str) -> Result<(), Error> {
    session.echo().await?;
    let tree = session.tree(share).await?;
    assert!(tree.is_disk());
    files_and_directories(&tree).await?;
    small_and_large(&tree).await?;
    many_at_once(&tree).await?;
    errors_say_what(session, &tree).await?;
    assert!(tree.space().await?.total > 0);
    Ok(())
}

async fn files_and_directories(tree: &Tree) -> Result<(), Error> {
    tree.mkdir("story").await?;
    tree.mkdir("story/größe").await?;
    let file = tree.open("story/größe/日本.txt", OpenOptions::create_new()).await?;
    file.write(0, Bytes::from_static(b"hello, world")).await?;
    file.flush().await?;
    assert_eq!(&file.read(0, 100).await?[..], b"hello, world");
    assert_eq!(&file.read(7, 5).await?[..], b"world");
    assert!(file.read(12, 5).await?.is_empty(), "at the end");
    assert!(file.read(1 << 40, 5).await?.is_empty(), "beyond it");
    file.set_len(5).await?;
    assert_eq!(file.stat().await?.len, 5);
    let then = Filetime::from_unix(1_000_000_000, 500);
    file.set_times(Some(then), Some(then)).await?;
    assert_eq!(file.stat().await?.modified, then);
    file.close().await?;
    let stat = tree.stat(r"story\größe\日本.txt").await?;
    assert_eq!((stat.len, stat.is_dir), (5, false));
    assert!(tree.stat("/story/größe/").await?.is_dir);
    assert!(tree.stat("").await?.is_dir, "the root");

    tree.rename("story/größe/日本.txt", "story/b", false).await?;
    tree.open("story/a", OpenOptions::create_new()).await?.close().await?;
    let collision = tree.rename("story/a", "story/b", false).await.unwrap_err();
    assert_eq!(collision.status(), Some(NtStatus::OBJECT_NAME_COLLISION));
    tree.rename("story/a", "story/b", true).await?;
    let mut names: Vec<_> = tree.list("story").await?.into_iter().map(|e| (e.name, e.stat.is_dir)).collect();
    names.sort();
    assert_eq!(names, [("b".to_owned(), false), ("größe".to_owned(), true)]);
    assert!(tree.list("story/größe").await?.is_empty());
    let full = tree.rmdir("story").await.unwrap_err();
    assert_eq!(full.status(), Some(NtStatus::DIRECTORY_NOT_EMPTY));
    tree.remove("story/b").await?;
    tree.rmdir("story/größe").await?;
    tree.rmdir("story").await?;
    assert!(tree.stat("story").await.unwrap_err().is_not_found());
    Ok(())
}

async fn small_and_large(tree: &Tree) -> Result<(), Error> {
    let file = tree.open("large", OpenOptions::truncate()).await?;
    let mut at = 0;
    for (seed, len) in [1, 4096, 4097, 65_536, 65_537, 3 << 19].into_iter().enumerate() {
        let data = pattern(len, seed as u64 + 1);
        file.write(at, Bytes::from(data.clone())).await?;
        assert!(file.read(at, len).await? == data[..], "{len} bytes there and back");
        at += len as u64;
    }
    assert_eq!(file.stat().await?.len, at);
    file.close().await?;
    tree.remove("large").await
}

/// Operations larger than one request: for channels on which they are quick.
pub async fn tell_large(session: &Session, share: &str) -> Result<(), Error> {
    let tree = session.tree(share).await?;
    let file = tree.open("huge", OpenOptions::truncate()).await?;
    let data = pattern(15 << 20, 8);
    file.write(5, Bytes::from(data.clone())).await?;
    assert!(file.read(5, 15 << 20).await? == data[..]);
    // A read across the end of the file returns the bytes before it.
    assert!(file.read(5 + (3 << 20), buf::MAX_BUF).await? == data[3 << 20..]);
    assert!(file.read(0, buf::MAX_BUF + 1).await.is_err());
    file.close().await?;
    tree.remove("huge").await
}

/// More requests than credits, answered in any order.
async fn many_at_once(tree: &Tree) -> Result<(), Error> {
    const PIECE: usize = 5000;
    const PIECES: usize = 600;
    let file = tree.open("many", OpenOptions::truncate()).await?;
    let data = Bytes::from(pattern(PIECE * PIECES, 99));
    let pieces = (0..PIECES).map(|i| i * PIECE);
    try_join_all(pieces.clone().map(|at| file.write(at as u64, data.slice(at..at + PIECE)))).await?;
    let read = try_join_all(pieces.clone().map(|at| file.read(at as u64, PIECE))).await?;
    assert!(pieces.zip(&read).all(|(at, piece)| piece[..] == data[at..at + PIECE]));
    drop(read);
    // Abandoned before they are answered: nothing leaks.
    for at in 0..50 {
        let reading = file.read(at * 5000, PIECE);
        futures_util::pin_mut!(reading);
        assert!(futures_util::poll!(&mut reading).is_pending());
    }
    assert!(file.read(0, PIECE).await? == data[..PIECE]);
    // Dropped, not closed.
    drop(file);
    let names = try_join_all((0..300).map(|i| async move {
        let name = format!("many-{i:03}");
        tree.open(&name, OpenOptions::create()).await?.close().await?;
        Ok::<_, Error>(name)
    }))
    .await?;
    let listed = tree.list("").await?;
    assert!(names.iter().all(|name| listed.iter().any(|e| e.name == *name)));
    try_join_all(names.iter().map(|name| tree.remove(name))).await?;
    tree.remove("many").await
}

async fn errors_say_what(session: &Session, tree: &Tree) -> Result<(), Error> {
    let missing = tree.open("no/such/file", OpenOptions::read()).await.map(drop).unwrap_err();
    assert!(missing.is_not_found(), "{missing}");
    let share = session.tree("no-such-share").await.map(drop).unwrap_err();
    assert_eq!(share.status(), Some(NtStatus::BAD_NETWORK_NAME));
    assert!(share.to_string().contains("no share with that name"), "{share}");
    for path in ["../x", "..", "a/../../x"] {
        assert!(tree.open(path, OpenOptions::create()).await.is_err(), "{path} leaves the share");
    }
    Ok(())
}
