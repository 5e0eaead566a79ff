//! Which state directory a command means.

use std::path::{Path, PathBuf};

use crate::Failure;
use crate::config::find;
use crate::misuse::Misuse;
use crate::state_dir::state_of_user;

/// The directory that the user names; otherwise the one that the default configuration file names; otherwise the
/// user's default.
///
/// # Errors
/// The configuration file has mistakes, or none of the three is known.
pub(crate) fn state_of_command(named: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(dir) = named {
        return Ok(dir.to_owned());
    }
    let configured = find::read_for(None, false).map_err(|bad| -> Failure {
        let text =
            format!("{bad}; until that is corrected, name the server's state directory with --state-dir DIR");
        if bad.is_misuse() { Misuse::new(text).into() } else { text.into() }
    })?;
    let configured = configured.and_then(|config| config.state_dir);
    let unknown =
        "neither XDG_STATE_HOME nor HOME is set, so the state directory is unknown: use --state-dir DIR";
    Ok(configured.or_else(state_of_user).ok_or(unknown)?)
}
