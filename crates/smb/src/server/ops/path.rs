//! Converts between SMB paths and the store's names.
//!
//! Spec: [MS-FSCC] 2.1.5 (pathname, file name, stream name), [MS-SMB2] 3.3.5.9 (path name validation). `.` and `..` are
//! resolved before any look-up, as in Windows ([MS-SMB2] 3.3.5.9, note 303): no path leaves the share, and none goes
//! through a file.
//!
//! A POSIX name may contain characters that SMB reserves: see [`spelling`]. One may also contain the substitute
//! characters themselves, and is found by them unless a name with the originals exists. Names that are not UTF-8 are
//! encoded as in [`octets`].

use unicode_normalization::UnicodeNormalization;
use weft_wire::octets;
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::spelling::{self, is_reserved};

use crate::server::context::OpContext;

/// The longest component in UTF-16 units.
const MAX_UNITS: usize = 255;

/// Names from the share's root to a file: none is empty, `.` or `..` or contains a `/`; an empty list is the root
/// itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// In the store's spelling.
    pub(super) names: Vec<Vec<u8>>,
    /// It ended in a backslash: only a directory matches.
    pub(super) directory: bool,
    /// It named the data stream (`::$DATA`): only a file matches.
    pub(super) file: bool,
    /// It named the directory's own stream (`::$INDEX_ALLOCATION`): a directory, created if missing.
    pub(super) index: bool,
    /// It named another stream of the file or directory (`:name` or `:name:$DATA`).
    pub(super) stream: Option<Vec<u8>>,
    /// Names may be stored in another Unicode normal form: a Mac sends them composed, however they were listed.
    pub(super) normalizes: bool,
}

impl Path {
    /// Parses the path of a CREATE or of a rename.
    pub(super) fn parse(path: &str) -> Result<Path, NtStatus> {
        // 2.2.13: it must not start with a backslash.
        if path.starts_with('\\') {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let (path, index) = without_index(path)?;
        let (path, named) = if index { (path, None) } else { without_stream(path)? };
        let directory = index || path.ends_with('\\');
        let file = named == Some("");
        // The root has streams, but no data.
        if (file && path.is_empty()) || (named.is_some() && directory) {
            return Err(NtStatus::OBJECT_NAME_INVALID);
        }
        // [MS-FSA] 2.1.5.1, phase 3: redundant backslashes are stripped.
        let mut names = Vec::new();
        for name in path.split('\\').filter(|name| !name.is_empty() && *name != ".") {
            if name != ".." {
                // Inner components are directories, and may be named by their directory stream.
                names.push(to_store(directory_name(name).unwrap_or(name))?);
            } else if names.pop().is_none() {
                // A share has no parent.
                return Err(NtStatus::OBJECT_PATH_SYNTAX_BAD);
            }
        }
        let stream = named.filter(|name| !name.is_empty()).map(stream_to_store).transpose()?;
        Ok(Path { names, directory, file, index, stream, normalizes: false })
    }
}

/// A path with SMB separators: a client that negotiated the POSIX extensions may write `/` between names, as Linux
/// does.
pub(super) fn separated(cx: &OpContext, path: String) -> String {
    if cx.connection().negotiated().posix { path.replace('/', "\\") } else { path }
}

/// The name of a directory, written with its own stream ([MS-FSA] 2.1.5.1, note 45).
fn directory_name(name: &str) -> Option<&str> {
    let (name, stream) = name.split_once(':')?;
    let is = |suffix: &&str| stream.eq_ignore_ascii_case(suffix);
    ["$I30", ":$INDEX_ALLOCATION", "$I30:$INDEX_ALLOCATION"].iter().any(is).then_some(name)
}

/// Splits a path before its last name.
fn last_name(path: &str) -> (&str, &str) {
    path.split_at(path.rfind('\\').map_or(0, |at| at.saturating_add(1)))
}

/// Strips the name of a directory's own stream; returns whether there was one ([MS-FSA] 2.1.5.1, phase 7). `:$I30`
/// alone at the end of a path is a data stream.
fn without_index(path: &str) -> Result<(&str, bool), NtStatus> {
    let (_, name) = last_name(path);
    let Some((_, stream)) = name.split_once(':') else { return Ok((path, false)) };
    match stream.rsplit_once(':') {
        Some((own, kind)) if kind.eq_ignore_ascii_case("$INDEX_ALLOCATION") => {
            if !own.is_empty() && !own.eq_ignore_ascii_case("$I30") {
                return Err(NtStatus::INVALID_PARAMETER);
            }
            // The stream is the end of the path.
            let front = path.strip_suffix(stream).and_then(|front| front.strip_suffix(':'));
            Ok((front.unwrap_or(path), true))
        }
        _ => Ok((path, false)),
    }
}

/// Strips the name of a stream; empty for the unnamed one. [MS-FSCC] 2.1.5.3: `:name`, `:name:$DATA` or `::$DATA`;
/// clients cannot name streams of other types.
fn without_stream(path: &str) -> Result<(&str, Option<&str>), NtStatus> {
    let (dir, last) = last_name(path);
    let Some((name, stream)) = last.split_once(':') else { return Ok((path, None)) };
    let (stream, typed) = match stream.split_once(':') {
        None => (stream, false),
        Some((stream, kind)) if kind.eq_ignore_ascii_case("$DATA") => (stream, true),
        Some(_) => return Err(NtStatus::OBJECT_NAME_INVALID),
    };
    if stream.is_empty() && !typed {
        return Err(NtStatus::OBJECT_NAME_INVALID);
    }
    Ok((path.split_at(dir.len().saturating_add(name.len())).0, Some(stream)))
}

/// The new name of a stream in a rename, `:name` or `:name:$DATA`; `None` if it is a path.
pub(super) fn new_stream(name: &str) -> Option<Result<Vec<u8>, NtStatus>> {
    name.starts_with(':').then(|| match without_stream(name)? {
        ("", Some(stream)) if !stream.is_empty() => stream_to_store(stream),
        _ => Err(NtStatus::INVALID_PARAMETER),
    })
}

/// [MS-FSCC] 2.1.5.3: stream names allow more characters than file names.
fn stream_to_store(name: &str) -> Result<Vec<u8>, NtStatus> {
    let bad = |c| matches!(c, '\\' | '/' | ':' | '\u{0}');
    if name.encode_utf16().count() > MAX_UNITS || name.chars().any(bad) {
        return Err(NtStatus::OBJECT_NAME_INVALID);
    }
    Ok(name.as_bytes().to_vec())
}

/// One component in the store's spelling.
pub(super) fn to_store(name: &str) -> Result<Vec<u8>, NtStatus> {
    // [MS-FSCC] 2.1.5.1: dot directory names are not sent over the wire; [MS-SMB2] 3.3.5.9: refused like this.
    if name == "." || name == ".." {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if name.encode_utf16().count() > MAX_UNITS || name.chars().any(is_reserved) {
        return Err(NtStatus::OBJECT_NAME_INVALID);
    }
    // Substitutes may have hidden part of a "..".
    match spelling::from_wire(name) {
        name if matches!(&*name, "" | "." | "..") => Err(NtStatus::OBJECT_NAME_INVALID),
        name => {
            let name = octets::from_text(&name).ok_or(NtStatus::OBJECT_NAME_INVALID)?;
            Ok(name.into_owned())
        }
    }
}

/// Other names under which a file may be stored that a client names like this. With substitutes for reserved
/// characters, and for a space or a dot at the end: an older server, or a Mac, may have stored them. If `normalizes`, with
/// all letters decomposed, or composed.
pub(super) fn other_spellings(name: &[u8], normalizes: bool) -> Vec<Vec<u8>> {
    let Ok(name) = std::str::from_utf8(name) else { return Vec::new() };
    let mut others = Vec::new();
    let mut add = |other: String| {
        let other = other.into_bytes();
        if other != name.as_bytes() && !others.contains(&other) {
            others.push(other);
        }
    };
    let wire = spelling::to_wire(name);
    let last = spelling::with_last_stand_in(&wire);
    add(wire.into_owned());
    last.into_iter().for_each(&mut add);
    if normalizes && !name.is_ascii() {
        add(name.nfd().collect());
        add(name.nfc().collect());
    }
    others
}

/// A store name as SMB shows it.
pub(super) fn from_store(name: &[u8]) -> String {
    spelling::to_wire(&octets::to_text(name)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str) -> Vec<String> {
        let path = Path::parse(path).unwrap();
        path.names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect()
    }

    #[test]
    fn paths() {
        assert!(names("").is_empty());
        assert_eq!(names("a"), ["a"]);
        assert_eq!(names("a\\b c\\Ünï.txt"), ["a", "b c", "Ünï.txt"]);
        assert_eq!(names("a\\\\b\\"), ["a", "b"]);
        assert!(Path::parse("a\\b\\").unwrap().directory);
        assert_eq!(names("...\\.a\\a."), ["...", ".a", "a."]);
        assert_eq!(names("a\\.\\b\\..\\c"), ["a", "c"]);
        assert!(names("a\\..").is_empty() && names(".").is_empty());
        let index = Path::parse("d:$I30\\e::$INDEX_ALLOCATION").unwrap();
        assert!(index.index && index.directory && index.names == [b"d".to_vec(), b"e".to_vec()]);
        let stream = Path::parse("d\\f::$data").unwrap();
        assert!(stream.file && stream.names == [b"d".to_vec(), b"f".to_vec()]);
    }

    #[test]
    fn what_is_refused() {
        let status = |path: &str| Path::parse(path).unwrap_err();
        assert_eq!(status("\\a"), NtStatus::INVALID_PARAMETER);
        for path in ["..", "..\\a", "a\\..\\..", "a\\..\\..\\b", "..\\..\\etc\\passwd"] {
            assert_eq!(status(path), NtStatus::OBJECT_PATH_SYNTAX_BAD, "{path}");
        }
        let long = "x".repeat(256);
        for path in [
            "../etc",
            "a/b",
            "/",
            "a*",
            "a?b",
            "a\"",
            "<",
            ">",
            "a|b",
            "a:",
            "a:b:",
            "a:b:c",
            "a:b:$DATA:c",
            "a:b/c",
            "a\\:b",
            "a::$BITMAP",
            "::$DATA",
            "d\\::$DATA",
            "a:b\\c",
            "nul\u{0}",
            "tab\t",
            &long,
        ] {
            assert_eq!(status(path), NtStatus::OBJECT_NAME_INVALID, "{path}");
        }
        assert!(Path::parse(&"x".repeat(255)).is_ok());
    }

    #[test]
    fn streams() {
        let stream =
            |path: &str| Path::parse(path).unwrap().stream.map(|name| String::from_utf8(name).unwrap());
        assert_eq!(stream("a").or(stream("a::$DATA")), None);
        for path in ["a:B c", "a:B c:$DATA", "d\\a:B c:$data", ":B c"] {
            assert_eq!(stream(path).as_deref(), Some("B c"), "{path}");
        }
        assert_eq!(stream("a:<*?>\u{1}").as_deref(), Some("<*?>\u{1}"));
        assert!(new_stream("a").is_none());
        assert_eq!(new_stream(":b:$DATA"), Some(Ok(b"b".to_vec())));
        assert_eq!(new_stream("::$DATA"), Some(Err(NtStatus::INVALID_PARAMETER)));
        assert_eq!(new_stream(":b\\c"), Some(Err(NtStatus::INVALID_PARAMETER)));
    }

    #[test]
    fn posix_names_travel_in_disguise() {
        let name = b"a:b \"c\" <d>|e?\\f*\x01".to_vec();
        let shown = from_store(&name);
        assert!(!shown.chars().any(is_reserved));
        assert_eq!(to_store(&shown).unwrap(), name);
        assert_eq!(other_spellings(&name, false), [shown.into_bytes()]);
        assert_eq!(from_store(b"plain"), "plain");
        assert!(other_spellings(b"plain", true).is_empty());
        assert_eq!(from_store(b"\xff:"), "\u{efff}\u{f022}");
        assert_eq!(to_store("\u{efff}\u{f022}"), Ok(b"\xff:".to_vec()));
        // Two spellings of one name would be two files for a client.
        assert_eq!(to_store("\u{efc3}\u{efa9}"), Err(NtStatus::OBJECT_NAME_INVALID));
        // Substitutes must not encode names with a special meaning.
        assert_eq!(to_store("\u{f02f}").unwrap(), "\u{f02f}".as_bytes());
        for code in 0xF000..=0xF030 {
            let c = char::from_u32(code).unwrap();
            let stored = to_store(&format!("x{c}")).unwrap();
            assert!(!stored.contains(&b'/') && !stored.contains(&0), "{code:x}");
        }
        for dots in ["\u{f029}", ".\u{f029}"] {
            assert_eq!(to_store(dots), Err(NtStatus::OBJECT_NAME_INVALID));
        }
    }

    #[test]
    fn names_that_a_mac_sends_differently() {
        // A space or a dot at the end, which Windows would strip.
        assert_eq!(to_store("a.\u{f028}").unwrap(), b"a. ");
        assert_eq!(other_spellings(b"a.", false), ["a\u{f029}".as_bytes()]);
        assert_eq!(other_spellings(b"a:.", false), ["a\u{f022}.".as_bytes(), "a\u{f022}\u{f029}".as_bytes()]);
        // A name that was stored decomposed, and is sent composed; and the other way round.
        let (composed, decomposed) = ("\u{e9}".as_bytes(), "e\u{301}".as_bytes());
        assert_eq!(other_spellings(composed, true), [decomposed]);
        assert_eq!(other_spellings(decomposed, true), [composed]);
        assert!(other_spellings(composed, false).is_empty());
        assert!(other_spellings(b"\xff", true).is_empty());
    }
}
