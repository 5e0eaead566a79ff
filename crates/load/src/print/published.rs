//! What the white papers published, for scale: drawn beside our own figures and labelled as other hardware.
//!
//! Every number here was found in the source that it names; what could not be found is not here, and pictures without
//! published numbers say so. A ratio is that of RDMA to TCP in the paper's own measurement.
//! Owns: the list. Does not: judge; docs/results/papers.md reads the claims one by one.

use crate::result::{Measure, Picture};

/// What a published number is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// RDMA's figure divided by TCP's.
    Ratio,
    /// The figure itself.
    Value,
}

/// One published number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// The picture that it belongs to.
    pub picture: Picture,
    /// Which measure.
    pub measure: Measure,
    /// What the number is.
    pub kind: Kind,
    /// The number, in the measure's unit.
    pub value: f64,
    /// The best that was seen ("up to"), not what is usual.
    pub at_best: bool,
    /// Bytes an operation, where it is of one block size only.
    pub size: Option<u32>,
    /// For a label in a figure.
    pub label: &'static str,
    /// A sentence: what, on which hardware.
    pub text: &'static str,
    /// Where it was found.
    pub source: &'static str,
}

const SQLIO: &str =
    "white papers on SMB Direct measured with sqlio, as quoted in this project's plan (issue 2)";
const DISKSPD: &str = "Chelsio, \"Windows Server 2012 R2 SMB Performance: RDMA vs. NIC Throughput, IOPS and CPB\", as quoted \
in this project's plan (issue 4)";
const BETA: &str = "J. Barreto, \"Preliminary performance results with Windows Server 2012 Beta and SMB Direct\", \
blogs.technet.microsoft.com/josebda, 2012-04-10";
const REPLICA: &str = "Microsoft, \"It's Gone To Plaid: Storage Replica and Chelsio iWARP Performance\", 2018-03-26; the rate \
as quoted in this project's plan (issue 6)";

/// All of them.
pub const PUBLISHED: &[Published] = &[
    Published {
        picture: Picture::Latency,
        measure: Measure::Mean,
        kind: Kind::Ratio,
        value: 0.67,
        at_best: false,
        size: None,
        label: "papers: 0.60 to 0.67",
        text: "RDMA's round trip takes 0.60 to 0.67 of TCP's, on network cards with RDMA.",
        source: SQLIO,
    },
    Published {
        picture: Picture::Smb,
        measure: Measure::Throughput,
        kind: Kind::Ratio,
        value: 2.0,
        at_best: true,
        size: None,
        label: "paper: up to 2",
        text: "RDMA moves up to twice TCP's bytes per second: an iWARP card (Chelsio T520-LL-CR) against a plain one (Intel X520-DA2), 10 Gbit/s a port.",
        source: DISKSPD,
    },
    Published {
        picture: Picture::Smb,
        measure: Measure::Cycles,
        kind: Kind::Ratio,
        value: 1.0 / 3.5,
        at_best: true,
        size: None,
        label: "paper: down to 1/3.5",
        text: "RDMA spends down to 1/3.5 of TCP's cycles per byte, on the same pair of cards.",
        source: DISKSPD,
    },
    Published {
        picture: Picture::Table,
        measure: Measure::Iops,
        kind: Kind::Value,
        value: 160_000.0,
        at_best: true,
        size: Some(1024),
        label: "2011, QDR InfiniBand: 160,000",
        text: "160,000 operations of 1 KiB per second by SMB Direct over one QDR InfiniBand card (Mellanox ConnectX-2), September 2011.",
        source: BETA,
    },
    Published {
        picture: Picture::Table,
        measure: Measure::Iops,
        kind: Kind::Value,
        value: 300_000.0,
        at_best: true,
        size: Some(1024),
        label: "2011, four 10 GbE: 300,000",
        text: "Over 300,000 operations of 1 KiB per second, and at most 4,300 MB/s, by SMB Multichannel over four 10 Gbit/s cards without RDMA, September 2011.",
        source: BETA,
    },
    Published {
        picture: Picture::Replica,
        measure: Measure::Throughput,
        kind: Kind::Value,
        value: 10e9,
        at_best: true,
        size: None,
        label: "post: 10 GB/s",
        text: "10 GB/s, 2 TB in 4 minutes: two servers with two Xeon E5-2687W v4 each, five NVMe disks, a 100 Gbit/s iWARP card (Chelsio T62100-CR).",
        source: REPLICA,
    },
];

/// Those of `picture` and `measure`.
pub fn of(picture: Picture, measure: Measure, kind: Kind) -> impl Iterator<Item = &'static Published> {
    PUBLISHED.iter().filter(move |p| p.picture == picture && p.measure == measure && p.kind == kind)
}

/// Of pictures whose paper has numbers that are not here, why.
pub fn missing(picture: Picture) -> Option<&'static str> {
    match picture {
        Picture::Nfs => Some(
            "The iozone paper's curves are pictures and its numbers were not to be had. Its claim: interrupts fall as the blocks grow.",
        ),
        Picture::Latency | Picture::Smb => {
            Some("The paper's curves are pictures: only the numbers that its text names are drawn.")
        }
        Picture::Table => Some("Of the post's table only the numbers of its text were to be had."),
        Picture::Replica | Picture::Demo | Picture::Own => None,
    }
}
