use bytes::Bytes;
use weft_machine::sim;
use weft_store::SetAttr;

use super::*;
use crate::args::{Args, Command};
use crate::connect::served::Served;
use crate::local::Destination;

/// More than the part that a resumed copy repeats.
const SIZE: u64 = MAX_AHEAD_BYTES + (4 << 20);
const MOMENT: crate::when::When = crate::when::When { secs: 1_000_000_000, nanos: 0 };

fn plan(options: &[&str]) -> Plan {
    let line = [&["weft", "cp", "smb://a@h/s/f", ".", "--quiet"], options].concat();
    let Command::Cp(cp) = Args::of_line(line).unwrap().command else { panic!("cp") };
    Plan::new(&cp.transfer, Arc::default())
}

async fn make(remote: &Remote, path: &str, first: &'static [u8]) {
    let file = remote.create(path).await.unwrap();
    file.set_len(SIZE).await.unwrap();
    file.write(0, Bytes::from_static(first)).await.unwrap();
    file.set_modified(MOMENT).await.unwrap();
    file.close().await.unwrap();
}

async fn fetched(remote: &Remote, path: &str, to: &Path, options: &[&str]) -> Result<u64, String> {
    let Destination::File(target) = Destination::of(to).unwrap() else { panic!("a stream") };
    fetch(remote, path, *target, &plan(options)).await.map_err(|e| e.reason().to_string())
}

/// The partial file left by an interrupted copy.
async fn begin(remote: &Remote, path: &str, to: &Path) -> std::fs::File {
    let stopped = plan(&["--resume"]);
    stopped.stopped.store(true, Ordering::Relaxed);
    let Destination::File(target) = Destination::of(to).unwrap() else { panic!("a stream") };
    assert!(fetch(remote, path, *target, &stopped).await.is_err());
    let left = std::fs::read_dir(to.parent().unwrap()).unwrap().next().unwrap().unwrap().path();
    std::fs::File::options().write(true).open(left).unwrap()
}

/// It was resumed again and again, and every run ended with the same error.
#[test]
fn a_partial_file_that_is_not_right_is_not_resumed_twice() {
    sim::logged(1, async {
        let (served, folder) = (Served::new(), tempfile::tempdir().unwrap());
        let (remote, to) = (served.remote().await, folder.path().join("f"));
        make(&remote, "f", b"new").await;
        let partial = begin(&remote, "f", &to).await;
        partial.set_len(0).unwrap();
        partial.set_len(SIZE).unwrap();
        drop(partial);
        let differ = fetched(&remote, "f", &to, &["--resume"]).await.unwrap_err();
        assert_eq!(differ, "verification failed: the copies differ at offset 0");
        assert_eq!(fetched(&remote, "f", &to, &["--resume"]).await, Ok(SIZE));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    });
}

/// The same at the server.
#[test]
fn a_partial_file_at_the_server_that_is_not_right_is_not_resumed_twice() {
    sim::logged(1, async {
        let (served, folder) = (Served::new(), tempfile::tempdir().unwrap());
        let (remote, from) = (served.remote().await, folder.path().join("f"));
        std::fs::write(&from, b"new").unwrap();
        std::fs::File::options().write(true).open(&from).unwrap().set_len(SIZE).unwrap();
        let stored = async |plan: &Plan| {
            let source = Source::named(&from).map_err(Fault::reason).unwrap();
            store(&remote, source, "f", plan).await.map_err(|e| e.reason().to_string())
        };
        let stopped = plan(&["--resume"]);
        stopped.stopped.store(true, Ordering::Relaxed);
        assert!(stored(&stopped).await.is_err());
        let partial = remote.list("").await.unwrap().remove(0).name;
        make(&remote, &partial, b"old").await;
        let differ = stored(&plan(&["--resume"])).await.unwrap_err();
        assert_eq!(differ, "verification failed: the copies differ at offset 0");
        assert_eq!(stored(&plan(&["--resume"])).await, Ok(SIZE));
        assert_eq!(remote.list("").await.unwrap().len(), 1);
    });
}

/// It has a name by which no later command finds it.
#[test]
fn what_is_written_beside_the_partial_file_of_another_user_does_not_stay() {
    sim::logged(1, async {
        let (mut served, folder) = (Served::new(), tempfile::tempdir().unwrap());
        let (remote, from) = (served.nfs("4.1").await, folder.path().join("f"));
        std::fs::write(&from, b"new").unwrap();
        let stopped = plan(&["--resume"]);
        stopped.stopped.store(true, Ordering::Relaxed);
        for others in [0o600, 0o644] {
            let source = Source::named(&from).map_err(Fault::reason).unwrap();
            assert!(store(&remote, source, "f", &stopped).await.is_err());
            let [left] = &remote.list("").await.unwrap()[..] else { panic!("more than one file") };
            served.set(&left.name, SetAttr { mode: Some(others), ..SetAttr::default() }).await;
        }
        let source = Source::named(&from).map_err(Fault::reason).unwrap();
        assert!(store(&remote, source, "f", &stopped).await.is_err());
        assert_eq!(remote.list("").await.unwrap().len(), 1);
    });
}

/// Daily backups have the same name and size, and tools preserve their time. With --no-verify the copy became a
/// mixture.
#[test]
fn the_partial_file_of_another_source_is_not_resumed_from() {
    sim::logged(1, async {
        let (served, folder) = (Served::new(), tempfile::tempdir().unwrap());
        let (remote, to) = (served.remote().await, folder.path().join("f"));
        for (day, content) in [("monday", b"old"), ("tuesday", b"new")] {
            remote.mkdir(day).await.unwrap();
            make(&remote, &format!("{day}/f"), content).await;
        }
        begin(&remote, "monday/f", &to).await.set_len(SIZE).unwrap();
        assert_eq!(fetched(&remote, "tuesday/f", &to, &["--resume", "--no-verify"]).await, Ok(SIZE));
        assert_eq!(std::fs::read(&to).unwrap()[..3], *b"new");
    });
}
