//! What a user is told of a wait is what holds.

use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};
use weft_machine::sim::Sim;
use weft_machine::{Listener, Pool, Time, rt};
use weft_rdma::Work;

use super::{Dial, Medium, WHOLE_LIMIT, channels, in_all, reach};
use crate::Failure;
use crate::args::{Connect, Transport};
use crate::url::Url;

/// The waits that one story tells of, each with its moment.
#[derive(Clone, Default)]
struct Waits(Arc<Mutex<Vec<(Time, String)>>>);

impl Subscriber for Waits {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        if message.0.contains(" s at most") {
            self.0.lock().unwrap().push((rt::now(), message.0));
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Tells a story that ends when its wait does: how many seconds it was told of, and how many these were.
fn told_and_waited(story: impl Future<Output = ()>) -> (u64, u64) {
    let waits = Waits::default();
    let end = tracing::subscriber::with_default(waits.clone(), || {
        Sim::new(1).run(async {
            story.await;
            rt::now()
        })
    });
    let waits = waits.0.lock().unwrap();
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
