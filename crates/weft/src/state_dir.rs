//! Where this user's servers and volumes keep their state, unless a command line or a configuration says otherwise.

use std::path::PathBuf;

/// The default state directory of this user's programs.
pub(crate) fn state_of_user() -> Option<PathBuf> {
    default_state_dir(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
}

/// A relative path is ignored (XDG Base Directory Specification).
fn default_state_dir(xdg: Option<std::ffi::OsString>, home: Option<std::ffi::OsString>) -> Option<PathBuf> {
    let absolute =
        |path: Option<std::ffi::OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute(xdg).or_else(|| absolute(home).map(|home| home.join(".local/state")))?;
    Some(state.join("weft"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_directory_is_that_of_xdg() {
        let dir = |xdg: Option<&str>, home: Option<&str>| {
            default_state_dir(xdg.map(Into::into), home.map(Into::into)).map(|dir| dir.display().to_string())
        };
        assert_eq!(dir(Some("/x"), Some("/home/a")).as_deref(), Some("/x/weft"));
        assert_eq!(dir(None, Some("/home/a")).as_deref(), Some("/home/a/.local/state/weft"));
        assert_eq!(dir(Some("relative"), Some("/home/a")).as_deref(), Some("/home/a/.local/state/weft"));
        assert_eq!(dir(None, None), None);
    }
}
