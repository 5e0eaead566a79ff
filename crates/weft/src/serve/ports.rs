//! Two options that name one port: said before anything is bound, when the second would find it taken by "another program".

use crate::args::{ProviderKind, Serve};
use crate::fault::Misuse;

/// The port of NBD where none is named.
const NBD: u16 = 10809;

/// Fails where two services would listen at one TCP port.
pub(super) fn check(args: &Serve, serves_files: bool) -> Result<(), Misuse> {
    // Shared memory has no ports of TCP.
    let by_tcp = |port: u16| args.rdma.contains(&ProviderKind::Iwarp).then_some(port);
    let of_files = [
        ("--smb-port", Some(args.smb_port)),
        ("--smbd-port", by_tcp(args.smbd_port)),
        ("--nfs-port", args.nfs_port),
        ("--nfs-rdma-port", args.nfs_rdma_port.and_then(by_tcp)),
        ("--mountd-port", args.mountd_port),
        ("--rpcbind-port", args.rpcbind_port),
    ];
    let of_files = of_files.into_iter().filter(|_| serves_files);
    let of_volumes = ("--nbd-port", args.nbd_port.or(args.nbd.then_some(NBD)));
    let mut seen: Vec<(&str, u16)> = Vec::new();
    for (option, port) in of_files.chain([of_volumes]) {
        let Some(port) = port.filter(|port| *port != 0) else { continue };
        if let Some((other, _)) = seen.iter().find(|(_, known)| *known == port) {
            return Err(Misuse::new(format!(
                "{other} and {option} are both {port}: each service wants a port of its own; give one of them another, or 0 for any"
            )));
        }
        seen.push((option, port));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::args::{Args, Command};

    #[test]
    fn two_options_that_name_one_port_are_named() {
        let check = |line: &str| {
            let line = format!("weft serve data {line}");
            let args = Args::of_line(line.split(' ').filter(|word| !word.is_empty())).unwrap();
            let Command::Serve(args) = args.command else { panic!("serve") };
            super::check(&args, true).map_err(|e| e.to_string())
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
