//! Why a cluster or an image cannot be used, and what to do about it.

use std::io;
use std::path::PathBuf;

use crate::ImageSpec;

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The libraries are not installed, or too old.
    #[error(
        "librbd is not usable ({0}); install it, of Ceph 16 or later: apt install librbd1 (Debian, Ubuntu), dnf install librbd1 (Fedora, RHEL)"
    )]
    Library(String),
    /// A text with a zero byte, which no C string can have.
    #[error("{0} contains a zero byte")]
    Text(&'static str),
    /// The configuration cannot be read.
    #[error("cannot read Ceph's configuration {}: {why}; --ceph-conf names another file", .path.display())]
    Conf {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: io::Error,
    },
    /// The configuration has no monitors.
    #[error("Ceph's configuration {} names no monitor (mon_host)", .path.display())]
    NoMonitors {
        /// The file.
        path: PathBuf,
    },
    /// No monitor has answered.
    #[error("no cluster answers at {monitors} (mon_host of {}) within {seconds} s", .conf.display())]
    NoCluster {
        /// What the configuration names.
        monitors: String,
        /// The configuration.
        conf: PathBuf,
        /// The limit.
        seconds: u64,
    },
    /// The cluster's storage daemons have not answered, even if its monitors have.
    #[error(
        "the cluster has not answered for {spec} within {seconds} s: `ceph health detail` shows which of its daemons are missing"
    )]
    Silent {
        /// The image.
        spec: ImageSpec,
        /// The limit.
        seconds: u64,
    },
    /// There is no key.
    #[error(
        "no readable key of client.{id} in {keyring}: `ceph auth get client.{id}` on the cluster prints it, and --ceph-id names another user"
    )]
    NoKey {
        /// The user.
        id: String,
        /// Where keys are looked for.
        keyring: String,
    },
    /// The cluster does not accept the key.
    #[error("the cluster refuses client.{id}: its key in {keyring} is not the cluster's")]
    BadKey {
        /// The user.
        id: String,
        /// Where the key is.
        keyring: String,
    },
    /// The user may not use the pool.
    #[error(
        "client.{id} may not use {spec}: `ceph auth caps client.{id} mon 'profile rbd' osd 'profile rbd pool={pool}'` permits it",
        pool = .spec.pool
    )]
    Forbidden {
        /// The user.
        id: String,
        /// The image.
        spec: ImageSpec,
    },
    /// The pool does not exist.
    #[error("the cluster has no pool {0:?}; `ceph osd pool ls` lists them")]
    NoPool(String),
    /// The image does not exist.
    #[error("there is no image {0}; `rbd create {0} --size SIZE` creates one")]
    NoImage(ImageSpec),
    /// The image already exists.
    #[error("image {0} already exists")]
    Exists(ImageSpec),
    /// Without this feature, nothing keeps two hosts from writing at the same time.
    #[error("image {0} has no exclusive lock: `rbd feature enable {0} exclusive-lock`")]
    NoLock(ImageSpec),
    /// Another client has the lock.
    #[error("image {spec} is in use: the client at {holder} holds its exclusive lock (`rbd lock ls {spec}`)")]
    Locked {
        /// The image.
        spec: ImageSpec,
        /// The address of the other client.
        holder: String,
    },
    /// Anything else.
    #[error("{doing} {spec}: {why}")]
    Failed {
        /// "cannot open", ...
        doing: &'static str,
        /// The image.
        spec: ImageSpec,
        /// The cause.
        why: io::Error,
    },
    /// The system gives no thread.
    #[error("no thread for {0}: {1}")]
    NoThread(ImageSpec, io::Error),
}
