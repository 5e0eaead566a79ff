//! Confines the server before it has a second thread: to the files of its plan and of the system (Landlock), and to the system
//! calls that a server makes (seccomp). It tells in one line of the log what the kernel enforces.
//!
//! This file owns the list of what a server opens while it runs: when it binds, at a log-on, at a reload, for a library that it
//! loads late. What it opens before, as the configuration, needs no rule for that. `weft_machine::confine` has the means.
//!
//! Threads that exist already would not be confined, and on most kernels neither could be, so this comes before the ports are
//! bound, and before shares are opened.
//!
//! A rule needs an open folder. The folders of a file system that does not answer are left out, as missing ones are: the folders
//! around them are kept, from where a reload reaches them.

use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use weft_machine::confine::{self, Keyrings, Reach, Unconfined, Use};
use weft_machine::file::private;
use weft_machine::shm;
use weft_store::volume::Volumes;

use super::ceph;
use crate::args::ProviderKind;
use crate::config::{AdminAddress, Looks, Plan};
use crate::out::path_name;

/// What every process reads: settings, libraries and their plugins, which may be loaded late, and what the kernel and the
/// directory services tell. (Their sockets need no rule.)
const OF_SYSTEM: [&str; 23] = [
    "/etc",
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/gnu/store",
    "/run/current-system",
    "/run/opengl-driver",
    "/proc",
    "/sys",
    "/run/systemd/dynamic-uid",
    "/run/systemd/resolve",
    "/run/systemd/userdb",
    "/run/nscd",
    "/var/db",
    "/var/yp",
    "/var/lib/extrausers",
    "/var/lib/misc",
    "/var/lib/sss",
    "/proc/self/exe",
];
/// What every process reads and writes.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
/// Settings that are often links to files elsewhere.
const LINKED: [&str; 3] = ["/etc/krb5.conf", "/etc/nsswitch.conf", "/etc/resolv.conf"];
/// Where RDMA devices are.
const RDMA_DEVICES: &str = "/dev/infiniband";

/// Where shares usually are: a reload may add one there.
const USUAL: [&str; 4] = ["/home", "/media", "/mnt", "/srv"];
/// Folders of the system. That a share is in one of them says nothing about its other contents.
const SYSTEMS_OWN: [&str; 12] =
    ["/bin", "/boot", "/dev", "/etc", "/lib", "/opt", "/proc", "/root", "/run", "/sbin", "/sys", "/usr"];
/// Folders of the system that contain those of others.
const SYSTEMS_SHARED: [&str; 10] = [
    "/",
    "/tmp",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/mail",
    "/var/opt",
    "/var/spool",
    "/var/tmp",
];

/// Confines this process as its plan says, and logs the result.
pub(super) fn confine(plan: &Plan) {
    let config = &plan.config().confine;
    let (files, files_failed) = match config.landlock {
        true => {
            let later = later_folders(plan);
            told_of_files(confine::to_paths(&reach(plan, &later)), &later)
        }
        false => ("confine.landlock is false: it reaches all files of its user".to_owned(), false),
    };
    let (calls, calls_failed) = match config.seccomp {
        true => match confine::to_calls(keyrings(plan)) {
            Ok(number) => (format!("seccomp refuses {number} system calls"), false),
            Err(e) => (format!("seccomp refuses no system calls: {e}"), true),
        },
        false => ("confine.seccomp is false: it makes all system calls".to_owned(), false),
    };
    match files_failed || calls_failed {
        true => tracing::warn!("the server is not as confined as it could be: {files}; {calls}"),
        false if config.landlock || config.seccomp => {
            tracing::info!("the server is confined: {files}; {calls}")
        }
        false => tracing::info!("the server is not confined: {files}; {calls}"),
    }
}

fn told_of_files(confined: Result<i32, Unconfined>, later: &[PathBuf]) -> (String, bool) {
    match confined {
        Ok(version) => {
            let more = match later {
                [] => String::new(),
                later => {
                    let later: Vec<String> = later.iter().map(|folder| path_name(folder)).collect();
                    format!("; a reload can add shares below {}", later.join(", "))
                }
            };
            (format!("Landlock (version {version}) lets it reach its own files and shares{more}"), false)
        }
        Err(e) => (format!("Landlock keeps it from no file: {e}"), true),
    }
}

/// Kerberos may keep tickets in keyrings.
fn keyrings(plan: &Plan) -> Keyrings {
    match plan.config().smb.keytab.is_some() || plan.config().replication.enabled {
        true => Keyrings::Usable,
        false => Keyrings::Refused,
    }
}

/// Everything that a server with this plan may open.
fn reach(plan: &Plan, later: &[PathBuf]) -> Reach {
    let mut reach = Reach::default();
    OF_SYSTEM.iter().for_each(|path| reach.keep(path, Use::Read));
    DEVICES.iter().for_each(|path| reach.keep(path, Use::Devices));
    LINKED.iter().for_each(|file| keep_to_read(Path::new(file), &mut reach));
    for folder in paths_of("LD_LIBRARY_PATH") {
        reach.keep(folder, Use::Read);
    }
    plan.folders()
        .chain(later.iter().map(PathBuf::as_path))
        .for_each(|folder| reach.keep(folder, Use::Change));
    for share in &plan.shares {
        let elsewhere = share.snapshots.as_ref().and_then(|snapshots| snapshots.elsewhere());
        if let Some(real) = elsewhere.and_then(|elsewhere| plan.looks.real(elsewhere)) {
            reach.keep(real, Use::Read);
        }
    }
    keep_configuration(plan, &mut reach);
    keep_state(plan, &mut reach);
    keep_kerberos(plan, &mut reach);
    let config = plan.config();
    let sockets = [config.listeners.nbd_socket.as_deref(), admin_socket(plan)];
    for socket in sockets.into_iter().flatten() {
        reach.keep(folder_of(socket), Use::Listen);
    }
    let capture = config.rdma.capture.as_ref().map(|capture| capture.file.as_path());
    for file in capture.into_iter().chain(config.audit.file.as_deref()) {
        // It is replaced, or made anew after its rotation. A pipe or a device is not.
        match file.metadata() {
            Ok(found) if !found.is_file() => reach.keep(file, Use::Change),
            _ => reach.keep(folder_of(file), Use::Change),
        }
    }
    if config.rdma.providers.contains(&ProviderKind::Rnic) {
        reach.keep(RDMA_DEVICES, Use::Devices);
    }
    if config.rdma.providers.contains(&ProviderKind::Shm) || config.replication.enabled {
        let folder = shm::runtime_dir();
        // A fault of it is reported where it is used.
        let _ = shm::secure_dir(&folder);
        reach.keep(folder, Use::Change);
    }
    reach
}

/// What a reload reads: the configuration, certificates, keys. They are replaced as files, so their folders are kept.
fn keep_configuration(plan: &Plan, reach: &mut Reach) {
    let config = plan.config();
    let tls = [&config.tls.nfs, &config.tls.nbd, &config.tls.admin];
    let tls = tls.into_iter().flatten().flat_map(|files| {
        [Some(&files.certificate), Some(&files.key), files.clients.as_ref()].into_iter().flatten()
    });
    let files = [config.admin_token_file.as_ref(), config.smb.keytab.as_ref()].into_iter().flatten();
    let files = files.chain(tls).map(PathBuf::as_path).chain(config.sources.file());
    files.for_each(|file| keep_to_read(file, reach));
}

/// Keeps a file that may be replaced by another of its name.
fn keep_to_read(file: &Path, reach: &mut Reach) {
    let Ok(real) = file.canonicalize() else { return };
    if !real.is_file() {
        return reach.keep(real, Use::Read);
    }
    for folder in [folder_of(file), folder_of(&real)] {
        match folder.parent() {
            Some(_) => reach.keep(folder, Use::Read),
            // Do not keep the root folder for the sake of one file.
            None => reach.keep(file, Use::Read),
        }
    }
}

/// The state directory, which has the users, and the volumes.
fn keep_state(plan: &Plan, reach: &mut Reach) {
    let Some(state) = plan.state_dir() else { return };
    if !state.exists() {
        // A fault of it is reported where it is used.
        let _ = private::folder(&state);
    }
    reach.keep(&state, Use::Change);
    if plan.config().volumes.is_empty() {
        return;
    }
    reach.keep_large_pages();
    let recorded = Volumes::at(state.join("volumes"));
    let volumes = plan.config().volumes.iter().filter_map(|volume| recorded.superblock(&volume.name).ok());
    for superblock in volumes.filter(|superblock| !plan.looks.is_silent(&superblock.path)) {
        if let Some(image) = &superblock.image {
            ceph::files(&image.client).iter().for_each(|file| keep_to_read(file, reach));
            continue;
        }
        let is_device = superblock.path.metadata().is_ok_and(|found| found.file_type().is_block_device());
        reach.keep(superblock.path, if is_device { Use::Devices } else { Use::Change });
    }
}

/// Where Kerberos has its settings and its replay cache (krb5.conf(5), "Replay cache").
fn keep_kerberos(plan: &Plan, reach: &mut Reach) {
    if plan.config().smb.keytab.is_none() {
        return;
    }
    paths_of("KRB5_CONFIG").iter().for_each(|file| keep_to_read(file, reach));
    reach.keep("/var/tmp", Use::Change);
    for variable in ["KRB5RCACHEDIR", "TMPDIR"] {
        paths_of(variable).into_iter().for_each(|folder| reach.keep(folder, Use::Change));
    }
    let name = std::env::var("KRB5RCACHENAME").unwrap_or_default();
    if let Some((_, file)) = name.split_once(':').filter(|(_, file)| !file.is_empty()) {
        reach.keep(folder_of(Path::new(file)), Use::Change);
    }
}

/// The absolute paths in a variable, which colons separate.
fn paths_of(variable: &str) -> Vec<PathBuf> {
    let value: OsString = std::env::var_os(variable).unwrap_or_default();
    std::env::split_paths(&value).filter(|path| path.is_absolute()).collect()
}

fn admin_socket(plan: &Plan) -> Option<&Path> {
    match &plan.config().admin {
        Some(AdminAddress::Unix(path)) => Some(path),
        _ => None,
    }
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The folders below which a reload can add shares. Without a file there is no reload.
fn later_folders(plan: &Plan) -> Vec<PathBuf> {
    let config = plan.config();
    if config.sources.file().is_none() {
        return Vec::new();
    }
    let folders: Vec<PathBuf> = match &config.confine.folders {
        Some(folders) => folders.clone(),
        None => {
            let shares = config.shares.iter().filter_map(|share| share.source.folder());
            // Those that have not answered already need not be asked again.
            let around = shares.clone().flat_map(Path::ancestors);
            let around = Looks::at(around.filter(|folder| !plan.looks.is_silent(folder)));
            USUAL.iter().map(PathBuf::from).chain(shares.flat_map(|share| beside(share, &around))).collect()
        }
    };
    let looks = Looks::at(&folders);
    let mut outermost: Vec<PathBuf> = Vec::new();
    let is_given = config.confine.folders.is_some();
    let real = |folder: PathBuf| {
        let real = looks.real(&folder).filter(|_| looks.is_dir(&folder)).map(Path::to_owned);
        if real.is_none() && is_given {
            tracing::warn!(
                "confine.folders: {} is no folder: a share in it is served after a restart only",
                path_name(&folder)
            );
        }
        real
    };
    let mut real: Vec<PathBuf> = folders.into_iter().filter_map(real).collect();
    // A folder comes before those in it.
    real.sort();
    for folder in real {
        if !outermost.iter().any(|outer| folder.starts_with(outer)) {
            outermost.push(folder);
        }
    }
    outermost
}

/// The folders around a share's folder. The share's own folder may be replaced or mounted later, and then has no rule. If it
/// is missing, or its file system does not answer, the place counts where it would be created or mounted. `around` has seen
/// the folders around the share.
fn beside(share: &Path, around: &Looks) -> Vec<PathBuf> {
    let nearest = share.ancestors().find_map(|above| Some((above, around.real(above)?)));
    let Some((found, real)) = nearest else { return Vec::new() };
    let missing = (found != share).then_some(real);
    let folders = missing.into_iter().chain(real.parent()).map(Path::to_owned);
    folders.filter(|folder| !is_of_system(folder)).collect()
}

/// Whether a folder contains what belongs to the system.
fn is_of_system(folder: &Path) -> bool {
    SYSTEMS_OWN.iter().any(|own| folder.starts_with(own))
        || SYSTEMS_SHARED.iter().any(|shared| folder == Path::new(shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(share: &Path) -> Vec<PathBuf> {
        super::beside(share, &Looks::at(share.ancestors()))
    }

    #[test]
    fn folders_beside_a_share_are_kept_unless_they_are_the_systems() {
        let work = tempfile::tempdir().unwrap();
        let work = work.path().canonicalize().unwrap();
        std::fs::create_dir_all(work.join("shares/a")).unwrap();
        assert_eq!(beside(&work.join("shares/a")), [work.join("shares")]);
        // A disk may be mounted at the last folder that exists, so the one around it counts as well.
        let missing = beside(&work.join("shares/a/disk/data"));
        assert_eq!(missing, [work.join("shares/a"), work.join("shares")]);
        std::os::unix::fs::symlink(work.join("shares/a"), work.join("link")).unwrap();
        assert_eq!(beside(&work.join("link")), [work.join("shares")]);
        for share in ["/none", "/etc/none", "/tmp", "/var/lib", "/usr/share", "/root", "/"] {
            assert_eq!(beside(Path::new(share)), Vec::<PathBuf>::new(), "{share}");
        }
    }

    #[test]
    fn what_is_the_systems_is_told_from_what_is_in_it() {
        for own in ["/", "/etc", "/etc/weft", "/usr/local", "/root", "/var", "/var/lib", "/tmp", "/run/x"] {
            assert!(is_of_system(Path::new(own)), "{own}");
        }
        for others in ["/srv", "/home", "/home/alice", "/var/lib/shares", "/tmp/x", "/data", "/etcetera"] {
            assert!(!is_of_system(Path::new(others)), "{others}");
        }
    }
}
