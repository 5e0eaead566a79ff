//! Measures the server's cost of a READ: `read_cost SERVER_PID PORT tcp|iwarp|shm SIZE DEPTH SECONDS [write]`.
//!
//! The server is the example `serve`, or any that exports "/data"; its CPU time is read from its process clock. READs
//! are at random offsets of one file of 64 MiB in the page cache.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weft_machine::cpu::time_of;
use weft_machine::{Pool, Stream, rt};
use weft_nfs::client::Credential;
use weft_nfs::client::{Mount, Options, SetAttributes};
use weft_rdma::{Provider, iwarp, shm};
use weft_transport::{Channel, record, rpcrdma};

const FILE_BYTES: usize = 64 << 20;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [pid, port, over, size, depth, seconds, rest @ ..] = &args[..] else {
        return Err("usage: read_cost SERVER_PID PORT tcp|iwarp|shm SIZE DEPTH SECONDS [write]".into());
    };
    let writes = rest.first().is_some_and(|word| word == "write");
    let (pid, size, depth): (u32, usize, u64) = (pid.parse()?, size.parse()?, depth.parse()?);
    let time = Duration::from_secs_f64(seconds.parse()?);
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse()?));
    rt::block_on(async move {
        let pool = Pool::new(512 << 20);
        let channel = connect(addr, over, &pool).await?;
        let options = Options { credential: Credential::None, pool: pool.clone() };
        let mount = Mount::connect(channel, "/data", options).await?;
        let file = Rc::new(mount.create("read_cost", SetAttributes::default()).await?);
        if file.stat().await?.size != FILE_BYTES as u64 {
            file.write(0, Bytes::from(vec![7; FILE_BYTES])).await?;
        }
        let (operations, start) = (Rc::new(Cell::new(0_u64)), Instant::now());
        let cpu = time_of(pid)?;
        let tasks: Vec<_> = (0..depth)
            .map(|task| {
                let (file, operations, pool) = (file.clone(), operations.clone(), pool.clone());
                rt::spawn(async move {
                    let mut random = task.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                    while start.elapsed() < time {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let offset = (random as usize % (FILE_BYTES / size) * size) as u64;
                        if writes {
                            let mut data = pool.alloc(size).await;
                            data.set_len(size);
                            file.write_buf(offset, data).await?;
                        } else if file.read_chain(offset, size).await?.iter().map(Bytes::len).sum::<usize>()
                            != size
                        {
                            return Err("short read".into());
                        }
                        operations.set(operations.get() + 1);
                    }
                    Ok::<_, Failure>(())
                })
            })
            .collect();
        for task in tasks {
            task.await?;
        }
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), (time_of(pid)? - cpu).as_secs_f64());
        let operations = operations.get() as f64;
        println!(
            "{over} {size} B x {depth}: {:.0} op/s, {:.2} GB/s, mean {:.1} us, server {:.2} us CPU/op, {:?}",
            operations / seconds,
            operations * size as f64 / seconds / 1e9,
            seconds * 1e6 * depth as f64 / operations,
            cpu * 1e6 / operations,
            mount.channel().traffic(),
        );
        Ok(())
    })?
}

async fn connect(addr: SocketAddr, over: &str, pool: &Pool) -> Result<Rc<dyn Channel>, Failure> {
    let provider: Box<dyn Provider> = match over {
        "tcp" => {
            let stream = Stream::connect(addr).await?;
            return Ok(record::Record::channel(stream, pool.clone(), record::Config::default()));
        }
        "iwarp" => Box::new(iwarp::Provider::new(pool.clone(), iwarp::Config::default())),
        "shm" => Box::new(shm::Provider::new(pool.clone(), shm::Config::default())),
        other => return Err(format!("unknown transport {other}").into()),
    };
    Ok(rpcrdma::connect(&*provider, addr, rpcrdma::Config::default(), pool.clone()).await?)
}
