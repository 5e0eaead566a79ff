//! Paths in a share.

use super::error::Error;

/// A path in wire form: `\` between names, none at either end.
pub(super) fn wire_path(path: &str) -> Result<String, Error> {
    if path.contains('\0') {
        return Err(Error::Misuse("a path must not contain NUL"));
    }
    Ok(path.replace('/', "\\").trim_matches('\\').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_wire_paths() {
        assert_eq!(wire_path("/a/b\\c/").unwrap(), r"a\b\c");
        assert_eq!(wire_path("").unwrap(), "");
        assert_eq!(wire_path("../x").unwrap(), r"..\x", "the server refuses it, not we");
        assert!(wire_path("a\0b").is_err());
    }
}
