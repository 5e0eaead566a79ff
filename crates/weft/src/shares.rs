//! From the command line's folders and ramdisks to shares.
//!
//! Errors name the argument and what to do.

use std::path::Path;
use std::sync::Arc;

use weft_store::backend::{Dir, Ram};
use weft_store::health::Health;
use weft_store::rules::Rules;
use weft_store::snapshots::Snapshots;
use weft_store::{Share, Vfs};

use crate::Failure;
use crate::args::Serve;
use crate::exports::ExportOption;
use crate::fault::Misuse;
use crate::out::{ShellCommand, path_name};

/// The longest name of a share; Windows makes none that is longer.
const MAX_NAME: usize = 80;

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
        let backend = Dir::open(path).map_err(|e| cannot_serve(path, &e.to_string()))?;
        let folder = path.canonicalize().unwrap_or_else(|_| path.clone());
        let system = backend.file_system();
        let root = backend.root().map_err(|e| cannot_serve(path, &e.to_string()))?;
        let vfs = Vfs::new(backend).heard_by(Health::new(&name, Some(&folder)).of_root(root).on(system));
        shares.push(Described { share: Share::new(name, vfs), source: folder.display().to_string() });
    }
    for (name, size) in &args.ram {
        let source = format!("ram, {size} bytes");
        let vfs = Vfs::new(Ram::new(*size)).heard_by(Health::new(name, None));
        shares.push(Described { share: Share::new(name.as_str(), vfs), source });
    }
    for (i, one) in shares.iter().enumerate() {
        check_name(&one.share.name)?;
        distinct(&shares[..i], &one.share.name)?;
    }
    check_names(&shares, args)?;
    for name in &args.continuous_availability {
        let described = named(&mut shares, "--continuous-availability", name)?;
        if described.share.vfs.kind() == "ram" {
            return Err(
                format!("--continuous-availability {name}: a ramdisk does not survive the server").into()
            );
        }
    }
    for name in &args.compress_share {
        named(&mut shares, "--compress-share", name)?;
    }
    for (name, pattern) in &args.snapshots {
        let described = named(&mut shares, "--snapshots", name)?;
        if described.share.vfs.kind() == "ram" {
            return Err(format!("--snapshots {name}: a ramdisk has none").into());
        }
        let snapshots = Snapshots::new(Path::new(&described.source), pattern)
            .map_err(|e| format!("--snapshots {name}={pattern}: {e}"))?;
        described.share.snapshots = Some(Arc::new(snapshots));
    }
    for link in &args.dfs_link {
        if !shares.iter().any(|described| described.share.name.eq_ignore_ascii_case(link.root())) {
            let there = format!("--dfs-link {}/...: there is no share of that name", link.root());
            return Err(Misuse::new(there).into());
        }
    }
    Ok(shares)
}

/// The shares that [`rules`] are for are known before the volumes are opened; an option that names none is a mistake of the command line.
fn check_names(shares: &[Described], args: &Serve) -> Result<(), Misuse> {
    let mut there: Vec<String> = shares.iter().map(|described| described.share.name.to_string()).collect();
    there.extend(args.share_volumes.clone());
    let options = [
        ("--encrypt-share", &args.encrypt_share),
        ("--hide-unreadable", &args.hide_unreadable),
        ("--read-only", &args.read_only),
    ];
    let by_name =
        options.into_iter().flat_map(|(option, names)| names.iter().map(move |name| (option, name)));
    for (option, name) in args.export.iter().map(|export| ("--export", &export.name)).chain(by_name) {
        if !there.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            return Err(Misuse::new(no_share(option, name, &there)));
        }
    }
    Ok(())
}

/// What the command line asks of shares, those of volumes among them.
pub(crate) fn rules(shares: &mut [Described], args: &Serve) -> Result<(), Failure> {
    for (n, option) in args.export.iter().enumerate() {
        let same = |other: &ExportOption| other.name.eq_ignore_ascii_case(&option.name);
        if args.export.iter().take(n).any(same) {
            // The second would take back what the first asks.
            let name = &option.name;
            return Err(format!(
                "--export {name} is there twice: write all options in one, {name}:ro,insecure"
            )
            .into());
        }
        rules_of(shares, "--export", &option.name)?.nfs = option.export.clone();
    }
    for name in &args.encrypt_share {
        rules_of(shares, "--encrypt-share", name)?.encrypted = true;
    }
    for name in &args.hide_unreadable {
        rules_of(shares, "--hide-unreadable", name)?.hides_unreadable = true;
    }
    for name in &args.read_only {
        let share = &mut named(shares, "--read-only", name)?.share;
        share.vfs = share.vfs.clone().read_only();
        share.rules.nfs.read_only = true;
    }
    Ok(())
}

/// Fails where clients could not name the share, or would mean the pipes by its name.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let bad = |c: char| c.is_control() || matches!(c, '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    if name.is_empty() || name.chars().count() > MAX_NAME || name.chars().any(bad) {
        return Err(format!(
            "{name:?} cannot name a share: a name has 1 to {MAX_NAME} characters and none of / \\ : * ? \" < > |; give another (--ram \
             NAME=SIZE), or rename the folder"
        ));
    }
    if name.eq_ignore_ascii_case("IPC$") {
        return Err(format!(
            "{name:?} is the share of the server's pipes: give another, or rename the folder"
        ));
    }
    Ok(())
}

/// Fails where a share of that name is there already; clients do not tell cases apart.
pub(crate) fn distinct(shares: &[Described], name: &str) -> Result<(), String> {
    match shares.iter().any(|other| other.share.name.eq_ignore_ascii_case(name)) {
        true => Err(format!(
            "two shares are named {name:?}, which clients cannot tell apart: a folder's share has the folder's name, that of --ram and \
             --share-volumes the one that you give it; change one of them"
        )),
        false => Ok(()),
    }
}

/// The rules of the share that an option names.
fn rules_of<'a>(shares: &'a mut [Described], option: &str, name: &str) -> Result<&'a mut Rules, Failure> {
    Ok(&mut named(shares, option, name)?.share.rules)
}

fn no_share(option: &str, name: &str, there: &[String]) -> String {
    format!("{option} {name}: there is no share of that name; there is {}", there.join(", "))
}

/// The share that an option names.
fn named<'a>(shares: &'a mut [Described], option: &str, name: &str) -> Result<&'a mut Described, Failure> {
    let there: Vec<String> = shares.iter().map(|described| described.share.name.to_string()).collect();
    let found = shares.iter_mut().find(|described| described.share.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| Misuse::new(no_share(option, name, &there)).into())
}

/// Some errors name the path themselves.
fn cannot_serve(path: &Path, why: &str) -> String {
    let why = why.strip_prefix(&format!("{}: ", path.display())).unwrap_or(why);
    format!("cannot serve {}: {why}", path_name(path))
}

/// A share is named after its folder, also when the path is `.` or ends in `..`.
fn name_of(path: &Path) -> Result<String, Failure> {
    let shown = path_name(path);
    let real = path.canonicalize().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            let make = ShellCommand::new("mkdir -p").operand(path);
            format!("cannot serve {shown}: there is no such folder; make it: {make}")
        }
        _ => format!("cannot serve {shown}: {e}"),
    })?;
    if !real.is_dir() {
        let folder = path_name(real.parent().unwrap_or(Path::new("/")));
        return Err(
            format!("cannot serve {shown}: it is no folder; name the one that it lies in: {folder}").into()
        );
    }
    let name = real.file_name().and_then(|n| n.to_str());
    name.map(str::to_owned)
        .ok_or_else(|| format!("{shown} has no name to share it under: name a folder below it").into())
}
