//! The command line of volumes.
//!
//! Owns: names, defaults and help of every option. Does not: act (see `crate::volume`).

use std::path::PathBuf;

use clap::{ArgGroup, Subcommand};

use super::parse_size;

/// `weft volume`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  weft volume create vol1 --size 10G --file /srv/vol1.img\n  \
weft volume create fast --size 1G --ram\n  \
weft serve --volume vol1 --nbd\n\n\
A volume is a row of bytes that other programs use as a disk. Its file holds those bytes and nothing else; what Weft knows \
about it is kept in the state directory.")]
pub(crate) struct Volume {
    /// Where volumes are remembered [default: $XDG_STATE_HOME/weft, or ~/.local/state/weft]
    #[arg(long, value_name = "DIR", global = true, env = "WEFT_STATE_DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub command: VolumeCommand,
}

/// What is done with volumes.
#[derive(Subcommand, Debug)]
pub(crate) enum VolumeCommand {
    /// Make a volume of a file, a device or memory
    Create(VolumeCreate),
    /// List volumes
    List(VolumeList),
    /// Show one volume
    Info(VolumeInfo),
    /// Forget a volume; its file stays unless --delete-file
    Remove(VolumeRemove),
    /// Change the size of a volume; one that is served can grow
    Resize(VolumeResize),
}

/// `weft volume create`.
#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("place").required(true))]
pub(crate) struct VolumeCreate {
    /// Its name: letters, digits, '-', '_' and '.'
    pub name: String,
    /// Its size; without it, what the file or device has
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Keep it in this file, which is made unless it is there; a file that is there is taken as it is
    #[arg(long, value_name = "PATH", group = "place")]
    pub file: Option<PathBuf>,
    /// Keep it on this block device, all of it or its first SIZE bytes
    #[arg(long, value_name = "PATH", group = "place")]
    pub device: Option<PathBuf>,
    /// Keep it in the memory of the process that serves it, and lose it with that process
    #[arg(long, group = "place")]
    pub ram: bool,
    /// Reserve all of its space now, so that writes cannot run out of it; of one in memory, when it is served, in large pages
    /// where the server may have them
    #[arg(long, conflicts_with = "device")]
    pub allocate: bool,
    /// Pass the page cache by (O_DIRECT): every read and write goes to the disk
    #[arg(long, conflicts_with = "ram")]
    pub direct: bool,
}

/// `weft volume list`.
#[derive(clap::Args, Debug)]
pub(crate) struct VolumeList {
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// `weft volume info`.
#[derive(clap::Args, Debug)]
pub(crate) struct VolumeInfo {
    /// Its name
    pub name: String,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `weft volume remove`.
#[derive(clap::Args, Debug)]
pub(crate) struct VolumeRemove {
    /// Its name
    pub name: String,
    /// Delete its file, too, with everything in it
    #[arg(long)]
    pub delete_file: bool,
}

/// `weft volume resize`.
#[derive(clap::Args, Debug)]
pub(crate) struct VolumeResize {
    /// Its name
    pub name: String,
    /// The new size; what is added reads as zeros
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    pub size: u64,
    /// The new size may be smaller: what lies past it is lost
    #[arg(long)]
    pub shrink: bool,
}
