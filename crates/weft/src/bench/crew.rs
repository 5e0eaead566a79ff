//! Clients: threads of this process, each with sessions and open files of its own.
//!
//! A [`Crew`] receives the work for its threads from one ordinary thread. A client of a transport lives on its thread
//! and never leaves it; it is identified by a number. The crew owns the threads, their connections and open files.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};
use weft_load::job::Job;
use weft_load::measure::Clients;
use weft_load::pattern;
use weft_load::run::{Counted, Files, Watch, drive};
use weft_load::target::{Carried, Target, TargetError};
use weft_load::workload::Workload;
use weft_machine::Pool;
use weft_machine::buf::MAX_BUF;
use weft_machine::rt::{self, Cores, CoresOptions, Options};
use zeroize::Zeroizing;

use crate::Failure;
use crate::args::{Connect, Over};
use crate::connect::{Agreed, Remote, RemoteFile};
use crate::signals::unless_stopped;
use crate::transfer::CLIENT_BUFFERS;
use crate::url::Url;

/// Size of one WRITE while files are created. The kernel keeps a file in pieces as long as the writes that created
/// it, and ext4 walks through every block of a piece that is written to: 8 KiB cost 20 us in a file created by writes
/// of a megabyte, and 3 us in one created by writes of 64 KiB, as cp and dd make them.
const FILL_BYTES: u64 = 64 << 10;
const FILL_DEPTH: usize = 64;
/// A server that takes longer to admit a client is not measured.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same after an interrupt, for removing files and saying goodbye.
const HASTE: Duration = Duration::from_millis(750);
/// Minimum memory of a thread's payload buffers.
const THREAD_BUFFERS: usize = 64 << 20;

thread_local! {
    static OPEN: RefCell<HashMap<u32, Rc<Client>>> = RefCell::default();
    static POOL: RefCell<Option<Pool>> = const { RefCell::new(None) };
}

/// How a client connects.
#[derive(Clone)]
pub(crate) struct ClientConfig {
    /// Share or export, and the folder in it.
    pub url: Url,
    /// The transport and its options.
    pub connect: Connect,
    /// The password to log on with.
    pub password: Arc<Zeroizing<String>>,
    /// TCP congestion control; `None` leaves the system's.
    pub congestion: Option<String>,
}

/// A file to open: its number, which selects its pattern, and its path in the share.
pub(crate) type Named = (u64, String);

/// A client on its thread.
struct Client {
    remote: Remote,
    files: Vec<Rc<dyn RemoteFile>>,
    numbers: Vec<u64>,
}

/// A remote file to measure.
pub(crate) struct Measured(pub Rc<dyn RemoteFile>);

impl Target for Measured {
    fn read(&self, offset: u64, len: u32) -> LocalBoxFuture<'_, Result<Bytes, TargetError>> {
        self.0.read(offset, len)
    }
    fn settle(&self, data: Vec<u8>) -> Bytes {
        let room = || POOL.with_borrow(|pool| pool.as_ref()?.buf_from(&data));
        match (data.len() <= MAX_BUF).then(room).flatten() {
            Some(buf) => buf.freeze(),
            None => data.into(),
        }
    }
    fn write(&self, offset: u64, data: Bytes) -> LocalBoxFuture<'_, Result<(), TargetError>> {
        self.0.write(offset, data)
    }
}

/// How clients wait for answers.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Busy-polling for a while before sleeping, as Weft's own clients do: the shortest latency.
    Polling,
    /// Sleeping, as other load generators do: a sleeping client uses no processor time, and answers gather. With many
    /// requests outstanding, a polling client costs as much as the server, and makes the server answer each request
    /// by itself.
    Asleep,
}

impl Waiting {
    /// How the clients of `job` wait over these transports. RDMA is polled, and so is TCP when it is compared with
    /// RDMA.
    pub(crate) fn of(job: &Job, transports: &[Over]) -> Waiting {
        match transports == [Over::Tcp] && job.queue_depth > 1 {
            true => Waiting::Asleep,
            false => Waiting::Polling,
        }
    }
}

/// Client threads. Dropping this ends them.
pub(crate) struct Crew {
    cores: Cores,
    /// Raised by an interrupt: then nothing waits for a server any longer.
    stop: Arc<AtomicBool>,
}

impl Crew {
    /// Starts `threads`, which may run on `cores` processors. Threads that share a processor do not busy-poll.
    pub(crate) fn start(
        threads: usize,
        cores: usize,
        waiting: Waiting,
        stop: &Arc<AtomicBool>,
    ) -> Result<Crew, Failure> {
        let core = match threads > cores || waiting == Waiting::Asleep {
            true => Options { spin_max: Duration::ZERO, ..Options::default() },
            false => Options::default(),
        };
        let cores = Cores::start_with(threads, "client", &CoresOptions { pin: false, core })?;
        Ok(Crew { cores, stop: stop.clone() })
    }

    /// The number of threads.
    pub(crate) fn len(&self) -> usize {
        self.cores.len()
    }

    /// Runs a future on thread `i`, and waits for it.
    fn on<T, M, F>(&self, i: usize, make: M) -> Result<T, Failure>
    where
        T: Send + 'static,
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<T, Failure>> + 'static,
    {
        let (done, outcome) = mpsc::channel();
        self.cores.run(i, move || async move {
            // The receiver waits until it has this.
            let _ = done.send(make().await.map_err(|e| e.to_string()));
        });
        match outcome.recv() {
            Ok(outcome) => outcome.map_err(Failure::from),
            Err(mpsc::RecvError) => Err("a client's thread ended unexpectedly".into()),
        }
    }

    fn buffers(&self) -> usize {
        (CLIENT_BUFFERS / self.cores.len()).max(THREAD_BUFFERS)
    }

    /// Connects thread `i` as client number `key` and opens `files`.
    pub(crate) fn open(
        &self,
        i: usize,
        key: u32,
        config: &ClientConfig,
        files: Vec<Named>,
    ) -> Result<Agreed, Failure> {
        let (config, buffers, stop) = (config.clone(), self.buffers(), self.stop.clone());
        self.on(i, move || async move {
            let opening = unless_stopped(&stop, async {
                let remote = connect(&config, buffers).await?;
                let mut open = Vec::with_capacity(files.len());
                for (_, path) in &files {
                    open.push(remote.open(path, true).await.map_err(|e| format!("opening {path}: {e}"))?);
                }
                let agreed = remote.agreed().await;
                Ok((remote, open, agreed))
            });
            let (remote, open, agreed) = opening.await?;
            let numbers = files.into_iter().map(|(number, _)| number).collect();
            OPEN.with_borrow_mut(|clients| {
                clients.insert(key, Rc::new(Client { remote, files: open, numbers }));
            });
            Ok(agreed)
        })
    }

    /// Closes all clients of this number. A client that is already gone is not an error.
    pub(crate) fn close(&self, key: u32) -> Result<(), Failure> {
        for i in 0..self.cores.len() {
            let stop = self.stop.clone();
            self.on(i, move || async move {
                let client = OPEN.with_borrow_mut(|clients| clients.remove(&key));
                if let Some(client) = client {
                    let closing = async {
                        for file in &client.files {
                            if let Err(e) = file.close().await {
                                tracing::debug!("closing a file: {e}");
                            }
                        }
                        client.remote.close().await;
                    };
                    if rt::timeout(patience(&stop), closing).await.is_err() {
                        tracing::debug!("closing files: the server does not answer");
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Starts the clients of number `key`: thread `i` runs `workloads[i]`.
    pub(crate) fn drive(&self, key: u32, workloads: Vec<Workload>) -> Running {
        let (done, outcomes) = mpsc::channel();
        let mut watches = Vec::new();
        for (i, workload) in workloads.into_iter().enumerate() {
            let watch = Arc::new(Watch::default());
            watches.push(watch.clone());
            let done = done.clone();
            self.cores.run(i, move || async move {
                let outcome = run(key, workload, &watch).await.map_err(|e| e.to_string());
                // The receiver waits for it.
                let _ = done.send(outcome);
            });
        }
        Running { watches, outcomes, counted: RefCell::default(), error: RefCell::default() }
    }

    /// Creates files of `bytes` bytes, filled with their pattern, in a new folder. Stops on an interrupt, and on
    /// failure removes what it has created.
    pub(crate) fn make(
        &self,
        config: &ClientConfig,
        folder: &str,
        files: Vec<Named>,
        bytes: u64,
    ) -> Result<(), Failure> {
        let (config, buffers, folder, stop) =
            (config.clone(), self.buffers(), folder.to_owned(), self.stop.clone());
        self.on(0, move || async move {
            let remote = unless_stopped(&stop, connect(&config, buffers)).await?;
            let made = unless_stopped(&stop, async {
                if !folder.is_empty() {
                    remote.mkdir(&folder).await.map_err(|e| format!("making the folder {folder}: {e}"))?;
                }
                for (number, path) in &files {
                    let file = remote.create(path).await.map_err(|e| format!("making {path}: {e}"))?;
                    fill(&*file, *number, bytes).await.map_err(|e| format!("filling {path}: {e}"))?;
                    file.close().await?;
                }
                Ok(())
            });
            let made = made.await;
            let Err(failed) = made else {
                remote.close().await;
                return Ok(());
            };
            let tidied = rt::timeout(patience(&stop), removed(remote, &folder, &files)).await;
            // Reported here, because nobody looks at the error after an interrupt.
            if let Err(e) = tidied.unwrap_or_else(|_| Err(format!("no answer for {folder}").into())) {
                note!("files were left behind on {}: {e}", config.url.host);
            }
            Err(failed)
        })
    }

    /// Removes files and their folder.
    pub(crate) fn remove(
        &self,
        config: &ClientConfig,
        folder: &str,
        files: Vec<Named>,
    ) -> Result<(), Failure> {
        let (config, buffers, folder, stop) =
            (config.clone(), self.buffers(), folder.to_owned(), self.stop.clone());
        self.on(0, move || async move {
            let removing = async {
                let remote = connect(&config, buffers).await?;
                removed(remote, &folder, &files).await
            };
            // Without an interrupt, a slow server gets all the time it needs.
            match patience(&stop) {
                HASTE => rt::timeout(HASTE, removing).await.unwrap_or_else(|_| Err("no answer".into())),
                _ => removing.await,
            }
        })
    }

    /// The size of a file; `None` if it does not exist.
    pub(crate) fn size(&self, config: &ClientConfig, path: &str) -> Result<Option<u64>, Failure> {
        let (config, buffers, path, stop) =
            (config.clone(), self.buffers(), path.to_owned(), self.stop.clone());
        self.on(0, move || async move {
            let finding = unless_stopped(&stop, async {
                let remote = connect(&config, buffers).await?;
                let found = remote.stat(&path).await;
                remote.close().await;
                found
            });
            match finding.await? {
                Some(stat) if stat.folder => Err(format!("{path} is a folder: name a file in it").into()),
                found => Ok(found.map(|stat| stat.size)),
            }
        })
    }
}

async fn connect(config: &ClientConfig, buffers: usize) -> Result<Remote, Failure> {
    let pool = POOL.with_borrow_mut(|pool| pool.get_or_insert_with(|| Pool::new(buffers)).clone());
    let connecting = Remote::connect_as(
        &config.url,
        &config.connect,
        &pool,
        &config.password,
        config.congestion.as_deref(),
    );
    match rt::timeout(PATIENCE, connecting).await {
        Ok(remote) => remote,
        Err(_) => {
            Err(format!("{} admitted no client within {} s", config.url.host, PATIENCE.as_secs()).into())
        }
    }
}

/// How long a server may still take.
fn patience(stop: &AtomicBool) -> Duration {
    if stop.load(Ordering::Relaxed) { HASTE } else { PATIENCE }
}

/// Removes files and their folder, if one is named.
async fn removed(remote: Remote, folder: &str, files: &[Named]) -> Result<(), Failure> {
    let mut failed = None;
    for (_, path) in files {
        // A file that was never created need not be removed.
        if let Err(e) = remote.remove(path).await
            && remote.stat(path).await.map_or(true, |found| found.is_some())
        {
            failed = Some(format!("{path}: {e}"));
        }
    }
    if !folder.is_empty()
        && let Err(e) = remote.rmdir(folder).await
    {
        failed = Some(format!("{folder}: {e}"));
    }
    remote.close().await;
    failed.map_or(Ok(()), |what| Err(what.into()))
}

async fn fill(file: &dyn RemoteFile, number: u64, bytes: u64) -> Result<(), Failure> {
    let mut offsets = (0..bytes).step_by(FILL_BYTES as usize);
    let mut writing = FuturesUnordered::new();
    loop {
        while writing.len() < FILL_DEPTH
            && let Some(offset) = offsets.next()
        {
            let len = FILL_BYTES.min(bytes - offset);
            writing.push(file.write(offset, pattern::block(number, offset, len as usize).into()));
        }
        match writing.next().await {
            Some(written) => written?,
            None => return Ok(()),
        }
    }
}

async fn run(key: u32, workload: Workload, watch: &Watch) -> Result<Counted, Failure> {
    let client = OPEN.with_borrow(|clients| clients.get(&key).cloned());
    let client = client.ok_or("this client is not connected")?;
    let targets = client.files.iter().map(|file| Rc::new(Measured(file.clone())) as Rc<dyn Target>);
    let (targets, numbers) = (targets.collect(), client.numbers.clone());
    let carried = Box::new(move || Carried {
        traffic: client.remote.traffic(),
        starved: client.remote.credits_starved(),
    });
    Ok(drive(&Files { targets, numbers, carried }, &workload, watch).await?)
}

/// Clients under load.
pub(crate) struct Running {
    watches: Vec<Arc<Watch>>,
    outcomes: mpsc::Receiver<Result<Counted, String>>,
    counted: RefCell<Vec<Counted>>,
    error: RefCell<Option<String>>,
}

impl Running {
    fn take(&self, outcome: Result<Counted, String>) {
        match outcome {
            Ok(counted) => self.counted.borrow_mut().push(counted),
            Err(e) => {
                self.error.borrow_mut().get_or_insert(e);
            }
        }
    }

    /// The sum of all counts; call after they were told to stop.
    pub(crate) fn counted(self) -> Result<Counted, Failure> {
        while self.counted.borrow().len() < self.watches.len() && self.error.borrow().is_none() {
            match self.outcomes.recv() {
                Ok(outcome) => self.take(outcome),
                Err(mpsc::RecvError) => return Err("a client's thread ended unexpectedly".into()),
            }
        }
        if let Some(error) = self.error.take() {
            return Err(error.into());
        }
        let mut all = self.counted.take().into_iter();
        let mut sum = all.next().ok_or("no client was started")?;
        all.for_each(|counted| sum.merge(&counted));
        Ok(sum)
    }
}

impl Clients for Running {
    fn operations(&self) -> u64 {
        self.watches.operations()
    }
    fn begin(&mut self) {
        self.watches.begin();
    }
    fn end(&mut self) {
        self.watches.end();
    }
    fn stop(&mut self) {
        self.watches.stop();
    }
    fn failed(&self) -> bool {
        while let Ok(outcome) = self.outcomes.try_recv() {
            self.take(outcome);
        }
        self.error.borrow().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_tcp_alone_sleep_where_many_requests_are_under_way() {
        let deep = Job { queue_depth: 32, ..Job::default() };
        assert_eq!(Waiting::of(&deep, &[Over::Tcp]), Waiting::Asleep);
        assert_eq!(Waiting::of(&Job { queue_depth: 1, ..Job::default() }, &[Over::Tcp]), Waiting::Polling);
        assert_eq!(Waiting::of(&deep, &[Over::Tcp, Over::Shm]), Waiting::Polling);
    }
}
