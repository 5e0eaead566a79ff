//! Runs jobs: creates the files, connects clients over every transport, measures each point alternating between
//! transports, and always removes the files. It chooses the files' names and the order of measurements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_load::job::{Item, Job};
use weft_load::marks::{self, Setup};
use weft_load::measure::conduct;
use weft_load::result::{Mark, Peer, Point, Refusal, Sample, Section};
use weft_load::workload::Mix;
use weft_machine::random;

use super::crew::{ClientConfig, Crew, Named, Waiting};
use super::live::Live;
use super::server::Server;
use super::team::{Observer, Team};
use crate::Failure;
use crate::args::Over;
use crate::connect::Agreed;
use crate::hex::hex;
use crate::url::Scheme;

/// Size of a file that a job names without a size and that does not exist.
const NEW_FILE_BYTES: u64 = 64 << 20;

/// Files created for a job.
struct Made {
    config: ClientConfig,
    folder: String,
    files: Vec<Named>,
}

/// The context of a run of jobs.
pub(crate) struct Sweep<'a> {
    /// The server.
    pub server: &'a mut Server,
    /// The agent on the server's host.
    pub observer: Option<&'a Observer>,
    /// Raised by Ctrl-C.
    pub stop: Arc<AtomicBool>,
    /// The progress display.
    pub live: &'a mut Live,
    /// Measure only points whose name contains this.
    pub only: String,
    /// The nominal clock.
    pub hz: f64,
    /// Refuse instead of marking the result.
    pub strict: bool,
}

impl Sweep<'_> {
    /// Measures one job. Failures of single transports are recorded in the section.
    pub(crate) fn run(&mut self, scheme: Scheme, job: &Job) -> Result<Section, Failure> {
        let job = &self.sized(scheme, job)?;
        job.check()?;
        let mut section = Section::new(job.picture);
        let protocol = if scheme == Scheme::Smb { "SMB" } else { "NFS" };
        let items: Vec<Item> = job
            .items(protocol)
            .into_iter()
            .filter(|item| item.work.to_string().contains(&self.only))
            .collect();
        if items.is_empty() {
            return Ok(section);
        }
        let waiting = Waiting::of(job, &self.server.transports().0);
        let team =
            Team::start(job, self.server.agents(), self.server.client_cores.len(), waiting, &self.stop)?;
        self.live.doing(&format!("{protocol}: making {} files", job.files));
        let made = self.make(&team.here, scheme, job)?;
        let outcome =
            made.as_ref().map_or(Ok(()), |made| self.measure(&team, made, scheme, job, &items, &mut section));
        let tidied = made.map_or(Ok(()), |made| match job.paths.is_empty() || !made.files.is_empty() {
            true => team.here.remove(&made.config, &made.folder, made.files),
            false => Ok(()),
        });
        self.live.clear();
        match (outcome, tidied) {
            (Err(e), Err(also)) => Err(format!("{e} (and files were left behind: {also})").into()),
            (Err(e), Ok(())) => Err(e),
            (Ok(()), Err(e)) => Err(format!("files were left behind: {e}").into()),
            (Ok(()), Ok(())) => Ok(section),
        }
    }

    /// The job with the size of its existing files, if it gives none.
    fn sized(&mut self, scheme: Scheme, job: &Job) -> Result<Job, Failure> {
        if job.paths.is_empty() || job.file_bytes > 0 {
            return Ok(job.clone());
        }
        let config = self.server.client_config(scheme, Over::Tcp, job)?;
        let crew = Crew::start(1, 1, Waiting::Asleep, &self.stop)?;
        let mut least = None;
        for path in &job.paths {
            if let Some(size) = crew.size(&config, path)? {
                least = Some(least.map_or(size, |least: u64| least.min(size)));
            }
        }
        Ok(Job { file_bytes: least.unwrap_or(NEW_FILE_BYTES), ..job.clone() })
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Creates files in a folder of our own, or those of the job that do not exist. `None` if interrupted.
    fn make(&mut self, crew: &Crew, scheme: Scheme, job: &Job) -> Result<Option<Made>, Failure> {
        let config = self.server.client_config(scheme, Over::Tcp, job)?;
        let made = match job.paths.is_empty() {
            true => {
                let folder = join(&config.url.path, &format!("weft-bench-{}", unique()?));
                let file = |n| (u64::from(n), format!("{folder}/{n:02}.bin"));
                let files = (0..job.files).map(file).collect();
                Made { config, folder, files }
            }
            false => {
                let mut files = Vec::new();
                for (number, path) in (0..).zip(&job.paths) {
                    if self.is_missing(crew, &config, job, path)? {
                        files.push((number, path.clone()));
                    }
                }
                Made { config, folder: String::new(), files }
            }
        };
        match crew.make(&made.config, &made.folder, made.files.clone(), job.file_bytes) {
            Ok(()) => Ok(Some(made)),
            Err(_) if self.stopped() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether a file that the job names must be created. An existing file is never written to.
    fn is_missing(&self, crew: &Crew, config: &ClientConfig, job: &Job, path: &str) -> Result<bool, Failure> {
        let Some(size) = crew.size(config, path)? else {
            return match job.creates {
                true => Ok(true),
                false => Err(format!("{path} does not exist: diskspd creates it with -c64M").into()),
            };
        };
        if job.mixes.iter().any(|mix| *mix != Mix::Read) {
            return Err(
                format!("{path} exists and would be overwritten: choose a file that does not exist").into()
            );
        }
        if job.verify {
            return Err(format!("{path} exists: only files created for the run can be verified").into());
        }
        if size < job.file_bytes {
            return Err(format!(
                "{path} has {size} bytes, but {} should be read: give its size, or choose a file that does not exist",
                job.file_bytes
            )
            .into());
        }
        Ok(false)
    }

    fn measure(
        &mut self,
        team: &Team,
        made: &Made,
        scheme: Scheme,
        job: &Job,
        items: &[Item],
        section: &mut Section,
    ) -> Result<(), Failure> {
        let paths: Vec<Named> = match job.paths.is_empty() {
            true => made.files.clone(),
            false => (0..).zip(job.paths.iter().cloned()).collect(),
        };
        let over = self.connect(team, scheme, job, &paths, section)?;
        let outcome = self.points(team, job, items, &over, section);
        for key in 0..over.len() {
            team.close(key as u32)?;
        }
        marks::of_spreads(&mut section.points);
        outcome
    }

    /// Connects the clients over every transport; unavailable transports become refusals.
    fn connect(
        &mut self,
        team: &Team,
        scheme: Scheme,
        job: &Job,
        paths: &[Named],
        section: &mut Section,
    ) -> Result<Vec<Over>, Failure> {
        let (wanted, named) = self.server.transports();
        let mut over = Vec::new();
        for transport in wanted {
            if self.stopped() {
                break;
            }
            self.live.doing(&format!("connecting by {}", transport.name()));
            let key = over.len() as u32;
            let config = self.server.client_config(scheme, transport, job)?;
            let opening: Result<Vec<Option<Agreed>>, Failure> = (0..team.len())
                .map(|i| {
                    let files =
                        job.files_of(i as u32).into_iter().map(|n| paths[n as usize].clone()).collect();
                    team.open(i, key, &config, files)
                })
                .collect();
            match opening {
                Ok(opened) => {
                    self.introduce(section, opened.into_iter().flatten().next());
                    over.push(transport);
                }
                // An interrupt is told at the end.
                Err(_) if self.stopped() => break,
                Err(e) => {
                    team.close(key)?;
                    if named || transport == Over::Tcp {
                        return Err(format!("over {}: {e}", transport.name()).into());
                    }
                    let reason = e.to_string();
                    section.refusals.push(Refusal {
                        work: None,
                        transport: transport.name().to_owned(),
                        reason,
                    });
                }
            }
        }
        Ok(over)
    }

    /// Names the server according to its first client's negotiation.
    fn introduce(&self, section: &mut Section, agreed: Option<Agreed>) {
        let agreed = agreed.unwrap_or_default();
        section.peer.get_or_insert_with(|| Peer {
            host: self.server.host(),
            software: agreed.software.clone(),
            dialect: Some(agreed.dialect.clone()).filter(|dialect| !dialect.is_empty()),
            signing: agreed.signing.clone(),
            encryption: agreed.encryption.clone(),
            same_host: self.server.is_here(),
        });
    }

    fn points(
        &mut self,
        team: &Team,
        job: &Job,
        items: &[Item],
        over: &[Over],
        section: &mut Section,
    ) -> Result<(), Failure> {
        self.live.begin(items.len() * over.len() * job.repetitions as usize);
        for item in items {
            let mut runs: Vec<(Vec<Sample>, Vec<Mark>)> = over.iter().map(|_| Default::default()).collect();
            // Alternating, so that a drift of the machine's speed affects all of them alike.
            'measured: for _ in 0..job.repetitions {
                for (key, (transport, run)) in over.iter().zip(&mut runs).enumerate() {
                    if self.stopped() {
                        break 'measured;
                    }
                    let (sample, found) = self.once(team, key as u32, *transport, job, item)?;
                    if sample.operations > 0 {
                        run.0.push(sample);
                    }
                    marks::merge(&mut run.1, found);
                }
            }
            for (transport, (samples, found)) in over.iter().zip(runs) {
                if let Some(mut point) = Point::of(item.work.clone(), transport.name(), self.hz, &samples) {
                    point.latency_corrected = item.work.rate.is_some();
                    marks::merge(&mut point.marks, found);
                    section.points.push(point);
                } else if !self.stopped() {
                    let reason =
                        "no operation ended while it was measured: measure for longer (--duration)".into();
                    let work = Some(item.work.clone());
                    section.refusals.push(Refusal { work, transport: transport.name().to_owned(), reason });
                }
            }
            if self.stopped() {
                break;
            }
        }
        Ok(())
    }

    /// One repetition of one point over one transport.
    fn once(
        &mut self,
        team: &Team,
        key: u32,
        over: Over,
        job: &Job,
        item: &Item,
    ) -> Result<(Sample, Vec<Mark>), Failure> {
        // Threads of one job do the same, with different random offsets.
        let workload = |i: u64| weft_load::workload::Workload {
            seed: item.workload.seed.wrapping_add(i.wrapping_mul(0x5851_f42d_4c95_7f2d)),
            ..item.workload
        };
        self.live.point(&format!("{} {}", item.work, over.name()));
        let workloads: Vec<_> = (0..team.len() as u64).map(workload).collect();
        let mut running = team.drive(key, &workloads, self.observer)?;
        let (stop, live) = (self.stop.clone(), &mut *self.live);
        let server = self.server.process();
        let window = conduct(
            &mut running,
            item.work.size,
            &job.timing,
            server,
            &|| stop.load(Ordering::Relaxed),
            &mut |second| live.second(second),
        );
        let observed = running.take_observed();
        let (counted, cpu_of_agents) = running.counted()?;
        let mut window = window.map_err(|e| format!("cannot read the hosts' counters: {e}"))?;
        let is_observed = observed.is_some();
        window.server = window.server.or(observed);
        let setup = Setup {
            same_host: self.server.is_here(),
            client_cores: self.server.client_cores.len(),
            server_cores: Some(self.server.cores.len()).filter(|cores| *cores > 0),
            shared_cores: self.server.shared_cores(),
            threads: team.here(),
            outstanding: item.work.queue_depth * job.workers(),
            // The files of `local` are in memory; reads from the host's disks are unrelated.
            cached: !self.server.is_local(),
        };
        let mut found = marks::of_window(&window, counted.bytes, &setup);
        found.extend(marks::of_rate(counted.late));
        if self.strict
            && let Some(mark) = found.iter().find(|mark| marks::is_refused(mark.kind))
        {
            return Err(format!("refused, as --strict asks: {}", mark.text).into());
        }
        let provider = (over != Over::Tcp).then(|| over.name().to_owned());
        let traffic = weft_load::result::Traffic { provider, ..counted.traffic };
        let mut client = window.client;
        client.copied_bytes = Some(counted.copied_bytes);
        client.cpu = client.cpu.map(|cpu| cpu + cpu_of_agents);
        if team.here() < team.len() || is_observed {
            // Cycles of the agents' hosts cannot be summed with ours, and the server's are not counted but estimated.
            client.cycles = None;
        }
        let sample = Sample {
            operations: counted.operations,
            bytes: counted.bytes,
            seconds: window.seconds,
            latency: counted.latency,
            reads: counted.reads,
            writes: counted.writes,
            client,
            server: window.server,
            traffic: Some(traffic),
            timeline: window.timeline,
        };
        self.live.done(&sample);
        Ok((sample, found))
    }
}

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// A unique part of a name.
fn unique() -> Result<String, Failure> {
    Ok(hex(random::bytes::<8>()?))
}
