use std::time::Duration;

use super::*;
use crate::job::{Extent, paper};
use crate::measure::Timing;
use crate::result::tests::{point, sample};
use crate::result::{Mark, MarkKind, Peer, Refusal, Second, Section, Work};
use crate::workload::Mix;

/// Every opening tag has its closing one where HTML demands it; enough to find a forgotten one.
fn balanced(page: &str) {
    for tag in ["section", "div", "figure", "svg", "g", "table", "details", "ul", "main", "body"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

#[test]
fn the_page_is_self_contained_and_escaped() {
    let page = render(&sample());
    balanced(&page);
    assert!(page.contains("Test &lt;CPU&gt;") && !page.contains("Test <CPU>"));
    for loads in ["http:", "https:", "<script", "<link", "<img", "@import", "url("] {
        assert!(!page.contains(loads), "{loads}");
    }
    assert!(page.contains("default-src 'none'"));
    assert!(page.len() < 2 << 20);
}

#[test]
fn every_picture_has_its_figures_with_a_series_for_each_transport() {
    let mut report = sample();
    report.sections = crate::result::tests::pictures();
    let page = render(&report);
    balanced(&page);
    assert!(!page.contains("NaN"));
    for picture in [Picture::Latency, Picture::Smb, Picture::Table, Picture::Nfs, Picture::Replica] {
        let from = page.find(&format!("<section id={picture}>")).expect("a section");
        let section = &page[from..from + page[from..].find("</section>").unwrap()];
        let figures: Vec<&str> = section.split("<figure>").skip(1).collect();
        assert!(figures.len() >= 3, "{picture} has {} figures", figures.len());
        for figure in figures {
            for name in ["TCP", "iWARP", "shared memory"] {
                assert!(figure.contains(&format!("data-series=\"{name}\"")), "{picture}: {name} in {figure}");
            }
        }
        assert!(section.contains("What was published, on other hardware"));
    }
    // The pictures come in the order of the papers.
    let places: Vec<_> = ["latency", "smb", "table", "nfs", "replica"]
        .map(|id| page.find(&format!("<section id={id}>")))
        .to_vec();
    assert!(places.is_sorted(), "{places:?}");
    // Published numbers are drawn and labelled.
    assert!(
        page.matches(", other hardware</text>").count() >= 6,
        "{}",
        page.matches(", other hardware</text>").count()
    );
    assert!(page.len() < 2 << 20, "{}", page.len());
}

/// Every point of every picture over five transports, each with all possible marks.
#[test]
fn the_fullest_page_is_below_two_megabytes() {
    let mut report = sample();
    report.sections = crate::result::tests::pictures();
    let extent = Extent {
        quick: false,
        timing: Timing {
            warm_up: Duration::ZERO,
            duration: Duration::from_secs(1),
            cool_down: Duration::ZERO,
            steady: None,
        },
        repetitions: 3,
    };
    let text = "client and server may both run on 2 of this host's cores: their figures depend on each other";
    let mark = |kind| Mark { kind, text: text.to_owned() };
    let marks =
        [MarkKind::SharedCore, MarkKind::Busy, MarkKind::NotCached, MarkKind::Noisy, MarkKind::LoaderBound];
    for section in &mut report.sections {
        let protocol = section.points[0].work.protocol.clone();
        let mut works: Vec<Work> = paper(section.picture, &extent)
            .iter()
            .flat_map(|job| job.items(&protocol))
            .map(|item| item.work)
            .collect();
        if section.picture == Picture::Replica {
            works.push(Work::simple("replica", Mix::Write, 512 << 20, 1));
            works.extend([4, 8, 64, 256].map(|kib| Work::simple("NBD", Mix::Write, kib << 10, 1)));
        }
        section.points.clear();
        let beside: &[&str] = if section.picture == Picture::Replica { &["local", "async"] } else { &[] };
        for transport in ["tcp", "iwarp", "iwarp-nocrc", "rnic", "shm"].iter().chain(beside) {
            for work in &works {
                let mut point = point(work.clone(), transport, 12_000 + u64::from(work.size) / 8);
                point.marks = marks.map(mark).to_vec();
                point.timeline = (0..5).map(|at| Second { at: f64::from(at), ..Second::default() }).collect();
                section.points.push(point);
            }
        }
    }
    assert!(report.points().count() > 5 * 70);
    let page = render(&report);
    balanced(&page);
    assert!(page.len() < 2 << 20, "{}", page.len());
}

#[test]
fn the_page_of_a_replica_holds_writes_against_a_volume_that_is_not_replicated() {
    let mut section = Section::new(Picture::Replica);
    let durable = |size| Work { name: "durable write".into(), ..Work::simple("NBD", Mix::Write, size, 1) };
    for (transport, nanos) in [("shm", 150_000), ("tcp", 300_000), ("async", 120_000), ("local", 100_000)] {
        for size in [4096, 8192] {
            section.points.push(point(durable(size), transport, nanos));
        }
    }
    section.points.push(point(Work::simple("replica", Mix::Write, 512 << 20, 1), "shm", 1_000_000_000));
    section.notes.push("2 TB at these rates: 3.1 min by shm".into());
    let page = render(&Report { sections: vec![section], ..sample() });
    balanced(&page);
    for part in [
        "How long does a durable write take?",
        "NBD WRITE, 8 KiB, queue depth 1: mean latency",
        "How fast is the first copy?",
        "volume of 512 MiB: throughput",
        "data-series=\"not replicated\"",
        "data-series=\"asynchronous\"",
        "2 TB at these rates: 3.1 min by shm",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // The post counts the bytes of a copy, not those of single writes.
    let copied = page.matches("<b>first copy</b><span class=measure>throughput, more").count();
    let written = page.matches("<b>durable write, queue depth 1</b><span class=measure>throughput").count();
    assert_eq!((copied, written), (1, 0));
}

#[test]
fn what_cannot_be_trusted_or_had_is_said_at_the_top_and_at_its_place() {
    let mut report = sample();
    report.interrupted = true;
    let section = &mut report.sections[0];
    section.points[0].marks.push(Mark { kind: MarkKind::Noisy, text: "medians differ by 31%, <TCP>".into() });
    section.refusals.push(Refusal { work: None, transport: "rnic".into(), reason: "no device".into() });
    section.peer = Some(Peer { host: "nas".into(), software: Some("Samba 4.17".into()), ..Peer::default() });
    let page = render(&report);
    balanced(&page);
    for part in [
        "The run was ended early",
        "1 of 18 points are to be read with care",
        "medians differ by 31%, &lt;TCP&gt;",
        "class='dot hollow'",
        "Not measured:</b> RDMA device: no device",
        "Measured against Samba 4.17, at nas",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn a_server_without_rdma_stands_alone() {
    let mut section = Section::new(Picture::Latency);
    section.points.push(point(Work::simple("SMB", Mix::Read, 8192, 1), "tcp", 10_000));
    section.points.push(point(Work::simple("SMB", Mix::Read, 16384, 1), "tcp", 12_000));
    let report = Report { sections: vec![section], ..sample() };
    let page = render(&report);
    assert!(!page.contains("class=strip"), "nothing to divide");
    assert!(page.contains("data-series=\"TCP\""));
}
