//! The same for version 4.1: a session over every transport.

use futures_util::FutureExt;
use futures_util::future::try_join_all;
use weft_nfs::client::v4;

use super::*;

impl World {
    async fn mount_v4(&self, over: Over) -> v4::Mount {
        v4::Mount::connect(self.channel(over).await, "/data", self.options(), None).await.unwrap()
    }
}

async fn put_v4(mount: &v4::Mount, path: &str, content: &[u8]) -> File {
    let file = mount.create(path, SetAttributes::default()).await.unwrap();
    file.write(0, Bytes::copy_from_slice(content)).await.unwrap();
    file
}

#[test]
fn a_file_is_made_written_read_renamed_and_removed_in_a_session() {
    over_all(async |world, over| {
        let mount = world.mount_v4(over).await;
        mount.mkdir("dir", SetAttributes { mode: Some(0o750), ..SetAttributes::default() }).await.unwrap();
        assert_eq!(status(mount.mkdir("dir", SetAttributes::default()).await), Status::EXIST);
        // Longer than one WRITE on every transport, and not a multiple of it.
        let whole = pattern(3 * mount.max_write().max(1 << 20) + 4321);
        let file = put_v4(&mount, "dir/f", &whole).await;
        file.commit().await.unwrap();
        assert!(file.read(0, whole.len() + 100).await.unwrap() == whole, "{over:?}");
        assert_eq!(file.read(17, 5).await.unwrap(), whole.slice(17..22));
        assert_eq!(file.stat().await.unwrap().size, whole.len() as u64);
        file.set_len(100).await.unwrap();
        let mtime = SetTime::Client(Time { seconds: 1_000_000_000, nseconds: 5 });
        file.set(SetAttributes { mtime, mode: Some(0o640), ..SetAttributes::default() }).await.unwrap();
        let stat = mount.stat("dir/f").await.unwrap();
        assert_eq!((stat.kind, stat.size, stat.mode & 0o777), (FileType::Reg, 100, 0o640));
        assert_eq!(stat.mtime, Time { seconds: 1_000_000_000, nseconds: 5 });
        file.close().await.unwrap();
        // The content on the server's disk.
        assert_eq!(std::fs::read(world.dir.path().join("dir/f")).unwrap(), &whole[..100]);

        mount.rename("dir/f", "g").await.unwrap();
        assert_eq!(status(mount.stat("dir/f").await), Status::NOENT);
        let read_only = mount.open("g", false).await.unwrap();
        assert_eq!(read_only.read(90, 100).await.unwrap(), whole.slice(90..100));
        read_only.close().await.unwrap();
        assert_eq!(status(mount.open("dir", false).await.map(drop)), Status::ISDIR);
        assert_eq!(status(mount.create_new("g", SetAttributes::default()).await.map(drop)), Status::EXIST);
        mount.symlink("link", "g").await.unwrap();
        assert_eq!(mount.readlink("link").await.unwrap(), "g");
        mount.link("g", "dir/also").await.unwrap();
        assert_eq!(mount.stat("dir/also").await.unwrap().nlink, 2);
        let mut names: Vec<_> = mount.list("").await.unwrap().into_iter().map(|e| e.name).collect();
        names.sort();
        assert_eq!(names, ["dir", "g", "link"]);

        // REMOVE takes files and directories; these two say which they mean.
        assert_eq!(status(mount.remove("dir").await), Status::ISDIR);
        assert_eq!(status(mount.rmdir("g").await), Status::NOTDIR);
        assert_eq!(status(mount.rmdir("dir").await), Status::NOTEMPTY);
        mount.remove("dir/also").await.unwrap();
        mount.rmdir("dir").await.unwrap();
        mount.remove("g").await.unwrap();
        mount.remove("link").await.unwrap();
        assert!(mount.list("").await.unwrap().is_empty());
        mount.end().await.unwrap();
    });
}

#[test]
fn a_directory_of_many_names_is_listed_in_pieces_and_a_deep_path_is_walked_in_pieces() {
    over_all(async |world, over| {
        let mount = world.mount_v4(over).await;
        let mut deep = world.dir.path().to_owned();
        let path: Vec<_> = (0..20).map(|n| format!("level-{n}")).collect();
        deep.extend(&path);
        std::fs::create_dir_all(&deep).unwrap();
        for n in 0..700 {
            std::fs::write(deep.join(format!("{n:0200}")), []).unwrap();
        }
        let path = path.join("/");
        let entries = mount.list(&path).await.unwrap();
        assert_eq!(entries.len(), 700, "{over:?}");
        assert!(entries.iter().all(|e| e.attributes.as_ref().is_some_and(|a| a.kind == FileType::Reg)));
        assert_eq!(mount.stat(&path).await.unwrap().kind, FileType::Dir);
        mount.end().await.unwrap();
    });
}

#[test]
fn more_requests_than_slots_wait_for_their_turn() {
    over_all(async |world, over| {
        let mount = world.mount_v4(over).await;
        let whole = pattern(300 * 4096);
        let file = put_v4(&mount, "f", &whole).await;
        let reads = (0..300).map(|n| file.read(n * 4096, 4096));
        let read = try_join_all(reads).await.unwrap();
        assert!(read.concat() == whole, "{over:?}");
        file.close().await.unwrap();
        mount.end().await.unwrap();
    });
}

#[test]
fn a_request_that_is_given_up_leaves_its_slot_of_use() {
    over_all(async |world, over| {
        let mount = world.mount_v4(over).await;
        let whole = pattern(100_000);
        let file = put_v4(&mount, "f", &whole).await;
        for _ in 0..100 {
            assert!(file.read(0, 100_000).now_or_never().is_none());
            assert!(file.write(5, whole.slice(5..50)).now_or_never().is_none());
        }
        assert!(file.read(0, 100_000).await.unwrap() == whole, "{over:?}");
        assert_eq!(mount.recovered(), 0, "no session was lost over it");
        file.close().await.unwrap();
        mount.end().await.unwrap();
    });
}

#[test]
fn payload_of_version_4_travels_by_rdma_where_there_is_rdma() {
    over_all(async |world, over| {
        let mount = world.mount_v4(over).await;
        let file = put_v4(&mount, "f", &pattern(1 << 20)).await;
        let before = mount.channel().traffic();
        for n in 0..10 {
            assert_eq!(file.read(n * 65_536, 65_536).await.unwrap().len(), 65_536);
            let mut buf = world.pool.alloc(65_536).await;
            buf.set_len(65_536);
            file.write_buf(n * 65_536, buf).await.unwrap();
        }
        let after = mount.channel().traffic();
        let moved = if over == Over::Tcp { 0 } else { 655_360 };
        assert_eq!(after.placed.0 - before.placed.0, moved, "{over:?}");
        assert_eq!(after.served.0 - before.served.0, moved, "{over:?}");
        file.close().await.unwrap();
        mount.end().await.unwrap();
    });
}

#[test]
fn a_path_that_is_not_exported_is_named() {
    over_all(async |world, over| {
        let channel = world.channel(over).await;
        let refused = v4::Mount::connect(channel, "/nothing", world.options(), None).await;
        assert_eq!(status(refused.map(drop)), Status::NOENT);
    });
}
