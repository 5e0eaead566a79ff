//! Which state directory a command means.

use std::path::{Path, PathBuf};

use crate::Failure;
use crate::config::{ServeConfig, find};
use crate::misuse::Misuse;
use crate::out::path_name;
use crate::state_dir::state_of_user;

/// The directory that the user names; otherwise the one that the default configuration file names; otherwise the
/// user's default.
///
/// # Errors
/// The configuration file has mistakes or is empty, or none of the three is known.
pub(crate) fn state_of_command(named: Option<&Path>) -> Result<PathBuf, Failure> {
    chosen_state(named).map(|chosen| chosen.dir)
}

/// A state directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ChosenState {
    /// Its path.
    pub dir: PathBuf,
    /// Whether the user or a configuration file names it.
    pub is_named: bool,
}

/// The directory of [`state_of_command`].
///
/// # Errors
/// As there.
pub(crate) fn chosen_state(named: Option<&Path>) -> Result<ChosenState, Failure> {
    if let Some(dir) = named {
        return Ok(ChosenState { dir: dir.to_owned(), is_named: true });
    }
    let configured = find::read_for(None, false).map_err(|bad| -> Failure {
        let text =
            format!("{bad}; until that is corrected, name the server's state directory with --state-dir DIR");
        if bad.is_misuse() { Misuse::new(text).into() } else { text.into() }
    })?;
    of_configuration(configured, state_of_user())
}

/// An emptied file names no directory any more, although its server uses one: the user's default would be another one.
fn of_configuration(
    configured: Option<ServeConfig>,
    of_user: Option<PathBuf>,
) -> Result<ChosenState, Failure> {
    if let Some(emptied) = configured.as_ref().filter(|config| config.sources.is_empty_file()) {
        let file = emptied.sources.file().map(path_name).unwrap_or_default();
        let why = format!(
            "{file} is empty, so the server's state directory is unknown: write the file again, or move it away; until then, name the \
             directory with --state-dir DIR"
        );
        return Err(why.into());
    }
    let unknown =
        "neither XDG_STATE_HOME nor HOME is set, so the state directory is unknown: use --state-dir DIR";
    match configured.and_then(|config| config.state_dir) {
        Some(dir) => Ok(ChosenState { dir, is_named: true }),
        None => Ok(ChosenState { dir: of_user.ok_or(unknown)?, is_named: false }),
    }
}
