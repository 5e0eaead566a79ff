//! Measures what SMB Direct costs on top of a provider: round trips of a READ's shape, two threads of one process.
//!
//! `cargo run --release -p weft-transport --example smbd_cost [shm|iwarp [ROUNDS [BYTES]]]`: the client opens a region,
//! sends 120 bytes that name it, and waits for a reply of 84 bytes; the server writes BYTES of a file there first.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weft_machine::{File, FileRange, Payload, Pool, rt};
use weft_rdma::{Access, Provider, Segment, Stag, iwarp, shm};
use weft_transport::smbd::{self, Config};
use weft_transport::{Channel, Outgoing, Part, To};

fn provider(kind: &str, pool: Pool) -> Rc<dyn Provider> {
    match kind {
        "shm" => Rc::new(shm::Provider::new(pool, shm::Config::default())),
        "iwarp" => Rc::new(iwarp::Provider::new(
            pool,
            iwarp::Config { congestion: Some("reno".into()), ..iwarp::Config::default() },
        )),
        other => panic!("no provider {other}: shm or iwarp"),
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let kind = args.next().unwrap_or_else(|| "shm".into());
    let rounds: usize = args.next().map_or(200_000, |arg| arg.parse().expect("a number"));
    let bytes: usize = args.next().map_or(8192, |arg| arg.parse().expect("a number"));
    let (tell, told) = std::sync::mpsc::channel();
    let server = std::thread::spawn({
        let kind = kind.clone();
        move || {
            pin(0);
            rt::block_on(serve(&kind, tell, bytes)).expect("a reactor")
        }
    });
    pin(1);
    let addr = told.recv().expect("a server");
    let (wall, cpu, mut rtts) = rt::block_on(ask(&kind, addr, rounds, bytes)).expect("a reactor");
    let server_cpu = server.join().expect("the server");
    let per = |time: Duration| time.as_secs_f64() * 1e6 / rounds as f64;
    rtts.sort_unstable();
    println!(
        "{kind} {bytes} bytes: {:.2} us a round (median {:.2}), client cpu {:.2} us, server cpu {:.2} us (spinning included)",
        per(wall),
        rtts[rtts.len() / 2].as_secs_f64() * 1e6,
        per(cpu),
        per(server_cpu)
    );
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

fn segment(bytes: &[u8]) -> Segment {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    Segment { stag: Stag(word(0) as u32), offset: word(8), len: word(16) as u32 }
}

async fn serve(kind: &str, tell: std::sync::mpsc::Sender<SocketAddr>, bytes: usize) -> Duration {
    let pool = Pool::new(256 << 20);
    let provider = provider(kind, pool.clone());
    let listener = provider.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a listener");
    tell.send(listener.local_addr()).expect("a client");
    let request = listener.accept().await.expect("a peer").request().await.expect("a request");
    let channel = smbd::accept(request, Config::default(), pool).await.expect("a channel");
    let file = File::in_memory("smbd-cost").expect("a file");
    file.write_at(0, &[Bytes::from(vec![7; bytes])]).await.expect("room");
    let _ = file.as_fd();
    let head = Bytes::from(vec![1; 84]);
    let cpu = cpu_time();
    while let Ok(Some(message)) = channel.recv().await {
        let to = To::Segments(vec![segment(&message.body)]);
        let data = Payload::File(FileRange { file: file.clone(), offset: 0, len: bytes });
        let parts = vec![Part::Bytes(head.clone()), Part::Payload { data, to }];
        drop(channel.send(Outgoing { parts, ..Outgoing::default() }));
    }
    cpu_time() - cpu
}

async fn ask(
    kind: &str,
    addr: SocketAddr,
    rounds: usize,
    bytes: usize,
) -> (Duration, Duration, Vec<Duration>) {
    let pool = Pool::new(256 << 20);
    let provider = provider(kind, pool.clone());
    let channel = smbd::connect(&*provider, addr, Config::default(), pool.clone()).await.expect("a channel");
    let (wall, cpu) = (Instant::now(), cpu_time());
    let mut rtts = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        let mut buf = pool.try_alloc(bytes).expect("a buffer");
        buf.set_len(bytes);
        let exposed = channel.expose(buf, Access::RemoteWrite).expect("a region");
        let Segment { stag, offset, len } = exposed.segments[0];
        let mut request = Vec::with_capacity(120);
        for word in [u64::from(stag.0), offset, u64::from(len)] {
            request.extend_from_slice(&word.to_le_bytes());
        }
        request.resize(120, 3);
        drop(channel.send(Outgoing::bytes(request)));
        let reply = channel.recv().await.expect("a reply").expect("no end");
        assert_eq!(reply.body.len(), 84);
        let filled = channel.revoke(exposed).expect("the region");
        assert_eq!((filled[0], filled[bytes - 1]), (7, 7));
        rtts.push(start.elapsed());
    }
    let result = (wall.elapsed(), cpu_time() - cpu, rtts);
    channel.close();
    while let Ok(Some(_)) = channel.recv().await {}
    result
}
