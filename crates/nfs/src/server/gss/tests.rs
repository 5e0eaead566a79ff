//! Calls in contexts of a toy mechanism, against a server without a network.

use std::io;
use std::time::Duration;

use proptest::prelude::*;
use weft_machine::Pool;
use weft_machine::nss::{Entry, Query, Source};
use weft_machine::{Account, rt};
use weft_store::backend::Ram;
use weft_store::rights::{Principal as Named, Rights};
use weft_store::rules::{Export, Flavor as Flavors, Ports};
use weft_store::{NodeId, Share, Vfs};
use weft_transport::Error as Ended;
use weft_wire::mount::{self, DirPath, MountResult};
use weft_wire::nfs3::{self, *};
use weft_wire::rpc::gss::{Integrity, Privacy};
use weft_wire::rpc::{AuthSys, Call, Credential as Claim, Flavor};
use weft_wire::xdr::Malformed;

use super::*;
use crate::server::tests::{PEER, converse_by, handle_of, results_for, results_for_as, stream};
use crate::server::{Config, Limits, Policy, Server};

/// A mechanism whose token is the name of the client, and the lifetime in seconds.
#[derive(Default)]
pub struct Toy {
    client: String,
}

pub(crate) fn toy_mic(client: &str, message: &[u8]) -> Vec<u8> {
    let mut hasher = siphasher::sip::SipHasher24::new();
    hasher.write(client.as_bytes());
    hasher.write(message);
    hasher.finish().to_be_bytes().to_vec()
}

pub(crate) fn toy_wrap(client: &str, message: &[u8]) -> Vec<u8> {
    let mixed = message.iter().map(|byte| byte ^ 0x5a);
    toy_mic(client, message).into_iter().chain(mixed).collect()
}

pub(crate) fn toy_unwrap(client: &str, token: &[u8]) -> Option<Vec<u8>> {
    let (mic, mixed) = token.split_at_checked(8)?;
    let message: Vec<u8> = mixed.iter().map(|byte| byte ^ 0x5a).collect();
    (toy_mic(client, &message) == mic).then_some(message)
}

impl Mechanism for Toy {
    fn step(&mut self, token: &[u8]) -> Result<Step, weft_kerberos::Error> {
        let bad = || weft_kerberos::Error::Gss("no ticket".into());
        let text = std::str::from_utf8(token).map_err(|_| bad())?;
        let (client, rest) = text.split_once(' ').ok_or_else(bad)?;
        let (service, lifetime) = rest.split_once(' ').ok_or_else(bad)?;
        self.client = client.into();
        Ok(Step::Done {
            token: b"reply".to_vec(),
            client: Principal::parse(client).ok_or_else(bad)?,
            service: Principal::parse(service).ok_or_else(bad)?,
            key: Vec::new().into(),
            lifetime: Some(Duration::from_millis(lifetime.parse().map_err(|_| bad())?)),
        })
    }
    fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, weft_kerberos::Error> {
        Ok(toy_mic(&self.client, message))
    }
    fn verify(&mut self, message: &[u8], mic: &[u8]) -> bool {
        toy_mic(&self.client, message) == mic
    }
    fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, weft_kerberos::Error> {
        Ok(toy_wrap(&self.client, message))
    }
    fn unwrap(&mut self, token: &[u8]) -> Option<Vec<u8>> {
        toy_unwrap(&self.client, token)
    }
}

/// alice is 1000, bob 1001, root 0; the group staff, 50, has bob.
struct Accounts;

impl Source for Accounts {
    fn account(&self, name: &str) -> io::Result<Option<Account>> {
        let account = |uid, groups: &[u32]| {
            Ok(Some(Account { name: name.into(), uid, gid: 100, groups: groups.to_vec() }))
        };
        match name {
            "alice" => account(1000, &[100]),
            "bob" => account(1001, &[50, 100]),
            "root" => account(0, &[0]),
            "ill" => Err(io::Error::other("no directory")),
            // A directory that ignores case.
            other if other.eq_ignore_ascii_case("dora") => {
                Ok(Some(Account { name: "dora".into(), uid: 1002, gid: 100, groups: vec![100] }))
            }
            _ => Ok(None),
        }
    }
    fn entry(&self, query: &Query) -> io::Result<Option<Entry>> {
        let staff = *query == Query::Group("staff".into());
        Ok(staff.then(|| Entry { name: "staff".into(), id: 50 }))
    }
}

fn users(names: &[&str]) -> Users {
    Users::new(names.iter().map(|name| (*name, &[][..])), [])
}

/// Shares "ruled" with these rules and "plain" without, for alice, bob, ill and root.
fn server(flavors: &[Flavors], rights: Rights) -> Arc<Server> {
    server_by(flavors, rights, Principals::default(), None)
}

fn server_by(
    flavors: &[Flavors],
    rights: Rights,
    principals: Principals,
    ports: Option<Ports>,
) -> Arc<Server> {
    let share = |name: &str| Share::new(name, Vfs::new(Ram::new(16 << 20)));
    let mut shares = vec![share("ruled"), share("plain")];
    shares[0].rules.nfs = Export { flavors: flavors.to_vec(), ports, ..Export::default() };
    shares[0].rules.rights = rights;
    let policy = Policy { decides: true, squash_root: true };
    let pool = Pool::new(16 << 20);
    let server = Server::new(Config { shares, pool, limits: Limits::default(), policy, durable: None });
    let system = Arc::new(Lookups::new(Arc::new(Accounts), Duration::from_secs(5)));
    let gss = Gss::by(
        Box::new(|| Box::new(Toy::default())),
        principals,
        Some(system),
        users(&["alice", "bob", "ill", "root"]),
    );
    assert!(server.gss.set(gss).is_ok());
    for at in [0, 1] {
        let everybody = weft_store::SetAttr { mode: Some(0o777), ..Default::default() };
        rt::block_on(server.vfs(at).setattr(NodeId::ROOT, everybody)).unwrap().unwrap();
    }
    server
}

fn open_to(flavors: &[Flavors]) -> Arc<Server> {
    server(flavors, Rights::default())
}

/// The same for callers from any port.
pub(crate) fn open_to_any_port(flavors: &[Flavors]) -> Arc<Server> {
    server_by(flavors, Rights::default(), Principals::default(), Some(Ports::Any))
}

/// Contexts that the server knows.
pub(crate) fn contexts(server: &Server) -> usize {
    server.gss.get().unwrap().table.len()
}

/// A server without a keytab.
pub(crate) fn without_tickets() -> Arc<Server> {
    crate::server::tests::server()
}

/// The server forgets all contexts, as if it had restarted.
pub(crate) fn forget(server: &Server) {
    server.gss.get().unwrap().table.clear();
}

/// A client with a context, or one that begins.
#[derive(Clone)]
struct Client {
    name: &'static str,
    handle: Bytes,
    sequence: u32,
}

/// What a reply says: the verifier, and the rest from the status on.
#[derive(Debug, PartialEq)]
enum Answer {
    Accepted { mic: Vec<u8>, stat: u32, results: Bytes },
    Denied(AuthStat),
}

fn read(reply: Bytes) -> Answer {
    let mut d = Decoder::new(reply);
    let mut word = || d.u32().unwrap();
    let (_xid, _reply, denied) = (word(), word(), word());
    if denied == 1 {
        assert_eq!(word(), 1, "AUTH_ERROR");
        return Answer::Denied(AuthStat(word()));
    }
    let flavor = word();
    let mic = d.opaque(400).unwrap().to_vec();
    assert_eq!(flavor, if mic.is_empty() { 0 } else { 6 });
    Answer::Accepted { mic, stat: d.u32().unwrap(), results: d.rest() }
}

fn emit(args: &impl Xdr) -> Vec<u8> {
    let mut e = Encoder::default();
    args.emit(&mut e);
    e.into_bytes().to_vec()
}

impl Client {
    fn message(&self, procedure: Procedure, service: Service, number: (u32, u32, u32), body: &[u8]) -> Bytes {
        let Client { name, handle, sequence } = self.clone();
        let gss = GssCredential { procedure, sequence, service, handle, covered_bytes: 0, mic: Bytes::new() };
        let (program, version, number) = number;
        let call = Call { xid: 77, program, version, procedure: number, credential: Claim::Gss(gss) };
        let mut e = Encoder::default();
        call.emit(&mut e);
        if matches!(procedure, Procedure::Data | Procedure::Destroy) {
            e.truncate(e.len() - 8);
            let mic = toy_mic(name, &e.copy_from(0));
            e.u32(6);
            e.opaque(&mic);
        }
        e.raw(body);
        e.into_bytes()
    }

    /// Establishes a context.
    fn establish(server: &Server, name: &'static str) -> Client {
        let (client, result) = Client::try_establish(server, name, "nfs/host@R", 60_000);
        let result = result.expect("a context");
        assert_eq!((result.major, result.window, &result.token[..]), (0, WINDOW, &b"reply"[..]));
        client
    }

    fn try_establish(
        server: &Server,
        name: &'static str,
        service: &str,
        lifetime_ms: u64,
    ) -> (Client, Result<InitResult, u32>) {
        let mut client = Client { name, handle: Bytes::new(), sequence: 0 };
        let token = InitToken(Bytes::from(format!("{name} {service} {lifetime_ms}")));
        let number = (nfs3::PROGRAM, nfs3::VERSION, 0);
        let message = client.message(Procedure::Init, Service::None, number, &emit(&token));
        let Answer::Accepted { mic, stat: 0, results } = client.send(server, message) else {
            panic!("no answer")
        };
        let result = InitResult::parse(&mut Decoder::new(results)).unwrap();
        if result.major != 0 {
            assert!(mic.is_empty() && result.handle.is_empty());
            return (client, Err(result.major));
        }
        assert_eq!(mic, toy_mic(name, &WINDOW.to_be_bytes()));
        client.handle = result.handle.clone();
        (client, Ok(result))
    }

    fn send(&self, server: &Server, message: Bytes) -> Answer {
        let (mut replies, ended) = converse_by(server, PEER, &[message]);
        ended.expect("an orderly end");
        assert_eq!(replies.len(), 1);
        read(stream(replies.pop().unwrap()))
    }

    fn protect(&self, service: Service, args: &[u8]) -> Vec<u8> {
        let body = [&self.sequence.to_be_bytes()[..], args].concat();
        match service {
            Service::None => args.to_vec(),
            Service::Integrity => {
                let mic = Bytes::from(toy_mic(self.name, &body));
                emit(&Integrity { body: body.into(), mic })
            }
            Service::Privacy => emit(&Privacy(toy_wrap(self.name, &body).into())),
        }
    }

    /// A call and its results, or the status.
    fn call<T: Xdr>(
        &mut self,
        server: &Server,
        service: Service,
        procedure: u32,
        args: &impl Xdr,
    ) -> Result<T, Answer> {
        self.sequence += 1;
        let body = self.protect(service, &emit(args));
        let number = (nfs3::PROGRAM, nfs3::VERSION, procedure);
        let message = self.message(Procedure::Data, service, number, &body);
        let (mic, results) = match self.send(server, message) {
            Answer::Accepted { mic, stat: 0, results } => (mic, results),
            refused => return Err(refused),
        };
        assert_eq!(mic, toy_mic(self.name, &self.sequence.to_be_bytes()), "of this call");
        let body = match service {
            Service::None => {
                let mut d = Decoder::new(results);
                return Ok(parse_all(&mut d).expect("results"));
            }
            Service::Integrity => {
                let Integrity { body, mic } = parse_all(&mut Decoder::new(results)).expect("a body");
                assert_eq!(&mic[..], toy_mic(self.name, &body));
                body
            }
            Service::Privacy => {
                let Privacy(token) = parse_all(&mut Decoder::new(results)).expect("a body");
                toy_unwrap(self.name, &token).expect("ours").into()
            }
        };
        let mut d = Decoder::new(body);
        assert_eq!(d.u32().unwrap(), self.sequence);
        Ok(parse_all(&mut d).expect("results"))
    }
}

fn parse_all<T: Xdr>(d: &mut Decoder) -> Result<T, Malformed> {
    let parsed = T::parse(d)?;
    d.end()?;
    Ok(parsed)
}

const SERVICES: [Service; 3] = [Service::None, Service::Integrity, Service::Privacy];
const KERBEROS: [Flavors; 3] = [Flavors::Krb5, Flavors::Krb5i, Flavors::Krb5p];
const TOO_WEAK: Answer = Answer::Denied(AuthStat::TOOWEAK);
const CRED_PROBLEM: Answer = Answer::Denied(AuthStat::GSS_CREDPROBLEM);
const CTX_PROBLEM: Answer = Answer::Denied(AuthStat::GSS_CTXPROBLEM);

fn create(server: &Server, client: &mut Client, name: &'static str) -> Result<u32, Status> {
    let dir = handle_of(server, 0, NodeId::ROOT);
    let object = DirOp { dir, name: Name(Bytes::from_static(name.as_bytes())) };
    let args = CreateArgs { object, how: CreateHow::Unchecked(SetAttributes::default()) };
    let made: Outcome<CreateOk, WccOnly> =
        client.call(server, Service::Privacy, procedure::CREATE, &args).expect("results");
    made.map(|made| made.attributes.unwrap().uid).map_err(|failed| failed.status)
}

fn getattr(server: &Server, client: &mut Client, service: Service, share: usize) -> Result<Status, Answer> {
    let args = GetattrArgs { object: handle_of(server, share, NodeId::ROOT) };
    let outcome: Outcome<GetattrOk, ()> = client.call(server, service, procedure::GETATTR, &args)?;
    Ok(outcome.map_or_else(|failed| failed.status, |_| Status::OK))
}

#[test]
fn a_share_is_used_with_the_flavors_that_it_names() {
    for (at, flavor) in KERBEROS.into_iter().enumerate() {
        let server = open_to(&[flavor]);
        let mut alice = Client::establish(&server, "alice@R");
        for (this, service) in SERVICES.into_iter().enumerate() {
            let expected = if this == at { Ok(Status::OK) } else { Err(TOO_WEAK) };
            assert_eq!(getattr(&server, &mut alice, service, 0), expected, "{flavor:?}, {service:?}");
            assert_eq!(getattr(&server, &mut alice, service, 1), Err(TOO_WEAK), "the share without rules");
        }
        let by_ids = Claim::Sys(AuthSys::new(Bytes::new(), 1000, 100));
        for (share, expected) in [(0, Err(Reply::AuthError(AuthStat::TOOWEAK))), (1, Ok(true))] {
            let args = GetattrArgs { object: handle_of(&server, share, NodeId::ROOT) };
            let number = (nfs3::PROGRAM, nfs3::VERSION, procedure::GETATTR);
            let answer = results_for_as(&server, PEER, by_ids.clone(), number, &args);
            let answer: Result<Outcome<GetattrOk, ()>, Reply> = rt::block_on(answer).unwrap();
            assert_eq!(answer.map(|outcome| outcome.is_ok()), expected);
        }
        let number = (mount::PROGRAM, mount::VERSION, mount::procedure::MNT);
        let mounted: MountResult =
            rt::block_on(results_for(&server, PEER, number, &DirPath(Bytes::from_static(b"/ruled"))))
                .unwrap();
        let pseudo = [Flavor::KRB5, Flavor::KRB5I, Flavor::KRB5P][at];
        assert!(matches!(mounted, MountResult::Ok { flavors, .. } if flavors == [pseudo]));
    }
}

#[test]
fn the_port_of_a_caller_with_a_ticket_does_not_matter() {
    let server = open_to(&[Flavors::Krb5]);
    let alice = Client::establish(&server, "alice@R");
    let args = emit(&GetattrArgs { object: handle_of(&server, 0, NodeId::ROOT) });
    let number = (nfs3::PROGRAM, nfs3::VERSION, procedure::GETATTR);
    let message = alice.message(Procedure::Data, Service::None, number, &args);
    let (mut replies, _) = converse_by(&server, "192.0.2.1:40000", &[message]);
    let Answer::Accepted { stat: 0, results, .. } = read(stream(replies.remove(0))) else { panic!() };
    assert_eq!(results[..4], [0; 4], "NFS3_OK");
    // MOUNT takes no tickets, and gives the handle of the export, of no folder below.
    let number = (mount::PROGRAM, mount::VERSION, mount::procedure::MNT);
    for (path, expected) in [("/ruled", true), ("/ruled/below", false), ("/plain", false)] {
        let path = DirPath(Bytes::from_static(path.as_bytes()));
        let mounted: MountResult =
            rt::block_on(results_for(&server, "192.0.2.1:40000", number, &path)).unwrap();
        assert_eq!(matches!(mounted, MountResult::Ok { .. }), expected, "{path:?}: {mounted:?}");
    }
}

#[test]
fn a_principal_acts_as_its_user_and_strangers_as_nobody() {
    let server = open_to(&KERBEROS);
    for (name, uid) in [
        ("alice@R", 1000),
        ("bob@R", 1001),
        // No user of ours, another realm, a service, and a user 0 whom no line of the map names.
        ("carol@R", 65_534),
        ("alice@OTHER", 65_534),
        ("host/client@R", 65_534),
        ("root@R", 65_534),
    ] {
        let mut client = Client::establish(&server, name);
        let file = name.rsplit('/').next().unwrap();
        assert_eq!(create(&server, &mut client, file), Ok(uid), "{name}");
    }
    // Nobody knows who this is.
    let (_, refused) = Client::try_establish(&server, "ill@R", "nfs/host@R", 60_000);
    assert_eq!(refused, Err(FAILURE));
    let (_, refused) = Client::try_establish(&server, "alice@R", "cifs/host@R", 60_000);
    assert_eq!(refused, Err(FAILURE), "a ticket for another service");
    let (_, refused) = Client::try_establish(&server, "nonsense", "nfs/host@R", 60_000);
    assert_eq!(refused, Err(FAILURE));
}

/// ALICE@R was the user alice, and DORA@R the account dora, with their rights.
#[test]
fn a_principal_is_not_the_user_who_is_spelled_otherwise() {
    let user = |name: &str| Named::User(name.into());
    let rights = Rights { read: None, write: Some(vec![user("alice"), user("dora")]) };
    let mut principals = Principals::default();
    principals.all_may_be_system = true;
    principals.map("ADMIN@R", "ALICE").unwrap();
    let server = server_by(&[Flavors::Krb5p], rights, principals, None);
    for (name, expected) in [
        ("alice@R", Ok(1000)),
        ("dora@R", Ok(1002)),
        ("ADMIN@R", Ok(1000)),
        ("ALICE@R", Err(Status::ACCES)),
        ("Alice@R", Err(Status::ACCES)),
        ("alice@r", Err(Status::ACCES)),
        ("DORA@R", Err(Status::ACCES)),
        ("dora@r", Err(Status::ACCES)),
        ("admin@R", Err(Status::ACCES)),
    ] {
        let mut client = Client::establish(&server, name);
        assert_eq!(create(&server, &mut client, name), expected, "{name}");
    }
}

#[test]
fn rights_bind_who_has_proved_a_name() {
    let group = Named::Group("staff".into());
    let rights = Rights { read: Some(vec![group]), write: Some(vec![Named::User("Alice".into())]) };
    let server = server(&[Flavors::Krb5p], rights);
    let mut alice = Client::establish(&server, "alice@R");
    let mut bob = Client::establish(&server, "bob@R");
    let mut carol = Client::establish(&server, "carol@R");
    let see = |client: &mut Client| getattr(&server, client, Service::Privacy, 0);
    assert_eq!(
        [see(&mut alice), see(&mut bob), see(&mut carol)],
        [Ok(Status::OK), Ok(Status::OK), Ok(Status::ACCES)]
    );
    assert_eq!(create(&server, &mut alice, "a"), Ok(1000));
    assert_eq!(create(&server, &mut bob, "b"), Err(Status::ROFS));
    assert_eq!(create(&server, &mut carol, "c"), Err(Status::ACCES));
    // A user who is removed loses the right in the middle of a context.
    server.replace_users(users(&["bob"]));
    assert_eq!([see(&mut alice), see(&mut bob)], [Ok(Status::ACCES), Ok(Status::OK)]);
}

#[test]
fn one_principal_gets_no_answer_of_another() {
    let server = open_to(&[Flavors::Krb5p]);
    let (mut alice, mut bob) = (Client::establish(&server, "alice@R"), Client::establish(&server, "bob@R"));
    assert_eq!(create(&server, &mut alice, "f"), Ok(1000));
    let dir = handle_of(&server, 0, NodeId::ROOT);
    let object = DirOp { dir, name: Name(Bytes::from_static(b"f")) };
    // All with one xid and the same arguments; the second one of alice is a repetition with a new sequence number.
    let remove = |client: &mut Client| -> Status {
        let done: Outcome<WccOnly, WccOnly> =
            client.call(&server, Service::Privacy, procedure::REMOVE, &object).unwrap();
        done.map_or_else(|failed| failed.status, |_| Status::OK)
    };
    assert_eq!(remove(&mut alice), Status::OK);
    assert_eq!(remove(&mut bob), Status::NOENT);
    assert_eq!(remove(&mut alice), Status::OK, "the first answer again");
    // Another context of the same principal is the same caller.
    assert_eq!(remove(&mut Client::establish(&server, "alice@R")), Status::OK);
}

#[test]
fn a_header_that_is_not_the_clients_is_refused() {
    let server = open_to(&[Flavors::Krb5]);
    let mut alice = Client::establish(&server, "alice@R");
    let bob = Client::establish(&server, "bob@R");
    // The handle of another context, an unknown one, and one of another length.
    for handle in [bob.handle.clone(), Bytes::from_static(&[7; 16]), Bytes::from_static(b"short")] {
        let mut thief = Client { handle, ..alice.clone() };
        assert_eq!(getattr(&server, &mut thief, Service::None, 0), Err(CRED_PROBLEM));
    }
    // Each bit that the verifier covers.
    alice.sequence = 1;
    let args = emit(&GetattrArgs { object: handle_of(&server, 0, NodeId::ROOT) });
    let number = (nfs3::PROGRAM, nfs3::VERSION, procedure::GETATTR);
    let message = alice.message(Procedure::Data, Service::None, number, &args);
    let covered = message.len() - args.len() - 16;
    for at in (0..4).chain(12..covered) {
        let mut bytes = message.to_vec();
        bytes[at] ^= 1;
        let (mut replies, _) = converse_by(&server, PEER, &[bytes.into()]);
        if let Some(reply) = replies.pop() {
            assert!(
                matches!(read(stream(reply)), Answer::Denied(_) | Answer::Accepted { stat: 4, .. }),
                "{at}"
            );
        }
    }
    assert!(
        matches!(alice.send(&server, message), Answer::Accepted { stat: 0, .. }),
        "none of them used up the number"
    );
}

#[test]
fn a_number_is_used_once() {
    let server = open_to(&[Flavors::Krb5]);
    let alice = Client { sequence: 9, ..Client::establish(&server, "alice@R") };
    let number = (nfs3::PROGRAM, nfs3::VERSION, procedure::NULL);
    let message = alice.message(Procedure::Data, Service::None, number, &[]);
    let (replies, ended) = converse_by(&server, PEER, &[message.clone(), message.clone()]);
    assert!(replies.len() == 1 && matches!(ended, Err(Ended::Malformed(_))), "{ended:?}");
    let (replies, ended) = converse_by(&server, PEER, &[message]);
    assert!(replies.is_empty() && ended.is_err(), "nor by another connection");
    let mut last = Client { sequence: 0x7fff_ffff, ..alice };
    assert_eq!(getattr(&server, &mut last, Service::None, 0), Err(CTX_PROBLEM));
}

#[test]
fn a_body_belongs_to_its_header() {
    let server = open_to(&KERBEROS);
    let mut alice = Client::establish(&server, "alice@R");
    let args = emit(&GetattrArgs { object: handle_of(&server, 0, NodeId::ROOT) });
    let number = (nfs3::PROGRAM, nfs3::VERSION, procedure::GETATTR);
    for service in [Service::Integrity, Service::Privacy] {
        let other = alice.protect(service, &args);
        alice.sequence += 1;
        let message = alice.message(Procedure::Data, service, number, &other);
        let Answer::Accepted { mic, stat: 4, .. } = alice.send(&server, message) else { panic!() };
        assert_eq!(mic, toy_mic("alice@R", &alice.sequence.to_be_bytes()), "GARBAGE_ARGS, verified");
        // Every truncation, every wrong byte except fill, and one word too many.
        let len = alice.protect(service, &args).len();
        let cut = (0..len).map(|len| (len, None));
        let wrong = (0..len).map(|at| (len, Some(at)));
        for (len, wrong) in cut.chain(wrong).chain([(len + 4, None)]) {
            alice.sequence += 1;
            let mut body = alice.protect(service, &args);
            body.resize(len, 0);
            if let Some(at) = wrong {
                body[at] ^= 0x80;
            }
            let message = alice.message(Procedure::Data, service, number, &body);
            let answer = alice.send(&server, message);
            assert!(matches!(answer, Answer::Accepted { stat: 4, .. }), "{service:?}, {len}, {wrong:?}");
        }
        assert_eq!(getattr(&server, &mut alice, service, 0), Ok(Status::OK), "intact");
    }
}

#[test]
fn a_context_ends_with_its_ticket_or_when_its_client_says_so() {
    let server = open_to(&[Flavors::Krb5]);
    let (mut brief, _) = Client::try_establish(&server, "alice@R", "nfs/host@R", 0);
    assert_eq!(getattr(&server, &mut brief, Service::None, 0), Err(CTX_PROBLEM));
    assert_eq!(getattr(&server, &mut brief, Service::None, 0), Err(CRED_PROBLEM), "it is gone");
    let mut alice = Client::establish(&server, "alice@R");
    let null = (nfs3::PROGRAM, nfs3::VERSION, 0);
    alice.sequence = 1;
    let other = alice.message(Procedure::Destroy, Service::None, (nfs3::PROGRAM, nfs3::VERSION, 1), &[]);
    assert_eq!(alice.send(&server, other), Answer::Denied(AuthStat::BADCRED), "not NULL");
    let destroy = alice.message(Procedure::Destroy, Service::None, null, &[]);
    let mic = toy_mic("alice@R", &1_u32.to_be_bytes());
    let expected = Answer::Accepted { mic, stat: 0, results: Bytes::new() };
    assert_eq!(alice.send(&server, destroy.clone()), expected);
    assert_eq!(alice.send(&server, destroy), CRED_PROBLEM);
}

#[test]
fn long_data_is_read_and_written_under_every_protection() {
    let server = open_to(&KERBEROS);
    let mut alice = Client::establish(&server, "alice@R");
    assert_eq!(create(&server, &mut alice, "f"), Ok(1000));
    let node = rt::block_on(server.vfs(0).lookup(NodeId::ROOT, b"f", false)).unwrap().unwrap().node;
    let file = handle_of(&server, 0, node);
    for (at, service) in SERVICES.into_iter().enumerate() {
        let content: Vec<u8> = (0..100_001).map(|n: usize| (n * 31 + at) as u8).collect();
        let data = Bytes::from(content.clone()).into();
        let count = content.len() as u32;
        let args = WriteArgs { head: WriteHead { file, offset: 0, count, stable: Stable::FileSync }, data };
        let written: Outcome<WriteOk, WccOnly> =
            alice.call(&server, service, procedure::WRITE, &args).unwrap();
        assert_eq!(written.unwrap().count, count);
        let args = ReadArgs { file, offset: 0, count };
        let read: Outcome<ReadOk, AttrOnly> = alice.call(&server, service, procedure::READ, &args).unwrap();
        assert_eq!(&read.unwrap().data[..], &content[..], "{service:?}");
    }
}

#[test]
fn without_a_keytab_there_are_no_contexts() {
    let server = crate::server::tests::server();
    let client = Client { name: "alice@R", handle: Bytes::new(), sequence: 0 };
    let token = emit(&InitToken(Bytes::from_static(b"alice@R nfs/host@R 9")));
    let message = client.message(Procedure::Init, Service::None, (nfs3::PROGRAM, 3, 0), &token);
    assert_eq!(client.send(&server, message), Answer::Denied(AuthStat::REJECTEDCRED));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn control_messages_of_any_bytes_are_answered_or_end_the_connection(
        body in prop::collection::vec(any::<u8>(), 0..200),
        procedure in prop::sample::select(vec![Procedure::Init, Procedure::ContinueInit, Procedure::Destroy]),
    ) {
        let server = open_to(&[Flavors::Krb5]);
        let client = Client { name: "alice@R", handle: Bytes::from_static(&[1; 16]), sequence: 1 };
        let message = client.message(procedure, Service::Privacy, (nfs3::PROGRAM, 3, 0), &body);
        converse_by(&server, PEER, &[message]).1.expect("an orderly end");
        prop_assert_eq!(server.gss.get().map(|gss| gss.table.len()), Some(0));
    }
}

#[test]
fn protected_results_whose_payload_cannot_be_read_become_an_error() {
    let refusing = || {
        let sink = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        weft_machine::File::from(std::os::fd::OwnedFd::from(sink))
    };
    let peer = weft_transport::Peer::Tcp(PEER.parse().unwrap());
    let body_of = |cut| {
        let mut e = Encoder::default();
        Reply::Success.emit(7, &mut e);
        // READ3resok: OK, no attributes, count, eof, length.
        [0, 0, 8, 1, 8].into_iter().for_each(|word| e.u32(word));
        let range = weft_machine::FileRange { file: refusing(), offset: 0, len: 8 };
        let data = weft_machine::Payload::File(range);
        let parts = vec![Part::Bytes(e.into_bytes()), Part::Payload { data, to: weft_transport::To::Ticket }];
        rt::block_on(super::body(&Pool::new(1 << 20), peer, 9, parts, cut)).unwrap()
    };
    let mut expected = protection::body(9, 8);
    [5, 0].into_iter().for_each(|word| expected.u32(word));
    assert_eq!(body_of(super::Cut::Read3).unwrap().into_bytes(), expected.into_bytes());
    assert!(body_of(super::Cut::Never).is_none());
}
