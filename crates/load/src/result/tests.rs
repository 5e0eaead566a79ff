mod schema;

use std::time::Duration;

use super::*;
use crate::workload::Mix;

/// Two repetitions of a work whose operations take `nanos`; one takes a tenth longer.
pub(crate) fn point(work: Work, transport: &str, nanos: u64) -> Point {
    let (size, depth) = (u64::from(work.size), u64::from(work.queue_depth));
    let sample = |nanos: u64| {
        let mut latency = Latencies::new();
        (0..100).for_each(|i| latency.record(nanos + i * nanos / 100));
        let operations = 1_000_000_000 * depth / nanos;
        let bytes = operations * size;
        let end = |cpu: u64| EndSample {
            cycles: None,
            cpu: Some(Duration::from_millis(cpu)),
            idle_percent: vec![100.0 - cpu as f64 / 10.0, 90.0],
            interrupts: Some(operations / 4),
            softirqs: Some(operations / 2),
            context_switches: Some(operations),
            syscalls: Some(operations * 2),
            copied_bytes: Some(bytes),
            memory_bytes: Some(64 << 20),
        };
        let rdma = transport != "tcp";
        let traffic = Traffic {
            provider: rdma.then(|| transport.to_owned()),
            rdma_write_bytes: if rdma { bytes } else { 0 },
            send_bytes: if rdma { operations * 128 } else { 0 },
            inline_bytes: if rdma { 0 } else { bytes },
            credits_starved: rdma.then_some(3),
            ..Traffic::default()
        };
        Sample {
            operations,
            bytes,
            seconds: 1.0,
            latency,
            client: end(400),
            server: Some(end(600)),
            traffic: Some(traffic),
            ..Sample::default()
        }
    };
    Point::of(work, transport, 2.5e9, &[sample(nanos), sample(nanos * 11 / 10)]).unwrap()
}

/// A report of one section, like that of `weft demo`.
pub(crate) fn sample() -> Report {
    let mut section = Section::new(Picture::Demo);
    for (transport, slower) in [("tcp", 4), ("iwarp", 5), ("shm", 1)] {
        for size in [8192u32, 65536, 524_288] {
            for queue_depth in [1, 8] {
                let nanos = slower * (12_000 + u64::from(size) / 8) * u64::from(queue_depth);
                section.points.push(point(
                    Work::simple("SMB", Mix::Read, size, queue_depth),
                    transport,
                    nanos,
                ));
            }
        }
    }
    let environment = Environment {
        role: "client and server".into(),
        processor: "Test <CPU>".into(),
        hz: 2.5e9,
        processors: 2,
        memory_bytes: Some(24 << 30),
        virtual_machine: Some(true),
        kernel: "6.1".into(),
        system: None,
        congestion_control: "reno".into(),
        driver: "io_uring".into(),
        interface: Some("lo".into()),
        mtu: Some(65536),
        cycles: crate::cpu::CYCLES.into(),
        version: "0.1.0".into(),
        versions: BTreeMap::new(),
        command: "weft demo".into(),
    };
    Report {
        sections: vec![section],
        notes: vec!["loopback".into()],
        ..Report::new("RDMA beside TCP", environment)
    }
}

/// Picture, protocol, mixes, block sizes in KiB, queue depth.
type Plan = (Picture, &'static str, &'static [Mix], &'static [u32], u32);

/// A section for each picture, like those of `weft bench all`.
pub(crate) fn pictures() -> Vec<Section> {
    let works: [Plan; 5] = [
        (Picture::Latency, "SMB", &[Mix::Read, Mix::Write], &[1, 2, 4, 8, 16, 32, 64, 128, 256], 1),
        (
            Picture::Smb,
            "SMB",
            &[Mix::Read, Mix::Write, Mix::Percent(50)],
            &[2, 4, 8, 16, 32, 64, 128, 256],
            10,
        ),
        (Picture::Table, "SMB", &[Mix::Read], &[1, 8, 512], 16),
        (Picture::Nfs, "NFS", &[Mix::Read, Mix::Write], &[4, 16, 64, 256, 1024, 4096], 16),
        (Picture::Replica, "replica", &[Mix::Write], &[1024], 8),
    ];
    let section = |(picture, protocol, mixes, sizes, depth): Plan| {
        let mut section = Section::new(picture);
        section.peer = Some(Peer { host: "127.0.0.1".into(), same_host: true, ..Peer::default() });
        for (transport, slower) in [("tcp", 4), ("iwarp", 5), ("shm", 1)] {
            for mix in mixes {
                for kib in sizes {
                    let nanos = slower * (12_000 + u64::from(*kib) * 128) * u64::from(depth);
                    section.points.push(point(
                        Work::simple(protocol, *mix, kib * 1024, depth),
                        transport,
                        nanos,
                    ));
                }
            }
        }
        section
    };
    works.map(section).into()
}

#[test]
fn a_point_is_what_its_repetitions_showed() {
    let point = point(Work::simple("SMB", Mix::Read, 8192, 1), "shm", 10_000);
    assert_eq!(point.repetitions, 2);
    assert_eq!(point.iops, Spread { min: 90_909.0, median: 95_454.5, max: 100_000.0 });
    assert_eq!(point.throughput.max, 100_000.0 * 8192.0);
    // 1 CPU second of 2.5 GHz for the bytes of one second.
    let cycles = point.cycles_per_byte.unwrap();
    assert!((cycles.min - 2.5e9 / (100_000.0 * 8192.0)).abs() < 1e-9, "{cycles:?}");
    assert_eq!(point.known_cycles_per_byte(), Some(cycles));
    let server = point.server.as_ref().unwrap();
    assert_eq!(server.cores_busy.unwrap().median, 0.6);
    assert_eq!(server.idle_percent_per_core, [40.0, 90.0]);
    assert_eq!(server.idle_percent.unwrap().median, 65.0);
    assert_eq!(server.syscalls_per_operation.unwrap().median, 2.0);
    assert_eq!(server.copies_per_operation.unwrap().median, 1.0);
    let traffic = point.traffic.unwrap();
    assert_eq!(traffic.by_rdma(), Some(1.0));
    assert_eq!(traffic.credits_starved, Some(6));
    assert_eq!(point.histogram.unwrap().count(), 200);
}

#[test]
fn what_one_repetition_did_not_measure_is_absent_not_zero() {
    let mut latency = Latencies::new();
    latency.record(1000);
    let whole = Sample {
        operations: 1,
        bytes: 1,
        seconds: 1.0,
        latency,
        client: EndSample { cpu: Some(Duration::from_secs(1)), interrupts: Some(7), ..EndSample::default() },
        server: Some(EndSample { cpu: Some(Duration::from_secs(1)), ..EndSample::default() }),
        ..Sample::default()
    };
    let lacking = Sample {
        client: EndSample { interrupts: None, ..whole.client.clone() },
        server: None,
        ..whole.clone()
    };
    let work = Work::simple("NFS", Mix::Write, 4096, 1);
    let point = Point::of(work, "tcp", 1e9, &[whole, lacking]).unwrap();
    assert_eq!(point.client.interrupts_per_second, None);
    assert_eq!(point.server, None);
    assert_eq!(point.cycles_per_byte, None);
    assert_eq!(point.known_cycles_per_byte(), point.client.cycles_per_byte);
    let json = serde_json::to_value(&point).unwrap();
    assert!(json.get("server").is_none() && json["client"].get("interrupts_per_second").is_none());
}

#[test]
fn a_result_is_read_as_it_was_written() {
    let report = sample();
    let mut text = Vec::new();
    crate::print::json::write(&report, &mut text).unwrap();
    let read = Report::parse(&text).unwrap();
    // The whole is too long to print.
    assert!(serde_json::to_value(&read).unwrap() == serde_json::to_value(&report).unwrap());
    assert_eq!(read.points().count(), 18);
}

#[test]
fn other_files_are_refused_with_a_reason() {
    let error = Report::parse(b"{\"a\": 1}").unwrap_err().to_string();
    assert!(error.starts_with("this is not a result of weft bench: missing field `schema`"), "{error}");
    let error = Report::parse(b"{\"schema\": \"weft-result/9\"}").unwrap_err().to_string();
    assert!(error.contains("weft-result/9") && error.contains(SCHEMA), "{error}");
    assert!(Report::parse(b"report").is_err());
}

#[test]
fn a_work_names_only_what_is_special_of_it() {
    let mut work = Work::simple("SMB", Mix::Percent(50), 8192, 10);
    assert_eq!(work.to_string(), "SMB 50:50 8 KiB qd 10");
    (work.threads, work.files, work.order) = (2, 20, "sequential".into());
    work.rate = Some(1000);
    assert_eq!(work.to_string(), "SMB 50:50 8 KiB qd 10, 2 threads, 20 files, sequential, 1000/s requested");
}
