//! An event as a line of JSON.
//!
//! Names come from clients, so every character that a terminal or a log viewer could interpret is escaped, beyond what
//! JSON demands. A name that is not UTF-8 is written twice: with replacement characters, and all bytes in hex.

use std::fmt::Write;
use std::time::Duration;

use time::OffsetDateTime;
use weft_machine::Source;

use super::event::{Event, Fact, Outcome, Who};

/// The version of the lines: it changes when a field changes its meaning or goes, not when one is added.
pub const VERSION: u32 = 1;

/// The names of all fields.
pub const FIELDS: &[&str] = &[
    "v",
    "time",
    "event",
    "result",
    "status",
    "user",
    "sid",
    "uid",
    "client",
    "protocol",
    "transport",
    "share",
    "path",
    "path_hex",
    "to",
    "to_hex",
    "object",
    "access",
    "changes",
    "replaced",
    "read_bytes",
    "written_bytes",
    "reason",
    "command",
    "added",
    "removed",
    "changed",
    "cut",
    "lost",
];

/// Appends the line of an event.
pub(super) fn emit(event: &Event, out: &mut String) {
    begin(event.at, event.kind.name(), out);
    let (result, status) = match &event.outcome {
        Outcome::Done => ("ok", None),
        Outcome::Denied(status) => ("denied", Some(status)),
        Outcome::Failed(status) => ("failed", Some(status)),
    };
    text("result", result, out);
    if let Some(status) = status {
        text("status", status, out);
    }
    let Who { user, sid, uid, client, source: _, protocol, transport } = &event.who;
    let mut optional = |name, value: Option<&str>| {
        if let Some(value) = value {
            text(name, value, out);
        }
    };
    optional("user", user.as_deref());
    optional("sid", sid.as_deref());
    if let Some(uid) = uid {
        number("uid", u64::from(*uid), out);
    }
    let mut optional = |name, value: Option<&str>| {
        if let Some(value) = value {
            text(name, value, out);
        }
    };
    optional("client", client.as_deref());
    optional("protocol", *protocol);
    optional("transport", *transport);
    optional("share", event.share.as_deref());
    if let Some(path) = &event.path {
        bytes(("path", "path_hex"), path, out);
    }
    if let Some(to) = &event.to {
        bytes(("to", "to_hex"), to, out);
    }
    for fact in &event.facts {
        match fact {
            Fact::Object(kind) => text("object", kind, out),
            Fact::Access(access) => list("access", access, out),
            Fact::Changes(changes) => list("changes", changes, out),
            Fact::Replaced => flag("replaced", out),
            Fact::ReadBytes(n) => number("read_bytes", *n, out),
            Fact::WrittenBytes(n) => number("written_bytes", *n, out),
            Fact::Reason(reason) => text("reason", reason, out),
            Fact::Command(command) => text("command", command, out),
            Fact::Added(names) => list("added", names, out),
            Fact::Removed(names) => list("removed", names, out),
            Fact::Changed(names) => list("changed", names, out),
            Fact::Cut => flag("cut", out),
        }
    }
    out.push_str("}\n");
}

/// Appends the line that says how many events are missing before it, perhaps those of one client.
pub(super) fn emit_lost(at: Duration, (lost, of): (u64, Option<Source>), out: &mut String) {
    begin(at, "lost", out);
    if let Some(source) = of {
        text("client", &source.to_string(), out);
    }
    number("lost", lost, out);
    out.push_str("}\n");
}

fn begin(at: Duration, event: &str, out: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{{\"v\":{VERSION},\"time\":\"");
    rfc3339(at, out);
    out.push('"');
    text("event", event, out);
}

/// UTC, with microseconds.
fn rfc3339(at: Duration, out: &mut String) {
    let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
    let at_second = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (date, time, micros) = (at_second.date(), at_second.time(), at.subsec_micros());
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    let (hour, minute, second) = (time.hour(), time.minute(), time.second());
    let _ = write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z");
}

fn name(name: &str, out: &mut String) {
    let _ = write!(out, ",\"{name}\":");
}

/// Something that is left out if it is not so.
fn flag(field: &str, out: &mut String) {
    name(field, out);
    out.push_str("true");
}

fn number(field: &str, value: u64, out: &mut String) {
    name(field, out);
    let _ = write!(out, "{value}");
}

fn text(field: &str, value: &str, out: &mut String) {
    name(field, out);
    quoted(value, out);
}

fn list<T: AsRef<str>>(field: &str, values: &[T], out: &mut String) {
    name(field, out);
    out.push('[');
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        quoted(value.as_ref(), out);
    }
    out.push(']');
}

/// A name as text and, if it is not UTF-8, as hex too.
fn bytes((as_text, as_hex): (&str, &str), value: &[u8], out: &mut String) {
    text(as_text, &String::from_utf8_lossy(value), out);
    if std::str::from_utf8(value).is_err() {
        name(as_hex, out);
        out.push('"');
        value.iter().for_each(|byte| {
            let _ = write!(out, "{byte:02x}");
        });
        out.push('"');
    }
}

fn quoted(value: &str, out: &mut String) {
    out.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() || disguises(c) => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// How much of a text takes at most this many bytes in a line: the length of its longest beginning of whole characters,
/// and what that takes.
pub(super) fn fit(text: &[u8], most: usize) -> (usize, usize) {
    // All of its bytes are written again, in hex.
    let in_hex = if std::str::from_utf8(text).is_ok() { 0 } else { 2usize };
    let (mut len, mut written) = (0usize, 0usize);
    for chunk in text.utf8_chunks() {
        let characters = chunk.valid().chars().map(|c| (c.len_utf8(), width(c)));
        let rest = chunk.invalid().len();
        let replaced = (rest > 0).then(|| (rest, width(char::REPLACEMENT_CHARACTER)));
        for (bytes, width) in characters.chain(replaced) {
            let more = written.saturating_add(width).saturating_add(in_hex.saturating_mul(bytes));
            if more > most {
                return (len, written);
            }
            (len, written) = (len.saturating_add(bytes), more);
        }
    }
    (len, written)
}

/// The bytes that [`quoted`] writes for a character.
fn width(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\t' => 2,
        c if c.is_control() || disguises(c) => c.len_utf16().saturating_mul(6),
        c => c.len_utf8(),
    }
}

/// Characters that break lines, reorder text or are invisible.
fn disguises(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::event::Kind;

    fn line(event: &Event) -> String {
        let mut out = String::new();
        emit(event, &mut out);
        out
    }

    fn at(event: Event) -> Event {
        Event { at: Duration::new(1_795_900_000, 123_456_789), ..event }
    }

    #[test]
    fn a_line_has_its_fields_in_a_fixed_order() {
        let who = Who {
            user: Some("alice".into()),
            sid: Some("S-1-5-21-1-2-3-1000".into()),
            uid: Some(1000),
            client: Some("192.0.2.1:50000".into()),
            source: Some(Source::V4([192, 0, 2, 1].into())),
            protocol: Some("smb"),
            transport: Some("tcp"),
        };
        let event =
            Event::now(Kind::Close, Outcome::Done, who).in_share(&"team".into()).on(b"a/b.txt".to_vec());
        let event = event.with(Fact::ReadBytes(0)).with(Fact::WrittenBytes(42));
        assert_eq!(
            line(&at(event)),
            "{\"v\":1,\"time\":\"2026-11-28T21:06:40.123456Z\",\"event\":\"close\",\"result\":\"ok\",\
             \"user\":\"alice\",\"sid\":\"S-1-5-21-1-2-3-1000\",\"uid\":1000,\"client\":\"192.0.2.1:50000\",\
             \"protocol\":\"smb\",\"transport\":\"tcp\",\"share\":\"team\",\"path\":\"a/b.txt\",\"read_bytes\":0,\
             \"written_bytes\":42}\n"
        );
        let mut lost = String::new();
        emit_lost(Duration::ZERO, (7, None), &mut lost);
        emit_lost(Duration::ZERO, (8, Some(Source::V6(0x2001_0db8_0000_0001))), &mut lost);
        let begin = "{\"v\":1,\"time\":\"1970-01-01T00:00:00.000000Z\",\"event\":\"lost\"";
        assert_eq!(
            lost,
            format!("{begin},\"lost\":7}}\n{begin},\"client\":\"2001:db8:0:1::/64\",\"lost\":8}}\n")
        );
    }

    #[test]
    fn a_name_cannot_forge_a_line_or_hide() {
        let hostile = "a\n{\"event\":\"logoff\"}\u{1b}[2J\u{9b}\u{202e}\\\"\u{e0041}".as_bytes().to_vec();
        let shown =
            line(&Event::now(Kind::Rename, Outcome::Done, Who::default()).on(hostile).to(b"b".to_vec()));
        assert_eq!(shown.matches('\n').count(), 1);
        let escaped = r#""path":"a\n{\"event\":\"logoff\"}\u001b[2J\u009b\u202e\\\"\udb40\udc41","to":"b"}"#;
        assert!(shown.ends_with(&format!("{escaped}\n")), "{shown}");
    }

    #[test]
    fn a_name_that_is_not_utf8_keeps_its_bytes() {
        let shown = line(&Event::now(Kind::Delete, Outcome::Done, Who::default()).on(b"f\xff.txt".to_vec()));
        assert!(shown.ends_with("\"path\":\"f\u{fffd}.txt\",\"path_hex\":\"66ff2e747874\"}\n"), "{shown}");
    }

    #[test]
    fn what_fits_is_counted_as_it_is_written() {
        for text in
            [&b"a/b"[..], "\"\\\n\t\u{1}\u{9b}\u{202e}\u{e0041}\u{e4}\u{1f600}".as_bytes(), b"f\xff\xe2\x80x"]
        {
            let shown = line(&Event::now(Kind::Delete, Outcome::Done, Who::default()).on(text.to_vec()));
            let path = shown.split_once(",\"path\":\"").unwrap().1.strip_suffix("\"}\n").unwrap();
            let written = path.replace("\",\"path_hex\":\"", "").len();
            assert_eq!(fit(text, usize::MAX), (text.len(), written), "{shown}");
            assert_eq!(fit(text, written), (text.len(), written), "{shown}");
            assert!(fit(text, written - 1).0 < text.len(), "{shown}");
        }
        assert_eq!(fit("\u{e4}\u{e4}".as_bytes(), 3), (2, 2));
    }

    #[test]
    fn every_field_is_listed() {
        let facts = [
            Fact::Object("file"),
            Fact::Access(vec!["read"]),
            Fact::Changes(vec!["mode", "owner"]),
            Fact::Replaced,
            Fact::ReadBytes(1),
            Fact::WrittenBytes(1),
            Fact::Reason("r".into()),
            Fact::Command("reload".into()),
            Fact::Added(vec!["a".into()]),
            Fact::Removed(vec![]),
            Fact::Changed(vec!["b".into(), "c".into()]),
            Fact::Cut,
        ];
        let event = Event {
            facts: facts.to_vec(),
            ..Event::now(Kind::Admin, Outcome::Failed("x".into()), Who::default())
        };
        let shown = line(&event);
        assert!(
            shown.contains("\"changes\":[\"mode\",\"owner\"]") && shown.contains("\"removed\":[]"),
            "{shown}"
        );
        let names = shown.split("\":").filter_map(|part| part.rsplit('"').next());
        for name in names.filter(|name| !name.contains('}')) {
            assert!(FIELDS.contains(&name), "{name} of {shown}");
        }
    }
}
