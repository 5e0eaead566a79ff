//! The names, the formats, and what is written about them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::families::{self, ALL, Type};
use super::text::Format;
use super::{Facts, page};
use crate::admin::replica::{Group, Link};
use crate::status::{Advice, Connection, Ended, Nbd, Quota, Session, Share, Space, Status, Traffic, Volume};

fn repository(path: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn status() -> Status {
    let traffic = Traffic { sent_bytes: 5, rdma_read_bytes: 7, ..Traffic::default() };
    let connection = |transport: &str| Connection {
        protocol: "smb".into(),
        peer: "192.0.2.9:1".into(),
        transport: transport.into(),
        traffic,
        ..Connection::default()
    };
    let advice = Some(Advice { reason: "r".into(), remedy: "m".into() });
    let nbd = Some(Nbd { read_bytes: 11, reads: 2, ..Nbd::default() });
    let link = Link { name: "b:v1".into(), transport: "iwarp".into(), ..Link::default() };
    let peer = json!({ "name": "b:v1", "lag_records": 3, "lag_bytes": 4096, "lag_seconds": 0.5, "bytes_remaining": 0 });
    Status {
        shares: vec![Share {
            name: "a \"b\"\\c".into(),
            opens: 2,
            warning: Some("full".into()),
            space: Some(Space { total_bytes: 1 << 30, available_bytes: 512 }),
            quota: Some(Quota { limit_bytes: 4096, used_bytes: 8192, ..Quota::default() }),
            connections: 3,
            ..Share::default()
        }],
        volumes: vec![Volume { name: "v1".into(), size: 1 << 40, clients: 1, ..Volume::default() }],
        replicas: vec![Group {
            name: "v1".into(),
            volumes: vec!["v1".into()],
            role: "source".into(),
            engine: json!({ "log_bytes": 100, "log_used": 5, "log_wait_ms": 1500, "unprotected_writes": 0, "peers": [peer] }),
            links: vec![link],
            ..Group::default()
        }],
        connections: vec![
            Connection { advice, sessions: vec![Session::default()], ..connection("tcp") },
            Connection { provider: Some("iwarp".into()), ..connection("smb-direct") },
            Connection { nbd, protocol: "nbd".into(), traffic: Traffic::default(), ..connection("tcp") },
        ],
        ended: vec![Ended {
            protocol: "smb".into(),
            transport: "tcp".into(),
            connections: 4,
            traffic,
            provider: None,
        }],
        ..Status::default()
    }
}

fn page_of(status: Option<&Status>, format: Format) -> String {
    let pool = weft_machine::Pool::new(64 << 20);
    page(&Facts { status, pool: &pool, cores: vec![Default::default()] }, format)
}

#[test]
fn names_follow_the_conventions() {
    let mut names = BTreeSet::new();
    for family in ALL {
        let name = family.name;
        assert!(names.insert(name), "{name} twice");
        assert!(name.starts_with("weft_") || name.starts_with("process_"), "{name}");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        assert!(!name.ends_with("_total") && !name.ends_with("_info") && !name.ends_with("_count"), "{name}");
        let unit = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(&format!("_{unit}")));
        assert_eq!(unit.unwrap_or_default(), family.unit, "{name}");
        assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{name}");
        assert!(!family.labels.contains(&"le"), "{name}");
        // No label names a user or a client.
        assert!(family.labels.iter().all(|label| !["user", "client", "address"].contains(label)), "{name}");
    }
}

#[test]
fn the_document_lists_every_metric() {
    let text = repository("docs/metrics.md");
    let table = families::markdown();
    assert!(text.contains(&table), "docs/metrics.md must contain this table:\n{table}");
}

/// A dashboard or an alert about a metric that does not exist shows nothing, forever.
#[test]
fn the_dashboard_and_the_document_name_only_metrics_that_exist() {
    let mut known = BTreeSet::new();
    for family in ALL {
        known.insert(family.sample_name());
        if family.kind == Type::Histogram {
            known.extend(["bucket", "count", "sum"].map(|part| format!("{}_{part}", family.name)));
        }
    }
    let words = |text: &str| -> BTreeSet<String> {
        let is_part = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        let words =
            text.split(is_part).filter(|word| word.starts_with("weft_") || word.starts_with("process_"));
        words.map(str::to_owned).collect()
    };
    let dashboard: Value = serde_json::from_str(&repository("packaging/grafana/weft.json")).unwrap();
    let mut queries = 0;
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels have the same id");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let named = words(query);
            assert!(!named.is_empty(), "{query}");
            assert!(named.is_subset(&known), "{query}: {:?}", named.difference(&known));
            queries += 1;
        }
    }
    assert!(queries >= 12, "{queries}");
    let text = repository("docs/metrics.md");
    let named = words(&text);
    assert!(named.is_subset(&known), "{:?}", named.difference(&known).collect::<Vec<_>>());
    assert!(known.iter().filter(|name| !named.contains(*name)).all(|name| name.contains("duration_seconds")));
}

#[test]
fn a_page_adds_up_connections_and_shows_replication() {
    let text = page_of(Some(&status()), Format::Prometheus);
    for line in [
        "weft_opens{share=\"a \\\"b\\\"\\\\c\"} 2",
        "weft_share_troubled{share=\"a \\\"b\\\"\\\\c\"} 1",
        "weft_share_size_bytes{share=\"a \\\"b\\\"\\\\c\"} 1073741824",
        "weft_share_available_bytes{share=\"a \\\"b\\\"\\\\c\"} 512",
        "weft_share_quota_bytes{share=\"a \\\"b\\\"\\\\c\"} 4096",
        "weft_share_quota_used_bytes{share=\"a \\\"b\\\"\\\\c\"} 8192",
        "weft_share_connections{share=\"a \\\"b\\\"\\\\c\"} 3",
        "weft_volume_size_bytes{volume=\"v1\"} 1099511627776",
        "weft_connections{protocol=\"smb\",transport=\"tcp\",provider=\"\"} 1",
        "weft_connections_closed_total{protocol=\"smb\",transport=\"tcp\",provider=\"\"} 4",
        "weft_connections_without_rdma{protocol=\"smb\",transport=\"tcp\",provider=\"\"} 1",
        "weft_message_bytes_total{protocol=\"smb\",transport=\"tcp\",provider=\"\",direction=\"sent\"} 10",
        "weft_message_bytes_total{protocol=\"nbd\",transport=\"tcp\",provider=\"\",direction=\"sent\"} 11",
        "weft_messages_total{protocol=\"nbd\",transport=\"tcp\",provider=\"\",direction=\"sent\"} 2",
        "weft_rdma_bytes_total{protocol=\"smb\",transport=\"smb-direct\",provider=\"iwarp\",operation=\"read\"} 7",
        "weft_replica_lag_seconds{group=\"v1\",peer=\"b:v1\"} 0.5",
        "weft_replica_log_wait_seconds_total{group=\"v1\"} 1.5",
        "weft_replica_connected{group=\"v1\",peer=\"b:v1\"} 1",
        "weft_status_available 1",
        "weft_pool_limit_bytes 67108864",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(!text.contains("192.0.2.9"), "a client's address");
    assert!(!text.contains("weft_rdma_bytes_total{protocol=\"smb\",transport=\"tcp\""));
    // Without the cores there is still a page.
    let text = page_of(None, Format::Prometheus);
    assert!(text.contains("\nweft_status_available 0\n") && !text.contains("weft_connections{"));
    assert!(text.contains("process_open_fds ") && text.contains("\nweft_rpc_rdma_credits_granted "));
    assert!(text.contains("\nweft_rpc_rdma_credits_exhausted_total "));
}

#[test]
fn both_formats_name_counters_and_units_in_their_own_way() {
    let classic = page_of(Some(&status()), Format::Prometheus);
    assert!(classic.contains("# TYPE weft_message_bytes_total counter\nweft_message_bytes_total{"));
    assert!(classic.contains("# TYPE weft_build_info gauge\n"));
    assert!(!classic.contains("# UNIT") && !classic.contains("# EOF"));
    let open = page_of(Some(&status()), Format::OpenMetrics);
    assert!(open.contains(
        "# TYPE weft_message_bytes counter\n# UNIT weft_message_bytes bytes\nweft_message_bytes_total{"
    ));
    assert!(open.contains("# TYPE weft_build info\nweft_build_info{"));
    assert!(open.ends_with("\n# EOF\n") && open.matches("# EOF").count() == 1);
    for text in [classic, open] {
        let families: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
        assert_eq!(families.iter().collect::<BTreeSet<_>>().len(), families.len(), "a family in one piece");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (_, value) = line.rsplit_once(' ').unwrap();
            assert!(value == "+Inf" || value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        }
    }
}

#[test]
fn a_histogram_is_cumulative_and_ends_at_infinity() {
    let mut text = super::text::Page::new(Format::OpenMetrics);
    let labels = ["smb", "tcp", "inline", "a", "read"].map(str::to_owned);
    let mut buckets = [0; weft_machine::meter::BUCKETS];
    (buckets[0], buckets[2], buckets[weft_machine::meter::BUCKETS - 1]) = (1, 3, 2);
    text.family(&families::OPERATION_DURATION).histogram(&labels, &buckets, 40.5, weft_machine::meter::bound);
    let text = text.finish();
    let of = "protocol=\"smb\",transport=\"tcp\",payload=\"inline\",share=\"a\",operation=\"read\"";
    for (le, n) in
        [("0.000004", 1), ("0.000008", 1), ("0.000016", 4), ("1.048576", 4), ("16.777216", 4), ("+Inf", 6)]
    {
        let line = format!("weft_operation_duration_seconds_bucket{{{of},le=\"{le}\"}} {n}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
    assert!(text.contains(&format!("weft_operation_duration_seconds_count{{{of}}} 6\n")));
    assert!(text.contains(&format!("weft_operation_duration_seconds_sum{{{of}}} 40.5\n")));
}

#[test]
fn a_client_chooses_the_format() {
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
    assert_eq!(
        Format::accepted("text/plain, application/openmetrics-text; version=1.0.0"),
        Format::OpenMetrics
    );
    for classic in ["", "*/*", "text/html", "application/openmetrics-text;q=0, text/plain"] {
        assert_eq!(Format::accepted(classic), Format::Prometheus, "{classic}");
    }
}

/// The schema is made from the types, so it is enough that it has every field of a full status.
#[test]
fn the_schema_describes_a_status() {
    let schema = schemars::schema_for!(Status).to_value();
    let whole = status();
    let (kinds, replicas) = (whole.of_kinds(), whole.replicas.clone());
    let whole = Status { kinds, ..whole }.with_replicas(replicas);
    assert!(whole.kinds.len() == 3 && whole.replication.len() == 1, "nothing is compared of an empty list");
    let value = serde_json::to_value(whole).unwrap();
    let mut missing = Vec::new();
    compare(&schema, &schema, &value, "", &mut missing);
    assert_eq!(missing, Vec::<String>::new());
    assert_eq!(schema["properties"]["up_seconds"]["description"], "Seconds since the server became ready.");
}

fn compare(root: &Value, schema: &Value, value: &Value, path: &str, missing: &mut Vec<String>) {
    let schema = match schema["$ref"].as_str() {
        Some(to) => root.pointer(to.trim_start_matches('#')).unwrap_or_else(|| panic!("{to}")),
        None => schema,
    };
    match value {
        Value::Object(fields) => {
            let nullable =
                schema["anyOf"].as_array().and_then(|any| any.iter().find(|one| one["$ref"].is_string()));
            if let Some(one) = nullable {
                return compare(root, one, value, path, missing);
            }
            let Some(properties) = schema["properties"].as_object() else { return };
            for (name, value) in fields {
                match properties.get(name) {
                    Some(schema) => compare(root, schema, value, &format!("{path}.{name}"), missing),
                    None => missing.push(format!("{path}.{name}")),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|one| compare(root, &schema["items"], one, path, missing)),
        _ => {}
    }
}
