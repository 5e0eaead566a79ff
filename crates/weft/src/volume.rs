//! `weft volume`: creates, lists, shows, removes and resizes volumes, and knows where they are recorded. `serve::nbd`
//! serves them, and `store::volume` knows their layout.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use weft_machine::random;
use weft_store::block::Medium;
use weft_store::volume::superblock::Superblock;
use weft_store::volume::{Client, Create, Error, Listed, RecordedVolume, Storage, Volumes};

use crate::Failure;
use crate::admin::{self, Request, Unanswered};
use crate::args::{Volume, VolumeCommand, VolumeCreate, VolumeResize, within_memory};
use crate::hex::hex;
use crate::misuse::Misuse;
use crate::out::ShellCommand;
use crate::serve::replica::membership::{self, InGroup};
use crate::size::human;
use crate::state_of_command::state_of_command;

/// Runs the command.
pub(crate) fn run(args: Volume) -> Result<ExitCode, Failure> {
    let volumes = remembered(args.state_dir.as_deref())?;
    let mut out = crate::out::Stdout;
    match args.command {
        VolumeCommand::Create(args) => {
            refuse_lost(&volumes, &args.name)?;
            let made = volumes.create(&args.name, &wanted(&args)?)?;
            writeln!(out, "created {}: {}, {}", args.name, human(made.size), place(&made))?;
            let serve = ShellCommand::new("weft serve").option("--volume", &args.name).words("--nbd").here();
            writeln!(out, "serve it: {serve}")?;
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
            refuse_member(&volumes, &args.name, "be removed")?;
            let was = volumes.remove(&args.name, args.delete_file)?;
            let image = was.as_ref().is_some_and(|was| was.medium == Medium::Rbd);
            let file = was.filter(|was| was.medium != Medium::Ram);
            match file.map(|was| if image { was.storage().into() } else { was.path }) {
                Some(path) if args.delete_file && !image && !path.exists() => {
                    writeln!(out, "removed {} and {}", args.name, path.display())?;
                }
                Some(path) => writeln!(out, "removed {}; {} stays as it is", args.name, path.display())?,
                None => writeln!(out, "removed {}", args.name)?,
            }
        }
        VolumeCommand::Resize(args) if args.shrink => {
            refuse_member(&volumes, &args.name, "become smaller")?;
            resize(&volumes, &args)?;
        }
        VolumeCommand::Resize(args) => resize(&volumes, &args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn resize(volumes: &Volumes, args: &VolumeResize) -> Result<(), Failure> {
    let mut out = crate::out::Stdout;
    // A missing volume is the error of the resize itself.
    if volumes.info(&args.name).is_ok_and(|known| known.superblock.medium == Medium::Ram) {
        fits_memory("SIZE", args.size)?;
    }
    match volumes.resize(&args.name, args.size, args.shrink) {
        Err(Error::InUse(path)) => {
            let size = grow(volumes, args).map_err(|why| match why.is::<Unanswered>() {
                true => why,
                false => format!("{} is in use: {why}", path.display()).into(),
            })?;
            let now = human(size);
            writeln!(out, "{} now has {now}; NBD clients see the new size when they reconnect", args.name)?;
        }
        resized => writeln!(out, "{} now has {}", args.name, human(resized?.size))?,
    }
    Ok(())
}

/// The group that contains a volume, according to replication's files. Groups of older versions are not recorded in
/// volumes.
fn group_of(volumes: &Volumes, name: &str) -> Result<Option<InGroup>, Failure> {
    Ok(membership::group_of(volumes.dir().parent().unwrap_or(volumes.dir()), name)?)
}

/// Refuses changes to a volume in a group that the group would not notice: it would take the rest for the volume's
/// content.
fn refuse_member(volumes: &Volumes, name: &str, what: &str) -> Result<(), Failure> {
    let Some(InGroup { group, is_sure }) = group_of(volumes, name)? else { return Ok(()) };
    let is = if is_sure { "is" } else { "may be" };
    Err(format!(
        "volume {name} {is} in the group {group} and therefore cannot {what}: `weft replica remove {group}`, where a server runs with \
         --replica, ends replication. If its file is lost or damaged, `weft replica status` says how it gets its content back"
    )
    .into())
}

/// Refuses to create a volume with the name of a group's volume whose metadata is lost.
fn refuse_lost(volumes: &Volumes, name: &str) -> Result<(), Failure> {
    let missing = matches!(volumes.info(name), Err(Error::NotFound(_)));
    let Some(InGroup { group, .. }) = group_of(volumes, name)?.filter(|in_group| missing && in_group.is_sure)
    else {
        return Ok(());
    };
    let path = volumes.dir().join(format!("{name}.volume"));
    Err(format!(
        "the group {group} has a volume {name} whose metadata, {}, is lost: restore it. Otherwise start the server with \
         --replica: `weft replica remove {group} --force` ends replication on this host, and then {name} can be created. If the other side \
         has its data, `weft replica create` on that host copies it",
        path.display()
    )
    .into())
}

/// Asks the server that uses a volume to grow it; returns the new size.
fn grow(volumes: &Volumes, args: &VolumeResize) -> Result<u64, Failure> {
    if args.shrink {
        return Err("a volume can only shrink while it is not served".into());
    }
    // The server's socket is in the directory that records the volumes.
    let state = volumes.dir().parent().unwrap_or(volumes.dir());
    let request = Request::Grow { volume: args.name.clone(), size: args.size };
    let mut why = Failure::from("by a server that cannot be reached");
    for server in admin::servers(state)? {
        match server.ask(&request) {
            Ok(size) => return size.as_u64().ok_or_else(|| "unexpected answer of the server".into()),
            // A server that may still grow it matters more than servers without the volume.
            Err(_) if why.is::<Unanswered>() => {}
            Err(e) => why = e,
        }
    }
    Err(why)
}

/// The volumes of this user, or of the named directory.
pub(crate) fn remembered(state_dir: Option<&Path>) -> Result<Volumes, Failure> {
    Ok(Volumes::at(state_of_command(state_dir)?.join("volumes")))
}

/// Refuses a size that a volume in memory cannot have on this host.
fn fits_memory(what: &str, size: u64) -> Result<(), Misuse> {
    match within_memory(size) {
        Ok(_) => Ok(()),
        Err(why) => Err(Misuse::new(format!("{what} {} of a volume in memory: {why}", human(size)))),
    }
}

fn wanted(args: &VolumeCreate) -> Result<Create, Failure> {
    let id = random::bytes()?;
    let storage = match (&args.file, &args.device, &args.rbd) {
        (Some(path), ..) => Storage::File(path.clone()),
        (_, Some(path), _) => Storage::Device(path.clone()),
        (.., Some(spec)) => {
            let client = Client { conf: args.ceph_conf.clone(), id: args.ceph_id.clone() };
            Storage::Image(client, spec.clone())
        }
        _ => {
            args.size.map_or(Ok(()), |size| fits_memory("--size", size))?;
            Storage::Ram
        }
    };
    let created = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    Ok(Create { storage, size: args.size, allocate: args.allocate, direct: args.direct, id, created })
}

fn print_list(out: &mut impl Write, volumes: &Volumes, list: &[Listed]) -> std::io::Result<()> {
    if list.is_empty() {
        writeln!(out, "no volumes in {}", volumes.dir().display())?;
        let create = ShellCommand::new("weft volume create NAME --size 10G --file PATH").here();
        return writeln!(out, "create one: {create}");
    }
    let width = list.iter().map(|line| line.name.len()).max().unwrap_or(0).max("NAME".len());
    writeln!(out, "{:<width$}  {:>9}  {:>9}  {:<6}  PLACE", "NAME", "SIZE", "USED", "STATE")?;
    for Listed { name, volume } in list {
        match volume {
            Ok(volume) => {
                let used = volume.allocated.map_or("-".into(), human);
                let state = if volume.in_use { "in use" } else { "free" };
                let size = human(volume.superblock.size);
                writeln!(
                    out,
                    "{name:<width$}  {size:>9}  {used:>9}  {state:<6}  {}",
                    place(&volume.superblock)
                )?;
            }
            Err(why) => writeln!(out, "{name:<width$}  {why}")?,
        }
    }
    Ok(())
}

fn print_info(out: &mut impl Write, volume: &RecordedVolume) -> std::io::Result<()> {
    let RecordedVolume { name, superblock, in_use, allocated } = volume;
    writeln!(out, "name      {name}")?;
    writeln!(out, "size      {} ({} bytes)", human(superblock.size), superblock.size)?;
    writeln!(out, "place     {}", place(superblock))?;
    if let Some(bytes) = allocated {
        writeln!(out, "used      {} ({bytes} bytes of the file are allocated)", human(*bytes))?;
    }
    if let Some(image) = &superblock.image {
        writeln!(out, "cluster   client.{} of {}", image.client.id, image.client.conf.display())?;
    }
    writeln!(out, "state     {}", if *in_use { "in use" } else { "free" })?;
    writeln!(out, "identity  {}", hex(superblock.id))?;
    writeln!(out, "metadata  generation {}", superblock.generation)
}

fn listed(line: &Listed) -> Value {
    match &line.volume {
        Ok(volume) => value(volume),
        Err(why) => json!({"name": line.name, "error": why.to_string()}),
    }
}

fn value(volume: &RecordedVolume) -> Value {
    let RecordedVolume { name, superblock, in_use, allocated } = volume;
    json!({
        "name": name,
        "size": superblock.size,
        "kind": superblock.medium.name(),
        "path": (!superblock.path.as_os_str().is_empty()).then(|| superblock.path.display().to_string()),
        "image": superblock.image.as_ref().map(|image| image.spec.to_string()),
        "ceph_conf": superblock.image.as_ref().map(|image| image.client.conf.display().to_string()),
        "ceph_id": superblock.image.as_ref().map(|image| &image.client.id),
        "direct": superblock.direct,
        "allocated": allocated,
        "in_use": in_use,
        "id": hex(superblock.id),
        "generation": superblock.generation,
        "created": superblock.created,
    })
}

/// Where a volume's data is, for people.
pub(crate) fn place(superblock: &Superblock) -> String {
    let how = if superblock.direct { ", direct" } else { "" };
    match superblock.medium {
        Medium::Ram if superblock.taken => "in memory, all reserved when it is served".into(),
        Medium::Ram => "in memory, while it is served".into(),
        Medium::File => format!("file {}{how}", superblock.path.display()),
        Medium::Device => format!("device {}{how}", superblock.path.display()),
        Medium::Rbd => superblock.storage(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `weft volume` with these words, in this state directory.
    fn command(state: &str, words: &[&str]) -> Result<(), String> {
        use clap::Parser;

        use crate::args::{Args, Command};
        let line = [&["weft", "volume", "--state-dir", state], words].concat();
        let Command::Volume(args) = Args::try_parse_from(line).unwrap().command else { panic!("volume") };
        run(args).map(|_| ()).map_err(|e| e.to_string())
    }

    #[test]
    fn a_volume_goes_through_its_life_by_the_command_line() {
        let dir = tempfile::tempdir().unwrap();
        let (state, file) = (dir.path().join("state"), dir.path().join("v.img"));
        let (state, file) = (state.to_str().unwrap(), file.to_str().unwrap());
        let weft = |words: &[&str]| command(state, words);
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

    /// `weft serve --ram` refused it, and this command did not.
    #[test]
    fn a_volume_in_memory_is_no_larger_than_the_memory() {
        let dir = tempfile::tempdir().unwrap();
        let (state, file) = (dir.path().join("state"), dir.path().join("v.img"));
        let (state, file) = (state.to_str().unwrap(), file.to_str().unwrap());
        let most = crate::args::rounded(crate::args::memory());
        let range = format!("of a volume in memory: write a size from 1 to {most}");
        let refused = command(state, &["create", "v", "--size", "100T", "--ram"]).unwrap_err();
        assert_eq!(refused, format!("--size 100 TiB {range}"));
        command(state, &["create", "v", "--size", "1M", "--ram"]).unwrap();
        let refused = command(state, &["resize", "v", "100T"]).unwrap_err();
        assert_eq!(refused, format!("SIZE 100 TiB {range}"));
        command(state, &["resize", "v", "2M"]).unwrap();
        // A sparse file may be larger.
        command(state, &["create", "w", "--size", "1T", "--file", file]).unwrap();
    }

    #[test]
    fn what_a_group_has_is_not_changed_behind_its_back() {
        let dir = tempfile::tempdir().unwrap();
        let (state, file) = (dir.path().join("state"), dir.path().join("v.img"));
        let (state, file) = (state.to_str().unwrap(), file.to_str().unwrap());
        let weft = |words: &[&str]| command(state, words);
        weft(&["create", "v", "--size", "2M", "--file", file]).unwrap();
        // A group of an older version, whose volumes do not record it; its own file is lost.
        let replica = Path::new(state).join("replica");
        std::fs::create_dir(&replica).unwrap();
        std::fs::write(replica.join("g.members"), "[\"v\", \"w\"]").unwrap();
        let refused = |words: &[&str]| {
            let why = weft(words).unwrap_err();
            assert!(why.contains("the group g") && why.contains("weft replica remove g"), "{why}");
        };
        refused(&["remove", "v"]);
        refused(&["remove", "v", "--delete-file"]);
        refused(&["resize", "v", "1M", "--shrink"]);
        refused(&["create", "w", "--size", "1M", "--ram"]);
        weft(&["resize", "v", "4M"]).unwrap();
        weft(&["create", "x", "--size", "1M", "--ram"]).unwrap();
        weft(&["remove", "x"]).unwrap();
        // If a group has lost its list, existing volumes may be in it, but new ones are not.
        std::fs::write(replica.join("g.members"), "").unwrap();
        refused(&["remove", "v"]);
        weft(&["create", "x", "--size", "1M", "--ram"]).unwrap();
        std::fs::remove_dir_all(&replica).unwrap();
        weft(&["remove", "v", "--delete-file"]).unwrap();
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
        assert!(parse(&["--rbd", "p/i", "--ceph-id", "x", "--ceph-conf", "/c"]) && !parse(&["--rbd", "i"]));
        assert!(!parse(&["--rbd", "p/i", "--direct"]) && !parse(&["--file", "x", "--ceph-id", "x"]));
    }
}
