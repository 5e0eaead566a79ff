//! Cuts the lines of refusals.
//!
//! Being refused takes no right, and the text in such a line is the client's: a name of any length that no file has.
//! So each of its fields has a limit, and [`Fact::Cut`] says that it took effect. Both the limits and the result count
//! bytes as they are written: an invisible character, which is escaped, takes up to four times its own bytes.

use super::event::{Event, Fact};
use super::line;

/// The path, and the new path or name, of a refusal.
const MOST_PATH_BYTES: usize = 4096;
/// The reason of a refusal.
const MOST_REASON_BYTES: usize = 1024;
/// The user, or the share, of a refusal.
const MOST_NAME_BYTES: usize = 256;

/// The length up to which a line counts as one. A longer one counts as several.
const LINE_BYTES: usize = 1024;
/// What the other fields of a line take at most.
const OTHER_BYTES: usize = 512;

/// The event of a refusal with text of bounded length, and the number of lines that it counts as.
pub(super) fn cut(mut event: Event) -> (Event, u32) {
    let mut cutter = Cutter::default();
    for path in event.path.iter_mut().chain(&mut event.to) {
        if let Some(len) = cutter.fit(path, MOST_PATH_BYTES) {
            // A copy, because the memory of what is left out shall not wait in the queue.
            *path = path.get(..len).unwrap_or_default().to_vec();
        }
    }
    for name in event.who.user.iter_mut().chain(&mut event.share) {
        if let Some(len) = cutter.fit(name.as_bytes(), MOST_NAME_BYTES) {
            *name = name.get(..len).unwrap_or_default().into();
        }
    }
    for fact in &mut event.facts {
        if let Fact::Reason(reason) = fact
            && let Some(len) = cutter.fit(reason.as_bytes(), MOST_REASON_BYTES)
        {
            *reason = reason.get(..len).unwrap_or_default().to_owned();
        }
    }
    if cutter.has_cut {
        event.facts.push(Fact::Cut);
    }
    let lines = cutter.written_bytes.saturating_add(OTHER_BYTES).div_ceil(LINE_BYTES);
    (event, u32::try_from(lines).unwrap_or(u32::MAX))
}

#[derive(Default)]
struct Cutter {
    written_bytes: usize,
    has_cut: bool,
}

impl Cutter {
    /// The length to cut the text to, unless it fits.
    fn fit(&mut self, text: &[u8], most: usize) -> Option<usize> {
        let (len, written_bytes) = line::fit(text, most);
        self.written_bytes = self.written_bytes.saturating_add(written_bytes);
        let is_cut = len < text.len();
        self.has_cut |= is_cut;
        is_cut.then_some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{Kind, Outcome, Who};
    use super::*;

    fn refused(user: &str, path: &[u8], reason: &str) -> Event {
        let who = Who { user: Some(user.into()), ..Who::default() };
        let event = Event::now(Kind::Rename, Outcome::Denied("STATUS_ACCESS_DENIED".into()), who);
        event.in_share(&user.into()).on(path.to_vec()).to(path.to_vec()).with(Fact::Reason(reason.into()))
    }

    fn line(event: &Event) -> String {
        let mut out = String::new();
        line::emit(event, &mut out);
        out
    }

    #[test]
    fn a_usual_refusal_is_left_as_it_is_and_counts_as_one_line() {
        let path = "a".repeat(200);
        let event = refused("alice", path.as_bytes(), "the password is wrong");
        assert_eq!(cut(event.clone()), (event, 1));
        // The longest path that Linux resolves is left whole, too.
        let path = "ä".repeat(2048);
        let event = refused("alice", path.as_bytes(), "");
        assert_eq!(cut(event.clone()), (event, 9));
    }

    #[test]
    fn each_text_is_cut_at_a_character_and_the_line_says_so() {
        let long = "x\u{e4}".repeat(100_000);
        let (event, lines) = cut(refused(&long, long.as_bytes(), &long));
        let shown = line(&event);
        let text = |bytes: usize| format!("\"{}\"", "x\u{e4}".repeat(8192)[..bytes].to_owned());
        let (path, name) = (text(4096), text(256));
        assert!(shown.contains(&format!(",\"path\":{path},\"to\":{path},")), "{shown}");
        assert!(shown.contains(&format!("\"user\":{name},\"share\":{name},")), "{shown}");
        assert!(shown.contains(&format!("\"reason\":{},\"cut\":true}}", text(1024))), "{shown}");
        assert!(shown.len() < 11 << 10, "{} bytes", shown.len());
        assert_eq!(lines, 10);
        assert!(event.bytes() < 11 << 10, "the rest is not kept: {} bytes", event.bytes());
    }

    #[test]
    fn what_is_escaped_or_written_in_hex_too_counts_as_it_is_written() {
        for character in ["\u{200b}", "\u{1}", "\\", "\u{e0041}"] {
            let (event, lines) = cut(refused("u", character.repeat(50_000).as_bytes(), ""));
            let shown = line(&event);
            assert!((8000..9000).contains(&shown.len()), "{character:?}: {} bytes", shown.len());
            assert_eq!(lines, 9, "{character:?}");
        }
        let (event, _) = cut(refused("u", &b"\xff\xe2\x80".repeat(50_000), ""));
        assert!((8000..9000).contains(&line(&event).len()), "{} bytes", line(&event).len());
    }
}
