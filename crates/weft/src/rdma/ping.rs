//! `weft rdma ping`: rounds of RDMA Read and RDMA Write against a server, compared byte by byte.
//! `weft_load::verbs::ping` makes the rounds, this file the summary.

use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::future::{Either, select};
use serde_json::json;
use weft_load::verbs::end::{End, EndError};
use weft_load::verbs::patience::ANSWER_LIMIT;
use weft_load::verbs::ping::{self, Client};
use weft_load::verbs::server::Answers;
use weft_load::verbs::times::Times;
use weft_machine::{Pool, rt};
use weft_rdma::ConnectParams;

use super::server;
use crate::Failure;
use crate::args::{Ping, ProviderKind};
use crate::connect::reach;
use crate::misuse::Misuse;
use crate::providers;
use crate::signals::{raised, stop_on_signals, unless_stopped};

/// Memory for the two regions and the receive buffers.
const BUFFERS: usize = 64 << 20;
/// How long closing the connection may take: a signal ends the command within a second.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(args: Ping) -> Result<ExitCode, Failure> {
    let Some(host) = args.host.clone() else {
        let Ping { listen, provider: providers, iwarp, json, .. } = args;
        let answers = Answers::Pings;
        return server::run(server::Plan {
            listen,
            providers,
            iwarp,
            json,
            answers,
            core: rt::Options::default(),
        });
    };
    let kind = match args.provider[..] {
        [] => ProviderKind::Iwarp,
        [kind] => kind,
        _ => return Err(Misuse::new("a ping uses one provider: give one --provider").into()),
    };
    let size = args.size;
    let stopped = stop_on_signals()?;
    rt::block_on(async {
        let pool = Pool::new(BUFFERS);
        let provider = providers::of_kind(kind, &pool, &args.iwarp)?;
        let connected = unless_stopped(&stopped, async {
            let addresses = host.addresses(ping::PORT).await?;
            let connecting = async {
                let connect = async |addr| provider.connect(addr, ConnectParams::default()).await;
                reach::first(&addresses, connect).await.map_err(|failed| {
                    let told = reach::told(&host.name, host.port.unwrap_or(ping::PORT), &failed);
                    format!("{told} over {}", provider.name()).into()
                })
            };
            let whom = format!("an answer from {host} over {}", provider.name());
            let connected = reach::patiently(ANSWER_LIMIT, whom, connecting).await;
            connected.map_err(|e| format!("{e}; on that host: weft rdma ping --server").into())
        });
        let (addr, (qp, _)) = connected.await?;
        if !args.json {
            let caps = qp.caps();
            let name = provider.name();
            say!(
                "PING {host} ({addr}) over {name}: {size} bytes a round, IRD {}, ORD {}",
                caps.ird,
                caps.ord
            )?;
        }
        let traffic = qp.clone();
        let end = End::new(qp, pool);
        let heard = end.heard();
        let mut client = Client::new(end, size)?;
        let mut times = Times::default();
        let rounds = async {
            while times.count() != args.count {
                let time = match client.round().await {
                    Ok(time) => time,
                    Err(e) => return Ok(Some(e)),
                };
                times.record(time);
                if !args.quiet && !args.json {
                    let (round, us) = (times.count(), time.as_secs_f64() * 1e6);
                    say!("{size} bytes there and back, unchanged: round={round} time={us:.1} us")?;
                }
            }
            Ok::<_, Failure>(None)
        };
        // A signal ends a round halfway: the server may never answer it.
        let whom = format!("the answer of {host}");
        let failure =
            match select(pin!(heard.within(ANSWER_LIMIT, &whom, rounds)), pin!(raised(&stopped))).await {
                Either::Left((Ok(ended), _)) => ended?,
                Either::Left((Err(silent), _)) => Some(EndError::from(silent).into()),
                Either::Right(_) => None,
            };
        let traffic = traffic.traffic();
        if rt::timeout(CLOSE_LIMIT, client.close()).await.is_err() {
            tracing::debug!("{host} did not acknowledge the close");
        }
        let rounds = times.count();
        if rounds == 0 && failure.is_none() {
            return Err(format!("interrupted before {host} ({addr}) had answered a round").into());
        }
        if args.json {
            let outcome = json!({
                "address": addr, "provider": provider.name(), "size": size, "rounds": rounds,
                "intact": failure.is_none(), "error": failure.as_ref().map(ToString::to_string),
                "round_trip": times.quantiles(),
                "bytes_read_by_peer": traffic.served.0, "bytes_written_by_peer": traffic.placed.0,
            });
            say!("{outcome}")?;
        } else {
            say!("--- {host} RDMA ping statistics ---")?;
            say!(
                "{rounds} rounds unchanged; the peer read {} bytes by RDMA Read and wrote {} by RDMA Write",
                traffic.served.0,
                traffic.placed.0
            )?;
            if let Some(q) = times.quantiles() {
                let (min, p50, p99, max) = (q.min_us, q.p50_us, q.p99_us, q.max_us);
                say!("round min/p50/p99/max = {min:.1}/{p50:.1}/{p99:.1}/{max:.1} us")?;
            }
        }
        match failure {
            None => Ok(ExitCode::SUCCESS),
            Some(_) if args.json => Ok(ExitCode::FAILURE),
            Some(e) => Err(format!("{host} ({addr}): {e}").into()),
        }
    })?
}
