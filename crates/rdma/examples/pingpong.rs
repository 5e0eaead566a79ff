//! Bare verbs against bare TCP on loopback: 8-byte round trips and 1 MiB Writes, one thread and one core a side.
//!
//! Usage: `cargo run --release -p weft-rdma --example pingpong [rounds [MiB [FPDU payload [line]]]]`; `line` is a part of
//! the name of the only line to run. TCP uses reno on both sides; the sockets of the plain TCP line are blocking ones,
//! with the same buffers and sizes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weft_machine::{Pool, rt};
use weft_rdma::{
    Access, Completion, ConnectParams, Done, Provider, QueuePair, Segment, Stag, Work, iwarp, shm,
};

const MESSAGE: usize = 1 << 20;
/// Buffers that each side goes round, so that neither side lives in its first-level cache alone.
const BUFFERS: usize = 8;
const REPEATS: usize = 7;

#[derive(Clone, Copy)]
struct Plan {
    rounds: u64,
    messages: u64,
    fpdu_payload: usize,
}

fn main() {
    let number = |at, default| std::env::args().nth(at).and_then(|arg| arg.parse().ok()).unwrap_or(default);
    let plan = Plan {
        rounds: number(1, 20_000),
        messages: number(2, 2048),
        fpdu_payload: number(3, iwarp::Config::default().fpdu_payload as u64) as usize,
    };
    let columns = ["", "8 B rtt, us", "1 MiB, GB/s", "of TCP", "s/GiB, from", "s/GiB, to"];
    let [name, rtt, rate, ratio, sender, receiver] = columns;
    println!("{name:<16} {rtt:>12} {rate:>12} {ratio:>8} {sender:>12} {receiver:>12}");
    // Interleaved repeats: the machine's mood changes faster than a run lasts.
    let names = ["tcp", "iwarp, no CRC", "iwarp, CRC", "shm"];
    let only = std::env::args().nth(4).unwrap_or_default();
    let runs = |line: usize| names[line].contains(&only);
    let mut results = vec![Vec::new(); names.len()];
    for _ in 0..REPEATS {
        if runs(0) {
            results[0].push(plain_tcp(plan));
        }
        for (result, crc) in [(1, false), (2, true)].into_iter().filter(|(line, _)| runs(*line)) {
            let config = iwarp::Config {
                crc,
                fpdu_payload: plan.fpdu_payload,
                congestion: Some("reno".into()),
                ..iwarp::Config::default()
            };
            let make = move |pool| Rc::new(iwarp::Provider::new(pool, config.clone())) as Rc<dyn Provider>;
            results[result].push(verbs(plan, make));
        }
        if runs(3) {
            let dir = std::env::temp_dir().join(format!("weft-pingpong-{}", std::process::id()));
            let config = shm::Config { dir, ..shm::Config::default() };
            results[3].push(verbs(plan, move |pool| Rc::new(shm::Provider::new(pool, config.clone()))));
        }
    }
    let mut tcp = None;
    for (name, result) in names.iter().zip(&results).filter(|(_, result)| !result.is_empty()) {
        let median = |of: fn(&Outcome) -> f64| {
            let mut values: Vec<_> = result.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (rtt, rate) = (median(|o| o.rtt_us), median(|o| o.gb_per_s));
        let (sender, receiver) = (median(|o| o.sender), median(|o| o.receiver));
        let ratio = rate / *tcp.get_or_insert(rate);
        println!("{name:<16} {rtt:>12.2} {rate:>12.2} {ratio:>8.2} {sender:>12.3} {receiver:>12.3}");
    }
}

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    if let Err(e) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("not pinned to core {core}: {e}");
    }
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// CPU seconds per GiB since `before`.
fn cpu_per_gib(before: Duration, messages: u64) -> f64 {
    (cpu() - before).as_secs_f64() / (messages as f64 * MESSAGE as f64 / (1u64 << 30) as f64)
}

/// One run of one line.
#[derive(Clone, Copy)]
struct Outcome {
    rtt_us: f64,
    gb_per_s: f64,
    /// CPU seconds per GiB. A core that spins while it waits counts as busy: only the larger of the two tells.
    sender: f64,
    receiver: f64,
}

fn per_round(elapsed: Duration, rounds: u64) -> f64 {
    elapsed.as_secs_f64() * 1e6 / rounds as f64
}

fn rate(elapsed: Duration, messages: u64) -> f64 {
    (messages * MESSAGE as u64) as f64 / elapsed.as_secs_f64() / 1e9
}

fn filled(pool: &Pool) -> weft_machine::Buf {
    let mut buf = pool.try_alloc(MESSAGE).expect("pool of 64 MiB");
    buf.set_len(MESSAGE);
    buf.fill(1);
    buf
}

fn plain_tcp(plan: Plan) -> Outcome {
    let tune = |socket: &TcpStream| {
        socket.set_nodelay(true).unwrap();
        rustix::net::sockopt::set_tcp_congestion(socket, "reno").unwrap();
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        pin(1);
        let (mut socket, _) = listener.accept().unwrap();
        tune(&socket);
        let mut byte = [0; 8];
        for _ in 0..plan.rounds {
            socket.read_exact(&mut byte).unwrap();
            socket.write_all(&byte).unwrap();
        }
        let pool = Pool::new(64 << 20);
        let mut sinks: Vec<_> = (0..BUFFERS).map(|_| filled(&pool)).collect();
        let before = cpu();
        for message in 0..plan.messages as usize {
            socket.read_exact(&mut sinks[message % BUFFERS]).unwrap();
        }
        let receiver = cpu_per_gib(before, plan.messages);
        socket.write_all(&byte).unwrap();
        receiver
    });
    pin(0);
    let mut socket = TcpStream::connect(addr).unwrap();
    tune(&socket);
    let mut byte = [0; 8];
    let start = Instant::now();
    for _ in 0..plan.rounds {
        socket.write_all(&byte).unwrap();
        socket.read_exact(&mut byte).unwrap();
    }
    let rtt_us = per_round(start.elapsed(), plan.rounds);
    let pool = Pool::new(64 << 20);
    let sources: Vec<_> = (0..BUFFERS).map(|_| filled(&pool)).collect();
    let (start, before) = (Instant::now(), cpu());
    for message in 0..plan.messages as usize {
        socket.write_all(&sources[message % BUFFERS]).unwrap();
    }
    socket.read_exact(&mut byte).unwrap();
    let (gb_per_s, sender) = (rate(start.elapsed(), plan.messages), cpu_per_gib(before, plan.messages));
    let receiver = server.join().unwrap();
    Outcome { rtt_us, gb_per_s, sender, receiver }
}

struct End {
    qp: Rc<dyn QueuePair>,
    pool: Pool,
    seen: Vec<Completion>,
}

impl End {
    fn recv(&self, id: u64) {
        let buf = self.pool.try_alloc(4096).expect("pool of 64 MiB");
        self.qp.post(Work::Recv { id, buf }).unwrap();
    }

    fn send(&self, data: Bytes) {
        let work =
            Work::Send { id: 0, data: vec![data], invalidate: None, solicited: false, signalled: false };
        self.qp.post(work).unwrap();
    }

    async fn poll(&mut self) {
        std::future::poll_fn(|cx| self.qp.poll(cx, &mut self.seen)).await.unwrap();
    }

    /// The next message; its buffer is posted again.
    async fn message(&mut self) -> Bytes {
        loop {
            let at = self.seen.iter().position(|c| matches!(c.result, Ok(Done::Received { .. })));
            if let Some(at) = at {
                let Ok(Done::Received { buf, .. }) = self.seen.swap_remove(at).result else { unreachable!() };
                let bytes = Bytes::copy_from_slice(&buf);
                self.qp.post(Work::Recv { id: 0, buf }).unwrap();
                return bytes;
            }
            self.poll().await;
        }
    }
}

fn verbs(plan: Plan, make: impl Fn(Pool) -> Rc<dyn Provider> + Send + Clone + 'static) -> Outcome {
    let (tell, told) = std::sync::mpsc::channel::<SocketAddr>();
    let passive = make.clone();
    let server = std::thread::spawn(move || {
        pin(1);
        rt::block_on(async move {
            let pool = Pool::new(64 << 20);
            let listener = passive(pool.clone()).listen(([127, 0, 0, 1], 0).into()).await.unwrap();
            tell.send(listener.local_addr()).unwrap();
            let request = listener.accept().await.unwrap().request().await.unwrap();
            let recvs = (0..4).map(|id| Work::Recv { id, buf: pool.try_alloc(4096).unwrap() }).collect();
            let qp = request.accept(ConnectParams::default(), recvs).await.unwrap();
            let mut end = End { qp, pool, seen: Vec::new() };
            for _ in 0..plan.rounds {
                let message = end.message().await;
                end.send(message);
            }
            for _ in 0..BUFFERS {
                let region = end.qp.register(filled(&end.pool), Access::RemoteWrite).unwrap();
                let offer = [&region.stag.0.to_be_bytes()[..], &region.offset.to_be_bytes()].concat();
                end.send(offer.into());
            }
            end.message().await;
            let before = cpu();
            let last = end.message().await;
            let receiver = cpu_per_gib(before, plan.messages);
            end.send(last);
            end.message().await;
            receiver
        })
        .unwrap()
    });
    pin(0);
    let addr = told.recv().unwrap();
    let result = rt::block_on(async move {
        let pool = Pool::new(64 << 20);
        let (qp, _) = make(pool.clone()).connect(addr, ConnectParams::default()).await.unwrap();
        let mut end = End { qp, pool, seen: Vec::new() };
        (0..16).for_each(|id| end.recv(id));
        let data = Bytes::from_static(b"8 bytes.");
        let start = Instant::now();
        for _ in 0..plan.rounds {
            end.send(data.clone());
            end.message().await;
        }
        let rtt_us = per_round(start.elapsed(), plan.rounds);
        let mut regions = Vec::new();
        for _ in 0..BUFFERS {
            let offer = end.message().await;
            let (stag, offset) = offer.split_at(4);
            regions.push(Segment {
                stag: Stag(u32::from_be_bytes(stag.try_into().unwrap())),
                offset: u64::from_be_bytes(offset.try_into().unwrap()),
                len: MESSAGE as u32,
            });
        }
        let sources: Vec<_> = (0..BUFFERS).map(|_| filled(&end.pool).freeze()).collect();
        // The receiver's account begins here.
        end.send(data.clone());
        let (start, before) = (Instant::now(), cpu());
        let (mut posted, mut written) = (0, 0);
        while written < plan.messages {
            while posted < plan.messages && posted - written < BUFFERS as u64 {
                let slot = posted as usize % BUFFERS;
                let data = sources[slot].clone().into();
                end.qp.post(Work::Write { id: 1, data, to: regions[slot], signalled: true }).unwrap();
                posted += 1;
            }
            end.poll().await;
            written += end.seen.drain(..).filter(|c| matches!(c.result, Ok(Done::Written))).count() as u64;
        }
        end.send(data.clone());
        end.message().await;
        let (gb_per_s, sender) = (rate(start.elapsed(), plan.messages), cpu_per_gib(before, plan.messages));
        end.send(data);
        std::future::poll_fn(|cx| end.qp.poll(cx, &mut end.seen)).await.ok();
        Outcome { rtt_us, gb_per_s, sender, receiver: 0.0 }
    })
    .unwrap();
    Outcome { receiver: server.join().unwrap(), ..result }
}
