//! Registration with the rpcbind that runs on this host, for as long as we serve.
//!
//! RFC 1833 2.2.1 (SET, UNSET of version 4). A registration is removed when it is dropped. Another host's rpcbind
//! cannot be used: rpcbind trusts only its own host.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use weft_nfs::server::Service;
use weft_wire::nsm;
use weft_wire::rpc::{Call, Credential, Fragment, Reply};
use weft_wire::rpcbind::{self, Binding, procedure};
use weft_wire::xdr::{Decoder, Encoder, Xdr};

/// Where rpcbind listens for local processes, whose identity it trusts.
const SOCKETS: [&str; 2] = ["/run/rpcbind.sock", "/var/run/rpcbind.sock"];
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer in bytes: a header and a word.
const MAX_ANSWER: usize = 1024;

/// A byte stream to rpcbind.
trait Wire: Read + Write {}
impl<T: Read + Write> Wire for T {}

/// Why the registration failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unregistered {
    /// It is not running.
    #[error(
        "no rpcbind answers on this host: {0}; start it, or use the built-in one with --rpcbind-port 111"
    )]
    Absent(io::Error),
    /// It did not answer.
    #[error("rpcbind did not answer: {0}")]
    Silent(io::Error),
    /// Another server is registered.
    #[error(
        "program {program} version {version} ({netid}) is already registered by another server: `rpcinfo -p` lists it, `rpcinfo -d {program} \
         {version}` as root removes the entry of a dead one"
    )]
    Taken { program: u32, version: u32, netid: &'static str },
}

/// The registered services.
pub(super) struct Registration {
    /// The services, each with its address.
    done: Vec<(IpAddr, Service)>,
}

impl Registration {
    /// Registers these services.
    ///
    /// # Errors
    /// Rpcbind does not run, or has another server's registration.
    pub(super) fn new(listen: &[IpAddr], services: &[Service]) -> Result<Registration, Unregistered> {
        let mut wire = connect().map_err(Unregistered::Absent)?;
        let mut registration = Registration { done: Vec::new() };
        let each = listen.iter().flat_map(|ip| services.iter().map(move |service| (*ip, service)));
        for (listen, service) in each {
            match ask(&mut *wire, procedure::SET, &binding(listen, service)) {
                Ok(true) => registration.done.push((listen, *service)),
                // A host that itself mounts NFS has a status monitor.
                Ok(false) if service.program == nsm::PROGRAM => tracing::warn!(
                    "this host's own status monitor is already registered: NFSv3 clients that restart cannot notify us, and keep \
                     their locks until they mount again"
                ),
                Ok(false) => {
                    return Err(Unregistered::Taken {
                        program: service.program,
                        version: service.version,
                        netid: service.netid(listen),
                    });
                }
                Err(e) => return Err(Unregistered::Silent(e)),
            }
        }
        Ok(registration)
    }
}

fn binding(listen: IpAddr, service: &Service) -> Binding {
    Binding {
        program: service.program,
        version: service.version,
        netid: service.netid(listen).into(),
        address: rpcbind::universal(SocketAddr::new(listen, service.port)).into(),
        owner: rustix::process::getuid().as_raw().to_string().into(),
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Ok(mut wire) = connect() else { return };
        for (listen, service) in &self.done {
            if let Err(e) = ask(&mut *wire, procedure::UNSET, &binding(*listen, service)) {
                return tracing::warn!("cannot unregister from rpcbind: {e}");
            }
        }
    }
}

fn connect() -> io::Result<Box<dyn Wire>> {
    for path in SOCKETS {
        if let Ok(stream) = UnixStream::connect(path) {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            return Ok(Box::new(stream));
        }
    }
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, rpcbind::PORT));
    let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(Box::new(stream))
}

/// One call and its answer; returns whether it was done.
fn ask(wire: &mut dyn Wire, number: u32, binding: &Binding) -> io::Result<bool> {
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut e = Encoder::with_capacity(256);
    let call = Call {
        xid: number,
        program: rpcbind::PROGRAM,
        version: 4,
        procedure: number,
        credential: Credential::None,
    };
    call.emit(&mut e);
    binding.emit(&mut e);
    let body = e.into_bytes();
    let len = u32::try_from(body.len()).map_err(|_| invalid("too long"))?;
    let head = Fragment { last: true, len }.emit().ok_or_else(|| invalid("too long"))?;
    wire.write_all(&[&head[..], &body].concat())?;
    let mut head = [0; Fragment::BYTES];
    wire.read_exact(&mut head)?;
    let Fragment { last, len } = Fragment::parse(head);
    if !last || len as usize > MAX_ANSWER {
        return Err(invalid("a reply of another shape"));
    }
    let mut answer = vec![0; len as usize];
    wire.read_exact(&mut answer)?;
    let mut d = Decoder::new(answer.into());
    match Reply::parse(&mut d) {
        Ok((_, Reply::Success)) => bool::parse(&mut d).map_err(|e| invalid(e.0)),
        Ok((_, Reply::AuthError(_))) => Err(io::ErrorKind::PermissionDenied.into()),
        Ok(_) => Err(invalid("it refused the call")),
        Err(e) => Err(invalid(e.0)),
    }
}
