//! `weft bench replica`: the cost of replication, between two servers started on this host.
//!
//! It measures first copies of a volume in memory over each transport, then durable writes one at a time: to a volume
//! without replication, to one with asynchronous replication, and synchronously over each transport. Measurements
//! alternate, so that a drift of the machine's speed affects all of them alike. Both servers, and the folder of their
//! volumes, are always removed.

mod disk;
mod host;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weft_load::host::Counters;
use weft_load::marks::{self, Setup};
use weft_load::measure::Window;
use weft_load::plan::Replication;
use weft_load::result::{
    EndSample, Latencies, Mark, Peer, Picture, Point, Refusal, Sample, Second, Section, Traffic, Work,
};
use weft_load::workload::Mix;
use weft_load::{cpu, pattern};

use self::disk::Disk;
use self::host::Host;
use super::live::Live;
use super::server::keep_to;
use crate::Failure;
use crate::args::{Over, Transport};

/// The volume for first copies.
const COPIED: &str = "copy";
/// Volumes for writes, each with a group of its own, and their names in results.
const NOT_REPLICATED: &str = "local";
const ASYNCHRONOUS: &str = "async";
/// Size of a volume for writes.
const WRITTEN_BYTES: u64 = 64 << 20;
/// Size of the writes that fill a volume.
const FILL_BYTES: u64 = 1 << 20;
/// How often the progress of a copy is checked.
const LOOK: Duration = Duration::from_millis(2);
/// A copy without progress for this long has failed.
const STILL: Duration = Duration::from_secs(30);
/// The amount copied in the post.
const POST_BYTES: f64 = 2e12;

/// Assignment of processors.
struct Places {
    source: Vec<usize>,
    destination: Vec<usize>,
    loader: Vec<usize>,
    /// The number of processors that more than one process may use.
    shared: usize,
}

impl Places {
    /// One for the writing program, and half of the rest for each server; all for all if there are fewer than three.
    fn of(all: &[usize]) -> Places {
        match all {
            [servers @ .., loader] if servers.len() >= 2 => {
                let (source, destination) = servers.split_at(servers.len() / 2);
                let (source, destination) = (source.to_vec(), destination.to_vec());
                Places { source, destination, loader: vec![*loader], shared: 0 }
            }
            few => Places {
                source: few.to_vec(),
                destination: few.to_vec(),
                loader: few.to_vec(),
                shared: few.len(),
            },
        }
    }
}

/// State shared with the other comparisons of a run.
pub(super) struct Bench<'a> {
    /// The transports, and whether the user named them.
    pub over: (Vec<Over>, bool),
    /// Processors that this process may use.
    pub cores: Vec<usize>,
    /// Raised by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// The progress display.
    pub live: &'a mut Live,
    /// Measure only points whose name contains this.
    pub only: &'a str,
    /// The nominal clock.
    pub hz: f64,
    /// Refuse instead of marking the result.
    pub strict: bool,
}

/// A volume to write to, and how it is replicated.
struct Written {
    name: &'static str,
    disk: Disk,
}

/// The samples of one point so far.
#[derive(Default)]
struct Seen {
    samples: Vec<Sample>,
    marks: Vec<Mark>,
}

/// Runs the measurement; failures of single transports are recorded in the section.
pub(super) fn run(bench: &mut Bench<'_>, replication: &Replication) -> Result<Section, Failure> {
    let mut section = Section::new(Picture::Replica);
    let wanted = |work: &Work| work.to_string().contains(bench.only);
    let copies = wanted(&first_copy(replication.copy_bytes));
    let sizes: Vec<u32> = replication.sizes.iter().copied().filter(|size| wanted(&durable(*size))).collect();
    if !copies && sizes.is_empty() {
        return Ok(section);
    }
    let places = Places::of(&bench.cores);
    let folder = tempfile::Builder::new().prefix("weft-bench-replica-").tempdir()?;
    bench.live.doing("replica: starting two servers");
    let mut names = Vec::new();
    for over in &bench.over.0 {
        match transport(*over) {
            Some(transport) => names.push((over.name(), transport)),
            None => section.refusals.push(Refusal {
                work: None,
                transport: over.name().to_owned(),
                reason: "replicas always have a CRC on iWARP".into(),
            }),
        }
    }
    let disks = |replicated: &'static str| {
        let written = [NOT_REPLICATED, ASYNCHRONOUS].into_iter().chain(names.iter().map(|(name, _)| *name));
        let written = written.map(|name| host::Disk { name, size: WRITTEN_BYTES, in_memory: false });
        let copied = host::Disk { name: replicated, size: replication.copy_bytes.into(), in_memory: true };
        written.chain([copied]).collect::<Vec<_>>()
    };
    let start = |name: &str, cores: &[usize]| -> Result<Host, Failure> {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder)?;
        // A process starts on the processors of the thread that starts it.
        keep_to(cores)?;
        Host::start(&folder, &disks(COPIED))
    };
    let source = start("source", &places.source);
    let destination = start("destination", &places.destination);
    keep_to(&places.loader)?;
    let (source, destination) = (source?, destination?);
    let mut pair = Pair { source, destination, bench, section, places: &places };
    let outcome = pair.measure(replication, &names, copies, &sizes);
    let Pair { source, destination, bench, mut section, .. } = pair;
    bench.live.clear();
    keep_to(&bench.cores)?;
    // The source first, because it says goodbye to the other.
    let stopped = source.stop().and(destination.stop());
    outcome?;
    if !bench.stop.load(Ordering::Relaxed) {
        stopped?;
    }
    notes(&mut section, folder.path())?;
    Ok(section)
}

fn transport(over: Over) -> Option<Transport> {
    match over {
        Over::Tcp => Some(Transport::Tcp),
        Over::Iwarp => Some(Transport::Iwarp),
        Over::Shm => Some(Transport::Shm),
        Over::Rnic => Some(Transport::Rnic),
        Over::IwarpNocrc => None,
    }
}

/// The whole volume is one operation.
fn first_copy(bytes: u32) -> Work {
    Work { order: "sequential".into(), ..Work::simple("replica", Mix::Write, bytes, 1) }
}

fn durable(size: u32) -> Work {
    let work = Work::simple("NBD", Mix::Write, size, 1);
    Work { name: "durable write".into(), order: "sequential".into(), ..work }
}

/// Two servers, and the measurements between them.
struct Pair<'a, 'b> {
    source: Host,
    destination: Host,
    bench: &'a mut Bench<'b>,
    section: Section,
    places: &'a Places,
}

impl Pair<'_, '_> {
    fn stopped(&self) -> bool {
        self.bench.stop.load(Ordering::Relaxed)
    }

    fn measure(
        &mut self,
        replication: &Replication,
        names: &[(&'static str, Transport)],
        copies: bool,
        sizes: &[u32],
    ) -> Result<(), Failure> {
        self.section.peer = Some(Peer {
            host: "local, another process".into(),
            software: Some("Weft".into()),
            dialect: Some("SMB 3.1.1".into()),
            same_host: true,
            ..Peer::default()
        });
        let repetitions = replication.repetitions as usize;
        let each = usize::from(copies) * names.len() + sizes.len() * (names.len() + 2);
        self.bench.live.begin(repetitions * each);
        if copies {
            self.copies(replication, names)?;
        }
        if !sizes.is_empty() && !self.stopped() {
            self.writes(replication, names, sizes)?;
        }
        marks::of_spreads(&mut self.section.points);
        Ok(())
    }

    /// First copies of a full volume, alternating between transports.
    fn copies(
        &mut self,
        replication: &Replication,
        names: &[(&'static str, Transport)],
    ) -> Result<(), Failure> {
        self.bench.live.doing("replica: filling a volume");
        self.fill()?;
        let work = first_copy(replication.copy_bytes);
        let mut seen: Vec<Option<Seen>> = names.iter().map(|_| Some(Seen::default())).collect();
        // The first repetition makes the other side allocate its memory, and does not count.
        for repetition in 0..=replication.repetitions {
            for ((name, transport), seen) in names.iter().zip(&mut seen) {
                let Some(so_far) = seen else { continue };
                if self.stopped() || repetition == 0 && *name != names[0].0 {
                    continue;
                }
                self.bench.live.point(&format!("{work} {name}"));
                match self.copy(replication.copy_bytes, *transport) {
                    Ok(None) => {}
                    Ok(Some(_)) if repetition == 0 => {}
                    Ok(Some((sample, found))) => {
                        self.bench.live.done(&sample);
                        so_far.samples.push(sample);
                        marks::merge(&mut so_far.marks, found);
                    }
                    Err(e) if self.bench.over.1 || *name == "tcp" || self.bench.strict => {
                        return Err(format!("over {name}: {e}").into());
                    }
                    Err(e) => {
                        *seen = None;
                        self.refuse(&work, name, e.to_string());
                    }
                }
            }
        }
        for ((name, _), seen) in names.iter().zip(seen) {
            self.reduce(&work, name, seen.unwrap_or_default());
        }
        Ok(())
    }

    fn fill(&self) -> Result<(), Failure> {
        let mut disk = Disk::open(self.source.nbd_port()?, COPIED)?;
        for offset in (0..disk.size()).step_by(FILL_BYTES as usize) {
            if self.stopped() {
                break;
            }
            let len = FILL_BYTES.min(disk.size() - offset);
            disk.write(offset, &pattern::block(0, offset, len as usize), false)?;
        }
        Ok(())
    }

    /// One first copy; `None` if interrupted.
    fn copy(&self, bytes: u32, transport: Transport) -> Result<Option<(Sample, Vec<Mark>)>, Failure> {
        self.source.replicate(COPIED, &self.destination, transport, false)?;
        let begun = Moment::now(self)?;
        let copied = self.until_it_follows(COPIED, Some(&begun));
        let ended = Moment::now(self)?;
        let traffic = match &copied {
            Ok(Some(_)) => Some(self.source.group(COPIED)?.0),
            _ => None,
        };
        // Also after a failure, because the next transport uses the same volume.
        let let_go = self.source.let_go(COPIED);
        let Some((seconds, timeline)) = copied? else { return Ok(None) };
        let_go?;
        let mut latency = Latencies::new();
        latency.record((seconds * 1e9) as u64);
        let (client, server, found) = self.between(&begun, &ended, bytes.into())?;
        let sample = Sample {
            operations: 1,
            bytes: bytes.into(),
            seconds,
            latency,
            client,
            server: Some(server),
            traffic: traffic.and_then(|group| travelled(&group.links.first()?.clone(), bytes.into())),
            timeline,
            ..Sample::default()
        };
        Ok(Some((sample, found)))
    }

    /// Waits until the destination of a group is up to date. Returns the seconds of its first copy by the source's
    /// clock, and the progress of each second. `None` if interrupted.
    fn until_it_follows(
        &self,
        name: &str,
        begun: Option<&Moment>,
    ) -> Result<Option<(f64, Vec<Second>)>, Failure> {
        let (mut since, mut timeline) = (None, Vec::new());
        let (mut moved, mut moved_at) = (0, Instant::now());
        let mut last = (Instant::now(), 0, begun.map(|begun| (begun.source, begun.destination)));
        loop {
            if self.stopped() {
                return Ok(None);
            }
            let (_, peer) = self.source.group(name)?;
            let number = |key: &str| peer[key].as_u64().unwrap_or(0);
            match peer["phase"].as_str().unwrap_or_default() {
                "ContinuouslyReplicating" => {
                    let until = number("since_ms");
                    // A copy that was never observed took less than one check interval.
                    let seconds = until.saturating_sub(since.unwrap_or(until)).max(1) as f64 / 1e3;
                    return Ok(Some((seconds, timeline)));
                }
                "InitialBlockCopy" => {
                    since.get_or_insert(number("since_ms"));
                }
                phase @ ("Refused" | "Failed" | "SplitBrain" | "Superseded") => {
                    let why = peer["last_error"].as_str().unwrap_or("unknown reason").to_owned();
                    return Err(format!("the copy ended as {phase}: {why}").into());
                }
                _ => {}
            }
            let done = number("bytes_done");
            if done != moved {
                (moved, moved_at) = (done, Instant::now());
            }
            if moved_at.elapsed() > STILL {
                let why = peer["last_error"].as_str().unwrap_or("unknown reason");
                return Err(format!("the copy has not moved for {} s: {why}", STILL.as_secs()).into());
            }
            let (at, before, cpu) = last;
            if let Some((source, destination)) = cpu.filter(|_| at.elapsed() >= Duration::from_secs(1)) {
                let (now, seconds) =
                    ((self.source.cpu()?, self.destination.cpu()?), at.elapsed().as_secs_f64());
                let cores = |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64() / seconds;
                timeline.push(Second {
                    at: begun.map_or(0.0, |begun| begun.at.elapsed().as_secs_f64()),
                    throughput: done.saturating_sub(before) as f64 / seconds,
                    iops: 0.0,
                    client_cores: Some(cores(now.0, source)),
                    server_cores: Some(cores(now.1, destination)),
                    client_memory_bytes: Some(self.source.memory()?),
                    server_memory_bytes: Some(self.destination.memory()?),
                });
                last = (Instant::now(), done, Some(now));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Durable writes, one at a time, alternating between volumes.
    fn writes(
        &mut self,
        replication: &Replication,
        names: &[(&'static str, Transport)],
        sizes: &[u32],
    ) -> Result<(), Failure> {
        let port = self.source.nbd_port()?;
        let mut ways = vec![Written { name: NOT_REPLICATED, disk: Disk::open(port, NOT_REPLICATED)? }];
        let asynchronous = (ASYNCHRONOUS, Transport::Tcp);
        for (name, transport) in [asynchronous].iter().chain(names) {
            self.bench.live.doing(&format!("replica: a group over {name}"));
            let ready = self.source.replicate(name, &self.destination, *transport, *name != ASYNCHRONOUS);
            match ready.and_then(|()| self.until_it_follows(name, None)) {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => ways.push(Written { name, disk: Disk::open(port, name)? }),
                Err(e) if self.bench.over.1 || *name == "tcp" || *name == ASYNCHRONOUS => {
                    return Err(format!("over {name}: {e}").into());
                }
                Err(e) => self.refuse(&durable(sizes[0]), name, e.to_string()),
            }
        }
        for size in sizes {
            let work = durable(*size);
            let mut seen: Vec<Seen> = ways.iter().map(|_| Seen::default()).collect();
            'measured: for _ in 0..replication.repetitions {
                for (way, seen) in ways.iter_mut().zip(&mut seen) {
                    self.bench.live.point(&format!("{work} {}", way.name));
                    let Some((sample, found)) = self.write(&mut way.disk, *size, replication)? else {
                        break 'measured;
                    };
                    self.bench.live.done(&sample);
                    seen.samples.push(sample);
                    marks::merge(&mut seen.marks, found);
                }
            }
            for (way, seen) in ways.iter().zip(seen) {
                self.reduce(&work, way.name, seen);
            }
        }
        for way in ways {
            drop(way.disk);
            if way.name != NOT_REPLICATED && !self.stopped() {
                self.source.let_go(way.name)?;
            }
        }
        Ok(())
    }

    /// One repetition on one volume; `None` if interrupted before anything was counted.
    fn write(
        &self,
        disk: &mut Disk,
        size: u32,
        replication: &Replication,
    ) -> Result<Option<(Sample, Vec<Mark>)>, Failure> {
        let data = pattern::block(1, 0, size as usize);
        let mut offsets = (0..disk.size() / u64::from(size)).map(|n| n * u64::from(size)).cycle();
        let mut next = |disk: &mut Disk| disk.write(offsets.next().unwrap_or(0), &data, true);
        let warm = Instant::now();
        while warm.elapsed() < replication.timing.warm_up && !self.stopped() {
            next(disk)?;
        }
        let mut latency = Latencies::new();
        let (mut operations, begun) = (0u64, Moment::now(self)?);
        // At least one: a window without an operation shows nothing.
        while (begun.at.elapsed() < replication.timing.duration || operations == 0) && !self.stopped() {
            let at = Instant::now();
            next(disk)?;
            latency.record(at.elapsed().as_nanos() as u64);
            operations += 1;
        }
        let seconds = begun.at.elapsed().as_secs_f64();
        let ended = Moment::now(self)?;
        if operations == 0 {
            return Ok(None);
        }
        let bytes = operations * u64::from(size);
        let (client, server, found) = self.between(&begun, &ended, bytes)?;
        let server = Some(server);
        Ok(Some((Sample { operations, bytes, seconds, latency, client, server, ..Sample::default() }, found)))
    }

    /// The cost of both servers between two moments, and reasons to be careful with it.
    fn between(
        &self,
        begun: &Moment,
        ended: &Moment,
        bytes: u64,
    ) -> Result<(EndSample, EndSample, Vec<Mark>), Failure> {
        let machine = ended.machine.since(&begun.machine);
        let client = self.source.cost(begun.source, &machine.idle_percent)?;
        let server = self.destination.cost(begun.destination, &machine.idle_percent)?;
        let known =
            [(ended.source, begun.source), (ended.destination, begun.destination), (ended.own, begun.own)];
        let known: f64 = known.iter().map(|(now, then)| now.saturating_sub(*then).as_secs_f64()).sum();
        let seconds = ended.at.duration_since(begun.at).as_secs_f64().max(1e-9);
        let window = Window {
            seconds,
            client: client.clone(),
            server: Some(server.clone()),
            timeline: Vec::new(),
            interrupted: self.stopped(),
            steady: None,
            others_busy_cores: machine.busy_cores.map(|busy| (busy - known / seconds).max(0.0)),
            paged_in: machine.paged_in,
        };
        let setup = Setup {
            same_host: true,
            client_cores: self.places.source.len(),
            server_cores: Some(self.places.destination.len()),
            shared_cores: self.places.shared,
            threads: 1,
            outstanding: 1,
            // Volumes in files are on a disk, and the notes say so.
            cached: false,
        };
        let found = marks::of_window(&window, bytes, &setup);
        if self.bench.strict
            && let Some(mark) = found.iter().find(|mark| marks::is_refused(mark.kind))
        {
            return Err(format!("refused, as --strict asks: {}", mark.text).into());
        }
        Ok((client, server, found))
    }

    fn reduce(&mut self, work: &Work, name: &str, seen: Seen) {
        if let Some(mut point) = Point::of(work.clone(), name, self.bench.hz, &seen.samples) {
            marks::merge(&mut point.marks, seen.marks);
            self.section.points.push(point);
        }
    }

    fn refuse(&mut self, work: &Work, name: &str, reason: String) {
        let work = Some(work.clone());
        self.section.refusals.push(Refusal { work, transport: name.to_owned(), reason });
    }
}

/// A moment, and the costs until then.
struct Moment {
    at: Instant,
    machine: Counters,
    source: Duration,
    destination: Duration,
    own: Duration,
}

impl Moment {
    fn now(pair: &Pair<'_, '_>) -> Result<Moment, Failure> {
        Ok(Moment {
            machine: Counters::now()?,
            source: pair.source.cpu()?,
            destination: pair.destination.cpu()?,
            own: cpu::time_of(std::process::id())?,
            at: Instant::now(),
        })
    }
}

/// How a copy of this many bytes travelled: the source is the client, and the destination pulls.
fn travelled(link: &crate::admin::replica::Link, bytes: u64) -> Option<Traffic> {
    let moved = link.traffic;
    let rdma_read_bytes = moved.rdma_by_client_bytes + moved.rdma_read_bytes;
    let rdma_write_bytes = moved.rdma_written_bytes;
    (!link.transport.is_empty()).then(|| Traffic {
        provider: (link.transport != "tcp").then(|| link.transport.clone()),
        rdma_read_bytes,
        rdma_write_bytes,
        send_bytes: moved.inline_bytes(),
        inline_bytes: bytes.saturating_sub(rdma_read_bytes + rdma_write_bytes),
        credits_starved: None,
    })
}

/// Notes for the reader, and how long the post's volume would take at these rates.
fn notes(section: &mut Section, folder: &Path) -> Result<(), Failure> {
    let rates: Vec<String> = section
        .points
        .iter()
        .filter(|point| point.work.protocol == "replica" && point.throughput.median > 0.0)
        .map(|point| format!("{} by {}", words(POST_BYTES / point.throughput.median), point.transport))
        .collect();
    if !rates.is_empty() {
        section.notes.push(format!(
            "2 TB at these rates of the first copy: {} (the post: 4 minutes, at 10 GB/s)",
            rates.join(", ")
        ));
        section.notes.push(
            "a first copy is measured on a full volume in memory with non-repeating data, from its first block until \
             the destination is up to date; client is the source, server the destination, CPU counts only these two"
                .into(),
        );
    }
    if section.points.iter().any(|point| point.work.protocol == "NBD") {
        const TMPFS: rustix::fs::FsWord = 0x0102_1994;
        let kind = rustix::fs::statfs(folder)?.f_type;
        let temporary = folder.parent().unwrap_or(folder).display();
        let what = if kind == TMPFS { "memory: no write waits for a disk" } else { "a disk" };
        section.notes.push(format!(
            "the written volumes and the logs of both sides are in {temporary}, which is {what} (set TMPDIR to change it); \
             a write is durable when it is answered (NBD with FUA)"
        ));
    }
    Ok(())
}

/// "48 s", "3.3 min", "1.2 h".
fn words(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.0} s"),
        s if s < 6000.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::replica::Link;

    #[test]
    fn with_three_processors_nobody_shares_one() {
        let places = Places::of(&[0, 1, 2, 3, 4]);
        assert_eq!((places.source, places.destination), (vec![0, 1], vec![2, 3]));
        assert_eq!((places.loader, places.shared), (vec![4], 0));
        let few = Places::of(&[3, 5]);
        assert_eq!(
            (few.source, few.destination, few.loader, few.shared),
            (vec![3, 5], vec![3, 5], vec![3, 5], 2)
        );
    }

    #[test]
    fn what_the_destination_pulled_has_moved_by_rdma_read() {
        let traffic = crate::status::Traffic {
            rdma_by_client_bytes: 90,
            sent_bytes: 20,
            received_bytes: 5,
            ..crate::status::Traffic::default()
        };
        let link = Link { transport: "iwarp".into(), traffic, ..Link::default() };
        let seen = travelled(&link, 100).unwrap();
        assert_eq!((seen.rdma_read_bytes, seen.inline_bytes, seen.send_bytes), (90, 10, 25));
        assert_eq!(seen.provider.as_deref(), Some("iwarp"));
        assert_eq!(travelled(&Link::default(), 100), None, "there was no link any more");
    }

    #[test]
    fn the_posts_volume_is_told_in_a_unit_that_fits() {
        assert_eq!([48.2, 200.0, 30_000.0].map(words), ["48 s", "3.3 min", "8.3 h"]);
        let sample = |seconds: f64| {
            let mut latency = Latencies::new();
            latency.record(1);
            Sample { operations: 1, bytes: 1 << 30, seconds, latency, ..Sample::default() }
        };
        let mut section = Section::new(Picture::Replica);
        section.points.push(Point::of(first_copy(1 << 30), "shm", 1e9, &[sample(0.1)]).unwrap());
        notes(&mut section, Path::new("/")).unwrap();
        assert!(section.notes[0].contains("3.1 min by shm"), "{:?}", section.notes);
        assert_eq!(section.notes.len(), 2, "nothing was written durably");
    }
}
