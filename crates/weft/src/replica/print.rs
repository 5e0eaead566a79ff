//! Prints groups for people.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::admin::replica::{Group, Link};
use crate::args::replica::{Objection, OnLoss};
use crate::out::ShellCommand;
use crate::size::human;

/// Prints all groups.
pub(super) fn groups(out: &mut impl Write, groups: &[Group]) -> io::Result<()> {
    if groups.is_empty() {
        writeln!(out, "no volume is replicated on this host")?;
        let create = ShellCommand::new("weft replica create VOLUME HOST:VOLUME").here();
        return writeln!(out, "to start: {create}");
    }
    groups.iter().try_for_each(|group| self::group(out, group))
}

fn group(out: &mut impl Write, group: &Group) -> io::Result<()> {
    let Group { name, volumes, role, engine, .. } = group;
    let memory = if group.in_memory { ", in memory: lost when the server ends" } else { "" };
    writeln!(out, "{name} ({}), {role}{memory}", volumes.join(", "))?;
    if let Some(why) = &group.stopped {
        writeln!(out, "  stopped   its volumes cannot be used on this host: {why}")?;
    }
    if let Some(opening) = opening(group) {
        writeln!(out, "  opening   requests wait: {opening}")?;
    }
    if let Some(why) = &group.partner_stopped {
        writeln!(out, "  there     stopped on the other side: {why}")?;
    }
    if let Some(why) = &group.partner_removed {
        writeln!(out, "  there     {why}")?;
    }
    if let Some(why) = &group.no_source {
        writeln!(out, "  nobody    {why}")?;
    }
    if !group.test_failover.is_empty() {
        let uris = group.test_failover.join(" ");
        let end = ShellCommand::new("weft replica test-failover").operand(name).words("--end").here();
        match engine["picture_ended"].as_str() {
            Some(why) => writeln!(out, "  test      {why}; end the test to free its space: {end}")?,
            None => writeln!(out, "  test      a test failover is open at {uris}; to end it: {end}")?,
        }
    }
    if engine.is_null() {
        return Ok(());
    }
    let number = |value: &Value, key: &str| value[key].as_u64().unwrap_or(0);
    let (used, all) = (number(engine, "log_used"), number(engine, "log_bytes"));
    let waited = match number(engine, "log_wait_ms") {
        0 => String::new(),
        ms => format!(", writes have waited {:.1} s for room in it", ms as f64 / 1e3),
    };
    let fill = 100.0 * used as f64 / all.max(1) as f64;
    writeln!(out, "  log       {} of {} ({fill:.0}%){waited}", human(used), human(all))?;
    writeln!(
        out,
        "  history   epoch {}, record {}, applied {}{}",
        number(engine, "epoch"),
        number(engine, "last"),
        number(engine, "applied"),
        match (&engine["consistent"], &engine["gave_up"]) {
            (_, Value::Bool(true)) => "; this side gave up its role, and has the data of that time",
            (Value::Bool(false), _) => "; the copy still mixes data of different moments",
            _ => "",
        }
    )?;
    if engine["full"] == Value::Bool(true) && opening(group).is_none() {
        writeln!(
            out,
            "  full      a disk on this side is full: writes wait, and continue by themselves when there is space"
        )?;
    }
    if let alone @ 1.. = number(engine, "unprotected_writes") {
        let writes = if alone == 1 { "1 write was".to_owned() } else { format!("{alone} writes were") };
        writeln!(
            out,
            "  alone     {writes} acknowledged without a synchronous destination since it was opened"
        )?;
    }
    if let Some(said) = read_errors(group) {
        writeln!(out, "  reads     {said}")?;
    }
    for peer in engine["peers"].as_array().into_iter().flatten() {
        let called = peer["name"].as_str().unwrap_or_default();
        let link = group.links.iter().find(|link| link.name == called).or(group.links.first());
        self::peer(out, group, peer, link)?;
        if let Some(since) = silence(peer, now_ms()) {
            writeln!(
                out,
                "  silent    the source was last heard from {since} ago{}",
                if_lost(name, engine, peer)
            )?;
        }
    }
    Ok(())
}

fn peer(out: &mut impl Write, group: &Group, peer: &Value, link: Option<&Link>) -> io::Result<()> {
    // A stopped group has an engine if its source is kept for a decision.
    let (is_source, is_stopped) =
        (group.engine["role"] == "source" || group.role == "source", group.stopped.is_some());
    let text = |key: &str| peer[key].as_str().unwrap_or_default().to_owned();
    let number = |key: &str| peer[key].as_u64().unwrap_or(0);
    let float = |key: &str| peer[key].as_f64().unwrap_or(0.0);
    let answers = !is_stopped && group.role != "starting";
    let mode = match answers {
        true => mode(peer),
        false => peer["mode"].as_str().unwrap_or("mode not yet known"),
    };
    let name = match (is_source, link) {
        (false, Some(link)) => link.name.clone(),
        _ => text("name"),
    };
    let direction = if is_source { "to" } else { "from" };
    let left = match number("bytes_remaining") {
        0 => String::new(),
        left => format!(" · NumOfBytesRemaining {left}"),
    };
    writeln!(out, "  {direction:<4}      {name}, {mode}: {}{}{left}", progress(peer), lost(peer, now_ms()))?;
    let alert = if peer["lag_alert"] == Value::Bool(true) { " (more than tolerable)" } else { "" };
    let missing = missing(is_source, peer);
    writeln!(
        out,
        "  lag       {missing}{}, {:.1} s{alert}",
        human(number("lag_bytes")),
        float("lag_seconds")
    )?;
    if peer["unprotected"] == Value::Bool(true) {
        let said = match (answers, is_stopped) {
            (false, true) => {
                "before this side stopped, writes were acknowledged without the other side: losing this side loses them"
            }
            (false, false) => "writes were acknowledged without the other side: losing this side loses them",
            (true, _) => "writes are acknowledged without the other side: losing this side loses them",
        };
        writeln!(out, "  warning   {said}")?;
    }
    if let Some(link) = link.filter(|link| is_source && !link.transport.is_empty()) {
        let (by_rdma, inline) = (link.traffic.rdma_bytes(), link.traffic.inline_bytes());
        writeln!(
            out,
            "  link      {} at {}: {} by RDMA, {} in messages",
            link.transport,
            link.address,
            human(by_rdma),
            human(inline)
        )?;
        if let Some((reason, remedy)) = no_rdma(link) {
            writeln!(out, "  no RDMA   {reason}; try: {remedy}")?;
        }
    }
    if let Some(waits) = writes_wait(group, peer) {
        writeln!(out, "  writes    {waits}")?;
    }
    if let Some(verified) = peer["verified"].as_object() {
        let of = |key: &str| verified.get(key).and_then(Value::as_u64).unwrap_or(0);
        let next = match differs(peer) {
            Some(_) => format!("; for the commands to fix it: weft replica verify {}", group.name),
            None => String::new(),
        };
        writeln!(
            out,
            "  verified  {} compared, {} different, {} ago{next}",
            human(of("bytes")),
            human(of("different")),
            age(of("at_ms"), now_ms())
        )?;
    }
    if let Some(error) = peer["last_error"].as_str() {
        writeln!(out, "  last error  {error}")?;
    }
    Ok(())
}

/// The records that a copy lacks, as reported by its source: it does not know their bytes.
fn missing(is_source: bool, peer: &Value) -> String {
    match peer["lag_records"].as_u64().unwrap_or(0) {
        0 => String::new(),
        _ if is_source => String::new(),
        1 => "1 record of the source, ".into(),
        many => format!("{many} records of the source, "),
    }
}

/// What to type on a copy whose source is lost. A copy that may not be a consistent state, or lacks acknowledged
/// records, can be promoted only by force, which names the cost: its source is better.
fn if_lost(name: &str, engine: &Value, peer: &Value) -> String {
    let is = |key: &str, value| engine[key] == Value::Bool(value);
    let (lacks, word) = match is("consistent", false) {
        true if is("gave_up", true) => {
            ("of a side that gave up its role".to_owned(), Objection::Resync.word())
        }
        true => ("in the middle of a resync".to_owned(), Objection::Resync.word()),
        false => match missing(false, peer) {
            lacks if lacks.is_empty() => {
                return format!("; if it is lost: weft replica switch {name} --failover");
            }
            lacks => (format!("without {}", lacks.trim_end_matches(", ")), Objection::Behind.word()),
        },
    };
    format!(
        ": this copy is {lacks}, and can become the source only with --failover --force={word}; start the source again if you can"
    )
}

/// Since when an earlier connection is lost.
fn lost(peer: &Value, now_ms: u64) -> String {
    let lost_ms = peer["lost_ms"].as_u64().filter(|ms| *ms > 0);
    lost_ms.map_or(String::new(), |ms| format!(", connection lost {} ago", age(ms, now_ms)))
}

/// How long a copy has not heard from its source, if it waits for the source.
fn silence(peer: &Value, now_ms: u64) -> Option<String> {
    let heard_ms = peer["heard_ms"].as_u64().filter(|ms| *ms > 0 && peer["phase"] == "WaitingForSource")?;
    Some(age(heard_ms, now_ms))
}

/// How long ago a moment was.
fn age(at_ms: u64, now_ms: u64) -> String {
    let seconds = now_ms.saturating_sub(at_ms) / 1000;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours @ 0..48, minutes, _) => format!("{hours} h {minutes} min"),
        (hours, ..) => format!("{} days", hours / 24),
    }
}

/// How many reads of a source's volumes have failed, the last failure, and what to type.
fn read_errors(group: &Group) -> Option<String> {
    let count = group.engine["read_errors"].as_u64().filter(|count| *count > 0)?;
    let reads = if count == 1 { "1 read has".to_owned() } else { format!("{count} reads have") };
    let last = group.engine["last_read_error"].as_str().unwrap_or_default();
    let name = &group.name;
    Some(format!(
        "{reads} failed since it was opened, the last one of {last}; if a copy has the data: weft replica switch {name}"
    ))
}

/// Why writes wait for an absent destination, and how to let them continue.
fn writes_wait(group: &Group, peer: &Value) -> Option<String> {
    let is_away = matches!(peer["phase"].as_str(), Some("WaitingForDestination" | "Refused"));
    // A destination that writes do not wait for is unprotected: suspended, or not copied yet.
    let is_awaited = peer["mode"] == "synchronous" && peer["unprotected"] != Value::Bool(true);
    let waits = group.role == "source" && group.policy.on_loss == OnLoss::SuspendIo && is_away && is_awaited;
    let (name, called) = (&group.name, peer["name"].as_str().unwrap_or_default());
    let to = match group.engine["peers"].as_array().map_or(0, Vec::len) {
        0 | 1 => None,
        _ => Some(called),
    };
    let typed = |words| {
        let command = ShellCommand::new(words).operand(name);
        to.iter().fold(command, |command, to| command.option("--to", to))
    };
    waits.then(|| {
        format!(
            "writes wait until {called} is back and has caught up (--on-loss suspend-io). To let them continue without it: {}; writes \
             acknowledged from then on exist only on this side, and are lost with it, until you type {} and {called} has caught up",
            typed("weft replica suspend"),
            typed("weft replica resume")
        )
    })
}

/// What a group that is being opened waits for.
fn opening(group: &Group) -> Option<&'static str> {
    (group.role == "starting").then(|| match group.engine["full"] == Value::Bool(true) {
        true => {
            "a disk on this side is full, and the log cannot be replayed; free some space, and it continues by itself"
        }
        false => "replaying its log, and asking the other sides whether this one is still the source",
    })
}

/// Bytes that the last comparison with a destination found different; `None` if none.
fn differs(peer: &Value) -> Option<u64> {
    peer["verified"]["different"].as_u64().filter(|bytes| *bytes > 0)
}

/// Milliseconds of Unix time.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_millis() as u64)
}

/// The mode of acknowledging writes. A synchronous destination that writes do not wait for is not called synchronous.
fn mode(peer: &Value) -> &str {
    match peer["unprotected"] == Value::Bool(true) {
        true => "NOT PROTECTED (synchronous once it has caught up)",
        false => peer["mode"].as_str().unwrap_or("mode not yet known"),
    }
}

/// A partner of a group in one line, with a mark if it needs attention.
pub(crate) struct Brief {
    /// "db, source: synchronous to other:db, continuously replicating, lag 0 B, 0.0 s, by iwarp".
    pub line: String,
    /// Whether something is wrong or not finished.
    pub care: bool,
    /// Why the link does not use RDMA, and what to do about it.
    pub no_rdma: Option<(String, String)>,
}

/// One line per partner of a group; a single line for a group that has none or is stopped.
pub(crate) fn brief(group: &Group) -> Vec<Brief> {
    let Group { name, role, stopped, partner_stopped, no_source, test_failover, engine, links, .. } = group;
    let peers = engine["peers"].as_array().map_or(&[][..], Vec::as_slice);
    let opening = opening(group);
    if let Some(why) = opening.filter(|_| peers.is_empty()) {
        return vec![Brief { line: format!("{name}, being opened: {why}"), care: true, no_rdma: None }];
    }
    if stopped.is_some() || peers.is_empty() {
        let why = match stopped {
            // The role already says so.
            Some(why) if role == "stopped" => why.clone(),
            Some(why) => format!("stopped: {why}"),
            None => "nobody has a copy".to_owned(),
        };
        return vec![Brief { line: format!("{name}, {role}: {why}"), care: true, no_rdma: None }];
    }
    let one = |peer: &Value| {
        let is_source = engine["role"] == "source" || role == "source";
        let called = peer["name"].as_str().unwrap_or_default();
        let link = links.iter().find(|link| link.name == called).or(links.first());
        let mode = match opening {
            Some(_) => peer["mode"].as_str().unwrap_or("mode not yet known"),
            None => mode(peer),
        };
        let partner = if is_source { called } else { link.map_or(called, |link| &*link.name) };
        let direction = if is_source { "to" } else { "from" };
        let (bytes, seconds) =
            (peer["lag_bytes"].as_u64().unwrap_or(0), peer["lag_seconds"].as_f64().unwrap_or(0.0));
        let used = link.filter(|link| is_source && !link.transport.is_empty());
        let by = used.map_or(String::new(), |link| format!(", by {}", link.transport));
        let flag = |key: &str| peer[key] == Value::Bool(true);
        let unprotected = match flag("unprotected") {
            true if opening.is_some() => ", writes were acknowledged without it",
            true => ", writes are acknowledged without it",
            false => "",
        };
        let follows = peer["phase"] == "ContinuouslyReplicating";
        Brief {
            line: format!(
                "{name}, {role}: {mode} {direction} {partner}, {}{}, lag {}{}, {seconds:.1} s{by}{unprotected}",
                progress(peer),
                lost(peer, now_ms()),
                missing(is_source, peer),
                human(bytes)
            ),
            care: !follows
                || flag("unprotected")
                || flag("lag_alert")
                || !missing(is_source, peer).is_empty(),
            no_rdma: used.and_then(no_rdma),
        }
    };
    let mut all: Vec<Brief> = peers.iter().map(one).collect();
    for waits in peers.iter().filter_map(|peer| writes_wait(group, peer)) {
        all.push(Brief { line: format!("{name}: {waits}"), care: true, no_rdma: None });
    }
    for peer in peers {
        let Some(bytes) = differs(peer) else { continue };
        let (bytes, copy) = (human(bytes), peer["name"].as_str().unwrap_or_default());
        let line = format!(
            "{name}: the last verify, {} ago, found {bytes} that differ between this side and {copy}: weft replica verify {name} compares \
             again, and says which command overwrites which side",
            age(peer["verified"]["at_ms"].as_u64().unwrap_or(0), now_ms())
        );
        all.push(Brief { line, care: true, no_rdma: None });
    }
    if let Some(why) = &group.partner_removed {
        all.push(Brief { line: format!("{name}: {why}"), care: true, no_rdma: None });
    }
    if let Some(why) = partner_stopped {
        all.push(Brief {
            line: format!("{name}: stopped on the other side: {why}"),
            care: true,
            no_rdma: None,
        });
    }
    if let Some(why) = no_source {
        all.push(Brief { line: format!("{name}: {why}"), care: true, no_rdma: None });
    }
    if let Some(why) = opening {
        all.push(Brief {
            line: format!("{name}: being opened: requests wait: {why}"),
            care: true,
            no_rdma: None,
        });
    } else if engine["full"] == Value::Bool(true) {
        let line =
            format!("{name}: a disk is full: writes wait, and continue by themselves when there is space");
        all.push(Brief { line, care: true, no_rdma: None });
    }
    if let Some(said) = read_errors(group) {
        all.push(Brief { line: format!("{name}: {said}"), care: true, no_rdma: None });
    }
    if !test_failover.is_empty() {
        let what = engine["picture_ended"].as_str().unwrap_or("a test failover is open");
        let line = format!("{name}: {what}: weft replica test-failover {name} --end");
        all.push(Brief { line, care: true, no_rdma: None });
    }
    all
}

/// The current phase and its progress: "Initial block copy 43% · 2 GiB/s · ETA 1:41".
fn progress(peer: &Value) -> String {
    let number = |key: &str| peer[key].as_u64().unwrap_or(0);
    let (done, left) = (number("bytes_done"), number("bytes_remaining"));
    let mut line = words(peer["phase"].as_str().unwrap_or_default());
    if left > 0 {
        let percent = 100.0 * done as f64 / (done + left) as f64;
        let rate = peer["rate"].as_f64().unwrap_or(0.0);
        line += &format!(" {percent:.0}% · {}/s", human(rate as u64));
        if let Some(eta) = peer["eta_seconds"].as_f64() {
            line += &format!(" · ETA {}:{:02}", eta as u64 / 60, eta as u64 % 60);
        }
    }
    line
}

/// Why a link uses TCP, and what to type.
fn no_rdma(link: &Link) -> Option<(String, String)> {
    let host = link.address.rsplit_once(':').map_or(&*link.address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (link.transport == "tcp").then(|| {
        let remedy = match link.reason.contains("requested") {
            true => "weft replica remove, then create without --transport tcp".to_owned(),
            false => format!("{} shows which step fails", ShellCommand::new("weft doctor").operand(host)),
        };
        (link.reason.clone(), remedy)
    })
}

/// "InitialBlockCopy" as "Initial block copy".
fn words(phase: &str) -> String {
    let mut words = String::new();
    for (i, c) in phase.chars().enumerate() {
        if i > 0 && c.is_ascii_uppercase() {
            words.push(' ');
            words.push(c.to_ascii_lowercase());
        } else {
            words.push(c);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::status::Traffic;

    fn group(role: &str, engine: Value, links: Vec<Link>) -> Group {
        Group {
            name: "vol1".into(),
            volumes: vec!["vol1".into()],
            role: role.into(),
            engine,
            links,
            ..Group::default()
        }
    }

    #[test]
    fn a_copy_under_way_shows_how_far_it_is() {
        let peer = json!({
            "name": "other:vol1", "mode": "synchronous", "phase": "InitialBlockCopy", "bytes_done": 43, "bytes_remaining": 57,
            "rate": 2147483648.0, "eta_seconds": 101.4, "lag_bytes": 4096, "lag_seconds": 0.25, "unprotected": true,
        });
        let engine = json!({
            "log_used": 1 << 20, "log_bytes": 4 << 20, "log_wait_ms": 1500, "epoch": 3, "last": 9, "applied": 8,
            "consistent": true, "peers": [peer],
        });
        let traffic = Traffic { rdma_by_client_bytes: 3 << 20, sent_bytes: 1024, ..Traffic::default() };
        let link = Link {
            name: "other:vol1".into(),
            address: "other:4450".into(),
            transport: "iwarp".into(),
            reason: "the server announces RDMA".into(),
            description: String::new(),
            traffic,
        };
        let group = group("source", engine, vec![link]);
        let [brief] = &super::brief(&group)[..] else { panic!("one partner") };
        assert_eq!(
            brief.line,
            "vol1, source: NOT PROTECTED (synchronous once it has caught up) to other:vol1, Initial block copy 43% · 2 GiB/s · ETA 1:41, lag 4 KiB, 0.2 s, by iwarp, \
             writes are acknowledged without it"
        );
        assert!(brief.care && brief.no_rdma.is_none());
        let mut out = Vec::new();
        groups(&mut out, &[group]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("Initial block copy 43% · 2 GiB/s · ETA 1:41 · NumOfBytesRemaining 57"),
            "{text}"
        );
        assert!(text.contains("1 MiB of 4 MiB (25%), writes have waited 1.5 s"), "{text}");
        assert!(text.contains("lag       4 KiB, 0.2 s"), "{text}");
        assert!(text.contains("iwarp at other:4450: 3 MiB by RDMA, 1 KiB in messages"), "{text}");
        assert!(text.contains("losing this side loses them"), "{text}");
    }

    #[test]
    fn a_stopped_group_answers_no_writes() {
        let peer = json!({ "name": "other:vol1", "mode": "synchronous", "phase": "SplitBrain", "unprotected": true });
        let engine = json!({ "role": "source", "consistent": true, "peers": [peer] });
        let group = Group {
            stopped: Some("both sides were written to".into()),
            ..group("stopped", engine, Vec::new())
        };
        let mut out = Vec::new();
        groups(&mut out, &[group]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("to        other:vol1, synchronous: Split brain"), "{text}");
        assert!(text.contains("before this side stopped, writes were acknowledged"), "{text}");
        assert!(!text.contains("writes are acknowledged") && !text.contains("NOT PROTECTED"), "{text}");
    }

    #[test]
    fn reads_that_have_failed_are_told_with_what_to_type() {
        let peer = json!({ "name": "other:vol1", "mode": "synchronous", "phase": "ContinuouslyReplicating" });
        let last = "volume vol1: 4096 bytes at 0 cannot be read: Input/output error (os error 5)";
        let engine =
            |count| json!({ "read_errors": count, "last_read_error": last, "peers": [peer.clone()] });
        let [_, told] = &brief(&group("source", engine(2), Vec::new()))[..] else {
            panic!("the partner and the reads")
        };
        assert!(told.care && told.line.contains("2 reads have failed"), "{}", told.line);
        assert!(told.line.contains(last) && told.line.ends_with("weft replica switch vol1"), "{}", told.line);
        assert_eq!(brief(&group("source", engine(0), Vec::new())).len(), 1);
        let mut out = Vec::new();
        groups(&mut out, &[group("source", engine(1), Vec::new())]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("  reads     1 read has failed since it was opened, the last one of volume vol1"),
            "{text}"
        );
    }

    #[test]
    fn writes_that_wait_for_a_destination_that_is_away_are_told_with_what_lets_them_go() {
        let lines = |on_loss, phase: &str, unprotected: bool| {
            let peer = json!({ "name": "other:vol1", "mode": "synchronous", "phase": phase, "unprotected": unprotected });
            let mut group = group("source", json!({ "role": "source", "peers": [peer] }), Vec::new());
            group.policy.on_loss = on_loss;
            let mut out = Vec::new();
            groups(&mut out, std::slice::from_ref(&group)).unwrap();
            let told =
                String::from_utf8(out).unwrap().contains("  writes    writes wait until other:vol1 is back");
            let brief = brief(&group);
            assert_eq!(told, brief.len() == 2);
            brief.into_iter().nth(1).map(|brief| brief.line)
        };
        let line = lines(OnLoss::SuspendIo, "WaitingForDestination", false).unwrap();
        assert!(
            line.contains(
                "weft replica suspend vol1; writes acknowledged from then on exist only on this side"
            ),
            "{line}"
        );
        assert!(lines(OnLoss::SuspendIo, "Refused", false).is_some());
        assert_eq!(lines(OnLoss::SuspendIo, "Suspended", true), None);
        assert_eq!(lines(OnLoss::SuspendIo, "ContinuouslyReplicating", false), None);
        assert_eq!(lines(OnLoss::Continue, "WaitingForDestination", false), None);
    }

    #[test]
    fn a_group_that_is_being_opened_says_what_it_waits_for_and_who_has_a_copy() {
        let told = |engine: Value| {
            let group = group("starting", engine, Vec::new());
            let mut out = Vec::new();
            groups(&mut out, std::slice::from_ref(&group)).unwrap();
            let brief: Vec<String> = brief(&group).into_iter().map(|brief| brief.line).collect();
            (brief.join("\n"), String::from_utf8(out).unwrap())
        };
        let peer = json!({ "name": "other:vol1", "mode": "synchronous", "phase": "WaitingForDestination" });
        let (brief, text) = told(json!({ "role": "source", "full": true, "peers": [peer] }));
        assert!(
            brief.contains("vol1, starting: synchronous to other:vol1, Waiting for destination"),
            "{brief}"
        );
        assert!(
            brief.contains("a disk on this side is full") && !brief.contains("nobody has a copy"),
            "{brief}"
        );
        assert!(text.contains("opening   requests wait: a disk on this side is full"), "{text}");
        assert!(text.contains("to        other:vol1, synchronous: Waiting for destination"), "{text}");
        let (brief, text) = told(Value::Null);
        assert!(!brief.contains("nobody has a copy") && brief.contains("replaying its log"), "{brief}");
        assert!(text.contains("replaying its log"), "{text}");
    }

    #[test]
    fn what_a_comparison_found_stays_until_one_finds_nothing() {
        let engine = |different: u64| {
            let verified = json!({ "at_ms": 1, "bytes": 64 << 20, "different": different });
            let phase = "ContinuouslyReplicating";
            json!({ "peers": [{ "name": "other:vol1", "mode": "synchronous", "phase": phase, "verified": verified }] })
        };
        let [_, told] = &brief(&group("source", engine(1 << 20), Vec::new()))[..] else {
            panic!("the partner and the comparison")
        };
        assert!(
            told.care && told.line.contains("1 MiB that differ between this side and other:vol1"),
            "{}",
            told.line
        );
        assert_eq!(brief(&group("source", engine(0), Vec::new())).len(), 1);
    }

    #[test]
    fn a_mode_that_nobody_has_said_yet_is_none() {
        let peer = json!({ "name": "source", "mode": null, "phase": "WaitingForSource" });
        let group = group("destination", json!({ "peers": [peer] }), Vec::new());
        let line = &brief(&group)[0].line;
        assert!(line.starts_with("vol1, destination: mode not yet known from source, "), "{line}");
    }

    #[test]
    fn a_copy_whose_source_is_silent_says_for_how_long_and_what_to_type() {
        let peer = |phase: &str| json!({ "name": "source", "phase": phase, "heard_ms": 1_000_000 });
        assert_eq!(super::silence(&peer("ContinuouslyReplicating"), 1_064_000), None);
        let said =
            [1_012_000, 1_064_000, 8_200_000].map(|now| super::silence(&peer("WaitingForSource"), now));
        assert_eq!(said.map(Option::unwrap), ["12 s", "1 min 4 s", "2 h 0 min"]);
        let mut out = Vec::new();
        let peers = json!({ "peers": [peer("WaitingForSource")] });
        groups(&mut out, &[group("destination", peers, Vec::new())]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("if it is lost: weft replica switch vol1 --failover"), "{text}");
        // Not if that would be refused.
        let lacking =
            json!({ "name": "source", "phase": "WaitingForSource", "heard_ms": 1_000_000, "lag_records": 3 });
        for (engine, why) in [
            (
                json!({ "consistent": false, "peers": [peer("WaitingForSource")] }),
                "in the middle of a resync",
            ),
            (json!({ "consistent": true, "peers": [lacking] }), "without 3 records of the source"),
        ] {
            let mut out = Vec::new();
            groups(&mut out, &[group("destination", engine, Vec::new())]).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(
                text.contains(&format!("this copy is {why}, and")) && !text.contains("if it is lost"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_connection_that_was_lost_is_told_with_its_age() {
        let peer = |phase: &str| json!({ "name": "other:vol1", "phase": phase, "lost_ms": 1_000_000 });
        assert_eq!(lost(&peer("WaitingForDestination"), 1_003_000), ", connection lost 3 s ago");
        assert_eq!(lost(&json!({ "lost_ms": 0 }), 1_003_000), "");
        for (role, phase) in [("source", "WaitingForDestination"), ("destination", "WaitingForSource")] {
            let group = group(role, json!({ "role": role, "peers": [peer(phase)] }), Vec::new());
            let mut out = Vec::new();
            groups(&mut out, std::slice::from_ref(&group)).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(text.contains(", connection lost "), "{text}");
            let told = &brief(&group)[0];
            assert!(told.care && told.line.contains(", connection lost "), "{}", told.line);
        }
    }

    #[test]
    fn a_copy_that_has_not_caught_up_says_what_it_lacks() {
        let peer = json!({ "name": "source", "mode": "synchronous", "phase": "ReplayingLog", "lag_bytes": 0, "lag_records": 24 });
        let group = |role| group(role, json!({ "role": role, "peers": [peer.clone()] }), Vec::new());
        let line = &brief(&group("destination"))[0].line;
        assert!(line.contains("Replaying log, lag 24 records of the source, 0 B, 0.0 s"), "{line}");
        let mut out = Vec::new();
        groups(&mut out, &[group("destination")]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("lag       24 records of the source, 0 B, 0.0 s"), "{text}");
        // A source knows the number of bytes.
        assert!(brief(&group("source"))[0].line.contains("lag 0 B, "));
    }

    #[test]
    fn a_link_by_tcp_says_why_and_what_to_type() {
        let peer =
            json!({ "name": "other:vol1", "mode": "asynchronous", "phase": "ContinuouslyReplicating" });
        let link = |reason: &str| Link {
            name: "other:vol1".into(),
            address: "other:4450".into(),
            transport: "tcp".into(),
            reason: reason.into(),
            ..Link::default()
        };
        let group = |reason: &str| group("source", json!({ "peers": [peer.clone()] }), vec![link(reason)]);
        let remedy = |reason: &str| brief(&group(reason)).remove(0).no_rdma.unwrap().1;
        assert!(remedy("TCP, as requested").contains("without --transport tcp"));
        assert_eq!(remedy("no RDMA: it was not reachable"), "weft doctor other shows which step fails");
        assert!(!brief(&group("x"))[0].care, "TCP is slower, and safe");
        let alone = Group { engine: Value::Null, stopped: Some("both were written to".into()), ..group("x") };
        assert_eq!(brief(&alone)[0].line, "vol1, source: stopped: both were written to");
    }
}
