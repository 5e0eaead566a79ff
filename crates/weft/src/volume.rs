//! `weft volume`: make, list, show, remove and resize volumes.
//!
//! Owns: where they are remembered. Does not: serve them (see `serve::nbd`), or know their layout (see `store::volume`).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use weft_machine::random;
use weft_store::block::Medium;
use weft_store::volume::superblock::Superblock;
use weft_store::volume::{Create, Error, Known, Listed, Place, Volumes};

use crate::Failure;
use crate::admin::{self, Request};
use crate::args::{Volume, VolumeCommand, VolumeCreate, VolumeResize};
use crate::out::shell_word;
use crate::serve::replica;

/// Runs the command.
pub(crate) fn run(args: Volume) -> Result<ExitCode, Failure> {
    let volumes = remembered(args.state_dir.as_deref())?;
    let mut out = crate::out::Stdout;
    match args.command {
        VolumeCommand::Create(args) => {
            let made = volumes.create(&args.name, &wanted(&args)?)?;
            writeln!(out, "created {}: {}, {}", args.name, human(made.size), place(&made))?;
            if let Ok(Some(_)) = replica::group_of_volume(state_of(&volumes), &args.name) {
                // The metadata of the one that was there were lost: the group does not take this one for it.
                writeln!(
                    out,
                    "a replication group had another volume of this name: serve it with --replica, and `weft replica status` says \
                     what is to be decided"
                )?;
            } else {
                // A name may begin with a hyphen.
                let hyphen = if args.name.starts_with('-') { "=" } else { " " };
                writeln!(out, "serve it: weft serve --volume{hyphen}{} --nbd", shell_word(&args.name))?;
            }
        }
        VolumeCommand::List(args) => {
            let list = volumes.list()?;
            if args.json {
                serde_json::to_writer_pretty(&mut out, &list.iter().map(listed).collect::<Vec<_>>())?;
                writeln!(out)?;
            } else {
                print_list(&mut out, &volumes, &list)?;
            }
        }
        VolumeCommand::Info(args) => {
            let known = volumes.info(&args.name)?;
            if args.json {
                serde_json::to_writer_pretty(&mut out, &value(&known))?;
                writeln!(out)?;
            } else {
                print_info(&mut out, &known)?;
            }
        }
        VolumeCommand::Remove(args) => {
            if let Some(why) = replica::group_of_volume(state_of(&volumes), &args.name)? {
                return Err(why.into());
            }
            let was = volumes.remove(&args.name, args.delete_file)?;
            let file = was.filter(|was| was.medium != Medium::Ram).map(|was| was.path);
            match file {
                Some(path) if args.delete_file && !path.exists() => {
                    writeln!(out, "removed {} and {}", args.name, path.display())?;
                }
                Some(path) => writeln!(out, "removed {}; {} stays as it is", args.name, path.display())?,
                None => writeln!(out, "removed {}", args.name)?,
            }
        }
        VolumeCommand::Resize(args) => match volumes.resize(&args.name, args.size, args.shrink) {
            Err(Error::InUse(path)) => {
                let size =
                    grow(&volumes, &args).map_err(|why| format!("{} is in use: {why}", path.display()))?;
                let now = human(size);
                writeln!(out, "{} has {now} now; NBD clients see that when they connect again", args.name)?;
            }
            resized => writeln!(out, "{} has {} now", args.name, human(resized?.size))?,
        },
    }
    Ok(ExitCode::SUCCESS)
}

/// Where volumes are remembered a server has its socket, and its groups, too.
fn state_of(volumes: &Volumes) -> &Path {
    volumes.dir().parent().unwrap_or(volumes.dir())
}

/// Has the server that uses a volume make it longer; its size then.
fn grow(volumes: &Volumes, args: &VolumeResize) -> Result<u64, Failure> {
    if args.shrink {
        return Err("only a volume that is not served can become smaller".into());
    }
    let state = state_of(volumes);
    let request = Request::Grow { volume: args.name.clone(), size: args.size };
    let mut why = Failure::from("by no server that can be asked");
    for server in admin::servers(state)? {
        match server.ask(&request) {
            Ok(size) => return size.as_u64().ok_or_else(|| "the server answered something else".into()),
            Err(e) => why = e,
        }
    }
    Err(why)
}

/// The volumes of this user, or of the directory that was named.
pub(crate) fn remembered(state_dir: Option<&Path>) -> Result<Volumes, Failure> {
    let state = match state_dir {
        Some(dir) => dir.to_owned(),
        None => state_of_user().ok_or(
            "neither XDG_STATE_HOME nor HOME says where volumes are remembered: use --state-dir DIR",
        )?,
    };
    Ok(Volumes::at(state.join("volumes")))
}

/// Where this user's programs keep their state.
pub(crate) fn state_of_user() -> Option<PathBuf> {
    default_state_dir(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
}

/// XDG Base Directory Specification: a relative path does not count.
fn default_state_dir(xdg: Option<std::ffi::OsString>, home: Option<std::ffi::OsString>) -> Option<PathBuf> {
    let absolute =
        |path: Option<std::ffi::OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute(xdg).or_else(|| absolute(home).map(|home| home.join(".local/state")))?;
    Some(state.join("weft"))
}

fn wanted(args: &VolumeCreate) -> Result<Create, Failure> {
    let id = random::bytes()?;
    let place = match (&args.file, &args.device) {
        (Some(path), _) => Place::File(path.clone()),
        (_, Some(path)) => Place::Device(path.clone()),
        _ => Place::Ram,
    };
    let created = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    Ok(Create { place, size: args.size, allocate: args.allocate, direct: args.direct, id, created })
}

fn print_list(out: &mut impl Write, volumes: &Volumes, list: &[Listed]) -> std::io::Result<()> {
    if list.is_empty() {
        writeln!(out, "no volumes in {}", volumes.dir().display())?;
        return writeln!(out, "make one: weft volume create NAME --size 10G --file PATH");
    }
    let width = list.iter().map(|line| line.name.len()).max().unwrap_or(0).max("NAME".len());
    writeln!(out, "{:<width$}  {:>9}  {:>9}  {:<6}  PLACE", "NAME", "SIZE", "USED", "STATE")?;
    for Listed { name, known } in list {
        match known {
            Ok(known) => {
                let used = known.allocated.map_or("-".into(), human);
                let state = if known.in_use { "in use" } else { "free" };
                let size = human(known.superblock.size);
                writeln!(
                    out,
                    "{name:<width$}  {size:>9}  {used:>9}  {state:<6}  {}",
                    place(&known.superblock)
                )?;
            }
            Err(why) => writeln!(out, "{name:<width$}  {why}")?,
        }
    }
    Ok(())
}

fn print_info(out: &mut impl Write, known: &Known) -> std::io::Result<()> {
    let Known { name, superblock, in_use, allocated } = known;
    writeln!(out, "name      {name}")?;
    writeln!(out, "size      {} ({} bytes)", human(superblock.size), superblock.size)?;
    writeln!(out, "place     {}", place(superblock))?;
    if let Some(bytes) = allocated {
        writeln!(out, "used      {} ({bytes} bytes of the file are allocated)", human(*bytes))?;
    }
    writeln!(out, "state     {}", if *in_use { "in use" } else { "free" })?;
    writeln!(out, "identity  {}", hex(&superblock.id))?;
    writeln!(out, "changes   {} of its metadata", superblock.generation)
}

fn listed(line: &Listed) -> Value {
    match &line.known {
        Ok(known) => value(known),
        Err(why) => json!({"name": line.name, "error": why.to_string()}),
    }
}

fn value(known: &Known) -> Value {
    let Known { name, superblock, in_use, allocated } = known;
    json!({
        "name": name,
        "size": superblock.size,
        "kind": superblock.medium.name(),
        "path": (superblock.medium != Medium::Ram).then(|| superblock.path.display().to_string()),
        "direct": superblock.direct,
        "allocated": allocated,
        "in_use": in_use,
        "id": hex(&superblock.id),
        "generation": superblock.generation,
        "created": superblock.created,
    })
}

/// Where a volume lies, for people.
pub(crate) fn place(superblock: &Superblock) -> String {
    let how = if superblock.direct { ", direct" } else { "" };
    match superblock.medium {
        Medium::Ram if superblock.taken => "in memory that is taken when it is served".into(),
        Medium::Ram => "in memory, as long as it is served".into(),
        Medium::File => format!("file {}{how}", superblock.path.display()),
        Medium::Device => format!("device {}{how}", superblock.path.display()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// "10 GiB", "1.5 MiB", "513 B": binary units, one decimal where it says something.
pub(crate) fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    let value = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    match units[unit] {
        "B" => format!("{bytes} B"),
        name if value.fract() < 0.05 || value >= 100.0 => format!("{value:.0} {name}"),
        name => format!("{value:.1} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        let said = [0, 513, 1024, 1536, 10 << 30, (1 << 40) + (1 << 39), u64::MAX].map(human);
        assert_eq!(said, ["0 B", "513 B", "1 KiB", "1.5 KiB", "10 GiB", "1.5 TiB", "16 EiB"]);
    }

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

    #[test]
    fn a_volume_goes_through_its_life_by_the_command_line() {
        use clap::Parser;

        use crate::args::{Args, Command};
        let dir = tempfile::tempdir().unwrap();
        let (state, file) = (dir.path().join("state"), dir.path().join("v.img"));
        let (state, file) = (state.to_str().unwrap(), file.to_str().unwrap());
        let weft = |words: &[&str]| {
            let line = [&["weft", "volume", "--state-dir", state], words].concat();
            let Command::Volume(args) = Args::try_parse_from(line).unwrap().command else { panic!("volume") };
            run(args).map(|_| ()).map_err(|e| e.to_string())
        };
        weft(&["create", "v", "--size", "1M", "--file", file]).unwrap();
        weft(&["list"]).unwrap();
        weft(&["info", "v", "--json"]).unwrap();
        weft(&["resize", "v", "2M"]).unwrap();
        assert_eq!(std::fs::metadata(file).unwrap().len(), 2 << 20);
        assert!(weft(&["resize", "v", "1M"]).unwrap_err().contains("--shrink"));
        assert!(weft(&["create", "v", "--size", "1M", "--ram"]).unwrap_err().contains("already"));
        weft(&["remove", "v", "--delete-file"]).unwrap();
        assert!(!Path::new(file).exists());
        assert!(weft(&["info", "v"]).unwrap_err().contains("no volume"));
    }

    #[test]
    fn a_volume_of_a_replication_group_is_not_removed_and_one_created_in_its_place_is_said_to_be_another() {
        use clap::Parser;

        use crate::args::{Args, Command};
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().to_str().unwrap();
        let weft = |words: &[&str]| {
            let line = [&["weft", "volume", "--state-dir", state], words].concat();
            let Command::Volume(args) = Args::try_parse_from(line).unwrap().command else { panic!("volume") };
            run(args).map(|_| ()).map_err(|e| e.to_string())
        };
        let file = dir.path().join("v.img");
        weft(&["create", "v", "--size", "1M", "--file", file.to_str().unwrap()]).unwrap();
        weft(&["create", "other", "--size", "1M", "--ram"]).unwrap();
        let group = r#"{"version": 1, "name": "db", "partnership": "", "volumes": ["v"], "log_bytes": 1, "in_memory": false,
            "partners": []}"#;
        let groups = dir.path().join("replica");
        std::fs::create_dir(&groups).unwrap();
        std::fs::write(groups.join("db.json"), group).unwrap();
        for words in [&["remove", "v"][..], &["remove", "v", "--delete-file"]] {
            let why = weft(words).unwrap_err();
            assert!(why.contains("in the group db") && why.contains("`weft replica remove db`"), "{why}");
        }
        assert!(file.exists());
        weft(&["info", "v"]).unwrap();
        weft(&["remove", "other"]).unwrap();
        // A group of which nothing is known may have any of them.
        std::fs::write(groups.join("db.json"), "{").unwrap();
        let why = weft(&["remove", "v"]).unwrap_err();
        assert!(why.contains("db.json") && why.contains("`weft replica remove db --force`"), "{why}");
        std::fs::remove_file(groups.join("db.json")).unwrap();
        weft(&["remove", "v"]).unwrap();
    }

    #[test]
    fn a_volume_lies_in_one_place() {
        use clap::Parser;
        let parse = |words: &[&str]| {
            crate::args::Args::try_parse_from([&["weft", "volume", "create", "v"], words].concat()).is_ok()
        };
        assert!(
            parse(&["--ram", "--size", "1M"]) && parse(&["--file", "x"]) && parse(&["--device", "/dev/x"])
        );
        assert!(!parse(&[]) && !parse(&["--size", "1M"]) && !parse(&["--ram", "--file", "x"]));
    }
}
