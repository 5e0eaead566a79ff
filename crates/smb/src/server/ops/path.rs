//! Paths as SMB writes them, and names as the store keeps them.
//!
//! Spec: [MS-FSCC] 2.1.5 (pathname, file name, stream name), [MS-SMB2] 3.3.5.9 (path name validation).
//! Does not: look at files. `.` and `..` are taken out before anything is looked up, as Windows does it
//! ([MS-SMB2] 3.3.5.9, note 303): no path leads out of a share, and none goes through a file on its way.
//!
//! A POSIX name may hold characters that SMB reserves: see [`spelling`]; one may also hold their stand-ins themselves, and is
//! found by them as long as there is none that they stand for. Names that are not UTF-8 travel as [`octets`] has them.

use std::borrow::Cow;

use weft_wire::octets;
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::spelling::{self, is_reserved};

use crate::server::context::OpContext;

/// The longest component in UTF-16 units.
const MAX_UNITS: usize = 255;

/// Names from the root of the share to a file: none of them empty, `.`, `..` or with a `/`; empty is the root itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// As the store keeps them.
    pub(super) names: Vec<Vec<u8>>,
    /// It ended in a backslash: only a directory can be meant.
    pub(super) directory: bool,
    /// It named the data stream (`::$DATA`): only a file can be meant.
    pub(super) file: bool,
    /// It named the directory's own stream (`::$INDEX_ALLOCATION`): a directory is meant, and made where there is none.
    pub(super) index: bool,
    /// It named another stream of the file or directory (`:name` or `:name:$DATA`).
    pub(super) stream: Option<Vec<u8>>,
}

impl Path {
    /// Reads a path of CREATE or of a rename.
    pub(super) fn parse(path: &str) -> Result<Path, NtStatus> {
        // 2.2.13: it does not begin with a backslash.
        if path.starts_with('\\') {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let (path, index) = without_index(path)?;
        let (path, named) = if index { (path, None) } else { without_stream(path)? };
        let directory = index || path.ends_with('\\');
        let file = named == Some("");
        // The root has streams, too, but no data.
        if (file && path.is_empty()) || (named.is_some() && directory) {
            return Err(NtStatus::OBJECT_NAME_INVALID);
        }
        // [MS-FSA] 2.1.5.1, phase 3: redundant backslashes are stripped.
        let mut names = Vec::new();
        for name in path.split('\\').filter(|name| !name.is_empty() && *name != ".") {
            if name != ".." {
                // What the path goes through is a directory, and may be called so.
                names.push(to_store(directory_name(name).unwrap_or(name))?);
            } else if names.pop().is_none() {
                // There is nothing above a share.
                return Err(NtStatus::OBJECT_PATH_SYNTAX_BAD);
            }
        }
        let stream = named.filter(|name| !name.is_empty()).map(stream_to_store).transpose()?;
        Ok(Path { names, directory, file, index, stream })
    }
}

/// A path as it is meant: a client that has agreed on the POSIX extensions may write `/` between the names, as Linux does.
pub(super) fn separated(cx: &OpContext, path: String) -> String {
    if cx.connection().negotiated().posix { path.replace('/', "\\") } else { path }
}

/// The name of a directory that is called by its own stream ([MS-FSA] 2.1.5.1, note 45).
fn directory_name(name: &str) -> Option<&str> {
    let (name, stream) = name.split_once(':')?;
    let is = |suffix: &&str| stream.eq_ignore_ascii_case(suffix);
    ["$I30", ":$INDEX_ALLOCATION", "$I30:$INDEX_ALLOCATION"].iter().any(is).then_some(name)
}

/// What leads to the last name of a path, with the separator, and that name.
fn last_name(path: &str) -> (&str, &str) {
    path.split_at(path.rfind('\\').map_or(0, |at| at.saturating_add(1)))
}

/// Takes off the name of a directory's own stream; whether there was one ([MS-FSA] 2.1.5.1, phase 7). `:$I30` alone is that of a
/// stream of data at the end of a path.
fn without_index(path: &str) -> Result<(&str, bool), NtStatus> {
    let (_, name) = last_name(path);
    let Some((_, stream)) = name.split_once(':') else { return Ok((path, false)) };
    match stream.rsplit_once(':') {
        Some((own, kind)) if kind.eq_ignore_ascii_case("$INDEX_ALLOCATION") => {
            if !own.is_empty() && !own.eq_ignore_ascii_case("$I30") {
                return Err(NtStatus::INVALID_PARAMETER);
            }
            // The stream is what the path ends with.
            let front = path.strip_suffix(stream).and_then(|front| front.strip_suffix(':'));
            Ok((front.unwrap_or(path), true))
        }
        _ => Ok((path, false)),
    }
}

/// Takes off the name of a stream: empty for the unnamed one. [MS-FSCC] 2.1.5.3: `:name`, `:name:$DATA` or `::$DATA`;
/// there are no streams of other types that clients may name.
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

/// The new name of a stream in a rename, `:name` or `:name:$DATA`; `None` when it is a path.
pub(super) fn new_stream(name: &str) -> Option<Result<Vec<u8>, NtStatus>> {
    name.starts_with(':').then(|| match without_stream(name)? {
        ("", Some(stream)) if !stream.is_empty() => stream_to_store(stream),
        _ => Err(NtStatus::INVALID_PARAMETER),
    })
}

/// [MS-FSCC] 2.1.5.3: more is allowed than in the name of a file.
fn stream_to_store(name: &str) -> Result<Vec<u8>, NtStatus> {
    let bad = |c| matches!(c, '\\' | '/' | ':' | '\u{0}');
    if name.encode_utf16().count() > MAX_UNITS || name.chars().any(bad) {
        return Err(NtStatus::OBJECT_NAME_INVALID);
    }
    Ok(name.as_bytes().to_vec())
}

/// One component as the store keeps it.
pub(super) fn to_store(name: &str) -> Result<Vec<u8>, NtStatus> {
    // [MS-FSCC] 2.1.5.1: dot directory names are not sent over the wire; [MS-SMB2] 3.3.5.9: refused like this.
    if name == "." || name == ".." {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if name.encode_utf16().count() > MAX_UNITS || name.chars().any(is_reserved) {
        return Err(NtStatus::OBJECT_NAME_INVALID);
    }
    // A stand-in may have been for half of "..".
    match spelling::from_wire(name) {
        name if matches!(&*name, "" | "." | "..") => Err(NtStatus::OBJECT_NAME_INVALID),
        name => {
            let name = octets::from_text(&name).ok_or(NtStatus::OBJECT_NAME_INVALID)?;
            Ok(name.into_owned())
        }
    }
}

/// A name of the store as it travelled, where it did in disguise: an older server, or a Mac, may have kept it like that.
pub(super) fn in_disguise(name: &[u8]) -> Option<Vec<u8>> {
    match spelling::to_wire(std::str::from_utf8(name).ok()?) {
        Cow::Owned(name) => Some(name.into_bytes()),
        Cow::Borrowed(_) => None,
    }
}

/// A name of the store as SMB shows it.
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
        assert_eq!(in_disguise(&name), Some(shown.into_bytes()));
        assert_eq!(from_store(b"plain"), "plain");
        assert_eq!(in_disguise(b"plain"), None);
        assert_eq!(from_store(b"\xff:"), "\u{efff}\u{f022}");
        assert_eq!(to_store("\u{efff}\u{f022}"), Ok(b"\xff:".to_vec()));
        // Two texts for one name would be two files to a client.
        assert_eq!(to_store("\u{efc3}\u{efa9}"), Err(NtStatus::OBJECT_NAME_INVALID));
        // No disguise for what would lead elsewhere.
        assert_eq!(to_store("\u{f02f}").unwrap(), "\u{f02f}".as_bytes());
        for code in 0xF000..=0xF030 {
            let c = char::from_u32(code).unwrap();
            let stored = to_store(&c.to_string()).unwrap();
            assert!(!stored.contains(&b'/') && !stored.contains(&0), "{code:x}");
        }
    }
}
