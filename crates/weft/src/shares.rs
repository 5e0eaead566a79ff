//! From the command line's folders and ramdisks to shares.
//!
//! Owns: nothing. Errors name the argument and what to do.

use std::path::Path;

use weft_store::backend::{Dir, Ram};
use weft_store::{Share, Vfs};

use crate::Failure;
use crate::args::Serve;

/// A share and what `ready` says about it.
pub(crate) struct Described {
    /// The share.
    pub share: Share,
    /// The folder, or the size of the ramdisk.
    pub source: String,
}

/// All shares of the command line; names must differ (without regard to case, as clients see them).
pub(crate) fn build(args: &Serve) -> Result<Vec<Described>, Failure> {
    let mut shares: Vec<Described> = Vec::new();
    for path in &args.dirs {
        let name = name_of(path)?;
        let backend = Dir::open(path).map_err(|e| format!("cannot serve {}: {e}", path.display()))?;
        let vfs = Vfs::new(backend);
        let source = path.canonicalize().unwrap_or_else(|_| path.clone()).display().to_string();
        shares.push(Described { share: Share::new(name, vfs), source });
    }
    for (name, size) in &args.ram {
        if name.is_empty() || name.contains(['/', '\\', '\0']) {
            return Err(format!("{name:?} cannot name a share").into());
        }
        let source = format!("ram, {size} bytes");
        shares.push(Described { share: Share::new(name.as_str(), Vfs::new(Ram::new(*size))), source });
    }
    for (i, one) in shares.iter().enumerate() {
        if shares[..i].iter().any(|other| other.share.name.eq_ignore_ascii_case(&one.share.name)) {
            return Err(
                format!("two shares are named {:?}: rename one of the folders", one.share.name).into()
            );
        }
    }
    for name in &args.encrypt_share {
        let named = |described: &&mut Described| described.share.name.eq_ignore_ascii_case(name);
        let described = shares.iter_mut().find(named);
        described
            .ok_or_else(|| format!("--encrypt-share {name}: there is no share of that name"))?
            .share
            .rules
            .encrypted = true;
    }
    Ok(shares)
}

/// A share is named after its folder, also when the path is `.` or ends in `..`.
fn name_of(path: &Path) -> Result<String, Failure> {
    let real = path.canonicalize().map_err(|e| format!("cannot serve {}: {e}", path.display()))?;
    let name = real.file_name().and_then(|n| n.to_str());
    name.map(str::to_owned).ok_or_else(|| format!("{} has no name to share it under", path.display()).into())
}
