//! The servers of `weft rdma`: listen with every requested provider, print `ready`, serve until a signal.
//! `weft_load::verbs::server` handles connections.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use futures_util::future::try_join_all;
use serde_json::json;
use weft_load::verbs::server::{self, Answers};
use weft_machine::{Pool, rt};

use super::raise_descriptors;
use crate::Failure;
use crate::args::{Iwarp, Listen, ProviderKind};
use crate::listen::Stop;
use crate::providers;
use crate::serve::error::{CannotListen, Choice};
use crate::signals::Signals;

/// The parameters of a server.
pub(crate) struct Plan {
    pub listen: Listen,
    pub providers: Vec<ProviderKind>,
    pub iwarp: Iwarp,
    pub json: bool,
    pub answers: Answers,
    pub core: rt::Options,
}

/// Serves until a signal.
pub(crate) fn run(mut plan: Plan) -> Result<ExitCode, Failure> {
    let asked = !plan.providers.is_empty();
    if !asked {
        plan.providers = vec![ProviderKind::Iwarp, ProviderKind::Shm];
    }
    raise_descriptors()?;
    let mut signals = Signals::new()?;
    signals.catch()?;
    crate::signals::reap_orphans()?;
    let stop = Stop::default();
    let stopper = stop.clone();
    std::thread::spawn(move || {
        // A broken pipe is as good a reason to end as a signal.
        let _ = signals.wait();
        stopper.stop();
    });
    let core = plan.core.clone();
    rt::block_on_with(&core, async {
        let pool = Pool::new(server::BUFFERS);
        let mut addr = SocketAddr::new(plan.listen.listen, plan.listen.port);
        let (mut names, mut serving) = (Vec::new(), Vec::new());
        for kind in &plan.providers {
            let provider = providers::of_kind(*kind, &pool, &plan.iwarp)?;
            match provider.listen(addr).await {
                Ok(listener) => {
                    // The first picks the port, the others use the same number.
                    addr.set_port(listener.local_addr().port());
                    names.push(provider.name());
                    serving.push(server::serve(listener, plan.answers, pool.clone()));
                }
                Err(e) if !asked && *kind == ProviderKind::Shm => {
                    tracing::warn!("shared memory is not served: {e}");
                }
                Err(e) => {
                    let choice = Choice::option("--port N");
                    return Err(CannotListen::At { addr, choice, source: e }.into());
                }
            }
        }
        let mut stdout = std::io::stdout();
        if plan.json {
            let ready = json!({
                "ready": true, "pid": std::process::id(), "listen": addr.ip(), "port": addr.port(),
                "providers": names, "driver": rt::driver(),
            });
            writeln!(stdout, "{ready}")?;
        } else {
            let (port, ip) = (addr.port(), addr.ip());
            writeln!(stdout, "ready port={port} listen={ip} providers={}", names.join(","))?;
        }
        stdout.flush()?;
        if let Some(ended) = stop.or(try_join_all(serving)).await {
            ended?;
        }
        Ok(ExitCode::SUCCESS)
    })?
}
