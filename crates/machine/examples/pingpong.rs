//! Measures a TCP round trip between two cores, with and without busy polling.
//!
//! `cargo run --release -p weft-machine --example pingpong [-- SECONDS]`. Both cores are threads of this process,
//! pinned to different CPUs; congestion control is reno on both sides.

use std::io::{self, IoSliceMut};
use std::time::{Duration, Instant};

use bytes::Bytes;
use weft_machine::rt::{self, Cores, CoresOptions, Driver, Options};
use weft_machine::{Listener, Stream};

async fn recv_exact(stream: &Stream, into: &mut [u8]) -> io::Result<bool> {
    let mut done = 0;
    while done < into.len() {
        match stream.recv(&mut [IoSliceMut::new(&mut into[done..])]).await? {
            0 => return Ok(false),
            n => done += n,
        }
    }
    Ok(true)
}

async fn echo(stream: Stream, size: usize) -> io::Result<()> {
    let mut buffer = vec![0; size];
    let answer = [Bytes::from(vec![7; size])];
    while recv_exact(&stream, &mut buffer).await? {
        stream.send_all(&answer).await?;
    }
    Ok(())
}

async fn ping(stream: Stream, size: usize, seconds: f64) -> io::Result<Vec<u64>> {
    let mut buffer = vec![0; size];
    let question = [Bytes::from(vec![9; size])];
    let mut nanos = Vec::new();
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end {
        let start = Instant::now();
        stream.send_all(&question).await?;
        if !recv_exact(&stream, &mut buffer).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        nanos.push(start.elapsed().as_nanos() as u64);
    }
    Ok(nanos)
}

fn measure(size: usize, core: Options, seconds: f64) -> io::Result<()> {
    let label = format!("{:?}, spin {:?}", core.driver, core.spin_max);
    let cores = Cores::start_with(2, "pingpong", &CoresOptions { pin: true, core })?;
    let (tell, told) = std::sync::mpsc::channel();
    let (listening, addr) = std::sync::mpsc::channel();
    cores.run(0, move || async move {
        let serve = async {
            let listener = Listener::bind(([127, 0, 0, 1], 0).into())?;
            listening.send(listener.local_addr()).map_err(io::Error::other)?;
            echo(Stream::from_socket(listener.accept().await?)?, size).await
        };
        serve.await.expect("echo");
    });
    let addr = addr.recv().map_err(io::Error::other)?;
    cores.run(1, move || async move {
        let result = async { ping(Stream::connect(addr).await?, size, seconds).await };
        tell.send((result.await, rt::counters())).expect("the main thread waits");
    });
    let (nanos, counters) = told.recv().map_err(io::Error::other)?;
    let mut nanos = nanos?;
    nanos.sort_unstable();
    let at = |part: f64| nanos[((nanos.len() - 1) as f64 * part) as usize] as f64 / 1000.0;
    println!(
        "{size:>5} B  {label:<22}  {:>7} round trips  p50 {:>6.1}  p99 {:>6.1} us   {counters:?}",
        nanos.len(),
        at(0.5),
        at(0.99),
    );
    Ok(())
}

fn idle(core: Options) -> io::Result<()> {
    let label = format!("{:?}, spin {:?}", core.driver, core.spin_max);
    let cpu = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    rt::block_on_with(&core, async {
        let before = cpu();
        // A heartbeat each millisecond is busier than any idle server.
        for _ in 0..1000 {
            rt::sleep(Duration::from_millis(1)).await;
        }
        let after = cpu();
        let nanos = (after.tv_sec - before.tv_sec) * 1_000_000_000 + after.tv_nsec - before.tv_nsec;
        println!(
            "idle with a 1 ms timer, {label}: {:.2} ms CPU a second, {:?}",
            nanos as f64 / 1e6,
            rt::counters()
        );
    })
}

fn main() -> io::Result<()> {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(2.0);
    let spins = [Duration::ZERO, Duration::from_micros(20), rt::SPIN_MAX, Duration::from_micros(200)];
    for driver in [Driver::IoUring, Driver::Epoll] {
        for size in [8, 8192] {
            for spin_max in spins {
                measure(size, Options { driver, spin_max }, seconds)?;
            }
        }
        idle(Options { driver, spin_max: rt::SPIN_MAX })?;
    }
    Ok(())
}
