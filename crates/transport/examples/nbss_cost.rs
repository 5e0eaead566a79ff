//! Measures what a READ costs the server's side of `nbss`: CPU time per operation, for sizes around the sendfile
//! threshold.
//!
//! `cargo run --release -p weft-transport --example nbss_cost [SECONDS [SIZE...]]`: a client thread keeps 32 requests
//! of 120 bytes under way; the server answers each with 84 bytes and SIZE bytes of a file in the page cache. Server
//! and client are pinned to two CPUs, TCP uses reno.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weft_machine::net::Socket;
use weft_machine::{File, FileRange, Payload, Pool, Stream, rt};
use weft_transport::nbss::{Config, Nbss};
use weft_transport::{Channel, Outgoing, Part, To};

const DEPTH: usize = 32;
const REQUEST: usize = 120;
const HEAD: usize = 84;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<usize>().expect("a number"));
    let seconds = args.next().unwrap_or(2);
    let mut sizes: Vec<usize> = args.collect();
    if sizes.is_empty() {
        sizes =
            [512, 4, 8, 16, 32, 48, 64, 128, 256, 1024].map(|n| if n == 512 { n } else { n << 10 }).to_vec();
    }
    println!(
        "{:>9} {:>12} {:>10} {:>10} {:>14}",
        "bytes", "operations", "wall us", "cpu us", "cpu s per GiB"
    );
    for size in sizes {
        let (wall, cpu, operations) = measure(size, Duration::from_secs(seconds as u64));
        let per = |time: Duration| time.as_secs_f64() * 1e6 / operations as f64;
        let per_gib = cpu.as_secs_f64() / (operations as f64 * size as f64 / (1u64 << 30) as f64);
        println!("{size:>9} {operations:>12} {:>10.2} {:>10.2} {per_gib:>14.3}", per(wall), per(cpu));
    }
}

fn measure(size: usize, duration: Duration) -> (Duration, Duration, u64) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    // Set before any connection exists: one that began under bbr stays paced.
    let _ = rustix::net::sockopt::set_tcp_congestion(&listener, "reno");
    let addr = listener.local_addr().expect("an address");
    let client = std::thread::spawn(move || {
        pin(1);
        let socket = TcpStream::connect(addr).expect("a connection");
        drive(socket, size, duration);
    });
    pin(0);
    let socket = listener.accept().expect("a connection");
    let result = rt::block_on(serve(socket, size)).expect("a reactor");
    client.join().expect("the client");
    result
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // A machine with one CPU can measure too, but with other results.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

async fn serve(socket: (TcpStream, SocketAddr), size: usize) -> (Duration, Duration, u64) {
    let stream = Stream::from_socket(Socket::from_tcp(socket).expect("a socket")).expect("a stream");
    let channel = Nbss::channel(stream, Pool::new(256 << 20), Config::default());
    // A real file if there is a file system with a page cache, otherwise tmpfs.
    let mut path = std::env::var_os("WEFT_COST_DIR").map_or(std::env::temp_dir(), Into::into);
    path.push(format!("weft-nbss-cost-{}", std::process::id()));
    let file = std::fs::OpenOptions::new().create(true).read(true).write(true).truncate(true).open(&path);
    let file = file.expect("a file");
    std::fs::remove_file(&path).expect("a file to remove");
    (&file).write_all(&vec![7; 64 << 20]).expect("room on disk");
    let file = File::from(std::os::fd::OwnedFd::from(file));
    let _ = file.as_fd();
    let head = Bytes::from(vec![1; HEAD]);
    let (wall, cpu) = (Instant::now(), cpu_time());
    let mut operations = 0u64;
    while let Ok(Some(mut message)) = channel.recv().await {
        channel.cork(true);
        loop {
            assert_eq!(message.body.len(), REQUEST);
            let offset = (operations * size as u64) % ((64 << 20) - size as u64);
            answer(&channel, &head, FileRange { file: file.clone(), offset: offset & !4095, len: size });
            operations += 1;
            match channel.try_recv() {
                Some(next) => message = next,
                None => break,
            }
        }
        channel.cork(false);
    }
    (wall.elapsed(), cpu_time() - cpu, operations.max(1))
}

fn answer(channel: &Rc<dyn Channel>, head: &Bytes, range: FileRange) {
    let parts = vec![Part::Bytes(head.clone()), Part::Payload { data: Payload::File(range), to: To::Inline }];
    // The client's depth bounds the queue.
    drop(channel.send(Outgoing { parts, ..Outgoing::default() }));
}

fn drive(mut socket: TcpStream, size: usize, duration: Duration) {
    socket.set_nodelay(true).expect("an option");
    let mut request = vec![0, 0, 0, REQUEST as u8];
    request.resize(4 + REQUEST, 3);
    let reply = 4 + HEAD + size;
    let start = Instant::now();
    socket.write_all(&request.repeat(DEPTH)).expect("requests");
    let mut buf = vec![0; (DEPTH * reply).max(1 << 20)];
    let (mut received, mut answered) = (0usize, 0usize);
    while start.elapsed() < duration {
        let n = socket.read(&mut buf).expect("replies");
        received += n;
        let whole = received / reply - answered;
        answered += whole;
        if whole > 0 {
            socket.write_all(&request.repeat(whole)).expect("requests");
        }
    }
}
