//! CREATE UNCHECKED while others remove or create the name.

use std::sync::Mutex;

use weft_store::{Attr, Backend, Caller, Exists, Make, Op, Outcome as Done, SetAttr};

use super::*;

/// What another client does right after the name was looked up, once.
#[derive(Clone)]
enum Rival {
    Remove,
    /// Creates a file of root with this mode.
    Create(u32),
}

/// An in-memory file system with a rival.
struct Raced {
    ram: Ram,
    rival: Arc<Mutex<Option<Rival>>>,
}

const NAME: &[u8] = b"f";
const CONTENT: &[u8] = b"content";

impl Raced {
    async fn act(&self, rival: Rival) -> Result<(), weft_store::Error> {
        let (dir, name) = (NodeId::ROOT, NAME.to_vec());
        match rival {
            Rival::Remove => self.ram.submit(Op::Remove { dir, name }, Caller::Server).await.map(drop),
            Rival::Create(mode) => {
                let set = SetAttr {
                    mode: Some(mode),
                    uid: Some(0),
                    gid: Some(0),
                    size: Some(CONTENT.len() as u64),
                    ..SetAttr::default()
                };
                let op = Op::Create { dir, name, make: Make::File, exists: Exists::Fail, set };
                self.ram.submit(op, Caller::Server).await.map(drop)
            }
        }
    }
}

impl Backend for Raced {
    fn kind(&self) -> &'static str {
        "ram"
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Done, weft_store::Error>> {
        Box::pin(async move {
            let looks = matches!(&op, Op::Lookup { name, .. } if name == NAME);
            let outcome = self.ram.submit(op, by).await;
            let rival = if looks { self.rival.lock().unwrap().take() } else { None };
            if let Some(rival) = rival {
                self.act(rival).await?;
            }
            outcome
        })
    }
}

/// A server that decides what callers may do; its root directory has this mode and belongs to root.
struct Race {
    server: Arc<Server>,
    rival: Arc<Mutex<Option<Rival>>>,
}

impl Race {
    fn new(mode: u32) -> Race {
        let rival = Arc::<Mutex<_>>::default();
        let raced = Raced { ram: Ram::new(16 << 20), rival: Arc::clone(&rival) };
        let share = Share::new("ram", Vfs::new(raced));
        let set = SetAttr { mode: Some(mode), uid: Some(0), gid: Some(0), ..SetAttr::default() };
        rt::block_on(share.vfs.setattr(NodeId::ROOT, set)).unwrap().unwrap();
        let policy = Policy { decides: true, squash_root: true };
        let limits = Limits::default();
        let server =
            Server::new(Config { shares: vec![share], pool: Pool::new(0), limits, policy, durable: None });
        Race { server, rival }
    }

    /// Root's own file, of this mode.
    fn existing(self, mode: u32) -> Race {
        let set = SetAttr {
            mode: Some(mode),
            uid: Some(0),
            gid: Some(0),
            size: Some(CONTENT.len() as u64),
            ..SetAttr::default()
        };
        let vfs = &self.server.vfs(0);
        rt::block_on(vfs.create(NodeId::ROOT, NAME, Make::File, Exists::Fail, set)).unwrap().unwrap();
        self
    }

    /// CREATE UNCHECKED by user 10 while the rival acts.
    fn create(&self, rival: Option<Rival>, attributes: SetAttributes) -> Status {
        *self.rival.lock().unwrap() = rival;
        let dir = handle_of(&self.server, 0, NodeId::ROOT);
        let object = DirOp { dir, name: Name(Bytes::from_static(NAME)) };
        let args = CreateArgs { object, how: CreateHow::Unchecked(attributes) };
        let credential = Credential::Sys(AuthSys::new(Bytes::from_static(b"host"), 10, 20));
        let call = call_of(nfs3::PROGRAM, nfs3::VERSION, procedure::CREATE, credential, &args);
        let (reply, mut d) = reply_to(&self.server, call);
        assert_eq!(reply, Reply::Success);
        assert!(self.rival.lock().unwrap().is_none());
        Status(d.u32().unwrap())
    }

    fn found(&self) -> Result<Attr, weft_store::Error> {
        rt::block_on(self.server.vfs(0).lookup(NodeId::ROOT, NAME, false)).unwrap()
    }
}

/// What a caller asks who wants a set-user-id file of root.
fn roots() -> SetAttributes {
    SetAttributes { mode: Some(0o4755), uid: Some(0), gid: Some(0), ..SetAttributes::default() }
}

#[test]
fn a_file_that_vanishes_is_created_as_the_callers_own() {
    for size in [None, Some(0)] {
        let race = Race::new(0o777).existing(0o666);
        assert_eq!(race.create(Some(Rival::Remove), SetAttributes { size, ..roots() }), Status::OK);
        let made = race.found().unwrap();
        assert_eq!((made.uid, made.gid, made.size), (10, 20, 0), "{size:?}");
    }
}

#[test]
fn a_file_that_vanishes_is_not_created_where_the_caller_may_not() {
    for size in [None, Some(0)] {
        let race = Race::new(0o755).existing(0o666);
        assert_eq!(race.create(Some(Rival::Remove), SetAttributes { size, ..roots() }), Status::ACCES);
        assert!(matches!(race.found(), Err(weft_store::Error::NotFound)), "{size:?}");
    }
}

#[test]
fn a_file_that_appears_is_not_truncated_against_its_mode() {
    let empty = SetAttributes { size: Some(0), ..SetAttributes::default() };
    let race = Race::new(0o777);
    assert_eq!(race.create(Some(Rival::Create(0o644)), empty.clone()), Status::ACCES);
    assert_eq!(race.found().unwrap().size, CONTENT.len() as u64);
    // A writable one is truncated.
    let race = Race::new(0o777);
    assert_eq!(race.create(Some(Rival::Create(0o666)), empty), Status::OK);
    assert_eq!(race.found().unwrap().size, 0);
}

#[test]
fn an_existing_file_keeps_all_but_its_size() {
    let race = Race::new(0o755).existing(0o666);
    assert_eq!(race.create(None, roots()), Status::OK);
    assert_eq!(race.found().unwrap().size, CONTENT.len() as u64);
    assert_eq!(race.create(None, SetAttributes { size: Some(3), ..roots() }), Status::OK);
    let attr = race.found().unwrap();
    assert_eq!((attr.size, attr.mode, attr.uid, attr.gid), (3, 0o666, 0, 0));
}

#[test]
fn an_existing_file_is_found_only_where_the_caller_may_search() {
    let race = Race::new(0o766).existing(0o666);
    assert_eq!(race.create(None, SetAttributes::default()), Status::ACCES);
}
