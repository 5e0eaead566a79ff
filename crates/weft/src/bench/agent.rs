//! `weft bench agent`: runs a part of the clients on another host.
//!
//! An agent serves one `weft bench` (the conductor) at a time: its clients run on its host, and it returns their
//! counts as histograms with fixed buckets. Beside a server it reports the server's resource use instead. The clients
//! end with their conversation. Passwords never come from the network: the agent uses its own WEFT_PASSWORD.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use weft_load::cpu;
use weft_load::host::Counters;
use weft_load::job::MANY;
use weft_load::measure::{self, Clients};
use weft_load::result::EndSample;

use super::crew::{Crew, Running};
use super::messages::{Answer, Ask, TOKEN};
use super::secret::{self, Side, Talk};
use crate::Failure;
use crate::args::AgentOf;
use crate::state_of_command::state_of_command;
use crate::status;

/// Runs the command.
pub(super) fn run(args: AgentOf) -> Result<ExitCode, Failure> {
    let token = match std::env::var(TOKEN) {
        Ok(token) if token.len() >= 16 => token,
        Ok(_) => return Err(format!("{TOKEN} is too short to be a secret: 16 characters or more").into()),
        Err(_) => secret::generate()?,
    };
    let server = observed(&args)?;
    let listener = TcpListener::bind(args.listen).map_err(|e| format!("{}: {e}", args.listen))?;
    let at = listener.local_addr()?;
    say!("agent of weft bench on {at}")?;
    if std::env::var(TOKEN).is_err() {
        say!("token {token}")?;
    }
    say!(
        "on the other host: {TOKEN}={} weft bench smb HOST {} {at}",
        if std::env::var(TOKEN).is_ok() { "..." } else { &token },
        if server.is_some() { "--server-agent" } else { "--agent" }
    )?;
    let stop = crate::signals::drain_on_signals()?;
    listener.set_nonblocking(true)?;
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, from)) => {
                stream.set_nonblocking(false)?;
                converse(stream, from, &token, server);
                if args.once {
                    break;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(20)),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The server to observe: the named one, or the only one of this user on this host.
fn observed(args: &AgentOf) -> Result<Option<measure::Server>, Failure> {
    if let Some(pid) = args.server_pid {
        measure::server_cpu(measure::Server { pid }).map_err(|e| format!("process {pid}: {e}"))?;
        return Ok(Some(measure::Server { pid }));
    }
    if !args.server {
        return Ok(None);
    }
    let servers = status::chosen(&state_of_command(args.state_dir.as_deref())?, None)?;
    match &servers[..] {
        [one] => Ok(Some(measure::Server { pid: one.pid })),
        many => {
            let pids: Vec<String> = many.iter().map(|server| server.pid.to_string()).collect();
            Err(format!(
                "several servers run on this host: choose one with --server-pid: {}",
                pids.join(", ")
            )
            .into())
        }
    }
}

fn converse(stream: TcpStream, from: SocketAddr, token: &str, server: Option<measure::Server>) {
    let mut talk = match Talk::begin(stream, Side::Agent, token) {
        Ok(talk) => talk,
        Err(e) => return note!("{from}: {e}"),
    };
    note!("{from}: measuring");
    let mut hands = Hands { crew: None, running: None, cpu: Duration::ZERO, server, since: None };
    loop {
        let ask = match talk.receive::<Ask>() {
            Ok(ask) => ask,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(e) => {
                note!("{from}: {e}");
                break;
            }
        };
        let answer = hands.answer(ask).unwrap_or_else(|e| Answer::Failed(e.to_string()));
        if let Err(e) = talk.send(&answer) {
            note!("{from}: {e}");
            break;
        }
    }
    note!("{from}: closed the connection");
}

/// The clients of a conversation.
struct Hands {
    crew: Option<Crew>,
    running: Option<Running>,
    /// CPU time of this process when counting began; afterwards, the time used while counting.
    cpu: Duration,
    /// The observed server.
    server: Option<measure::Server>,
    /// This host's counters, and the server's processor time, when observation began.
    since: Option<(Counters, Duration)>,
}

impl Drop for Hands {
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            running.stop();
        }
    }
}

impl Hands {
    fn crew(&self) -> Result<&Crew, Failure> {
        self.crew.as_ref().ok_or_else(|| "no threads were requested".into())
    }

    fn running(&mut self) -> Result<&mut Running, Failure> {
        self.running.as_mut().ok_or_else(|| "no client is running".into())
    }

    fn server(&self) -> Result<measure::Server, Failure> {
        self.server.ok_or_else(|| {
            "it was started without a server: weft bench agent --server (or --server-pid PID) on that host".into()
        })
    }

    fn answer(&mut self, ask: Ask) -> Result<Answer, Failure> {
        match ask {
            Ask::Threads { threads, waiting } if (1..=MANY).contains(&threads) => {
                self.crew = None;
                let cores = std::thread::available_parallelism()?.get();
                // The conductor handles interrupts.
                self.crew = Some(Crew::start(threads as usize, cores, waiting, &Arc::default())?);
            }
            Ask::Threads { threads, .. } => return Err(format!("cannot start {threads} threads").into()),
            Ask::Open { thread, key, config, files } => {
                let config = config.received()?;
                self.crew()?.open(thread as usize, key, &config, files)?;
            }
            Ask::Drive { key, workloads } => {
                let crew = self.crew()?;
                if workloads.len() > crew.len() {
                    return Err("more workloads than threads".into());
                }
                self.running = Some(crew.drive(key, workloads));
            }
            Ask::Progress => {
                let running = self.running()?;
                return Ok(Answer::Progress { operations: running.operations(), failed: running.failed() });
            }
            Ask::Begin => {
                self.cpu = cpu::time_of(std::process::id())?;
                self.running()?.begin();
            }
            Ask::End => {
                self.running()?.end();
                self.cpu = cpu::time_of(std::process::id())?.saturating_sub(self.cpu);
            }
            Ask::Stop => self.running()?.stop(),
            Ask::Counted => {
                let running = self.running.take().ok_or("no client is running")?;
                return Ok(Answer::Counted { counted: Box::new(running.counted()?), cpu: self.cpu });
            }
            Ask::Close(key) => self.crew()?.close(key)?,
            Ask::Observe => {
                let server = self.server()?;
                self.since = Some((Counters::now()?, measure::server_cpu(server)?));
            }
            Ask::Observed => {
                let server = self.server()?;
                let (host, cpu) = self.since.take().ok_or("nothing was observed")?;
                let spent = measure::server_cpu(server)?.saturating_sub(cpu);
                let host = Counters::now()?.since(&host);
                return Ok(Answer::Observed(Box::new(EndSample {
                    cpu: Some(spent),
                    // By this host's clock: the conductor's may differ.
                    cycles: Some((spent.as_secs_f64() * cpu::processor()?.1) as u64),
                    idle_percent: host.idle_percent,
                    interrupts: Some(host.interrupts),
                    softirqs: Some(host.softirqs),
                    context_switches: Some(host.context_switches),
                    memory_bytes: Some(measure::server_memory(server)?),
                    ..EndSample::default()
                })));
            }
        }
        Ok(Answer::Done)
    }
}
