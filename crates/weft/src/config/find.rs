//! Which file a server reads its configuration from.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::mistake::BadFile;
use super::{ServeConfig, file};

/// Reads the file that the user names. If the user names neither a file nor anything to serve, reads the default file if
/// it exists.
///
/// # Errors
/// The file has mistakes, or the named file does not exist.
pub(crate) fn read_for(named: Option<&Path>, serves_by_itself: bool) -> Result<Option<ServeConfig>, BadFile> {
    if let Some(path) = named {
        // Commands in other folders show messages of a server, which name it.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        return file::read(&path).map(Some);
    }
    let Some(path) = default_file().filter(|_| !serves_by_itself) else { return Ok(None) };
    match file::read(&path) {
        Ok(config) => Ok(Some(config)),
        Err(bad) if bad.is_missing() => Ok(None),
        Err(bad) => Err(bad),
    }
}

/// The file that is read if the user names none.
pub(crate) fn default_file() -> Option<PathBuf> {
    let is_root = rustix::process::geteuid().is_root();
    place(is_root, std::env::var_os("XDG_CONFIG_HOME"), std::env::var_os("HOME"))
}

/// The path for root does not depend on variables that another user may have set. Relative paths are ignored (XDG Base
/// Directory Specification).
fn place(is_root: bool, xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    if is_root {
        return Some(PathBuf::from("/etc/weft/weft.toml"));
    }
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute(xdg).or_else(|| absolute(home).map(|home| home.join(".config")))?;
    Some(folder.join("weft/weft.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_file_is_the_systems_for_root_and_the_users_otherwise() {
        let of = |is_root, xdg: Option<&str>, home: Option<&str>| {
            place(is_root, xdg.map(Into::into), home.map(Into::into))
        };
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(of(true, Some("/tmp/x"), Some("/root")), path("/etc/weft/weft.toml"));
        assert_eq!(of(false, Some("/tmp/x"), Some("/home/a")), path("/tmp/x/weft/weft.toml"));
        assert_eq!(of(false, Some("x"), Some("/home/a")), path("/home/a/.config/weft/weft.toml"));
        assert_eq!(of(false, None, None), None);
    }

    #[test]
    fn a_named_file_must_exist_and_other_arguments_need_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weft.toml");
        let missing = read_for(Some(&path), false).unwrap_err();
        assert!(
            missing.to_string().contains("weft.toml: cannot read the configuration: No such file"),
            "{missing}"
        );
        assert!(!missing.is_misuse());
        std::fs::write(&path, "[limits]\ncores = 2\n").unwrap();
        assert_eq!(read_for(Some(&path), true).unwrap().unwrap().limits.cores, Some(2));
        assert_eq!(read_for(None, true).unwrap(), None);
    }
}
