use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use weft_machine::{Pool, rt};
use weft_rdma::{ConnectParams, Provider, iwarp, shm};
use weft_wire::perf::{Message, Reason};

use super::client::{Length, MeasureError, Measured, measure};
use super::report::{Row, header};
use super::*;
use crate::verbs::server::{Answers, serve};

/// A server of every workload on this core, and its address.
async fn server(provider: &dyn Provider, answers: Answers, pool: &Pool) -> std::net::SocketAddr {
    let listener = provider.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = listener.local_addr();
    let pool = pool.clone();
    rt::spawn(async move { serve(listener, answers, pool).await.unwrap() }).detach();
    addr
}

fn iwarp(pool: &Pool) -> Rc<dyn Provider> {
    Rc::new(iwarp::Provider::new(pool.clone(), iwarp::Config::default()))
}

fn plan(op: Op, mode: Mode, size: u32, depth: u16) -> Plan {
    Plan { op, mode, check: true, both_ways: false, depth, size }
}

async fn run(
    provider: &dyn Provider,
    addr: std::net::SocketAddr,
    plan: Plan,
    count: u64,
    pool: &Pool,
) -> Result<Measured, MeasureError> {
    measure(provider, addr, plan, Length::Count(count), pool, &|| false).await
}

/// Every operation, checked and unchecked, moves the requested bytes correctly.
fn every_plan(make: impl FnOnce(&Pool) -> Rc<dyn Provider>) {
    rt::block_on(async {
        let pool = Pool::new(256 << 20);
        let provider = make(&pool);
        let addr = server(&*provider, Answers::All, &pool).await;
        for op in [Op::Send, Op::Write, Op::Read] {
            for (mode, depth) in [(Mode::Latency, 1), (Mode::Bandwidth, 1), (Mode::Bandwidth, 7)] {
                for (size, count) in [(1, 50), (64, 50), (5000, 50), (300_000, 11)] {
                    for (check, both_ways) in [(true, false), (false, false), (true, true), (false, true)] {
                        let plan = Plan { check, both_ways, ..plan(op, mode, size, depth) };
                        if !allowed(&plan) {
                            assert!(both_ways && (op == Op::Send || mode == Mode::Latency));
                            continue;
                        }
                        let measured = run(&*provider, addr, plan, count, &pool).await.unwrap();
                        assert_eq!((measured.operations, measured.mismatches), (count, 0), "{plan:?}");
                        let ways = if both_ways { 2 } else { 1 };
                        assert_eq!(measured.bytes(), count * u64::from(size) * ways);
                        assert_eq!(measured.times.is_some(), mode == Mode::Latency);
                        assert!(measured.elapsed > Duration::ZERO);
                    }
                }
            }
        }
    })
    .unwrap();
}

#[test]
fn every_plan_over_iwarp() {
    every_plan(iwarp);
}

#[test]
fn every_plan_over_shared_memory() {
    let dir = tempfile::tempdir().unwrap();
    let config = shm::Config { dir: dir.path().join("weft"), ..shm::Config::default() };
    every_plan(|pool| Rc::new(shm::Provider::new(pool.clone(), config)));
}

#[test]
fn a_run_by_time_ends_and_may_be_stopped() {
    rt::block_on(async {
        let pool = Pool::new(64 << 20);
        let provider = iwarp(&pool);
        let addr = server(&*provider, Answers::All, &pool).await;
        let plan = plan(Op::Write, Mode::Bandwidth, 512, 4);
        let length = Length::Time(Duration::from_millis(20));
        let measured = measure(&*provider, addr, plan, length, &pool, &|| false).await.unwrap();
        assert!(measured.elapsed >= Duration::from_millis(20) && measured.operations > 0);
        // First called in the warm-up, then after each batch.
        let asked = Cell::new(0);
        let stop = || asked.replace(asked.get() + 1) >= 2;
        let length = Length::Time(Duration::from_secs(3600));
        let measured = measure(&*provider, addr, plan, length, &pool, &stop).await.unwrap();
        assert!(measured.operations > 0 && measured.elapsed < Duration::from_secs(3600));
    })
    .unwrap();
}

#[test]
fn plans_beyond_the_limits_are_refused_with_the_limits() {
    rt::block_on(async {
        let pool = Pool::new(64 << 20);
        let provider = iwarp(&pool);
        let addr = server(&*provider, Answers::All, &pool).await;
        for plan in [
            plan(Op::Write, Mode::Bandwidth, MAX_SIZE + 1, 1),
            plan(Op::Write, Mode::Bandwidth, 0, 1),
            plan(Op::Read, Mode::Bandwidth, 64, MAX_DEPTH + 1),
            plan(Op::Read, Mode::Bandwidth, 64, 0),
            plan(Op::Send, Mode::Bandwidth, MAX_SIZE, MAX_DEPTH),
            plan(Op::Send, Mode::Latency, 64, 2),
        ] {
            assert!(!allowed(&plan));
            match run(&*provider, addr, plan, 1, &pool).await {
                Err(MeasureError::Refused(refusal)) => {
                    assert_eq!((refusal.reason, refusal.max_size), (Reason::Limits, MAX_SIZE));
                }
                other => panic!("{plan:?}: {other:?}"),
            }
        }
    })
    .unwrap();
}

#[test]
fn another_version_is_refused_by_name() {
    rt::block_on(async {
        let pool = Pool::new(64 << 20);
        let provider = iwarp(&pool);
        let addr = server(&*provider, Answers::All, &pool).await;
        let mut data = plan(Op::Send, Mode::Latency, 8, 1).emit();
        data[9] = 77;
        let params = ConnectParams { private_data: data.into(), ..ConnectParams::default() };
        let Err(weft_rdma::ConnectError::Rejected(why)) = provider.connect(addr, params).await else {
            panic!("a plan of another version was accepted")
        };
        let refusal = weft_wire::perf::Refusal::parse(&why).unwrap();
        assert_eq!((refusal.reason, refusal.version), (Reason::Version, weft_wire::perf::VERSION));
    })
    .unwrap();
}

#[test]
fn a_server_of_pings_is_told_apart() {
    rt::block_on(async {
        let pool = Pool::new(64 << 20);
        let provider = iwarp(&pool);
        let addr = server(&*provider, Answers::Pings, &pool).await;
        let outcome = run(&*provider, addr, plan(Op::Send, Mode::Latency, 8, 1), 1, &pool).await;
        assert!(matches!(outcome, Err(MeasureError::Connect(_))), "{outcome:?}");
    })
    .unwrap();
}

#[test]
fn wrong_bytes_are_counted() {
    rt::block_on(async {
        let pool = Pool::new(64 << 20);
        let provider = iwarp(&pool);
        let listener = provider.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let addr = listener.local_addr();
        let theirs = pool.clone();
        // Answers Reads from regions whose bytes are all wrong.
        rt::spawn(async move {
            let request = listener.accept().await.unwrap().request().await.unwrap();
            let plan = Plan::parse(request.private_data()).unwrap();
            let recv = || weft_rdma::Work::Recv { id: 0, buf: theirs.try_alloc(4096).unwrap() };
            let welcome = weft_wire::perf::Welcome.emit().into();
            let params = ConnectParams { private_data: welcome, ..ConnectParams::default() };
            let qp = request.accept(params, (0..8).map(|_| recv()).collect()).await.unwrap();
            let mut end = crate::verbs::end::End::new(qp, theirs.clone());
            let addresses: Vec<_> = (0..slots(&plan))
                .map(|_| {
                    let mut buf = end.buffer(plan.size as usize).unwrap();
                    buf.fill(0x11);
                    super::exchange::address_of(&end.register(buf, weft_rdma::Access::RemoteRead).unwrap())
                })
                .collect();
            let mut ready = Some(Message::Ready { addresses });
            while let Ok(buf) = end.message().await {
                let answer = match Message::parse(&buf).unwrap() {
                    Message::Begin { .. } => ready.take().unwrap(),
                    Message::Batch { .. } => Message::Go,
                    _ => Message::Done { operations: 0, mismatches: 0, cpu_ns: 0, addresses: Vec::new() },
                };
                end.recv(buf).unwrap();
                end.send(answer.emit().into()).unwrap();
            }
        })
        .detach();
        let measured =
            run(&*provider, addr, plan(Op::Read, Mode::Bandwidth, 64, 4), 10, &pool).await.unwrap();
        assert!(measured.mismatches >= 10, "{measured:?}");
        assert!(Row::from(&measured).line().contains("WRONG"));
    })
    .unwrap();
}

#[test]
fn a_row_lies_under_its_header() {
    let times = crate::verbs::times::Times::default();
    assert_eq!(times.quantiles(), None);
    for mode in [Mode::Latency, Mode::Bandwidth] {
        let mut times = crate::verbs::times::Times::default();
        (1..=100).for_each(|us| times.record(Duration::from_micros(us)));
        let measured = Measured {
            plan: Plan { check: false, ..plan(Op::Send, mode, 65_536, 1) },
            operations: 1_000_000,
            mismatches: 0,
            elapsed: Duration::from_secs(2),
            peak_rate: 600_000.0,
            times: times.quantiles(),
            client_cpu: Duration::from_secs(1),
            server_cpu: Duration::from_secs(1),
        };
        let row = Row::from(&measured);
        assert_eq!(row.line().len(), header(mode).len(), "{}\n{}", header(mode), row.line());
        match (row.latency, row.bandwidth) {
            // Half of the round trip.
            (Some(q), None) => assert!((q.p50_us - 25.0).abs() < 0.1),
            (None, Some(b)) => assert!((b.average_bytes_per_s - 65_536.0 * 500_000.0).abs() < 1.0),
            other => panic!("{other:?}"),
        }
    }
}
