//! Appends to a file are atomic: concurrent appends are all there, each in one piece.

use super::*;

const WRITERS: usize = 4;
const RECORDS: usize = 100;
/// Longer than the kernel's unit of copying, and not a round number.
const RECORD: usize = 4099;

/// Each writer, on its own thread with its own open, appends records of its own byte.
async fn appended(vfs: &Vfs, node: NodeId, record: usize) {
    let start = std::sync::Barrier::new(WRITERS);
    std::thread::scope(|threads| {
        for writer in 0..WRITERS {
            let (vfs, start) = (vfs.clone(), &start);
            threads.spawn(move || {
                rt::block_on(async {
                    let file = vfs.open(node, true).await.unwrap();
                    let bytes = Bytes::from(vec![b'a' + writer as u8; record]);
                    start.wait();
                    for _ in 0..RECORDS {
                        file.append::<Error>(&bytes, |_| Ok(())).await.unwrap();
                    }
                })
                .unwrap();
            });
        }
    });
}

fn verify(bytes: &[u8], record: usize) {
    assert_eq!(bytes.len(), WRITERS * RECORDS * record);
    let mut count = [0; WRITERS];
    for piece in bytes.chunks(record) {
        assert!(piece.iter().all(|byte| *byte == piece[0]), "a record is torn");
        count[usize::from(piece[0] - b'a')] += 1;
    }
    assert_eq!(count, [RECORDS; WRITERS]);
}

#[test]
fn nothing_that_was_appended_is_lost() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "log").await.node;
        appended(&vfs, f, RECORD).await;
        verify(&read(&vfs.open(f, false).await.unwrap(), 0, 8 << 20).await, RECORD);
    });
}

#[test]
fn nor_of_a_stream_and_what_is_kept_beside_the_file_is_all_of_it() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        // Small enough for every file system.
        let stream = match vfs.stream(f, b"log", true).await {
            Ok(made) => made.attr.node,
            Err(Error::NotSupported) => return,
            Err(e) => panic!("{e}"),
        };
        appended(&vfs, stream, 7).await;
        verify(&vfs.get_xattr(f, b"weft.stream.log").await.unwrap(), 7);
    });
}

#[test]
fn an_append_is_told_where_and_can_be_refused() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        put(&vfs, f, 0, b"12345").await.unwrap();
        let open = vfs.open(f, true).await.unwrap();
        // After a truncation and an extension, the file ends at its size.
        vfs.setattr(f, SetAttr { size: Some(3), ..SetAttr::default() }).await.unwrap();
        let denied = |end| if end == 3 { Err(Error::Sharing) } else { Ok(()) };
        refused!(open.append(&Bytes::from_static(b"x"), denied).await, Error::Sharing);
        let at_three = |end| if end == 3 { Ok(()) } else { Err(Error::Invalid) };
        open.append(&Bytes::from_static(b"abc"), at_three).await.unwrap();
        assert_eq!(contents(&vfs, f).await, b"123abc");
        let reader = vfs.open(f, false).await.unwrap();
        refused!(reader.append(&Bytes::from_static(b"x"), |_| Ok(())).await, Error::Access);
    });
}

#[test]
fn appends_count_on_a_memory_disk() {
    let run = async |vfs: Vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        let open = vfs.open(f, true).await.unwrap();
        let piece = Bytes::from(vec![1; 1 << 20]);
        for _ in 0..LIMIT >> 20 {
            open.append::<Error>(&piece, |_| Ok(())).await.unwrap();
        }
        refused!(open.append(&Bytes::from_static(b"x"), |_| Ok(())).await, Error::NoSpace);
        assert_eq!(vfs.getattr(f).await.unwrap().size, LIMIT);
    };
    rt::block_on(run(Ram::new(LIMIT).into())).unwrap();
}
