//! Numbers from the white papers, drawn beside ours and labelled as other hardware.
//!
//! Every number is stated in the text of the document that [`Published::source`] names. The papers' curves are
//! images, from which no points were read. A ratio is RDMA against TCP in the paper's own measurement.

use crate::result::{Measure, Picture, Work};
use crate::workload::Mix;

/// The kind of a published number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// RDMA's figure divided by TCP's.
    Ratio,
    /// The figure itself.
    Value,
}

/// The points that a statement covers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scope {
    /// Only this mix of READs and WRITEs.
    pub mix: Option<Mix>,
    /// Only this protocol, as in [`Work::protocol`].
    pub protocol: Option<&'static str>,
    /// Smallest block, in bytes.
    pub smallest: u32,
    /// Largest block, in bytes.
    pub largest: u32,
}

impl Scope {
    const ALL: Scope = Scope { mix: None, protocol: None, smallest: 0, largest: u32::MAX };

    const fn at(mix: Mix, size: u32) -> Scope {
        Scope { mix: Some(mix), smallest: size, largest: size, ..Scope::ALL }
    }

    /// The single block size of the statement.
    pub fn size(&self) -> Option<u32> {
        (self.smallest == self.largest).then_some(self.smallest)
    }

    /// Whether the statement covers `work`.
    pub fn covers(&self, work: &Work) -> bool {
        self.mix.is_none_or(|mix| mix == work.mix)
            && self.protocol.is_none_or(|protocol| protocol == work.protocol)
            && (self.smallest..=self.largest).contains(&work.size)
    }
}

/// One published number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// Its picture.
    pub picture: Picture,
    /// Its measure.
    pub measure: Measure,
    /// The kind of number.
    pub kind: Kind,
    /// The number, in the measure's unit.
    pub value: f64,
    /// A best case ("up to"), not a typical value.
    pub at_best: bool,
    /// The points that it covers.
    pub scope: Scope,
    /// For a label in a figure.
    pub label: &'static str,
    /// A sentence: the claim and its hardware.
    pub text: &'static str,
    /// The document.
    pub source: &'static str,
}

const SQLIO: &str = "Chelsio, \"SMBDirect Latency on Windows Server 2012 R2\", T580-CR at 40 Gbit/s";
const DISKSPD: &str = "Chelsio, \"Windows SMB 3.0 Performance at 40Gbps\", T580-CR against Intel XL710";
const BETA: &str = "J. Barreto, \"Preliminary performance results with Windows Server 2012 Beta and SMB Direct\", \
blogs.technet.com/b/josebda, 2012";
const IOZONE: &str = "Chelsio, \"NFS/RDMA over 40Gbps Ethernet\", T580-CR";
const REPLICA: &str =
    "Microsoft, \"It's Gone To Plaid: Storage Replica and Chelsio iWARP Performance\", 2018-03-26";

const KIB: u32 = 1024;
/// Up to 8 KiB, the limit of the sqlio paper's ratios.
const SMALL_READS: Scope = Scope { mix: Some(Mix::Read), smallest: KIB, largest: 8 * KIB, ..Scope::ALL };
const SMALL_WRITES: Scope = Scope { mix: Some(Mix::Write), ..SMALL_READS };
/// Both directions at once, above 4 KiB, where Windows starts to use RDMA.
const LARGE_BOTH: Scope = Scope { mix: Some(Mix::Percent(50)), smallest: 4 * KIB + 1, ..Scope::ALL };
/// The initial copy of a volume. The picture also has durable writes, which are not from the post.
const FIRST_COPY: Scope = Scope { protocol: Some("replica"), ..Scope::ALL };

/// A figure from the table of the Beta post.
const fn table(measure: Measure, kib: u32, value: f64, label: &'static str, text: &'static str) -> Published {
    Published {
        picture: Picture::Table,
        measure,
        kind: Kind::Value,
        value,
        at_best: false,
        scope: Scope::at(Mix::Read, kib * KIB),
        label,
        text,
        source: BETA,
    }
}

/// All published numbers.
pub const PUBLISHED: &[Published] = &[
    Published {
        picture: Picture::Latency,
        measure: Measure::Mean,
        kind: Kind::Ratio,
        value: 0.67,
        at_best: false,
        scope: SMALL_READS,
        label: "paper, to 8 KiB: 0.67",
        text: "A READ round trip of up to 8 KiB takes about 33% less by RDMA.",
        source: SQLIO,
    },
    Published {
        picture: Picture::Latency,
        measure: Measure::Mean,
        kind: Kind::Ratio,
        value: 0.60,
        at_best: false,
        scope: SMALL_WRITES,
        label: "paper, to 8 KiB: 0.60",
        text: "A WRITE round trip of up to 8 KiB takes about 40% less by RDMA.",
        source: SQLIO,
    },
    Published {
        picture: Picture::Latency,
        measure: Measure::Mean,
        kind: Kind::Value,
        value: 5000.0,
        at_best: false,
        scope: SMALL_READS,
        label: "paper, RDMA to 8 KiB: below 5 us",
        text: "A READ round trip of up to 8 KiB takes less than 5 us by RDMA.",
        source: SQLIO,
    },
    Published {
        picture: Picture::Latency,
        measure: Measure::Mean,
        kind: Kind::Value,
        value: 6000.0,
        at_best: false,
        scope: SMALL_WRITES,
        label: "paper, RDMA to 8 KiB: 5 to 6 us",
        text: "A WRITE round trip of up to 8 KiB takes 5 to 6 us by RDMA.",
        source: SQLIO,
    },
    Published {
        picture: Picture::Smb,
        measure: Measure::Throughput,
        kind: Kind::Ratio,
        value: 2.0,
        at_best: true,
        scope: LARGE_BOTH,
        label: "paper, above 4 KiB: up to 2",
        text: "In both directions at once and above 4 KiB, where RDMA begins, it moves up to twice the plain card's bytes per second.",
        source: DISKSPD,
    },
    Published {
        picture: Picture::Smb,
        measure: Measure::Cycles,
        kind: Kind::Ratio,
        value: 1.0 / 1.5,
        at_best: false,
        scope: Scope::ALL,
        label: "paper, at least: 1/1.5",
        text: "The plain card spends at least 1.5 times RDMA's cycles per byte.",
        source: DISKSPD,
    },
    Published {
        picture: Picture::Smb,
        measure: Measure::Cycles,
        kind: Kind::Ratio,
        value: 1.0 / 3.5,
        at_best: true,
        scope: Scope::ALL,
        label: "paper, large blocks: 1/3.5",
        text: "As the block size grows, the plain card spends up to 3.5 times RDMA's cycles per byte.",
        source: DISKSPD,
    },
    table(
        Measure::Iops,
        512,
        4210.0,
        "2012: 4,210",
        "4,210 READs of 512 KiB per second by SMB Direct, to 14 SSDs (ConnectX-2 QDR InfiniBand, two Xeon L5630; 19 outstanding by Little's law).",
    ),
    table(
        Measure::Iops,
        8,
        214_000.0,
        "2012: 214,000",
        "214,000 READs of 8 KiB per second on the same machines (186 outstanding).",
    ),
    table(
        Measure::Iops,
        1,
        294_000.0,
        "2012: 294,000",
        "294,000 READs of 1 KiB per second on the same machines (90 outstanding).",
    ),
    table(
        Measure::Throughput,
        512,
        2.21e9,
        "2012: 2.21 GB/s",
        "2.21 GB/s by READs of 512 KiB on the same machines.",
    ),
    table(
        Measure::Throughput,
        8,
        1.75e9,
        "2012: 1.75 GB/s",
        "1.75 GB/s by READs of 8 KiB on the same machines.",
    ),
    table(
        Measure::Throughput,
        1,
        0.30e9,
        "2012: 0.30 GB/s",
        "0.30 GB/s by READs of 1 KiB on the same machines.",
    ),
    table(
        Measure::Mean,
        512,
        4_410_000.0,
        "2012: 4.41 ms",
        "4.41 ms for a READ of 512 KiB on the same machines (the client's counter \"Average seconds per data request\").",
    ),
    table(Measure::Mean, 8, 870_000.0, "2012: 870 us", "870 us for a READ of 8 KiB on the same machines."),
    table(Measure::Mean, 1, 305_000.0, "2012: 305 us", "305 us for a READ of 1 KiB on the same machines."),
    Published {
        at_best: true,
        ..table(
            Measure::Iops,
            1,
            160_000.0,
            "2011, QDR: 160,000",
            "160,000 READs of 1 KiB per second by SMB Direct over one ConnectX-2 QDR InfiniBand card, September 2011.",
        )
    },
    Published {
        at_best: true,
        ..table(
            Measure::Iops,
            1,
            300_000.0,
            "2011, four 10 GbE: 300,000",
            "Over 300,000 operations of 1 KiB per second, and at most 4,300 MB/s, by SMB Multichannel over four 10 Gbit/s cards without RDMA, September 2011.",
        )
    },
    Published {
        picture: Picture::Nfs,
        measure: Measure::Throughput,
        kind: Kind::Ratio,
        value: 1.0,
        at_best: false,
        scope: Scope::ALL,
        label: "paper: above 1",
        text: "RDMA has the higher throughput at every block size. It reaches 40 Gbit/s from 32 KiB on for READ and from 64 KiB on for WRITE, the plain card never.",
        source: IOZONE,
    },
    Published {
        picture: Picture::Replica,
        measure: Measure::Throughput,
        kind: Kind::Value,
        value: 2e12 / 720.0,
        at_best: false,
        scope: FIRST_COPY,
        label: "post, 25 Gbit/s: 2.8 GB/s",
        text: "2 TB in 12 minutes (2.8 GB/s) over 25 Gbit/s iWARP (Chelsio T6225-CR): the network is the limit.",
        source: REPLICA,
    },
    Published {
        picture: Picture::Replica,
        measure: Measure::Throughput,
        kind: Kind::Value,
        value: 10e9,
        at_best: true,
        scope: FIRST_COPY,
        label: "post, 100 Gbit/s: 10 GB/s",
        text: "2 TB in less than 4 minutes (about 10 GB/s) over 100 Gbit/s iWARP (Chelsio T62100-CR): the five NVMe disks at each end are the limit.",
        source: REPLICA,
    },
];

/// The numbers of `picture` and `measure`.
pub fn of(picture: Picture, measure: Measure, kind: Kind) -> impl Iterator<Item = &'static Published> {
    PUBLISHED.iter().filter(move |p| p.picture == picture && p.measure == measure && p.kind == kind)
}

/// Why a picture shows fewer numbers than its paper.
pub fn missing(picture: Picture) -> Option<&'static str> {
    match picture {
        Picture::Latency | Picture::Smb | Picture::Nfs => {
            Some("The paper's curves are images: only the numbers in its text are drawn.")
        }
        Picture::Table | Picture::Replica | Picture::Demo | Picture::Own => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nine numbers of the Beta table, checked against each other: IOPS x block size is the bandwidth, and IOPS x
    /// latency the number of outstanding requests (Little's law).
    #[test]
    fn the_beta_table_is_whole_and_consistent() {
        let table = [
            (512, 4_210.0, 2.21e9, 4.41e6, 19.0),
            (8, 214_000.0, 1.75e9, 870e3, 186.0),
            (1, 294_000.0, 0.30e9, 305e3, 90.0),
        ];
        for (kib, iops, bytes_per_second, latency_ns, outstanding) in table {
            let size = kib * KIB;
            let work = Work::simple("SMB", Mix::Read, size, 1);
            let only = |measure| {
                let mut all = of(Picture::Table, measure, Kind::Value)
                    .filter(|p| p.scope.covers(&work) && !p.at_best)
                    .map(|p| (p.value, p.text));
                let one = all.next().unwrap_or_else(|| panic!("{measure:?} of {kib} KiB"));
                assert_eq!(all.next(), None);
                one
            };
            assert_eq!(only(Measure::Iops).0, iops, "{kib} KiB");
            assert_eq!(only(Measure::Throughput).0, bytes_per_second, "{kib} KiB");
            assert_eq!(only(Measure::Mean).0, latency_ns, "{kib} KiB");
            let ratio = iops * f64::from(size) / bytes_per_second;
            assert!((0.98..1.02).contains(&ratio), "{kib} KiB: {ratio}");
            assert_eq!((iops * latency_ns / 1e9).round(), outstanding, "{kib} KiB");
            assert!(only(Measure::Iops).1.contains(&format!("{outstanding} outstanding")), "{kib} KiB");
        }
    }

    #[test]
    fn a_scope_covers_what_was_said_and_no_more() {
        let work = |mix, kib: u32| Work::simple("SMB", mix, kib * KIB, 1);
        assert!(SMALL_READS.covers(&work(Mix::Read, 8)) && SMALL_READS.covers(&work(Mix::Read, 1)));
        assert!(!SMALL_READS.covers(&work(Mix::Read, 16)) && !SMALL_READS.covers(&work(Mix::Write, 8)));
        assert!(LARGE_BOTH.covers(&work(Mix::Percent(50), 8)));
        assert!(!LARGE_BOTH.covers(&work(Mix::Percent(50), 4)) && !LARGE_BOTH.covers(&work(Mix::Read, 64)));
        assert_eq!(Scope::at(Mix::Read, 512).size(), Some(512));
        assert_eq!(SMALL_READS.size(), None);
    }
}
