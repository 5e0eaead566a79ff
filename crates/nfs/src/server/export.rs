//! Export rules: who may use a share, from where, as whom, and for what.
//!
//! See exports(5) for the terms, RFC 8881 2.6 (security of an export) and RFC 2623 2.3 (a flavour that is too weak).
//! The share owns its rules. If no share has rules, nothing is checked here: every caller has the same rights
//! everywhere.

use std::cell::OnceCell;
use std::rc::Rc;

use bytes::Bytes;
use weft_machine::{LogLimit, rt};
use weft_store::rights::Right;
use weft_store::rules::{Export, Flavor as Named, Ports, Protection, Unadmitted};
use weft_store::{ShareId, ShareKey};
use weft_wire::nfs3::{Status, procedure as nfs};
use weft_wire::nfs4::Secinfo;
use weft_wire::rpc::gss::Service;
use weft_wire::rpc::{AuthStat, Flavor, Reply};
use weft_wire::xdr::{Decoder, Encoder};

use super::caller::{Caller, right};
use super::context::{Context, Results};
use super::credential::Credential;
use super::handles::{self, Handles};
use super::header::Header;

/// Why an export refuses a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptOut {
    /// Its address is not admitted.
    Network,
    /// Its port is one that any user of its host can bind.
    Port,
    /// Its authentication flavour is too weak, or the connection can be overheard.
    Flavor,
    /// The rights of the share do not name its user.
    Rights,
}

/// The authentication flavours of an export, best first.
pub(super) fn flavors(export: &Export) -> Vec<Flavor> {
    let wire = |named: &Named| match named {
        Named::Sys => Flavor::SYS,
        Named::None => Flavor::NONE,
        Named::Krb5 => Flavor::KRB5,
        Named::Krb5i => Flavor::KRB5I,
        Named::Krb5p => Flavor::KRB5P,
    };
    if export.flavors.is_empty() {
        return vec![Flavor::SYS, Flavor::NONE];
    }
    export.flavors.iter().map(wire).collect()
}

/// The flavors of all exports, best first: those of what is above the exports.
pub(super) fn flavors_of_all<'a>(exports: impl Iterator<Item = &'a Export> + Clone) -> Vec<Flavor> {
    const BEST_FIRST: [Flavor; 5] = [Flavor::KRB5P, Flavor::KRB5I, Flavor::KRB5, Flavor::SYS, Flavor::NONE];
    let asked = |flavor: &Flavor| exports.clone().any(|export| flavors(export).contains(flavor));
    BEST_FIRST.into_iter().filter(asked).collect()
}

/// The flavor as SECINFO tells it (RFC 8881 18.29.3): Kerberos' pseudo flavors are only MOUNT's.
pub(super) fn secinfo(flavor: Flavor) -> Secinfo {
    // 1.2.840.113554.1.2.2, the mechanism of RFC 4121, and the default quality of protection.
    let kerberos = |service: Service| {
        Secinfo::Gss(Bytes::from_static(b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02"), 0, service.number())
    };
    match flavor {
        Flavor::KRB5 => kerberos(Service::None),
        Flavor::KRB5I => kerberos(Service::Integrity),
        Flavor::KRB5P => kerberos(Service::Privacy),
        flavor => Secinfo::Flavor(flavor),
    }
}

fn takes(export: &Export, credential: &Credential) -> bool {
    let named = match credential {
        Credential::None => Named::None,
        Credential::Sys(_) => Named::Sys,
        Credential::Ticket(Service::None, _) => Named::Krb5,
        Credential::Ticket(Service::Integrity, _) => Named::Krb5i,
        Credential::Ticket(Service::Privacy, _) => Named::Krb5p,
    };
    let by_default = export.flavors.is_empty() && !named.is_kerberos();
    by_default || export.flavors.contains(&named)
}

impl<'a> Context<'a> {
    /// The rules of a share, if any share has rules.
    fn rules(&self, share: ShareId) -> Option<(&'a Export, &Rc<Credential>)> {
        Some((&self.list().get(share)?.rules.nfs, self.ruled.as_ref()?))
    }

    /// [`Context::judge`] for a caller who uses the share: a refusal is logged.
    pub fn admit(&self, share: ShareId) -> Result<(), KeptOut> {
        self.judge(share).inspect_err(|kept_out| self.tell(share, *kept_out))
    }

    /// Whether the caller may use this share at all.
    pub fn judge(&self, share: ShareId) -> Result<(), KeptOut> {
        let Some((export, credential)) = self.rules(share) else { return Ok(()) };
        let admitted = match self.has_ticket() {
            true => export.admits_near(self.peer),
            false => export.admits(self.peer, self.server.policy.ports()),
        };
        admitted.map_err(|unadmitted| match unadmitted {
            Unadmitted::Network => KeptOut::Network,
            Unadmitted::Port => KeptOut::Port,
        })?;
        let enough = self.protection >= export.protection && takes(export, credential);
        if !enough {
            return Err(KeptOut::Flavor);
        }
        let has_none = self.list().get(share).is_some_and(|share| right(credential, share) == Right::None);
        if has_none { Err(KeptOut::Rights) } else { Ok(()) }
    }

    /// Logs a refusal for administrators who look for the cause of a failed mount.
    pub fn tell(&self, share: ShareId, kept_out: KeptOut) {
        match kept_out {
            KeptOut::Network => self.tell_network(share),
            KeptOut::Port => self.tell_port(share),
            KeptOut::Flavor => self.tell_security(share),
            // The audit log has what users are denied.
            KeptOut::Rights => {}
        }
    }

    /// Whether this share admits callers from this address over this connection, whatever identity they claim.
    pub fn lets_in(&self, share: ShareKey) -> bool {
        let ports = self.server.policy.ports();
        self.list().of(share).is_some_and(|share| {
            let export = &share.rules.nfs;
            match self.has_ticket() {
                true => self.protection >= export.protection && export.admits_near(self.peer).is_ok(),
                false => export.lets_in(self.peer, ports, self.protection),
            }
        })
    }

    fn tell_port(&self, share: ShareId) {
        static REFUSED: LogLimit = LogLimit::new();
        if let Some(left_out) = REFUSED.pass(rt::now()) {
            let name = self.name(share);
            tracing::warn!(
                peer = %self.peer,
                "export {name} refused a caller whose port is not below {}; only root of its host can bind such a port \
                 (Linux does by itself, except over RDMA); --export {name}:insecure, or in a configuration file \
                 shares.{name}.nfs.secure = false, admits every port{left_out}",
                Ports::FIRST_UNRESERVED
            );
        }
    }

    fn tell_network(&self, share: ShareId) {
        static REFUSED: LogLimit = LogLimit::new();
        if let Some(left_out) = REFUSED.pass(rt::now()) {
            let name = self.name(share);
            tracing::warn!(
                peer = %self.peer,
                "export {name} refused a caller whose address is in none of its networks; --export {name}:net=NETWORK, or in a \
                 configuration file shares.{name}.nfs.net, names those that it admits{left_out}"
            );
        }
    }

    /// A client of NFSv4 may ask then what the export requires, and come again, so this is no warning.
    fn tell_security(&self, share: ShareId) {
        static REFUSED: LogLimit = LogLimit::new();
        if let Some(left_out) = REFUSED.pass(rt::now()) {
            let Some(found) = self.list().get(share) else { return };
            let (name, export) = (&found.name, &found.rules.nfs);
            let required = export.protection;
            let (what, key, value) = match required {
                Protection::Mutual if self.protection < required => {
                    ("over a connection without a client certificate", "xprtsec", "mtls".to_owned())
                }
                Protection::Tls if self.protection < required => {
                    ("over a connection without TLS", "xprtsec", "tls".to_owned())
                }
                _ => {
                    let accepted: Vec<String> = flavors(export).iter().map(Flavor::to_string).collect();
                    ("with a security flavor that it does not accept", "sec", accepted.join(":"))
                }
            };
            tracing::info!(
                peer = %self.peer,
                "export {name} refused a caller {what}; its mount needs -o {key}={value}; --export {name}:{key}=..., or in a configuration \
                 file shares.{name}.nfs.{key}, says what the export accepts{left_out}"
            );
        }
    }

    fn name(&self, share: ShareId) -> &str {
        self.list().get(share).map_or("", |share| &share.name)
    }

    /// The caller's identity in this share.
    pub fn caller_in(&self, share: ShareId) -> Caller {
        match (self.list().get(share), &self.ruled) {
            (Some(share), Some(credential)) => Caller::in_share(credential, self.server.policy, share),
            _ => self.caller.clone(),
        }
    }
}

/// A call's contexts in the shares that it uses. Each is made when it is first needed: there may be thousands of shares.
pub(super) struct Views<'a> {
    /// The context without rules.
    pub plain: &'a Context<'a>,
    first: OnceCell<Box<View<'a>>>,
}

struct View<'a> {
    share: ShareId,
    context: Context<'a>,
    next: OnceCell<Box<View<'a>>>,
}

impl<'a> Views<'a> {
    /// No contexts but the one without rules.
    pub fn of(plain: &'a Context<'a>) -> Views<'a> {
        Views { plain, first: OnceCell::new() }
    }

    /// The context in this share.
    pub fn get(&self, share: ShareId) -> &Context<'a> {
        if self.plain.ruled.is_none() {
            return self.plain;
        }
        let mut place = &self.first;
        loop {
            let view = place.get_or_init(|| {
                let context = Context { caller: self.plain.caller_in(share), ..self.plain.clone() };
                Box::new(View { share, context, next: OnceCell::new() })
            });
            if view.share == share {
                return &view.context;
            }
            place = &view.next;
        }
    }
}

/// Checks a version 3 call where some share has rules: returns the caller, or the reply that refuses it.
pub(super) fn gate(
    cx: &Context<'_>,
    call: &Header,
    d: &Decoder,
    body: &Encoder,
) -> Result<Caller, Box<Result<Results, Reply>>> {
    // Every procedure's arguments begin with a handle; RENAME and LINK refuse a second handle of another share.
    let handle = d.peek(4 + handles::BYTES);
    let share = handle.get(4..).and_then(Handles::share_of);
    // A handle of no share will not be found.
    let Some(share) = share.filter(|_| call.procedure != nfs::NULL) else { return Ok(cx.caller.clone()) };
    match cx.admit(share) {
        Ok(()) => Ok(cx.caller_in(share)),
        // RFC 2623 2.3.2: the client requests the list of flavours again, or gives up.
        Err(KeptOut::Flavor) => Err(Box::new(Err(Reply::AuthError(AuthStat::TOOWEAK)))),
        Err(kept_out @ (KeptOut::Network | KeptOut::Port | KeptOut::Rights)) => {
            let mut refused = Encoder::with_capacity(64);
            refused.raw(&body.copy_from(0));
            // Linux's server also returns PERM for a port.
            let status = if kept_out == KeptOut::Port { Status::PERM } else { Status::ACCES };
            refused.u32(status.0);
            (0..absent(call.procedure)).for_each(|_| refused.bool(false));
            Err(Box::new(Ok(Results::new(refused, None))))
        }
    }
}

/// Number of optional items behind the status of a failed procedure (RFC 1813 3.3); all are absent.
fn absent(procedure: u32) -> usize {
    match procedure {
        nfs::GETATTR => 0,
        nfs::SETATTR | nfs::WRITE | nfs::COMMIT => 2,
        nfs::CREATE | nfs::MKDIR | nfs::SYMLINK | nfs::MKNOD | nfs::REMOVE | nfs::RMDIR => 2,
        nfs::LINK => 3,
        nfs::RENAME => 4,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;
    use weft_machine::{Listener, Pool, Stream, rt};
    use weft_store::backend::Ram;
    use weft_store::rules::{NOBODY, Protection, Squash};
    use weft_store::{Exists, Make, NodeId, Share, Special, Vfs};
    use weft_transport::{Peer, record};
    use weft_wire::mount::{self, DirPath, Export as Exported, List, MountResult, MountStatus};
    use weft_wire::nfs3::{self, *};
    use weft_wire::rpc::{AuthSys, Credential, Fragment};

    use super::{AuthStat, Export, Flavor, Named, Ports, Reply, Secinfo, nfs};
    use crate::server::peer_shares::PeerShares;
    use crate::server::tests::{call_of, handle_of, results_for, results_for_as, results_of};
    use crate::server::{Config, Limits, Policy, Server};

    const INSIDE: &str = "192.0.2.1:700";
    const OUTSIDE: &str = "203.0.113.1:700";

    /// Two shares, the second without rules.
    fn server(export: Export) -> Arc<Server> {
        let share = |name: &str| Share::new(name, Vfs::new(Ram::new(16 << 20)));
        let mut shares = vec![share("ruled"), share("plain")];
        shares[0].rules.nfs = export;
        let policy = Policy { decides: true, squash_root: true };
        Server::new(Config { shares, pool: Pool::new(0), limits: Limits::default(), policy, durable: None })
    }

    fn user(uid: u32) -> Credential {
        Credential::Sys(AuthSys::new(Bytes::new(), uid, uid))
    }

    fn call<T: Xdr>(
        server: &Server,
        peer: &'static str,
        who: Credential,
        number: u32,
        args: &impl Xdr,
    ) -> Result<T, Reply> {
        let program = (nfs3::PROGRAM, nfs3::VERSION, number);
        rt::block_on(results_for_as(server, peer, who, program, args)).unwrap()
    }

    fn create(
        server: &Server,
        share: usize,
        who: Credential,
        name: &'static [u8],
    ) -> Result<Attributes, Status> {
        let dir = handle_of(server, share, NodeId::ROOT);
        let object = DirOp { dir, name: Name(Bytes::from_static(name)) };
        let args = CreateArgs { object, how: CreateHow::Unchecked(SetAttributes::default()) };
        let made: Outcome<CreateOk, WccOnly> = call(server, INSIDE, who, nfs::CREATE, &args).unwrap();
        made.map(|made| made.attributes.unwrap()).map_err(|failed| failed.status)
    }

    #[test]
    fn everybody_becomes_the_anonymous_user_of_the_export() {
        let export =
            Export { squash: Some(Squash::All), anonymous: (Some(1000), Some(100)), ..Export::default() };
        let server = server(export);
        let owner = |share, who, name| {
            let made = create(&server, share, who, name).unwrap();
            (made.uid, made.gid)
        };
        // The roots belong to the user who runs the test; everyone may write there.
        for share in server.shares.now().iter() {
            let set = weft_store::SetAttr { mode: Some(0o777), ..Default::default() };
            rt::block_on(share.vfs.setattr(NodeId::ROOT, set)).unwrap().unwrap();
        }
        assert_eq!(owner(0, user(5), b"five"), (1000, 100));
        assert_eq!(owner(0, user(0), b"root"), (1000, 100));
        assert_eq!(owner(0, Credential::None, b"none"), (1000, 100));
        assert_eq!(owner(1, user(5), b"five"), (5, 5));
        assert_eq!(owner(1, user(0), b"root"), (NOBODY, NOBODY));
    }

    #[test]
    fn root_is_root_where_an_export_says_so() {
        let server = server(Export { squash: Some(Squash::None), ..Export::default() });
        let made = create(&server, 0, user(0), b"root").unwrap();
        assert_eq!(made.uid, 0);
    }

    #[test]
    fn a_read_only_export_is_read_and_not_changed() {
        let export = Export { read_only: true, squash: Some(Squash::None), ..Export::default() };
        let server = server(export);
        assert_eq!(create(&server, 0, user(0), b"f"), Err(Status::ROFS));
        let object = handle_of(&server, 0, NodeId::ROOT);
        let set = SetattrArgs {
            object,
            attributes: SetAttributes { mode: Some(0o700), ..Default::default() },
            guard: None,
        };
        let done: Outcome<WccOnly, WccOnly> = call(&server, INSIDE, user(0), nfs::SETATTR, &set).unwrap();
        assert_eq!(done.unwrap_err().status, Status::ROFS);
        let asked = AccessArgs { object, access: 0x3f };
        let may: Outcome<AccessOk, AttrOnly> = call(&server, INSIDE, user(0), nfs::ACCESS, &asked).unwrap();
        assert_eq!(may.unwrap().access, access::READ | access::LOOKUP);
    }

    #[test]
    fn pipes_are_written_to_by_whom_their_mode_allows() {
        let ruled = Export { read_only: true, squash: Some(Squash::None), ..Export::default() };
        let server = server(ruled);
        let allowed = |share: usize, mode, uid| {
            let vfs = &server.vfs(share);
            let name = format!("{mode:o}-{uid}");
            let set = weft_store::SetAttr { mode: Some(mode), ..Default::default() };
            let what = Make::Special(Special::Fifo);
            let making = vfs.create(NodeId::ROOT, name.as_bytes(), what, Exists::Fail, set);
            let pipe = rt::block_on(making).unwrap().unwrap().attr;
            let asked = AccessArgs { object: handle_of(&server, share, pipe.node), access: 0x3f };
            let may: Outcome<AccessOk, AttrOnly> =
                call(&server, INSIDE, user(uid), nfs::ACCESS, &asked).unwrap();
            may.unwrap().access
        };
        let written = access::MODIFY | access::EXTEND;
        // On read-only exports too: a pipe belongs to the client that opens it.
        for share in [0, 1] {
            assert_eq!(allowed(share, 0o666, 5), access::READ | written);
            assert_eq!(allowed(share, 0o622, 5), written);
            assert_eq!(allowed(share, 0o644, 5), access::READ);
        }
        assert_eq!(allowed(0, 0o600, 0), access::READ | written);
    }

    #[test]
    fn who_comes_from_elsewhere_is_kept_out_of_everything() {
        let server = server(Export { networks: vec!["192.0.2.0/24".parse().unwrap()], ..Export::default() });
        let object = handle_of(&server, 0, NodeId::ROOT);
        let plain = handle_of(&server, 1, NodeId::ROOT);
        let getattr = |peer, object| -> Outcome<GetattrOk, ()> {
            call(&server, peer, user(5), nfs::GETATTR, &GetattrArgs { object }).unwrap()
        };
        assert!(getattr(INSIDE, object).is_ok() && getattr(OUTSIDE, plain).is_ok());
        assert_eq!(getattr(OUTSIDE, object).unwrap_err().status, Status::ACCES);
        // Each procedure's failure has its own layout.
        let dir_op = DirOp { dir: object, name: Name(Bytes::from_static(b"x")) };
        macro_rules! refused {
            ($number:ident, $args:expr, $ok:ty, $fail:ty) => {{
                let outcome: Outcome<$ok, $fail> =
                    call(&server, OUTSIDE, user(5), nfs::$number, &$args).unwrap();
                assert_eq!(outcome.unwrap_err().status, Status::ACCES, stringify!($number));
            }};
        }
        refused!(LOOKUP, dir_op.clone(), LookupOk, AttrOnly);
        refused!(ACCESS, AccessArgs { object, access: 1 }, AccessOk, AttrOnly);
        refused!(REMOVE, dir_op.clone(), WccOnly, WccOnly);
        refused!(RENAME, RenameArgs { from: dir_op.clone(), to: dir_op.clone() }, RenameWcc, RenameWcc);
        refused!(LINK, LinkArgs { file: object, link: dir_op.clone() }, LinkWcc, LinkWcc);
        refused!(COMMIT, CommitArgs { file: object, offset: 0, count: 0 }, CommitOk, WccOnly);
        refused!(FSINFO, ObjectArgs { object }, FsinfoOk, AttrOnly);
        let mount = |peer| -> MountResult {
            let number = (mount::PROGRAM, mount::VERSION, mount::procedure::MNT);
            let path = DirPath(Bytes::from_static(b"/ruled"));
            rt::block_on(results_for(&server, peer, number, &path)).unwrap()
        };
        assert!(matches!(mount(INSIDE), MountResult::Ok { .. }));
        assert_eq!(mount(OUTSIDE), MountResult::Failed(MountStatus::ACCES));
        let number = (mount::PROGRAM, mount::VERSION, mount::procedure::EXPORT);
        let List(listed): List<Exported> = rt::block_on(results_for(&server, OUTSIDE, number, &())).unwrap();
        assert_eq!(listed[0].groups.0[0].0, "192.0.2.0/24");
        assert!(listed[1].groups.0.is_empty());
    }

    #[test]
    fn networks_hold_for_every_transport() {
        let server = server(Export { networks: vec!["192.0.2.0/24".parse().unwrap()], ..Export::default() });
        let object = handle_of(&server, 0, NodeId::ROOT);
        let answer = |peer: Peer| -> Result<Outcome<GetattrOk, ()>, Reply> {
            let number = (nfs3::PROGRAM, nfs3::VERSION, nfs::GETATTR);
            let args = GetattrArgs { object };
            rt::block_on(results_of(&server, peer, user(5), number, &args)).unwrap()
        };
        let by_udp = |addr| answer(Peer::Udp(addr)).map(drop);
        let gets = |peer: Peer| answer(peer).unwrap().map(|_| ()).map_err(|failed| failed.status);
        let (inside, outside): (SocketAddr, SocketAddr) = (INSIDE.parse().unwrap(), OUTSIDE.parse().unwrap());
        // UDP admits only addresses that have been seen over TCP.
        assert_eq!(by_udp(inside), Err(Reply::AuthError(AuthStat::TOOWEAK)));
        let _present = [inside, outside].map(|addr| server.reached.arrive(addr.ip()));
        for by in [Peer::Tcp, Peer::Udp, Peer::Rdma] {
            assert_eq!(gets(by(INSIDE.parse().unwrap())), Ok(()));
            assert_eq!(gets(by(OUTSIDE.parse().unwrap())), Err(Status::ACCES));
            assert_eq!(gets(by("[::ffff:192.0.2.9]:700".parse().unwrap())), Ok(()));
        }
        let own = weft_store::access::posix::Process::own().uid;
        assert_eq!(gets(Peer::Local { uid: own, pid: Some(1) }), Ok(()));
        assert_eq!(gets(Peer::Local { uid: own + 1, pid: Some(1) }), Err(Status::ACCES));
    }

    /// Whether a client that sends REMOVE and resets its connection, before the server has accepted it, gets the file
    /// removed.
    fn removes_by_a_reset(export: Export) -> bool {
        let server = server(Export { squash: Some(Squash::None), ..export });
        let vfs = &server.vfs(0);
        let made = vfs.create(NodeId::ROOT, b"f", Make::File, Exists::Fail, weft_store::SetAttr::default());
        rt::block_on(made).unwrap().unwrap();
        let object = DirOp { dir: handle_of(&server, 0, NodeId::ROOT), name: Name(Bytes::from_static(b"f")) };
        let call = call_of(nfs3::PROGRAM, nfs3::VERSION, nfs::REMOVE, user(0), &object);
        rt::block_on(async {
            let listener = Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
            let mut client = std::net::TcpStream::connect(listener.local_addr()).unwrap();
            let head = Fragment { last: true, len: call.len() as u32 }.emit().unwrap();
            client.write_all(&[&head, &call[..]].concat()).unwrap();
            rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
            drop(client);
            let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
            let channel = record::Record::channel(stream, Pool::new(1 << 20), record::Config::default());
            // What it sent can still be received. It does not matter whether the reset shows at a send or at a
            // receive.
            if let Err(e) = server.serve(channel).await {
                assert!(matches!(e, weft_transport::Error::Io(_)), "{e}");
            }
        })
        .unwrap();
        rt::block_on(vfs.lookup(NodeId::ROOT, b"f", false)).unwrap().is_err()
    }

    #[test]
    fn a_client_that_resets_its_connection_is_kept_out_all_the_same() {
        let elsewhere = vec!["192.0.2.0/24".parse().unwrap()];
        let plain = || Export { ports: Some(Ports::Any), ..Export::default() };
        assert!(!removes_by_a_reset(Export { networks: elsewhere, ..plain() }));
        let here: Vec<_> = vec!["127.0.0.1".parse().unwrap()];
        // This server, as root, would not accept the client's port.
        assert!(!removes_by_a_reset(Export { networks: here.clone(), ..Export::default() }));
        assert!(removes_by_a_reset(Export { networks: here, ..plain() }));
    }

    /// `server` is root; its first share admits these ports, its second does not say.
    fn by_port(ports: Option<Ports>, number: u16) -> [Result<(), Status>; 2] {
        let server = server(Export { ports, ..Export::default() });
        [0, 1].map(|share| {
            let args = GetattrArgs { object: handle_of(&server, share, NodeId::ROOT) };
            let peer = Peer::Tcp(SocketAddr::new([192, 0, 2, 1].into(), number));
            let answer =
                results_of(&server, peer, user(5), (nfs3::PROGRAM, nfs3::VERSION, nfs::GETATTR), &args);
            let outcome: Outcome<GetattrOk, ()> = rt::block_on(answer).unwrap().unwrap();
            outcome.map(|_| ()).map_err(|failed| failed.status)
        })
    }

    #[test]
    fn a_server_that_is_root_takes_callers_from_reserved_ports_unless_an_export_says_otherwise() {
        let refused = Err(Status::PERM);
        assert_eq!(by_port(None, 40_000), [refused, refused]);
        assert_eq!(by_port(None, 1023), [Ok(()), Ok(())]);
        assert_eq!(by_port(Some(Ports::Any), 40_000), [Ok(()), refused]);
        assert_eq!(by_port(Some(Ports::Reserved), 1024), [refused, refused]);
        // A server that is not root acts as itself for everyone.
        let policy = Policy { decides: false, squash_root: true };
        assert!(policy.ports().include(Peer::Tcp("192.0.2.1:40000".parse().unwrap())));
    }

    #[test]
    fn who_comes_from_a_port_of_any_user_is_kept_out_of_everything() {
        const OUTSIDE: &str = "192.0.2.1:40000";
        let server = server(Export::default());
        let seen_by = |peer: &str| {
            let peer = Peer::Tcp(peer.parse().unwrap());
            PeerShares::new(server.shares.now(), server.policy, peer, Protection::None)
        };
        assert!(seen_by(OUTSIDE).ruled);
        assert!(!seen_by(INSIDE).ruled, "the usual callers cost nothing more");
        assert!(!seen_by(OUTSIDE).admits, "and such a connection counts as a stranger's");
        let object = handle_of(&server, 0, NodeId::ROOT);
        let dir_op = DirOp { dir: object, name: Name(Bytes::from_static(b"x")) };
        macro_rules! refused {
            ($number:ident, $args:expr, $ok:ty, $fail:ty) => {{
                let outcome: Outcome<$ok, $fail> =
                    call(&server, OUTSIDE, user(0), nfs::$number, &$args).unwrap();
                assert_eq!(outcome.unwrap_err().status, Status::PERM, stringify!($number));
            }};
        }
        refused!(LOOKUP, dir_op.clone(), LookupOk, AttrOnly);
        refused!(REMOVE, dir_op.clone(), WccOnly, WccOnly);
        refused!(RENAME, RenameArgs { from: dir_op.clone(), to: dir_op.clone() }, RenameWcc, RenameWcc);
        refused!(FSINFO, ObjectArgs { object }, FsinfoOk, AttrOnly);
        let number = (mount::PROGRAM, mount::VERSION, mount::procedure::MNT);
        let path = DirPath(Bytes::from_static(b"/ruled"));
        let mounted: MountResult = rt::block_on(results_for(&server, OUTSIDE, number, &path)).unwrap();
        assert_eq!(mounted, MountResult::Failed(MountStatus::ACCES));
    }

    #[test]
    fn above_the_exports_the_flavors_of_all_are_told() {
        let export = |flavors: &[Named]| Export { flavors: flavors.to_vec(), ..Export::default() };
        let told = |exports: &[Export]| super::flavors_of_all(exports.iter());
        assert_eq!(told(&[export(&[])]), [Flavor::SYS, Flavor::NONE]);
        let some = [export(&[Named::Sys, Named::Krb5]), export(&[Named::Krb5p])];
        assert_eq!(told(&some), [Flavor::KRB5P, Flavor::KRB5, Flavor::SYS]);
        // RFC 8881 18.29.3: an object identifier without its tag, as in gss_OID.
        let kerberos =
            |service| Secinfo::Gss(Bytes::from_static(b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02"), 0, service);
        let told = [Flavor::KRB5, Flavor::KRB5I, Flavor::KRB5P, Flavor::SYS].map(super::secinfo);
        assert_eq!(told, [kerberos(1), kerberos(2), kerberos(3), Secinfo::Flavor(Flavor::SYS)]);
    }

    #[test]
    fn callers_name_themselves_as_the_export_asks() {
        let server = server(Export { flavors: vec![Named::Sys], ..Export::default() });
        let object = handle_of(&server, 0, NodeId::ROOT);
        let getattr =
            |who| call::<Outcome<GetattrOk, ()>>(&server, INSIDE, who, nfs::GETATTR, &GetattrArgs { object });
        assert!(getattr(user(5)).unwrap().is_ok());
        assert_eq!(getattr(Credential::None).unwrap_err(), Reply::AuthError(AuthStat::TOOWEAK));
        let number = (mount::PROGRAM, mount::VERSION, mount::procedure::MNT);
        let path = DirPath(Bytes::from_static(b"/ruled"));
        let mounted: MountResult = rt::block_on(results_for(&server, INSIDE, number, &path)).unwrap();
        assert!(matches!(mounted, MountResult::Ok { flavors, .. } if flavors == [Flavor::SYS]));
    }
}
