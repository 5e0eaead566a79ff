//! A job: what to measure, before it is split into single points. The white papers' pictures are jobs, a job file
//! contains jobs, and command lines of other loaders become jobs.
//!
//! A job has defaults and limits, and names no server: it runs against any.

use std::time::Duration;

use crate::measure::Timing;
use crate::result::{Picture, Work};
use crate::workload::{Mix, Order, Workload};

/// Most threads, clients, channels and files of a job, each: as many as one process can handle.
pub const MANY: u32 = 1024;
/// Most outstanding operations of a thread.
pub const DEEP: u32 = 4096;
/// Most bytes of an operation: the largest that the clients send at once.
pub const LARGE: u32 = 16 << 20;

/// What to measure: every mix with every block size.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The picture that it reproduces.
    pub picture: Picture,
    /// Its name, for a job of the user's.
    pub name: String,
    /// Operations.
    pub mixes: Vec<Mix>,
    /// Block sizes in bytes.
    pub sizes: Vec<u32>,
    /// Outstanding operations of a thread.
    pub queue_depth: u32,
    /// Order of offsets.
    pub order: Order,
    /// Each slot of a thread's queue uses one file only.
    pub streams: bool,
    /// Threads per client.
    pub threads: u32,
    /// Clients, each with its own connections.
    pub clients: u32,
    /// Connections per session.
    pub channels: u32,
    /// Files.
    pub files: u32,
    /// Bytes of each file; with `paths`, 0 means the size of the smallest file.
    pub file_bytes: u64,
    /// Files to use instead of our own; they exist already or are created under these names.
    pub paths: Vec<String>,
    /// Whether missing files may be created.
    pub creates: bool,
    /// Operations per second of all clients together; `None`: as many as possible.
    pub rate: Option<f64>,
    /// Pause of each queue slot after an operation.
    pub think: Duration,
    /// When to count.
    pub timing: Timing,
    /// How often each point is measured.
    pub repetitions: u32,
    /// Compare every byte read.
    pub verify: bool,
    /// Seed of random orders.
    pub seed: u64,
}

/// One point, to be measured over every transport.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The work compared.
    pub work: Work,
    /// What each thread does.
    pub workload: Workload,
}

/// Why a job cannot be run.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum JobError {
    /// A number is 0 or too large.
    #[error("{what} must be from 1 to {most}, not {is}")]
    Range {
        /// Its name.
        what: &'static str,
        /// Its value.
        is: u64,
        /// Its maximum.
        most: u64,
    },
    /// The files hold no block.
    #[error("a file of {file} bytes holds no block of {size}: make the file larger or the block smaller")]
    Small {
        /// Bytes of a file.
        file: u64,
        /// Bytes of the block.
        size: u32,
    },
    /// A list is empty.
    #[error("{0} is empty: name at least one")]
    Empty(&'static str),
    /// There are fewer files than streams of a thread.
    #[error("{streams} streams need as many files, there are {files} for each thread")]
    Streams {
        /// Streams of a thread.
        streams: u32,
        /// Files of a thread.
        files: u32,
    },
}

impl Default for Job {
    /// 8 KiB READs at random offsets of one file, one at a time, for 5 seconds.
    fn default() -> Job {
        Job {
            picture: Picture::Own,
            name: String::new(),
            mixes: vec![Mix::Read],
            sizes: vec![8 << 10],
            queue_depth: 1,
            order: Order::Random,
            streams: false,
            threads: 1,
            clients: 1,
            channels: 1,
            files: 1,
            file_bytes: 64 << 20,
            paths: Vec::new(),
            creates: false,
            rate: None,
            think: Duration::ZERO,
            timing: Timing {
                warm_up: Duration::from_secs(1),
                duration: Duration::from_secs(5),
                cool_down: Duration::ZERO,
                steady: None,
            },
            repetitions: 1,
            verify: false,
            seed: 0x5eed,
        }
    }
}

impl Job {
    /// Whether the job can be run.
    pub fn check(&self) -> Result<(), JobError> {
        let range = |what, is: u64, most: u64| match is {
            0 => Err(JobError::Range { what, is, most }),
            is if is > most => Err(JobError::Range { what, is, most }),
            _ => Ok(()),
        };
        for (what, is) in [
            ("threads", self.threads),
            ("clients", self.clients),
            ("channels", self.channels),
            ("files", self.files),
            ("repetitions", self.repetitions),
        ] {
            range(what, is.into(), MANY.into())?;
        }
        range(
            "the product of clients and threads",
            u64::from(self.clients) * u64::from(self.threads),
            MANY.into(),
        )?;
        range("the queue depth", self.queue_depth.into(), DEEP.into())?;
        if self.mixes.is_empty() {
            return Err(JobError::Empty("the list of operations"));
        }
        if self.sizes.is_empty() {
            return Err(JobError::Empty("the list of block sizes"));
        }
        for &size in &self.sizes {
            range("a block size", size.into(), LARGE.into())?;
            if u64::from(size) > self.file_bytes {
                return Err(JobError::Small { file: self.file_bytes, size });
            }
        }
        let files = self.files_of(0).len() as u32;
        if self.streams && files < self.queue_depth {
            return Err(JobError::Streams { streams: self.queue_depth, files });
        }
        Ok(())
    }

    /// Its points, in order.
    pub fn items(&self, protocol: &str) -> Vec<Item> {
        let each = |mix: &Mix, size: u32| Item {
            work: Work {
                name: self.name.clone(),
                order: self.order.to_string(),
                files: self.files,
                threads: self.threads,
                channels: self.channels,
                clients: self.clients,
                rate: self.rate.map(|rate| rate.round() as u64),
                ..Work::simple(protocol, *mix, size, self.queue_depth)
            },
            workload: Workload {
                mix: *mix,
                size,
                queue_depth: self.queue_depth,
                order: self.order,
                streams: self.streams,
                span: self.file_bytes,
                warm_up: self.timing.warm_up,
                duration: self.timing.duration,
                cool_down: self.timing.cool_down,
                seed: self.seed,
                rate: self.rate.map(|rate| rate / f64::from(self.workers())),
                think: self.think,
                verify: self.verify,
            },
        };
        self.mixes.iter().flat_map(|mix| self.sizes.iter().map(move |size| each(mix, *size))).collect()
    }

    /// Threads of all clients.
    pub fn workers(&self) -> u32 {
        self.clients * self.threads
    }

    /// Numbers of the files for thread `worker` of all: files of its own if there are as many files as threads,
    /// otherwise all.
    pub fn files_of(&self, worker: u32) -> Vec<u32> {
        let all = 0..self.files;
        match self.files >= self.workers() {
            true => all.filter(|file| file % self.workers() == worker).collect(),
            false => all.collect(),
        }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        u64::from(self.files) * self.file_bytes
    }
}

/// Duration and repetitions for the papers' pictures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// Fewer block sizes, smaller files.
    pub quick: bool,
    /// When to count.
    pub timing: Timing,
    /// How often each point is measured.
    pub repetitions: u32,
}

const KIB: u32 = 1 << 10;

/// Powers of two from `low` to `high` KiB; for a quick run only every third, and the last.
fn powers(low: u32, high: u32, quick: bool) -> Vec<u32> {
    let all: Vec<u32> = (0..).map(|n| low << n).take_while(|size| *size <= high).collect();
    let last = all.len() - 1;
    let wanted = |(i, size): (usize, u32)| (!quick || i % 3 == 0 || i == last).then_some(size * KIB);
    all.into_iter().enumerate().filter_map(wanted).collect()
}

/// The jobs of a picture in the papers, with its parameters. Pictures that do not measure reads and writes have none.
pub fn paper(picture: Picture, extent: &Extent) -> Vec<Job> {
    let job = Job { picture, timing: extent.timing, repetitions: extent.repetitions, ..Job::default() };
    let quick = extent.quick;
    let mib = |full: u64, small: u64| (if quick { small } else { full }) << 20;
    match picture {
        // Round trips: one operation at a time on one file.
        Picture::Latency => vec![Job {
            mixes: vec![Mix::Read, Mix::Write],
            sizes: powers(1, 256, quick),
            file_bytes: mib(256, 64),
            ..job
        }],
        // 20 files, 2 threads with 10 outstanding operations each.
        Picture::Smb => vec![Job {
            mixes: vec![Mix::Read, Mix::Write, Mix::Percent(50)],
            sizes: powers(2, 256, quick),
            queue_depth: 10,
            threads: 2,
            files: 20,
            file_bytes: mib(16, 4),
            ..job
        }],
        // The table gives the second size for comparison.
        Picture::Table => vec![Job {
            sizes: vec![512 * KIB, 8 * KIB, KIB],
            queue_depth: 16,
            threads: 1,
            file_bytes: mib(256, 64),
            ..job
        }],
        // 16 streams of two clients, each with a file of its own.
        Picture::Nfs => vec![Job {
            mixes: vec![Mix::Read, Mix::Write],
            sizes: powers(4, 4096, quick),
            queue_depth: 8,
            order: Order::Sequential,
            streams: true,
            clients: 2,
            files: 16,
            file_bytes: mib(16, 8),
            ..job
        }],
        Picture::Replica | Picture::Demo | Picture::Own => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::size_label;

    const TIMING: Timing = Timing {
        warm_up: Duration::from_millis(100),
        duration: Duration::from_millis(500),
        cool_down: Duration::ZERO,
        steady: None,
    };

    fn one(picture: Picture, quick: bool) -> Job {
        let mut jobs = paper(picture, &Extent { quick, timing: TIMING, repetitions: 3 });
        assert_eq!(jobs.len(), 1);
        let job = jobs.remove(0);
        job.check().unwrap();
        job
    }

    fn sizes(job: &Job) -> String {
        job.sizes.iter().map(|size| size_label(u64::from(*size))).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn the_pictures_have_the_papers_parameters() {
        let latency = one(Picture::Latency, false);
        assert_eq!(sizes(&latency), "1 KiB, 2 KiB, 4 KiB, 8 KiB, 16 KiB, 32 KiB, 64 KiB, 128 KiB, 256 KiB");
        assert_eq!((latency.queue_depth, latency.workers()), (1, 1));
        let smb = one(Picture::Smb, false);
        assert_eq!(sizes(&smb), "2 KiB, 4 KiB, 8 KiB, 16 KiB, 32 KiB, 64 KiB, 128 KiB, 256 KiB");
        assert_eq!((smb.files, smb.queue_depth, smb.threads), (20, 10, 2));
        assert_eq!(smb.mixes, [Mix::Read, Mix::Write, Mix::Percent(50)]);
        assert_eq!(sizes(&one(Picture::Table, false)), "512 KiB, 8 KiB, 1 KiB");
        let nfs = one(Picture::Nfs, false);
        assert_eq!(
            sizes(&nfs),
            "4 KiB, 8 KiB, 16 KiB, 32 KiB, 64 KiB, 128 KiB, 256 KiB, 512 KiB, 1 MiB, 2 MiB, 4 MiB"
        );
        assert_eq!(nfs.queue_depth * nfs.clients, 16, "streams");
        assert_eq!(nfs.order, Order::Sequential);
        assert_eq!(paper(Picture::Replica, &Extent { quick: false, timing: TIMING, repetitions: 3 }), []);
    }

    #[test]
    fn a_quick_look_keeps_the_ends() {
        assert_eq!(sizes(&one(Picture::Latency, true)), "1 KiB, 8 KiB, 64 KiB, 256 KiB");
        assert_eq!(sizes(&one(Picture::Nfs, true)), "4 KiB, 32 KiB, 256 KiB, 2 MiB, 4 MiB");
    }

    #[test]
    fn threads_share_files_only_where_there_are_too_few() {
        let job = Job { files: 5, threads: 2, ..Job::default() };
        assert_eq!((job.files_of(0), job.files_of(1)), (vec![0, 2, 4], vec![1, 3]));
        let job = Job { files: 1, clients: 2, threads: 2, ..Job::default() };
        assert_eq!(job.files_of(3), [0]);
        let items = Job { rate: Some(1000.0), ..job }.items("SMB");
        assert_eq!((items[0].work.rate, items[0].workload.rate), (Some(1000), Some(250.0)));
    }

    #[test]
    fn what_cannot_be_run_is_said() {
        let wrong = |job: Job| job.check().unwrap_err().to_string();
        assert_eq!(wrong(Job { threads: 0, ..Job::default() }), "threads must be from 1 to 1024, not 0");
        assert_eq!(
            wrong(Job { sizes: vec![], ..Job::default() }),
            "the list of block sizes is empty: name at least one"
        );
        assert!(wrong(Job { sizes: vec![32 << 20], ..Job::default() }).contains("a block size must be"));
        assert!(wrong(Job { file_bytes: 100, ..Job::default() }).contains("holds no block of 8192"));
        assert!(wrong(Job { clients: 64, threads: 64, ..Job::default() }).contains("product"));
        assert!(
            wrong(Job { streams: true, queue_depth: 3, files: 2, ..Job::default() }).contains("3 streams")
        );
    }
}
