//! Socket activation: decides for which listener the service manager has bound each passed socket, before anything is
//! bound. `weft_machine::net::inherited` owns the sockets.
//!
//! The configuration says what is served, and where. A passed socket only replaces a bind, so it must have an address and
//! a port that the configuration has, too: otherwise `weft status`, hints and announcements would name others. Addresses
//! for which no socket was passed are bound as usual.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use weft_machine::net::inherited::{self, Kind, Passed, Unreceived};

use crate::args::ProviderKind;
use crate::config::{AdminAddress, Key, Plan, key};
use crate::listen::unix;
use crate::out::path_name;

/// The suffix of a socket unit's name, which systemd passes if there is no FileDescriptorName=.
const UNIT: &str = ".socket";
/// The names of the listeners, in FileDescriptorName=.
const NAMES: &str = "smb, smb-direct, nfs, nfs-rdma, mountd, rpcbind, nbd, admin";

/// Why the server does not start with what the service manager has passed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("socket activation: {0}; the service manager sets LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES")]
    Unreceived(#[from] Unreceived),
    #[error(transparent)]
    Socket(#[from] Box<Misfit>),
}

/// A passed descriptor that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("socket activation: {socket}, {kind}, {why}")]
pub(crate) struct Misfit {
    socket: Socket,
    kind: Kind,
    why: Why,
}

/// Why, and what to write.
#[derive(Debug, thiserror::Error)]
enum Why {
    #[error(
        "cannot be used: Weft takes ports (ListenStream=PORT, for NFS over UDP ListenDatagram=PORT; no SocketProtocol=) and paths of \
         Unix sockets (ListenStream=/PATH), with Accept=no"
    )]
    Kind,
    #[error("has the name of no listener: write FileDescriptorName= in its socket unit, one of {NAMES}")]
    Name,
    #[error(
        "is where nothing is configured to listen: configure that port for a service, or remove it from the socket unit"
    )]
    Nowhere,
    #[error("is for {listener}, which is not served so: set {key}, or disable the socket unit")]
    NotServed { listener: &'static str, key: String },
    #[error("has another place than {key}, which is {configured}: change that, or the socket unit")]
    Elsewhere { key: String, configured: String },
    #[error(
        "has an address that is not in {key} ({configured}): add {missing} there, or write one of those in the socket unit \
         (ListenStream=ADDRESS:PORT)"
    )]
    Address { key: String, configured: String, missing: IpAddr },
    #[error("is passed twice: remove one from the socket units")]
    Twice,
    #[error(
        "admits every user of this host, because its file has mode {0:04o}: write SocketMode=0660 in its socket unit, where the \
         default is 0666, and SocketUser= or SocketGroup= for those who shall connect"
    )]
    Open(u32),
}

/// A passed descriptor, as messages name it.
#[derive(Debug)]
pub(crate) struct Socket {
    number: i32,
    name: String,
}

impl From<&Passed> for Socket {
    fn from(passed: &Passed) -> Socket {
        Socket { number: passed.number, name: passed.name.clone() }
    }
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.name {
            "" => write!(f, "descriptor {}", self.number),
            name => write!(f, "descriptor {} ({name})", self.number),
        }
    }
}

/// Takes over the sockets that the service manager has passed; binding their addresses returns them from now on.
pub(super) fn take_over(plan: &Plan) -> Result<(), Unusable> {
    let passed = inherited::receive()?;
    let listeners = Listeners::of(plan);
    for (n, one) in passed.iter().enumerate() {
        let is_known = passed.iter().take(n).any(|other| other.kind == one.kind);
        let fits = if is_known { Err(Why::Twice) } else { listeners.check(&one.name, &one.kind) };
        let fits = fits.and_then(|()| closed(&one.kind));
        fits.map_err(|why| Box::new(Misfit { socket: one.into(), kind: one.kind.clone(), why }))?;
    }
    for one in &passed {
        tracing::info!("the service manager passes {}, {}", Socket::from(one), one.kind);
    }
    inherited::offer(passed);
    Ok(())
}

/// Where a service listens.
struct Listener {
    name: &'static str,
    /// The key to set.
    key: String,
    tcp: Option<u16>,
    udp: Option<u16>,
    path: Option<PathBuf>,
    /// Its address, if it does not listen on those of the others.
    own: Option<IpAddr>,
}

struct Listeners {
    all: Vec<Listener>,
    addresses: Vec<IpAddr>,
    /// The key of the addresses.
    key: String,
    /// The key that serves RPC over UDP as well.
    udp_key: String,
}

impl Listeners {
    fn of(plan: &Plan) -> Listeners {
        let (config, listeners) = (plan.config(), &plan.config().listeners);
        let files = |port: Option<u16>| port.filter(|_| plan.serves_files());
        let by_tcp =
            |port: Option<u16>| files(port).filter(|_| config.rdma.providers.contains(&ProviderKind::Iwarp));
        let udp = |port: Option<u16>| files(port).filter(|_| listeners.nfs_udp);
        let listener = |name, key: &Key, tcp, udp| Listener {
            name,
            key: config.sources.named(key),
            tcp,
            udp,
            path: None,
            own: None,
        };
        let (smb, smb_direct) = (Some(listeners.smb_port), Some(listeners.smb_direct_port));
        let (nfs, mountd, rpcbind) = (listeners.nfs_port, listeners.mountd_port, listeners.rpcbind_port);
        let mut nbd = listener("nbd", &key::NBD_PORT, listeners.nbd_port, None);
        nbd.path = listeners.nbd_socket.as_ref().map(|path| absolute(path.clone()));
        let mut admin = listener("admin", &key::ADMIN, None, None);
        match &config.admin {
            Some(AdminAddress::Tcp(addr)) => {
                (admin.tcp, admin.own) = (Some(addr.port()), Some(addr.ip()));
            }
            Some(AdminAddress::Unix(path)) => admin.path = Some(absolute(path.clone())),
            None => {}
        }
        let all = vec![
            listener("smb", &key::SMB_PORT, files(smb), None),
            listener("smb-direct", &key::SMB_DIRECT_PORT, by_tcp(smb_direct), None),
            listener("nfs", &key::NFS_PORT, files(nfs), udp(nfs)),
            listener("nfs-rdma", &key::NFS_RDMA_PORT, by_tcp(listeners.nfs_rdma_port), None),
            listener("mountd", &key::MOUNTD_PORT, files(mountd), udp(mountd)),
            listener("rpcbind", &key::RPCBIND_PORT, files(rpcbind), udp(rpcbind)),
            nbd,
            admin,
        ];
        let (key, udp_key) = (config.sources.named(&key::LISTEN), config.sources.named(&key::NFS_UDP));
        Listeners { all, addresses: plan.listen.all().to_vec(), key, udp_key }
    }

    /// Whether some listener would bind this socket.
    fn check(&self, name: &str, kind: &Kind) -> Result<(), Why> {
        if matches!(kind, Kind::Unfit(_)) {
            return Err(Why::Kind);
        }
        let listener = match self.all.iter().find(|listener| listener.name == name) {
            Some(listener) => listener,
            // A unit of several sockets has one name for all: ports and paths tell them apart.
            None if name.is_empty() || name.ends_with(UNIT) => {
                self.all.iter().find(|listener| listener.is_at(kind)).ok_or(Why::Nowhere)?
            }
            None => return Err(Why::Name),
        };
        let Some(configured) = listener.place(kind) else {
            let key = if listener.lacks_udp(kind) { &self.udp_key } else { &listener.key };
            return Err(Why::NotServed { listener: listener.name, key: key.clone() });
        };
        if !listener.is_at(kind) {
            return Err(Why::Elsewhere { key: listener.key.clone(), configured });
        }
        let (Kind::Tcp(addr) | Kind::Udp(addr)) = kind else { return Ok(()) };
        let (addresses, key) = match &listener.own {
            Some(own) => (std::slice::from_ref(own), &listener.key),
            None => (&self.addresses[..], &self.key),
        };
        if !addresses.contains(&addr.ip()) {
            let each: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            return Err(Why::Address { key: key.clone(), configured: each.join(", "), missing: addr.ip() });
        }
        Ok(())
    }
}

impl Listener {
    /// Where it listens by sockets of this kind, as messages say it.
    fn place(&self, kind: &Kind) -> Option<String> {
        match kind {
            Kind::Tcp(_) => self.tcp.map(|port| port.to_string()),
            Kind::Udp(_) => self.udp.map(|port| port.to_string()),
            Kind::Unix(_) => self.path.as_ref().map(|path| path_name(path).to_string()),
            Kind::Unfit(_) => None,
        }
    }

    /// Whether it would be there if RPC was served over UDP.
    fn lacks_udp(&self, kind: &Kind) -> bool {
        matches!(kind, Kind::Udp(addr) if self.tcp == Some(addr.port()))
    }

    /// Whether it listens at this port or path.
    fn is_at(&self, kind: &Kind) -> bool {
        let port = |addr: &SocketAddr| Some(addr.port());
        match kind {
            Kind::Tcp(addr) => self.tcp == port(addr),
            Kind::Udp(addr) => self.udp == port(addr),
            Kind::Unix(path) => self.path.as_ref() == Some(path),
            Kind::Unfit(_) => false,
        }
    }
}

/// Whether a Unix socket is closed to users whom the one that the server binds itself would be closed to. Whoever connects to
/// it may read the volumes, or the status.
fn closed(kind: &Kind) -> Result<(), Why> {
    let Kind::Unix(path) = kind else { return Ok(()) };
    match unix::open_to_all(path) {
        Ok(Some(mode)) => Err(Why::Open(mode)),
        Ok(None) => Ok(()),
        Err(e) => {
            tracing::warn!("who may connect to {} is not known: {e}", path_name(path));
            Ok(())
        }
    }
}

fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};

    /// What is said of a socket by a server with these options.
    fn check(options: &str, name: &str, kind: Kind) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let line = format!("weft serve {} --listen 127.0.0.1 {options}", folder.path().display());
        let args = Args::of_line(line.split(' ').filter(|word| !word.is_empty())).unwrap();
        let Command::Serve(args) = args.command else { panic!("serve") };
        let plan = args.config_over(None).unwrap().check().unwrap();
        Listeners::of(&plan).check(name, &kind).map_err(|e| e.to_string())
    }

    fn tcp(addr: &str) -> Kind {
        Kind::Tcp(addr.parse().unwrap())
    }

    #[test]
    fn a_socket_fits_the_listener_of_its_name() {
        let options = "--smb-port 5000 --smbd-port 5001 --nfs-port 5002 --nfs-rdma-port 5003 --mountd-port 5004 --rpcbind-port 5005 \
                       --nfs-udp --admin 127.0.0.2:5007";
        for (name, port) in [
            ("smb", 5000),
            ("smb-direct", 5001),
            ("nfs", 5002),
            ("nfs-rdma", 5003),
            ("mountd", 5004),
            ("rpcbind", 5005),
        ] {
            let addr: SocketAddr = ([127, 0, 0, 1], port).into();
            // By name, or by the port if the name is that of a unit.
            for name in [name, "weft.socket", ""] {
                assert_eq!(check(options, name, Kind::Tcp(addr)), Ok(()), "{name}");
            }
            let by_udp = check(options, name, Kind::Udp(addr));
            assert_eq!(by_udp.is_ok(), ["nfs", "mountd", "rpcbind"].contains(&name), "{name}: {by_udp:?}");
        }
        assert_eq!(check(options, "admin", tcp("127.0.0.2:5007")), Ok(()));
        let admin = "--admin unix:/run/weft/admin";
        assert_eq!(check(admin, "admin", Kind::Unix("/run/weft/admin".into())), Ok(()));
    }

    #[test]
    fn a_socket_that_does_not_fit_says_what_to_write() {
        let options = "--smb-port 5000 --nfs-port 5002";
        for (name, kind, says) in [
            ("samba", tcp("127.0.0.1:5000"), "has the name of no listener: write FileDescriptorName="),
            ("smb", Kind::Unfit("no socket"), "cannot be used: Weft takes ports"),
            ("smb", tcp("127.0.0.1:5009"), "has another place than --smb-port, which is 5000: change that"),
            ("smb", tcp("[::]:5000"), "is not in --listen (127.0.0.1): add :: there, or write one of those"),
            ("nbd", tcp("127.0.0.1:10809"), "is for nbd, which is not served so: set --nbd-port, or disable"),
            (
                "nfs",
                Kind::Udp("127.0.0.1:5002".parse().unwrap()),
                "is for nfs, which is not served so: set --nfs-udp",
            ),
            (
                "weft.socket",
                tcp("127.0.0.1:5009"),
                "is where nothing is configured to listen: configure that port",
            ),
            ("admin", Kind::Unix("/run/x".into()), "is for admin, which is not served so: set --admin"),
        ] {
            let said = check(options, name, kind).unwrap_err();
            assert!(said.contains(says), "{said}");
        }
    }
}
