//! Tells the linker how to pack the program, and the program which commit it is built from, as `WEFT_BUILD`: "06aed850, 2026-11-28", with
//! ", modified" if tracked files differ from that commit.
//!
//! An archive has no git repository, but `git archive` writes its commit into `packaging/commit` (`export-subst` in .gitattributes). The
//! environment's WEFT_BUILD is used instead of both if it is set; an empty one names nothing. Development builds do not name a commit,
//! because each commit would compile the program again.

use std::path::{Path, PathBuf};
use std::process::Command;

const VARIABLE: &str = "WEFT_BUILD";

fn main() {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    println!("cargo::rerun-if-changed=build.rs");
    let build = match std::env::var(VARIABLE) {
        Ok(given) => given,
        Err(_) if std::env::var("PROFILE").as_deref() == Ok("debug") => "debug build".to_owned(),
        Err(_) => checked_out().or_else(archived).unwrap_or_default(),
    };
    println!("cargo::rustc-env={VARIABLE}={build}");
    link();
}

/// Makes the program smaller where that costs no time when it runs.
fn link() {
    let target = |part: &str| std::env::var(format!("CARGO_CFG_TARGET_{part}"));
    if target("OS").as_deref() != Ok("linux") || target("ENV").as_deref() != Ok("gnu") {
        return;
    }
    // Packs the addresses that the loader adjusts when the program starts: 1 MB less. glibc reads that since 2.36.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    // Keeps one of several functions of equal code: 0.5 MB less. Rust does not promise that functions have addresses of their own. A
    // profile or a backtrace may then name another function of the same code, so debug builds are not linked that way.
    if std::env::var("PROFILE").as_deref() == Ok("release") && links_with(FOLD) {
        println!("cargo::rustc-link-arg-bins={FOLD}");
    }
}

const FOLD: &str = "-Wl,--icf=all";

/// Whether the linker knows an option, found out with a program that does nothing. rustc's own linker, LLD, is not the default of each
/// target and distribution; GNU ld refuses what it does not know.
fn links_with(option: &str) -> bool {
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let out = PathBuf::from(var("OUT_DIR"));
    let source = out.join("nothing.rs");
    if let Err(e) = std::fs::write(&source, "fn main() {}") {
        println!(
            "cargo::warning={} cannot be written, so the program is larger than need be: {e}",
            source.display()
        );
        return false;
    }
    let mut rustc = Command::new(var("RUSTC"));
    rustc.arg(&source).arg("-o").arg(out.join("nothing")).args(["--target", &var("TARGET")]);
    rustc.args(var("CARGO_ENCODED_RUSTFLAGS").split('\u{1f}').filter(|flag| !flag.is_empty()));
    let linker = var("RUSTC_LINKER");
    if !linker.is_empty() {
        rustc.args(["-C", &format!("linker={linker}")]);
    }
    rustc.args(["-C", &format!("link-arg={option}")]).output().is_ok_and(|done| done.status.success())
}

/// The root of the repository.
fn root() -> Option<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().ok()
}

/// The commit of an archive, from the line "HASH SECONDS" that `git archive` has made of a placeholder; `None` if it has not.
fn archived() -> Option<String> {
    let file = root()?.join("packaging/commit");
    println!("cargo::rerun-if-changed={}", file.display());
    let line = std::fs::read_to_string(file).ok()?;
    let (hash, seconds) = line.trim_end().split_once(' ')?;
    let is_hash = hash.len() >= 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (year, month, day) = date(seconds.parse().ok()?);
    is_hash.then(|| format!("{}, {year:04}-{month:02}-{day:02}", &hash[..8]))
}

/// The date in UTC of a time in seconds since 1970.
fn date(seconds: u64) -> (u64, u64, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut days, mut year, mut month) = (seconds / 86_400, 1970, 1);
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

/// The commit that is checked out; `None` without git or outside a work tree, as in an unpacked archive.
fn checked_out() -> Option<String> {
    let root = root()?;
    // An archive unpacked inside another project's work tree has no commit of its own.
    let top = PathBuf::from(git(&root, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root {
        return None;
    }
    // Commits and checkouts write to these; edits, to the files themselves. A missing file would run this each time.
    for name in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(&root, &["rev-parse", "--git-path", name])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    for tracked in ["crates", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", root.join(tracked).display());
    }
    let named = git(&root, &["log", "-1", "--abbrev=8", "--date=format-local:%Y-%m-%d", "--format=%h, %cd"])?;
    let is_modified = !git(&root, &["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if is_modified { format!("{named}, modified") } else { named })
}

/// The output of a git command that succeeds.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    let done = match Command::new("git").arg("-C").arg(root).args(args).env("TZ", "UTC").output() {
        Ok(done) => done,
        // Nobody needs git to build.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
        Err(e) => {
            println!("cargo::warning=git does not run, so `weft --version` names no commit: {e}");
            return None;
        }
    };
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim_end().to_owned())
}
