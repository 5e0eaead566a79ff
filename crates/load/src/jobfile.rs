//! Job files: user-defined workloads in TOML. docs/guide.md lists every key.
//!
//! An error names the line. Servers are not looked up here.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, Deserializer, IntoDeserializer, SeqAccess, Visitor};
use toml::Spanned;

use crate::job::Job;
use crate::measure::{Steady, Timing};
use crate::workload::{Mix, Order};

/// A parsed job file.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFile {
    /// The server that the file names: `local`, HOST, or a URL.
    pub server: Option<String>,
    /// The protocol that the file requests if HOST has several: "smb" or "nfs".
    pub protocol: Option<String>,
    /// Transports that the file requests.
    pub transports: Vec<String>,
    /// The workloads, in order.
    pub jobs: Vec<Job>,
}

/// The text is not a job file: the error and its line.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct JobFileError(String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    server: Option<String>,
    protocol: Option<Spanned<String>>,
    #[serde(default)]
    transports: Vec<String>,
    #[serde(default)]
    defaults: Keys,
    #[serde(default)]
    work: Vec<Spanned<Keys>>,
}

/// The keys of a workload; missing ones are taken from `[defaults]`.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Keys {
    name: Option<String>,
    read: Option<OneOrMany<Reads>>,
    block: Option<OneOrMany<Size>>,
    queue_depth: Option<u32>,
    order: Option<Offsets>,
    streams: Option<bool>,
    threads: Option<u32>,
    clients: Option<u32>,
    channels: Option<u32>,
    files: Option<u32>,
    file_size: Option<Size>,
    rate: Option<f64>,
    think: Option<Span>,
    warm_up: Option<Span>,
    duration: Option<Span>,
    cool_down: Option<Span>,
    until_steady: Option<f64>,
    repetitions: Option<u32>,
    verify: Option<bool>,
    seed: Option<u32>,
}

#[derive(Clone)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

/// Not `serde(untagged)`, which loses the error of the single value.
struct OneOrManyOf<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyOf<T> {
    type Value = OneOrMany<T>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one value, or a list of them")
    }
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<OneOrMany<T>, E> {
        T::deserialize(number.into_deserializer()).map(OneOrMany::One)
    }
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<OneOrMany<T>, E> {
        T::deserialize(number.into_deserializer()).map(OneOrMany::One)
    }
    fn visit_str<E: de::Error>(self, word: &str) -> Result<OneOrMany<T>, E> {
        T::deserialize(word.into_deserializer()).map(OneOrMany::One)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<OneOrMany<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(OneOrMany::Many)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OneOrMany<T>, D::Error> {
        deserializer.deserialize_any(OneOrManyOf(PhantomData))
    }
}

impl<T: Copy> OneOrMany<T> {
    fn all(&self) -> Vec<T> {
        match self {
            OneOrMany::One(one) => vec![*one],
            OneOrMany::Many(many) => many.clone(),
        }
    }
}

/// Bytes: "8K", or a number.
#[derive(Clone, Copy)]
struct Size(u64);
/// A time: "500ms", "2s", "1m", or seconds.
#[derive(Clone, Copy)]
struct Span(Duration);
/// The percentage of READs among the operations.
#[derive(Clone, Copy)]
struct Reads(u8);
/// "sequential", "random", "zipf:0.99".
#[derive(Clone, Copy)]
struct Offsets(Order);

/// Parses numbers and strings with one function each.
struct Written<T> {
    wants: &'static str,
    number: fn(f64) -> Option<T>,
    word: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for Written<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.wants)
    }
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        (self.number)(number as f64).ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
    }
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        (self.number)(number).ok_or_else(|| E::invalid_value(de::Unexpected::Float(number), &self))
    }
    fn visit_str<E: de::Error>(self, word: &str) -> Result<T, E> {
        (self.word)(word).ok_or_else(|| E::invalid_value(de::Unexpected::Str(word), &self))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        deserializer.deserialize_any(Written {
            wants: "a size like \"8K\", \"64M\" or 4096",
            number: |n| ((1.0..1e15).contains(&n) && n.fract() == 0.0).then_some(Size(n as u64)),
            word: |word| {
                let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
                let shift = match word[digits.len()..].to_ascii_uppercase().as_str() {
                    "" | "B" => 0,
                    "K" | "KIB" => 10,
                    "M" | "MIB" => 20,
                    "G" | "GIB" => 30,
                    _ => return None,
                };
                digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift).filter(|n| *n > 0).map(Size)
            },
        })
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        fn of(seconds: f64) -> Option<Span> {
            (0.0..=86_400.0).contains(&seconds).then(|| Span(Duration::from_secs_f64(seconds)))
        }
        deserializer.deserialize_any(Written {
            wants: "a time like \"500ms\", \"2s\", \"1m\", or seconds",
            number: of,
            word: |word| {
                let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
                let unit = match &word[digits.len()..] {
                    "us" => 1e-6,
                    "ms" => 1e-3,
                    "" | "s" => 1.0,
                    "m" | "min" => 60.0,
                    _ => return None,
                };
                of(digits.trim().parse::<f64>().ok()? * unit)
            },
        })
    }
}

impl<'de> Deserialize<'de> for Reads {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Reads, D::Error> {
        deserializer.deserialize_any(Written {
            wants: "the percentage of READs: 100 for READs alone, 0 for WRITEs alone",
            number: |n| ((0.0..=100.0).contains(&n) && n.fract() == 0.0).then_some(Reads(n as u8)),
            word: |_| None,
        })
    }
}

impl<'de> Deserialize<'de> for Offsets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Offsets, D::Error> {
        deserializer.deserialize_any(Written {
            wants: "\"sequential\", \"random\" or \"zipf:0.99\" (0.01 to 3)",
            number: |_| None,
            word: |word| match word {
                "sequential" => Some(Offsets(Order::Sequential)),
                "random" => Some(Offsets(Order::Random)),
                _ => {
                    let exponent: f64 = word.strip_prefix("zipf:")?.parse().ok()?;
                    let order = Order::Zipf((exponent * 100.0).round() as u16);
                    (0.01..=3.0).contains(&exponent).then_some(Offsets(order))
                }
            },
        })
    }
}

impl JobFile {
    /// Parses `text`.
    pub fn parse(text: &str) -> Result<JobFile, JobFileError> {
        let read: Text = toml::from_str(text).map_err(|e| JobFileError(e.to_string()))?;
        let at = |offset: usize, what: &dyn fmt::Display| {
            let line = text.get(..offset).map_or(1, |before| before.matches('\n').count() + 1);
            JobFileError(format!("line {line}: {what}"))
        };
        if read.work.is_empty() {
            return Err(JobFileError("there is no workload: add at least one table [[work]]".into()));
        }
        if let Some(protocol) = &read.protocol
            && !["smb", "nfs"].contains(&protocol.get_ref().as_str())
        {
            return Err(at(protocol.span().start, &"protocol is \"smb\" or \"nfs\""));
        }
        let mut jobs: Vec<Job> = Vec::new();
        for (number, work) in (1..).zip(&read.work) {
            let job = work.get_ref().job(&read.defaults, number);
            job.check().map_err(|e| at(work.span().start, &e))?;
            if jobs.iter().any(|other| other.name == job.name) {
                return Err(at(work.span().start, &format!("two workloads have the name {:?}", job.name)));
            }
            jobs.push(job);
        }
        let protocol = read.protocol.map(Spanned::into_inner);
        Ok(JobFile { server: read.server, protocol, transports: read.transports, jobs })
    }
}

impl Keys {
    fn job(&self, defaults: &Keys, number: usize) -> Job {
        let usual = Job::default();
        macro_rules! key {
            ($name:ident) => {
                self.$name.as_ref().or(defaults.$name.as_ref())
            };
        }
        let mix = |Reads(reads): &Reads| match *reads {
            0 => Mix::Write,
            100 => Mix::Read,
            reads => Mix::Percent(reads),
        };
        let span = |span: Option<&Span>, usual| span.map_or(usual, |span: &Span| span.0);
        let duration = span(key!(duration), usual.timing.duration);
        let window = (duration / 5).clamp(Duration::from_millis(20), Duration::from_secs(1));
        // Sizes out of range are refused by the check.
        let blocks = |blocks: &OneOrMany<Size>| {
            blocks.all().iter().map(|size| u32::try_from(size.0).unwrap_or(u32::MAX)).collect()
        };
        Job {
            name: self.name.clone().unwrap_or_else(|| format!("work {number}")),
            mixes: key!(read).map_or(usual.mixes, |reads| reads.all().iter().map(mix).collect()),
            sizes: key!(block).map_or(usual.sizes, blocks),
            queue_depth: *key!(queue_depth).unwrap_or(&usual.queue_depth),
            order: key!(order).map_or(usual.order, |order| order.0),
            streams: *key!(streams).unwrap_or(&usual.streams),
            threads: *key!(threads).unwrap_or(&usual.threads),
            clients: *key!(clients).unwrap_or(&usual.clients),
            channels: *key!(channels).unwrap_or(&usual.channels),
            files: *key!(files).unwrap_or(&usual.files),
            file_bytes: key!(file_size).map_or(usual.file_bytes, |size| size.0),
            rate: key!(rate).copied(),
            think: span(key!(think), usual.think),
            timing: Timing {
                warm_up: span(key!(warm_up), duration / 5),
                duration,
                cool_down: span(key!(cool_down), Duration::ZERO),
                steady: key!(until_steady).map(|percent| Steady {
                    percent: *percent,
                    window,
                    at_most: 30 * window,
                }),
            },
            repetitions: *key!(repetitions).unwrap_or(&3),
            verify: *key!(verify).unwrap_or(&usual.verify),
            seed: key!(seed).map_or(usual.seed, |seed| u64::from(*seed)),
            picture: usual.picture,
            paths: usual.paths,
            creates: usual.creates,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
server = "smb://alice@nas/data"
transports = ["tcp", "iwarp"]

[defaults]
duration = "2s"
repetitions = 5

[[work]]
name = "oltp"
read = 70
block = ["8K", 65536]
queue_depth = 10
threads = 2
files = 4
file_size = "64M"
order = "zipf:0.99"
rate = 1000
think = "1ms"
until_steady = 5

[[work]]
read = [100, 0]
duration = 0.5
order = "sequential"
verify = true
"#;

    #[test]
    fn a_job_file_says_what_to_measure() {
        let file = JobFile::parse(WHOLE).unwrap();
        assert_eq!(file.server.as_deref(), Some("smb://alice@nas/data"));
        assert_eq!(file.transports, ["tcp", "iwarp"]);
        let [oltp, other] = &file.jobs[..] else { panic!("{file:?}") };
        assert_eq!(
            (oltp.name.as_str(), &oltp.mixes[..], &oltp.sizes[..]),
            ("oltp", &[Mix::Percent(70)][..], &[8192, 65536][..])
        );
        assert_eq!((oltp.queue_depth, oltp.threads, oltp.files, oltp.file_bytes), (10, 2, 4, 64 << 20));
        assert_eq!(
            (oltp.order, oltp.rate, oltp.think),
            (Order::Zipf(99), Some(1000.0), Duration::from_millis(1))
        );
        assert_eq!(oltp.timing.duration, Duration::from_secs(2));
        assert_eq!(oltp.timing.steady.map(|steady| steady.percent), Some(5.0));
        assert_eq!((other.name.as_str(), other.repetitions, other.verify), ("work 2", 5, true));
        assert_eq!(other.timing.duration, Duration::from_millis(500));
        assert_eq!(other.mixes, [Mix::Read, Mix::Write]);
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        for (text, line, part) in [
            ("[[work]]\nblok = \"8K\"\n", "line 2", "unknown field `blok`"),
            ("[[work]]\nblock = \"8Q\"\n", "line 2", "a size like"),
            ("[[work]]\nblock = [\"8K\", \"8Q\"]\n", "line 2", "a size like"),
            ("[[work]]\nblock = true\n", "line 2", "one value, or a list of them"),
            ("[[work]]\nread = 170\n", "line 2", "the percentage of READs"),
            ("[[work]]\nfile_size = \"many\"\n", "line 2", "a size like"),
            ("[[work]]\nread = 50\norder = \"zipf:9\"\n", "line 3", "\"sequential\", \"random\""),
            ("[[work]]\nduration = \"5 parsecs\"\n", "line 2", "a time like"),
            ("\n\n[[work]]\nthreads = 0\n", "line 3", "threads must be from 1"),
            ("[[work]]\nname = \"a\"\n[[work]]\nname = \"a\"\n", "line 3", "two workloads"),
            ("protocol = \"ftp\"\n[[work]]\n", "line 1", "\"smb\" or \"nfs\""),
            ("[[work]\n", "line 1", ""),
        ] {
            let said = JobFile::parse(text).unwrap_err().to_string();
            assert!(said.contains(line) && said.contains(part), "{text:?}: {said}");
        }
        assert!(JobFile::parse("").unwrap_err().to_string().contains("[[work]]"));
    }
}
