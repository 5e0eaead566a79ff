//! The one result that every printer shows, and its JSON: docs/result-schema.md.
//!
//! A [`Report`] has one [`Section`] per picture of the white papers; a section has [`Point`]s. Each figure is reduced
//! from repetitions and has its spread, and each point has one histogram of fixed size. Samples are not kept. What
//! was not measured is absent, never zero.

mod end;
mod environment;
mod latencies;
mod measure;
mod point;
mod spread;
mod verdict;
mod work;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::end::{End, EndSample, Second, Traffic};
pub use self::environment::Environment;
pub use self::latencies::{Latencies, LatenciesError, Latency, PERCENTILES};
pub use self::measure::{Measure, Unit};
pub use self::point::{Mark, MarkKind, Point, Sample};
pub use self::spread::Spread;
pub use self::verdict::Verdict;
pub use self::work::Work;

/// The value of [`Report::schema`]. The number increases when a field changes its meaning or is removed; new fields
/// do not change it.
pub const SCHEMA: &str = "weft-result/1";

/// A whole report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// The heading.
    pub title: String,
    /// Start of the run: RFC 3339, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// Length of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// It was ended early: everything here was measured, the remainder was not.
    #[serde(default)]
    pub interrupted: bool,
    /// The loader's host.
    pub environment: Environment,
    /// The run's other hosts (servers with an agent, further clients).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Environment>,
    /// The sections in order.
    pub sections: Vec<Section>,
    /// The bounds, and whether they hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<Verdict>,
    /// Why the whole result must be read with care.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// Information for judging the figures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The picture that a section reproduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Picture {
    /// Round trips of SMB by block size (sqlio paper, figure 1).
    Latency,
    /// Throughput, IOPS and cycles of SMB by block size (diskspd paper, figures 1 to 3).
    Smb,
    /// SMB READs of 512, 8 and 1 KiB (the table of Windows Server 2012 Beta).
    Table,
    /// Throughput, interrupts and idle processors of NFS by block size (iozone paper, figures 3 to 6).
    Nfs,
    /// The initial copy of a replicated volume (Storage Replica post).
    Replica,
    /// `weft demo`.
    Demo,
    /// A user-defined workload.
    Own,
}

impl Picture {
    /// All pictures, in report order.
    pub const ALL: [Picture; 7] = [
        Picture::Demo,
        Picture::Latency,
        Picture::Smb,
        Picture::Table,
        Picture::Nfs,
        Picture::Replica,
        Picture::Own,
    ];

    /// The word in the JSON.
    pub fn word(self) -> &'static str {
        match self {
            Picture::Latency => "latency",
            Picture::Smb => "smb",
            Picture::Table => "table",
            Picture::Nfs => "nfs",
            Picture::Replica => "replica",
            Picture::Demo => "demo",
            Picture::Own => "own",
        }
    }
}

/// One picture: points that belong together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Section {
    /// The picture.
    pub picture: Picture,
    /// The measured server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Peer>,
    /// The points in the order of measurement.
    pub points: Vec<Point>,
    /// Requested points that were not measured, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<Refusal>,
    /// Information for judging this picture.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Section {
    /// An empty section.
    pub fn new(picture: Picture) -> Section {
        Section { picture, peer: None, points: Vec::new(), refusals: Vec::new(), notes: Vec::new() }
    }

    /// The point of `work` over `transport`.
    pub fn point(&self, work: &Work, transport: &str) -> Option<&Point> {
        self.points.iter().find(|p| p.work == *work && p.transport == transport)
    }

    /// The points grouped by work, in the order of works; within a work in order of measurement.
    pub fn by_work(&self) -> BTreeMap<&Work, Vec<&Point>> {
        let mut works: BTreeMap<&Work, Vec<&Point>> = BTreeMap::new();
        for point in &self.points {
            works.entry(&point.work).or_default().push(point);
        }
        works
    }
}

/// The server of a section.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// As named by the user: "127.0.0.1:4450".
    pub host: String,
    /// The server's software, if it reports it: "Weft 0.1.0", "Samba 4.17.12".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub software: Option<String>,
    /// The negotiated protocol: "SMB 3.1.1", "NFS 4.2".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dialect: Option<String>,
    /// The signing algorithm: "none", "AES-GMAC", ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing: Option<String>,
    /// The cipher: "none", "AES-128-GCM", ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<String>,
    /// It ran on the loader's host.
    #[serde(default)]
    pub same_host: bool,
}

/// A point that was not measured, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// The requested work; absent if the whole transport was unavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// The transport.
    pub transport: String,
    /// The reason, as a sentence.
    pub reason: String,
}

/// Why a file is not a result.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not JSON, or lacks a field.
    #[error("this is not a result of weft bench: {0}")]
    Shape(#[from] serde_json::Error),
    /// It has another schema version.
    #[error(
        "its schema is {0:?}, but this weft reads {SCHEMA:?}: measure again, or compare with the weft that wrote it"
    )]
    Schema(String),
}

impl Report {
    /// A report without points.
    pub fn new(title: impl Into<String>, environment: Environment) -> Report {
        Report {
            schema: SCHEMA.to_owned(),
            title: title.into(),
            started: None,
            seconds: None,
            interrupted: false,
            environment,
            others: Vec::new(),
            sections: Vec::new(),
            verdicts: Vec::new(),
            marks: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Parses the output of [`crate::print::json::write`].
    pub fn parse(text: &[u8]) -> Result<Report, ReadError> {
        #[derive(Deserialize)]
        struct Head {
            schema: String,
        }
        let head: Head = serde_json::from_slice(text)?;
        if head.schema != SCHEMA {
            return Err(ReadError::Schema(head.schema));
        }
        Ok(serde_json::from_slice(text)?)
    }

    /// All points, with their picture.
    pub fn points(&self) -> impl Iterator<Item = (Picture, &Point)> {
        self.sections.iter().flat_map(|section| section.points.iter().map(|point| (section.picture, point)))
    }

    /// The first point of `work` over `transport` in any section.
    pub fn point(&self, work: &Work, transport: &str) -> Option<&Point> {
        self.sections.iter().find_map(|section| section.point(work, transport))
    }
}

impl fmt::Display for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

#[cfg(test)]
pub(crate) mod tests;
