//! Measures the shm provider between two processes, each pinned to its own core.
//!
//! `cargo run --release -p weft-rdma --example shm_pingpong`. Prints the 8-byte Send round trip, the round trip of an
//! SMB READ's shape (request, 8 KiB Write, reply), and 512 KiB Writes out of a page-cached file at queue depth 8 with
//! the CPU seconds that both processes spent per GiB.

use std::collections::VecDeque;
use std::error::Error;
use std::future::poll_fn;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use weft_machine::{Buf, File, FileRange, Payload, Pool, rt};
use weft_rdma::shm::{Config, Provider};
use weft_rdma::{Access, Completion, ConnectParams, Done, Provider as _, QueuePair, Segment, Stag, Work};

type Outcome<T> = Result<T, Box<dyn Error>>;

const SMALL: usize = 8;
/// About the size of an SMB2 READ request with its RDMA channel description, and of a small reply.
const REQUEST: usize = 200;
const BLOCK: usize = 8 << 10;
const LARGE: usize = 512 << 10;
const DEPTH: usize = 8;
const FILE: usize = 64 << 20;
const RECVS: usize = 32;

/// The client's request: the first byte of its message.
const ECHO: u8 = 0;
const READ: u8 = 1;
const READ_MEMFD: u8 = 2;
const CPU: u8 = 3;

fn pin(core: usize) -> Outcome<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn config(dir: &Path) -> Config {
    // The provider creates the directory, with no access for other users.
    Config { dir: dir.join("weft"), ..Config::default() }
}

async fn next(qp: &dyn QueuePair, out: &mut Vec<Completion>) -> Outcome<()> {
    Ok(poll_fn(|cx| qp.poll(cx, out)).await?)
}

fn post(qp: &dyn QueuePair, work: Work) -> Outcome<()> {
    qp.post(work).map_err(|(e, _)| e.into())
}

fn send(qp: &dyn QueuePair, data: Bytes) -> Outcome<()> {
    post(qp, Work::Send { id: 0, data: vec![data], invalidate: None, solicited: false, signalled: false })
}

fn recv(pool: &Pool) -> Outcome<Work> {
    Ok(Work::Recv { id: 0, buf: pool.try_alloc(4096).ok_or("pool empty")? })
}

fn request(op: u8, to: Segment) -> Vec<u8> {
    let mut request = vec![0; REQUEST];
    request[0] = op;
    request[1..5].copy_from_slice(&to.stag.0.to_le_bytes());
    request[5..13].copy_from_slice(&to.offset.to_le_bytes());
    request[13..17].copy_from_slice(&to.len.to_le_bytes());
    request
}

fn target(request: &[u8]) -> Option<Segment> {
    let u32_at = |at: usize| Some(u32::from_le_bytes(request.get(at..at + 4)?.try_into().ok()?));
    let offset = u64::from_le_bytes(request.get(5..13)?.try_into().ok()?);
    Some(Segment { stag: Stag(u32_at(1)?), offset, len: u32_at(13)? })
}

async fn serve(dir: &Path) -> Outcome<()> {
    let pool = Pool::new(256 << 20);
    let on_disk = std::fs::File::options().read(true).write(true).create_new(true).open(dir.join("data"))?;
    let (file, memfd) = (File::from(OwnedFd::from(on_disk)), File::in_memory("data")?);
    for at in (0..FILE).step_by(1 << 20) {
        for file in [&file, &memfd] {
            file.write_at(at as u64, &[Bytes::from(vec![7; 1 << 20])]).await?;
        }
    }
    let provider = Provider::new(pool.clone(), config(dir));
    let listener = provider.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    println!("{}", listener.local_addr());
    let request = listener.accept().await?.request().await?;
    let recvs = (0..RECVS).map(|_| recv(&pool)).collect::<Outcome<Vec<_>>>()?;
    let qp = request.accept(ConnectParams::default(), recvs).await?;
    let reply = Bytes::from(vec![1; REQUEST]);
    let mut out = Vec::new();
    let mut at = 0;
    while next(&*qp, &mut out).await.is_ok() {
        for completion in out.drain(..) {
            let Ok(Done::Received { buf, .. }) = completion.result else { continue };
            match buf.first() {
                Some(&ECHO) => send(&*qp, Bytes::copy_from_slice(&buf))?,
                Some(op @ &(READ | READ_MEMFD)) => {
                    let file = if *op == READ { &file } else { &memfd };
                    let to = target(&buf).ok_or("short request")?;
                    let len = to.len as usize;
                    if at + len as u64 > FILE as u64 {
                        at = 0;
                    }
                    let range = FileRange { file: file.clone(), offset: at, len };
                    at += len as u64;
                    post(&*qp, Work::Write { id: 0, data: Payload::File(range), to, signalled: false })?;
                    send(&*qp, reply.clone())?;
                }
                _ => send(&*qp, Bytes::copy_from_slice(&cpu().to_le_bytes()))?,
            }
            let mut buf = buf;
            buf.set_len(0);
            post(&*qp, Work::Recv { id: 0, buf })?;
        }
    }
    Ok(())
}

struct Client {
    qp: Rc<dyn QueuePair>,
    out: Vec<Completion>,
    waiting: VecDeque<Completion>,
}

impl Client {
    /// One message from the server; its buffer is posted again.
    async fn reply(&mut self) -> Outcome<[u8; 8]> {
        loop {
            if let Some(completion) = self.waiting.pop_front() {
                let Done::Received { mut buf, .. } = completion.result? else { continue };
                let first = buf[..8].try_into()?;
                buf.set_len(0);
                post(&*self.qp, Work::Recv { id: 0, buf })?;
                return Ok(first);
            }
            next(&*self.qp, &mut self.out).await?;
            self.waiting.extend(self.out.drain(..));
        }
    }

    async fn server_cpu(&mut self) -> Outcome<f64> {
        send(&*self.qp, Bytes::from_static(&[CPU; SMALL]))?;
        Ok(f64::from_le_bytes(self.reply().await?))
    }

    async fn round_trips(
        &mut self,
        what: &str,
        message: Bytes,
        mut after: impl FnMut() -> Outcome<Bytes>,
    ) -> Outcome<()> {
        let mut nanos = Vec::new();
        let end = Instant::now() + Duration::from_secs(2);
        let mut message = message;
        while Instant::now() < end {
            for _ in 0..1000 {
                let start = Instant::now();
                send(&*self.qp, message)?;
                self.reply().await?;
                message = after()?;
                nanos.push(start.elapsed().as_nanos() as u64);
            }
        }
        nanos.sort_unstable();
        let at = |share: f64| nanos[(nanos.len() as f64 * share) as usize] as f64 / 1e3;
        println!(
            "{what:42} p50 {:7.2} us   p99 {:7.2} us   ({} round trips)",
            at(0.5),
            at(0.99),
            nanos.len()
        );
        Ok(())
    }
}

impl Client {
    /// READs `gib` GiB, `DEPTH` at a time.
    async fn throughput(&mut self, pool: &Pool, what: &str, op: u8, gib: usize) -> Outcome<()> {
        let qp = self.qp.clone();
        let (server, own, start) = (self.server_cpu().await?, cpu(), Instant::now());
        let mut segments = VecDeque::new();
        let total = (gib << 30) / LARGE;
        for done in 0..total {
            while segments.len() < DEPTH.min(total - done) {
                let segment = qp.register(buffer(pool, LARGE)?, Access::RemoteWrite)?;
                segments.push_back(segment);
                send(&*qp, Bytes::from(request(op, segment)))?;
            }
            self.reply().await?;
            let segment: Segment = segments.pop_front().ok_or("a reply too many")?;
            let data = qp.invalidate(segment.stag).ok_or("the region is gone")?;
            assert_eq!((data[0], data[LARGE - 1]), (7, 7));
        }
        let seconds = start.elapsed().as_secs_f64();
        let (server, own) = (self.server_cpu().await? - server, cpu() - own);
        let per_gib = |cpu: f64| cpu / gib as f64;
        println!(
            "512 KiB READ, depth 8, {what:19} {:5.2} GB/s   CPU s/GiB: server {:.3} + client {:.3} = {:.3}",
            (total * LARGE) as f64 / 1e9 / seconds,
            per_gib(server),
            per_gib(own),
            per_gib(server + own),
        );
        Ok(())
    }
}

fn buffer(pool: &Pool, len: usize) -> Outcome<Buf> {
    let mut buf = pool.try_alloc(len).ok_or("pool empty")?;
    buf.set_len(len);
    Ok(buf)
}

/// The cost of taking a buffer and giving it back at once.
fn pool_speed(pool: &Pool) -> Outcome<()> {
    const TIMES: u32 = 1_000_000;
    let start = cpu();
    for _ in 0..TIMES {
        std::hint::black_box(pool.try_alloc(BLOCK).ok_or("pool empty")?);
    }
    println!(
        "{:42} {:11.1} ns",
        "8 KiB buffer taken and given back",
        (cpu() - start) * 1e9 / f64::from(TIMES)
    );
    Ok(())
}

async fn measure(dir: &Path, addr: SocketAddr) -> Outcome<()> {
    let pool = Pool::new(256 << 20);
    pool_speed(&pool)?;
    let provider = Provider::new(pool.clone(), config(dir));
    let (qp, _) = provider.connect(addr, ConnectParams::default()).await?;
    for _ in 0..RECVS {
        post(&*qp, recv(&pool)?)?;
    }
    let mut client = Client { qp: qp.clone(), out: Vec::new(), waiting: VecDeque::new() };

    let small = Bytes::from_static(&[ECHO; SMALL]);
    client.round_trips("8 B Send, echoed", small.clone(), || Ok(small.clone())).await?;

    let segment = qp.register(buffer(&pool, BLOCK)?, Access::RemoteWrite)?;
    let read = Bytes::from(request(READ, segment));
    client.round_trips("READ of 8 KiB (region kept)", read.clone(), || Ok(read.clone())).await?;

    let mut segment = qp.register(buffer(&pool, BLOCK)?, Access::RemoteWrite)?;
    let read = Bytes::from(request(READ, segment));
    let again = || {
        // As an SMB client does: takes the data out, and opens another buffer for the next READ.
        let data = qp.invalidate(segment.stag).ok_or("the region is gone")?;
        assert_eq!(data[BLOCK - 1], 7);
        drop(data);
        segment = qp.register(buffer(&pool, BLOCK)?, Access::RemoteWrite)?;
        Ok(Bytes::from(request(READ, segment)))
    };
    client.round_trips("READ of 8 KiB (region registered each time)", read, again).await?;

    for (what, op, gib) in
        [("first touch", READ, 1), ("page cache", READ, 8), ("page cache", READ, 8), ("memfd", READ_MEMFD, 4)]
    {
        client.throughput(&pool, what, op, gib).await?;
    }
    let counters = rt::counters();
    println!("client core: {counters:?}");
    Ok(())
}

fn main() -> Outcome<()> {
    if let Some(dir) = std::env::args_os().nth(1) {
        pin(1)?;
        return rt::block_on(serve(Path::new(&dir)))?;
    }
    pin(0)?;
    let dir = tempfile::tempdir()?;
    let mut server = Command::new(std::env::current_exe()?)
        .arg(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(server.stdout.take().ok_or("no output of the server")?);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    rt::block_on(measure(dir.path(), line.trim().parse()?))??;
    lines.read_to_string(&mut line)?;
    server.wait()?;
    Ok(())
}
