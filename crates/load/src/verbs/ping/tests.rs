use std::rc::Rc;

use futures_util::join;
use weft_machine::Pool;
use weft_rdma::iwarp;
use weft_rdma::{ConnectParams, Provider, shm};

use super::*;

/// Both ends of a connection, the passive one with its receive buffers posted.
async fn pair(provider: &dyn Provider, pool: &Pool) -> (End, End) {
    let listener = provider.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = listener.local_addr();
    let accept = async {
        let request = listener.accept().await.unwrap().request().await.unwrap();
        request.accept(ConnectParams::default(), recvs(pool).unwrap()).await.unwrap()
    };
    let (passive, active) = join!(accept, provider.connect(addr, ConnectParams::default()));
    (End::new(passive, pool.clone()), End::new(active.unwrap().0, pool.clone()))
}

fn iwarp(pool: &Pool) -> Rc<dyn Provider> {
    Rc::new(iwarp::Provider::new(pool.clone(), iwarp::Config::default()))
}

fn run<F: AsyncFnOnce(End, End)>(make: impl FnOnce(&Pool) -> Rc<dyn Provider>, story: F) {
    rt::block_on(async {
        let pool = Pool::new(64 << 20);
        let provider = make(&pool);
        let (passive, active) = pair(&*provider, &pool).await;
        story(passive, active).await;
    })
    .unwrap();
}

async fn rounds_of_every_size(mut passive: End, active: End) {
    let client = async {
        let mut end = active;
        for size in [1, 2, 13, 64, 100, 4096, 65_536, MAX_SIZE] {
            let mut client = Client::new(end, size).unwrap();
            for _ in 0..3 {
                client.round().await.unwrap();
            }
            assert_eq!(client.rounds, 3);
            end = client.end;
        }
        let traffic = end.qp.traffic();
        end.close().await;
        traffic
    };
    let (served, traffic) = join!(serve(&mut passive), client);
    assert_eq!(served.unwrap(), 24);
    // The bytes travelled by RDMA: read from the client and written back, once each.
    let bytes = 3 * (1 + 2 + 13 + 64 + 100 + 4096 + 65_536 + u64::from(MAX_SIZE));
    assert_eq!((traffic.served, traffic.placed), ((bytes, 24), (bytes, 24)));
}

#[test]
fn bytes_go_there_and_back_over_iwarp() {
    run(iwarp, rounds_of_every_size);
}

#[test]
fn bytes_go_there_and_back_over_shared_memory() {
    let dir = tempfile::tempdir().unwrap();
    let config = shm::Config { dir: dir.path().join("weft"), ..shm::Config::default() };
    run(|pool| Rc::new(shm::Provider::new(pool.clone(), config)), rounds_of_every_size);
}

#[test]
fn a_byte_that_changed_on_the_way_is_found() {
    run(iwarp, async |mut passive: End, active: End| {
        let mut client = Client::new(active, 64).unwrap();
        let liar = async {
            let source = advert(&mut passive).await.unwrap();
            let into = passive.pool.try_alloc(64).unwrap();
            passive.post(Work::Read { id: 1, into, from: source }).unwrap();
            let (_, Done::Read { mut buf }) = passive.finished().await.unwrap() else { panic!("no Read") };
            buf[40] ^= 1;
            answer(&passive).unwrap();
            let sink = advert(&mut passive).await.unwrap();
            passive
                .post(Work::Write { id: 2, data: buf.freeze().into(), to: sink, signalled: false })
                .unwrap();
            answer(&passive).unwrap();
            passive
        };
        let (outcome, _passive) = join!(client.round(), liar);
        assert!(matches!(outcome, Err(PingError::Differs { round: 1, at: 40, .. })), "{outcome:?}");
    });
}

#[test]
fn a_round_that_is_too_large_is_refused_before_anything_is_read() {
    run(iwarp, async |mut passive: End, active: End| {
        let advert = Advert { address: 0, rkey: 1, size: MAX_SIZE + 1 };
        active.send(Bytes::copy_from_slice(&advert.emit())).unwrap();
        assert!(matches!(serve(&mut passive).await, Err(PingError::Size(size)) if size == MAX_SIZE + 1));
    });
}

#[test]
fn another_protocol_is_named_as_such() {
    run(iwarp, async |mut passive: End, active: End| {
        active.send(Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n")).unwrap();
        assert!(matches!(serve(&mut passive).await, Err(PingError::Malformed(_))));
    });
}

#[test]
fn the_text_is_a_c_string_of_the_whole_size() {
    assert_eq!(text(0, 20), b"rdma-ping-0: NOPQRS\0");
    assert_eq!(text(7, 1), b"\0");
    for (n, size) in [(0, 64), (1_000_000, 100), (3, 65_536)] {
        let text = text(n, size);
        assert_eq!(text.len(), size);
        assert_eq!(text.iter().position(|byte| *byte == 0), Some(size - 1));
    }
}
