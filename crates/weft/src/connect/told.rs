//! What a user is told of a wait is what holds.

use std::cell::Cell;
use std::time::Duration;

use weft_machine::{Listener, Pool, rt, sim};
use weft_rdma::Work;

use super::{Dial, Medium, WHOLE_LIMIT, channels, in_all, reach};
use crate::Failure;
use crate::args::{Connect, Transport};
use crate::url::Url;

/// Tells a story that ends when its wait does: how many seconds it was told of, and how many these were.
fn told_and_waited(story: impl Future<Output = ()>) -> (u64, u64) {
    let (end, waits) = sim::logged(1, async {
        story.await;
        rt::now()
    });
    let waits: Vec<_> = waits.into_iter().filter(|(_, told)| told.contains(" s at most")).collect();
    let [(told_at, told)] = &waits[..] else { panic!("told once: {waits:?}") };
    let seconds = told.strip_suffix(" s at most").and_then(|told| told.rsplit(' ').next()).unwrap();
    (seconds.parse().unwrap(), (end - *told_at).as_secs())
}

#[test]
fn a_port_of_rdma_that_is_silent_is_waited_for_as_long_as_is_told() {
    // One says nothing at all; the other sets iWARP up, and nothing of SMB Direct.
    for sets_up in [false, true] {
        let (told, waited) = told_and_waited(async move {
            let pool = &Pool::new(64 << 20);
            let listen = ([127, 0, 0, 1], 0).into();
            let (port, _server) = if sets_up {
                let provider = crate::providers::iwarp_provider(pool, true, None);
                let listener = provider.listen(listen).await.unwrap();
                let port = listener.local_addr().port();
                let first = Work::Recv { id: 1, buf: pool.alloc(4096).await };
                let server = rt::spawn(async move {
                    let request = listener.accept().await.unwrap().request().await.unwrap();
                    let _queue_pair = request.accept(Default::default(), vec![first]).await.unwrap();
                    std::future::pending::<()>().await;
                });
                (port, server)
            } else {
                let listener = Listener::bind(listen).unwrap();
                let port = listener.local_addr().port();
                let server = rt::spawn(async move {
                    let _silent = listener.accept().await.unwrap();
                    std::future::pending::<()>().await;
                });
                (port, server)
            };
            let url = Url::parse("smb://alice@127.0.0.1/data").unwrap().unwrap();
            let options = Connect::by(Transport::Iwarp);
            let ips = vec![[127, 0, 0, 1].into()];
            let (congestion, reached, until) = (None, Cell::new(None), rt::now() + WHOLE_LIMIT);
            let dial = Dial { url: &url, options: &options, pool, congestion, ips, reached, until };
            let begun = rt::now();
            assert!(channels::open(&dial, Medium::Iwarp, port).await.is_err());
            let limit = Duration::from_secs(10);
            assert!((limit..limit + Duration::from_secs(1)).contains(&(rt::now() - begun)));
        });
        assert_eq!(told, waited, "sets up: {sets_up}");
    }
}

#[test]
fn what_is_left_of_all_attempts_together_is_what_is_told() {
    let (told, waited) = told_and_waited(async {
        let begun = rt::now();
        let steps = async |until| {
            // Other transports and versions, say.
            rt::sleep(Duration::from_secs(80)).await;
            let never = std::future::pending::<Result<(), Failure>>();
            reach::patiently_until(until, Duration::from_secs(20), "NFS at nas:2049", never).await
        };
        let late = in_all("nas", steps).await.unwrap_err();
        assert_eq!(late.to_string(), "no answer in 90 s from nas, all attempts together");
        assert_eq!(rt::now() - begun, WHOLE_LIMIT);
    });
    assert_eq!((told, waited), (8, 8));
}
