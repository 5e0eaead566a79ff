//! The direction of a copy, from the two operands of `weft cp` and `weft sync`: one is a URL, the other a local path.

use std::path::{Path, PathBuf};

use crate::Failure;
use crate::args::default_user;
use crate::misuse::Misuse;
use crate::out::{STANDARD, ShellCommand};
use crate::url::Url;

/// Which end is on the server.
pub(crate) enum Direction {
    /// To the server.
    Up(PathBuf, Url),
    /// From it.
    Down(Url, PathBuf),
}

impl Direction {
    /// Exactly one of the two must be a URL; a local source must exist.
    pub(crate) fn of(from: &str, to: &str) -> Result<Direction, Failure> {
        // An empty argument usually comes from a script whose variable is unset.
        if from.is_empty() || to.is_empty() {
            let end = if from.is_empty() { "source" } else { "destination" };
            return Err(
                Misuse::new(format!("the {end} is empty (\"\"): name a file, a folder or a URL")).into()
            );
        }
        match (Url::parse(from)?, Url::parse(to)?) {
            (Some(from), None) => Ok(Direction::Down(from, PathBuf::from(to))),
            (None, Some(to)) => {
                if from != STANDARD {
                    std::fs::metadata(from).map_err(|e| format!("{from}: {e}"))?;
                }
                Ok(Direction::Up(PathBuf::from(from), to))
            }
            (None, None) => Err(Misuse::new(format!(
                "neither {from} nor {to} is on a server; write the remote one as smb://{user}@HOST/SHARE/PATH or nfs://HOST/EXPORT/PATH",
                user = default_user()
            ))
            .into()),
            (Some(from), Some(to)) => Err(Misuse::new(format!(
                "{from} and {to} are both on servers; copy through a local file, or use `{} | {}`",
                ShellCommand::new("weft cat").operand(from.to_string()),
                ShellCommand::new("weft put").operand(to.to_string()),
            ))
            .into()),
        }
    }

    /// The server's end.
    pub(crate) fn url(&self) -> &Url {
        match self {
            Direction::Up(_, url) | Direction::Down(url, _) => url,
        }
    }
}

/// The last component of a local path.
pub(crate) fn name_of(path: &Path) -> Result<&str, Failure> {
    let shown = path.display();
    match path.file_name().map(|name| name.to_str()) {
        Some(Some(name)) => Ok(name),
        Some(None) => {
            Err(format!("{shown}: the name is not UTF-8, which SMB and NFS require; rename it").into())
        }
        None => Err(format!("{shown} has no file name; append one to the URL").into()),
    }
}
