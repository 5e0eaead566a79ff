//! Measures the CPU time that the SMB server spends per READ over TCP: plain, signed and encrypted.
//!
//! `cargo run --release -p weft-smb --example smb_cost [SECONDS [SIZE...]]`: a client thread keeps 32 READs of an
//! in-memory file in flight; the server runs in the main thread. Compare with `nbss_cost`, which is the same without
//! SMB.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use weft_machine::{Listener, Pool, Stream, rt};
use weft_smb::auth::Secret;
use weft_smb::client::{OpenOptions, Options, Session, Wish};
use weft_smb::server::{Config, Server, User};
use weft_store::backend::ram::Ram;
use weft_store::vfs::{Share, Vfs};
use weft_transport::nbss::{self, Nbss};

const DEPTH: usize = 32;
const FILE_BYTES: usize = 64 << 20;

#[derive(Clone, Copy)]
enum Protection {
    Plain,
    Signed,
    Encrypted,
}

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<usize>().expect("a number"));
    let duration = Duration::from_secs(args.next().unwrap_or(2) as u64);
    let mut sizes: Vec<usize> = args.collect();
    if sizes.is_empty() {
        sizes = vec![8 << 10, 64 << 10, 1 << 20];
    }
    println!(
        "{:>9} {:>10} {:>12} {:>10} {:>10} {:>14}",
        "bytes", "", "operations", "wall us", "cpu us", "cpu s per GiB"
    );
    for size in sizes {
        for (protection, name) in [
            (Protection::Plain, "plain"),
            (Protection::Signed, "signed"),
            (Protection::Encrypted, "encrypted"),
        ] {
            let (wall, cpu, operations) = measure(size, protection, duration);
            let per = |time: Duration| time.as_secs_f64() * 1e6 / operations as f64;
            let per_gib = cpu.as_secs_f64() / (operations as f64 * size as f64 / (1u64 << 30) as f64);
            println!(
                "{size:>9} {name:>10} {operations:>12} {:>10.2} {:>10.2} {per_gib:>14.3}",
                per(wall),
                per(cpu)
            );
        }
    }
}

/// Wall time, CPU time of the server's thread, and operations.
fn measure(size: usize, protection: Protection, duration: Duration) -> (Duration, Duration, u64) {
    let (addr_to, addr_from) = std::sync::mpsc::channel();
    let client = std::thread::spawn(move || {
        pin(1);
        let addr = addr_from.recv().expect("an address");
        rt::block_on(drive(addr, size, protection, duration)).expect("a reactor")
    });
    pin(0);
    let cpu = rt::block_on(serve(move |addr| addr_to.send(addr).expect("a client"))).expect("a reactor");
    let (wall, operations) = client.join().expect("the client");
    (wall, cpu, operations)
}

async fn serve(tell: impl FnOnce(SocketAddr)) -> Duration {
    let pool = Pool::new(256 << 20);
    let server = Server::new(Config {
        signing: weft_smb::server::Signing::Enabled,
        min_dialect: weft_smb::server::Dialect::V2_0_2,
        ..Config::new(
            [1; 16],
            vec![Share::new("ram", Vfs::new(Ram::new(2 * FILE_BYTES as u64)))],
            vec![User::new("u", Secret::password("p"))],
            pool.clone(),
        )
    });
    let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    tell(listener.local_addr());
    let stream = Stream::from_socket(listener.accept().await.expect("a client")).expect("a stream");
    let start = cpu_time();
    server.serve(Nbss::channel(stream, pool, nbss::Config::default())).await;
    cpu_time() - start
}

async fn drive(addr: SocketAddr, size: usize, protection: Protection, duration: Duration) -> (Duration, u64) {
    let pool = Pool::new(256 << 20);
    let stream = Stream::connect(addr).await.expect("a connection");
    let mut options = Options::new("127.0.0.1", "u", "p", pool.clone());
    match protection {
        Protection::Plain => {}
        Protection::Signed => options.signing = Wish::Required,
        Protection::Encrypted => options.encryption = Wish::Required,
    }
    let channel = Nbss::channel(stream, pool, nbss::Config::default());
    let session = Session::connect(channel, options).await.expect("a session");
    let tree = session.tree("ram").await.expect("a tree");
    let file = Rc::new(tree.open("f", OpenOptions::create()).await.expect("a file"));
    let chunk = Bytes::from(vec![0x5a; 1 << 20]);
    for at in (0..FILE_BYTES).step_by(1 << 20) {
        file.write(at as u64, chunk.clone()).await.expect("a write");
    }
    let start = Instant::now();
    let mut operations = 0u64;
    let read = |n: u64| {
        let file = file.clone();
        async move { file.read(n * size as u64 % FILE_BYTES as u64, size).await }
    };
    let mut reads: FuturesUnordered<_> = (0..DEPTH as u64).map(&read).collect();
    while let Some(result) = reads.next().await {
        assert_eq!(result.expect("a read").len(), size);
        operations += 1;
        if start.elapsed() < duration {
            reads.push(read(operations + DEPTH as u64));
        }
    }
    (start.elapsed(), operations)
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // Pinning fails on a machine with one CPU; the measurement then shares it.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// CPU time of this thread. It includes log-on and filling the file: a few milliseconds.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
