//! All clients of a job: threads of this process and of agents on other hosts, numbered consecutively.
//!
//! Clients go to the agents first, one each; the rest run in this process. This file owns the conversations with the
//! agents.

use std::cell::{Cell, RefCell};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use weft_load::job::Job;
use weft_load::measure::Clients;
use weft_load::result::EndSample;
use weft_load::run::Counted;
use weft_load::workload::Workload;

use super::crew::{ClientConfig, Crew, Named, Running, Waiting};
use super::messages::{Answer, Ask, PORT, TOKEN, WireConfig};
use super::secret::{Side, Talk};
use crate::Failure;
use crate::connect::Agreed;
use crate::host::Host;

/// An agent that does not answer within this time counts as absent.
const PATIENCE: Duration = Duration::from_secs(5);

/// An agent that knows our token.
struct Agent {
    name: String,
    talk: RefCell<Talk>,
    /// The number of its first thread, and its number of threads.
    first: usize,
    threads: usize,
}

impl Agent {
    /// Connects to an agent that runs clients.
    fn hire(host: &Host, first: usize, threads: usize, waiting: Waiting) -> Result<Agent, Failure> {
        let agent = Agent { first, threads, ..Agent::meet(host)? };
        agent.ask(Ask::Threads { threads: u32::try_from(threads)?, waiting })?;
        Ok(agent)
    }

    fn meet(host: &Host) -> Result<Agent, Failure> {
        let name = host.to_string();
        let token = std::env::var(TOKEN)
            .map_err(|_| format!("agents require a token: set {TOKEN}=... (`weft bench agent` prints it)"))?;
        let talk = || -> Result<Talk, Failure> {
            let addresses = host.resolve(PORT)?;
            let mut tried = addresses.iter().map(|addr| TcpStream::connect_timeout(addr, PATIENCE));
            let first = tried.next().ok_or("it has no address")?;
            let stream = first
                .or_else(|e| tried.find_map(Result::ok).ok_or(e))
                .map_err(|e| format!("{e} (is `weft bench agent --listen ...` running there?)"))?;
            Ok(Talk::begin(stream, Side::Conductor, &token)?)
        };
        let talk = talk().map_err(|e| format!("agent {name}: {e}"))?;
        Ok(Agent { name, talk: RefCell::new(talk), first: 0, threads: 0 })
    }

    fn ask(&self, ask: Ask) -> Result<Answer, Failure> {
        let talk = &mut *self.talk.borrow_mut();
        let exchange = talk.send(&ask).and_then(|()| talk.receive());
        match exchange.map_err(|e| format!("agent {}: {e}", self.name))? {
            Answer::Failed(why) => Err(format!("agent {}: {why}", self.name).into()),
            answer => Ok(answer),
        }
    }
}

/// An agent on the server's host that reports the server's resource use.
pub(crate) struct Observer(Agent);

impl Observer {
    /// Connects to it; if it observes nothing, the error says what to type on its host.
    pub(crate) fn meet(host: &Host) -> Result<Observer, Failure> {
        let observer = Observer(Agent::meet(host)?);
        observer.0.ask(Ask::Observe)?;
        Ok(observer)
    }

    /// The server's resource use since counting began.
    pub(crate) fn observed(&self) -> Result<EndSample, Failure> {
        match self.0.ask(Ask::Observed)? {
            Answer::Observed(end) => Ok(*end),
            other => Err(format!("unexpected answer of agent {}: {other:?}", self.0.name).into()),
        }
    }
}

/// The clients of a job.
pub(crate) struct Team {
    /// Threads of this process; they also create and remove files.
    pub here: Crew,
    /// How many of them are clients.
    threads_here: usize,
    agents: Vec<Agent>,
}

impl Team {
    /// Starts them. `cores` are for the threads of this process.
    pub(crate) fn start(
        job: &Job,
        agents: &[Host],
        cores: usize,
        waiting: Waiting,
        stop: &Arc<AtomicBool>,
    ) -> Result<Team, Failure> {
        let threads = job.threads as usize;
        let here = (job.clients as usize).saturating_sub(agents.len()) * threads;
        let meet = |(i, host)| Agent::hire(host, here + i * threads, threads, waiting);
        let agents = agents.iter().enumerate().map(meet).collect::<Result<Vec<_>, Failure>>()?;
        Ok(Team { here: Crew::start(here.max(1), cores, waiting, stop)?, threads_here: here, agents })
    }

    /// The number of client threads.
    pub(crate) fn len(&self) -> usize {
        self.threads_here + self.agents.iter().map(|agent| agent.threads).sum::<usize>()
    }

    /// How many of them are in this process.
    pub(crate) fn here(&self) -> usize {
        self.threads_here
    }

    /// Connects client thread `i` as client number `key`. Only local clients return the negotiated parameters.
    pub(crate) fn open(
        &self,
        i: usize,
        key: u32,
        config: &ClientConfig,
        files: Vec<Named>,
    ) -> Result<Option<Agreed>, Failure> {
        if i < self.threads_here {
            return self.here.open(i, key, config, files).map(Some);
        }
        let holds = |agent: &&Agent| (agent.first..agent.first + agent.threads).contains(&i);
        let agent = self.agents.iter().find(holds).ok_or("there is no such client")?;
        let thread = u32::try_from(i - agent.first)?;
        agent.ask(Ask::Open { thread, key, config: WireConfig::of(config), files })?;
        Ok(None)
    }

    /// Closes all clients of this number.
    pub(crate) fn close(&self, key: u32) -> Result<(), Failure> {
        self.here.close(key)?;
        self.agents.iter().try_for_each(|agent| agent.ask(Ask::Close(key)).map(drop))
    }

    /// Starts all clients of this number, each with its workload.
    pub(crate) fn drive<'a>(
        &'a self,
        key: u32,
        workloads: &[Workload],
        observer: Option<&'a Observer>,
    ) -> Result<Together<'a>, Failure> {
        let (mine, theirs) = workloads.split_at(self.threads_here.min(workloads.len()));
        for (agent, workloads) in
            self.agents.iter().zip(theirs.chunks(self.agents.first().map_or(1, |a| a.threads)))
        {
            agent.ask(Ask::Drive { key, workloads: workloads.to_vec() })?;
        }
        let here = (!mine.is_empty()).then(|| self.here.drive(key, mine.to_vec()));
        Ok(Together {
            here,
            agents: &self.agents,
            observer,
            observed: None,
            error: RefCell::default(),
            ended: Cell::new(false),
        })
    }
}

/// All of them under load.
pub(crate) struct Together<'a> {
    here: Option<Running>,
    agents: &'a [Agent],
    observer: Option<&'a Observer>,
    /// The server's resource use, if observed.
    observed: Option<EndSample>,
    error: RefCell<Option<String>>,
    /// Whether an agent reports that one of its clients has failed.
    ended: Cell<bool>,
}

impl Together<'_> {
    /// The server's resource use while counting, if an agent observed it.
    pub(crate) fn take_observed(&mut self) -> Option<EndSample> {
        self.observed.take()
    }

    /// The sum of all counts, and the CPU time of the agents' processes; call after they were told to stop.
    pub(crate) fn counted(self) -> Result<(Counted, Duration), Failure> {
        let (mut all, mut cpu) = (Vec::new(), Duration::ZERO);
        let error = self.error.take();
        // All agents are asked even after an error, so that each is ready for the next run.
        let mut failed = error.map(Failure::from);
        for agent in self.agents {
            match agent.ask(Ask::Counted) {
                Ok(Answer::Counted { counted, cpu: theirs }) => {
                    all.push(*counted);
                    cpu += theirs;
                }
                Ok(other) => {
                    failed = Some(format!("unexpected answer of agent {}: {other:?}", agent.name).into())
                }
                Err(e) => failed = Some(e),
            }
        }
        match self.here.map(Running::counted) {
            Some(Ok(counted)) => all.push(counted),
            Some(Err(e)) => failed = Some(e),
            None => {}
        }
        if let Some(e) = failed {
            return Err(e);
        }
        let mut all = all.into_iter();
        let mut sum = all.next().ok_or("no client was started")?;
        all.for_each(|counted| sum.merge(&counted));
        Ok((sum, cpu))
    }

    fn tell(&self, ask: impl Fn() -> Ask) {
        for agent in self.agents {
            if let Err(e) = agent.ask(ask()) {
                self.error.borrow_mut().get_or_insert(e.to_string());
            }
        }
    }
}

impl Clients for Together<'_> {
    fn operations(&self) -> u64 {
        let mut sum = self.here.as_ref().map_or(0, Clients::operations);
        for agent in self.agents {
            match agent.ask(Ask::Progress) {
                Ok(Answer::Progress { operations, failed }) => {
                    sum += operations;
                    self.ended.set(self.ended.get() || failed);
                }
                Ok(_) => {}
                Err(e) => {
                    self.error.borrow_mut().get_or_insert(e.to_string());
                }
            }
        }
        sum
    }
    fn begin(&mut self) {
        if let Some(observer) = self.observer
            && let Err(e) = observer.0.ask(Ask::Observe)
        {
            self.error.borrow_mut().get_or_insert(e.to_string());
        }
        self.tell(|| Ask::Begin);
        self.here.iter_mut().for_each(Clients::begin);
    }
    fn end(&mut self) {
        self.tell(|| Ask::End);
        self.here.iter_mut().for_each(Clients::end);
        match self.observer.map(Observer::observed) {
            Some(Ok(end)) => self.observed = Some(end),
            Some(Err(e)) => {
                self.error.borrow_mut().get_or_insert(e.to_string());
            }
            None => {}
        }
    }
    fn stop(&mut self) {
        self.tell(|| Ask::Stop);
        self.here.iter_mut().for_each(Clients::stop);
    }
    fn failed(&self) -> bool {
        self.ended.get() || self.error.borrow().is_some() || self.here.as_ref().is_some_and(Clients::failed)
    }
}
