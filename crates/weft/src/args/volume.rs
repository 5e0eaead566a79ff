//! The command line of `weft volume`: names, defaults and help of every option. `crate::volume` carries it out.

use std::path::PathBuf;

use clap::{ArgGroup, Subcommand};

use weft_store::volume::{DEFAULT_CONF, DEFAULT_ID, ImageSpec};

use super::parse_size;

/// `weft volume`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  weft volume create vol1 --size 10G --file /srv/vol1.img\n  \
weft volume create fast --size 1G --ram\n  \
weft volume create vm1 --rbd rbd/vm1 --ceph-id weft\n  \
weft serve --volume vol1 --nbd\n\n\
A volume is a sequence of bytes that other programs use as a disk. Its file or image holds those bytes and nothing else; Weft's \
record of the volume is kept in the state directory.")]
pub(crate) struct Volume {
    /// State directory, which records the volumes [default: $XDG_STATE_HOME/weft, or ~/.local/state/weft]
    #[arg(long, value_name = "DIR", global = true, env = "WEFT_STATE_DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub command: VolumeCommand,
}

/// A command of `weft volume`.
#[derive(Subcommand, Debug)]
pub(crate) enum VolumeCommand {
    /// Create a volume from a file, a device, memory or an image of a Ceph cluster
    Create(VolumeCreate),
    /// List volumes
    List(VolumeList),
    /// Show one volume
    Info(VolumeInfo),
    /// Forget a volume; its file stays unless --delete-file is given, and its image always
    Remove(VolumeRemove),
    /// Change the size of a volume; a volume in use can only grow
    Resize(VolumeResize),
}

/// `weft volume create`.
#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("place").required(true))]
pub(crate) struct VolumeCreate {
    /// Its name: letters, digits, '-', '_' and '.'
    pub name: String,
    /// The volume's size [default: the size of the file, device or image]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Keep the data in this file; a missing file is created, an existing one is used as it is
    #[arg(long, value_name = "PATH", group = "place")]
    pub file: Option<PathBuf>,
    /// Keep the data on this block device: all of it, or its first SIZE bytes
    #[arg(long, value_name = "PATH", group = "place")]
    pub device: Option<PathBuf>,
    /// Keep the data in the memory of the serving process, and lose it when that process ends
    #[arg(long, group = "place")]
    pub ram: bool,
    /// Keep the data in this image of a Ceph cluster (RBD); a missing image is created, an existing one is used as it is
    #[arg(long, value_name = "POOL/IMAGE", group = "place")]
    pub rbd: Option<ImageSpec>,
    /// The cluster's configuration file
    #[arg(long, value_name = "FILE", env = "CEPH_CONF", hide_env_values = true, default_value = DEFAULT_CONF)]
    pub ceph_conf: PathBuf,
    /// The user of the cluster, without "client."
    #[arg(long, value_name = "ID", conflicts_with_all = ["file", "device", "ram"], default_value = DEFAULT_ID)]
    pub ceph_id: String,
    /// Reserve all space now, so that writes cannot run out of it; a volume in memory reserves it when it is served,
    /// in huge pages if the server may have them
    #[arg(long, conflicts_with_all = ["device", "rbd"])]
    pub allocate: bool,
    /// Bypass the page cache (O_DIRECT): every read and write goes to the disk
    #[arg(long, conflicts_with_all = ["ram", "rbd"])]
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
    /// Also delete its file, with all data in it
    #[arg(long)]
    pub delete_file: bool,
}

/// `weft volume resize`.
#[derive(clap::Args, Debug)]
pub(crate) struct VolumeResize {
    /// Its name
    pub name: String,
    /// The new size; added space reads as zeros
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    pub size: u64,
    /// Allow a smaller size; the data past it is lost
    #[arg(long)]
    pub shrink: bool,
}
