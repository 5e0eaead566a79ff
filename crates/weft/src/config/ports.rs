//! Detects two keys with the same port before anything is bound; otherwise the second bind would report "another
//! program".

use super::key::{self, Key};
use super::{ConfigError, Problem, ServeConfig};
use crate::args::ProviderKind;

/// Fails if two services would listen on one TCP port.
pub(super) fn check(config: &ServeConfig, serves_files: bool) -> Result<(), ConfigError> {
    let listeners = &config.listeners;
    // Shared memory uses no TCP ports.
    let by_tcp = |port: u16| config.rdma.providers.contains(&ProviderKind::Iwarp).then_some(port);
    let of_files = [
        (key::SMB_PORT, Some(listeners.smb_port)),
        (key::SMB_DIRECT_PORT, by_tcp(listeners.smb_direct_port)),
        (key::NFS_PORT, listeners.nfs_port),
        (key::NFS_RDMA_PORT, listeners.nfs_rdma_port.and_then(by_tcp)),
        (key::MOUNTD_PORT, listeners.mountd_port),
        (key::RPCBIND_PORT, listeners.rpcbind_port),
    ];
    let of_files = of_files.into_iter().filter(|_| serves_files);
    let mut seen: Vec<(Key, u16)> = Vec::new();
    for (key, port) in of_files.chain([(key::NBD_PORT, listeners.nbd_port)]) {
        let Some(port) = port.filter(|port| *port != 0) else { continue };
        if let Some((other, _)) = seen.iter().find(|(_, known)| *known == port) {
            return Err(config.wrong(key, Problem::SamePort { other: other.clone(), port }));
        }
        seen.push((key, port));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::args::{Args, Command};

    #[test]
    fn two_options_that_name_one_port_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let check = |line: &str| {
            let line = format!("weft serve {} {line}", folder.path().display());
            let args = Args::of_line(line.split(' ').filter(|word| !word.is_empty())).unwrap();
            let Command::Serve(args) = args.command else { panic!("serve") };
            super::check(&args.config_over(None).unwrap(), true).map_err(|e| e.to_string())
        };
        let refused = check("--smb-port 5000 --smbd-port 5000").unwrap_err();
        assert!(refused.starts_with("--smb-port and --smbd-port are both 5000"), "{refused}");
        // One of them may be the default.
        let refused = check("--nfs-port 5445").unwrap_err();
        assert!(refused.starts_with("--smbd-port and --nfs-port are both 5445"), "{refused}");
        for line in ["", "--smb-port 0 --smbd-port 0 --nfs-port 0", "--smbd-port 4450 --rdma shm"] {
            assert_eq!(check(line), Ok(()), "{line}");
        }
    }
}
