//! The caller's identity, and what a node's mode bits permit it.
//!
//! See RFC 5531 appendix A (AUTH_SYS ids are claims, not proofs) and POSIX file access permissions. A server that is not
//! root acts as itself, and the kernel decides. As root it acts as the caller where the share says so: then the kernel
//! judges him, see `judged`. Elsewhere it decides here before it acts.

use std::sync::Arc;

use weft_machine::credentials::Credentials;
use weft_machine::{LogLimit, rt};
use weft_store::access::Token;
use weft_store::access::posix::Process;
use weft_store::rights::Right;
use weft_store::rules::{ActsAs, Export, NOBODY, Ports, Squash};
use weft_store::{Attr, Caller as Acting, Error, Kind, SetAttr, SetTime, Share};
use weft_wire::security::Sid;

use super::credential::Credential;

/// Bits of [`Caller::check`].
pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const EXECUTE: u32 = 1;

/// How the server treats the identities that callers claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The server is root, so it alone decides what callers may do. Callers must then use reserved ports, unless an
    /// export says otherwise.
    pub decides: bool,
    /// A caller who claims to be root is mapped to nobody.
    pub squash_root: bool,
}

impl Policy {
    /// The ports that callers must use if an export does not say: reserved ones if claimed identities decide.
    pub(super) fn ports(self) -> Ports {
        if self.decides { Ports::Reserved } else { Ports::Any }
    }
}

/// What the share's rights grant the caller. They bind callers who have proved who they are.
pub(super) fn right(credential: &Credential, share: &Share) -> Right {
    match credential.ticket() {
        Some(ticket) if !share.rules.rights.are_open() => {
            ticket.rights.get(&share.id).copied().unwrap_or(Right::None)
        }
        Some(_) | None => Right::Write,
    }
}

/// One caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    uid: u32,
    gid: u32,
    gids: Vec<u32>,
    decides: bool,
    /// The kernel judges the caller: mode bits are not looked at here.
    judged: bool,
    /// Reads only: the export is read-only for this caller.
    read_only: bool,
    /// The caller claims to be root and is mapped to nobody.
    was_root: bool,
}

impl Caller {
    /// The caller, without export rules.
    pub fn of(credential: &Credential, policy: Policy) -> Caller {
        Caller::by(credential, policy, &Export::PLAIN)
    }

    /// The caller, by the rules of an export.
    pub fn by(credential: &Credential, policy: Policy, export: &Export) -> Caller {
        let by_default = if policy.squash_root { Squash::Root } else { Squash::None };
        let squash = export.squash.unwrap_or(by_default);
        let becomes_nobody = |id: u32| squash == Squash::All || (squash == Squash::Root && id == 0);
        let (decides, read_only) = (policy.decides, export.read_only);
        let gid = export.anonymous.1.unwrap_or(NOBODY);
        let group = |id: u32| if becomes_nobody(id) { gid } else { id };
        let ids = credential.ids();
        match ids {
            // Root's groups are dropped as well: a squashed caller is nobody in every respect.
            Some((uid, own, gids)) if !becomes_nobody(uid) => {
                let gids = if decides { gids.iter().copied().map(group).collect() } else { Vec::new() };
                Caller { uid, gid: group(own), gids, decides, judged: false, read_only, was_root: false }
            }
            _ => {
                let uid = export.anonymous.0.unwrap_or(NOBODY);
                let was_root = ids.is_some_and(|(uid, ..)| uid == 0);
                Caller { uid, gid, gids: Vec::new(), decides, judged: false, read_only, was_root }
            }
        }
    }

    /// The caller in a share, by its rules. `share` may act for him.
    pub fn in_share(credential: &Credential, policy: Policy, share: &Share) -> Caller {
        let mut caller = Caller::by(credential, policy, &share.rules.nfs);
        caller.read_only |= right(credential, share) < Right::Write;
        match share.vfs.caller() {
            Acting::User(user) => Caller {
                uid: user.uid(),
                gid: user.gid(),
                gids: user.groups().collect(),
                decides: true,
                judged: true,
                ..caller
            },
            Acting::Server => caller,
        }
    }

    /// As whom a share acts for him.
    pub fn acting(&self, acts: &ActsAs) -> Acting {
        let user = match acts {
            // The ids that a caller claims mean something only to a server that decides by them.
            ActsAs::Caller if self.decides => {
                // An id that is no id is nobody's.
                Credentials::new(self.uid, self.gid, &self.gids)
                    .or_else(|| Credentials::new(NOBODY, NOBODY, &[]))
                    .map(Arc::new)
            }
            ActsAs::User(user) => Some(user.clone()),
            ActsAs::Caller | ActsAs::Server => None,
        };
        user.map_or(Acting::Server, Acting::User)
    }

    /// The user id after squashing.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether permission checks do not apply to it.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// The caller's token for access checks against security descriptors.
    pub fn token(&self) -> Token {
        let mut token = Token::unix(self.uid, self.gid, &self.gids);
        if !self.decides {
            // Whatever it creates belongs to the server's user, which is also its OWNER@.
            let own = Sid::unix_user(Process::own().uid);
            token.others.push(std::mem::replace(&mut token.user, own));
        }
        token
    }

    fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.gids.contains(&gid)
    }

    /// What the export lets anybody have.
    pub(super) fn possible(&self, attr: &Attr) -> u32 {
        // Data written to a pipe or a device stays on the client.
        let changes = !matches!(attr.kind, Kind::Special(_));
        if self.read_only && changes { READ | EXECUTE } else { READ | WRITE | EXECUTE }
    }

    /// The subset of READ, WRITE and EXECUTE that mode bits grant.
    pub(super) fn granted(&self, attr: &Attr) -> u32 {
        let possible = self.possible(attr);
        let any_execute = if attr.mode & 0o111 != 0 || attr.kind == Kind::Dir { EXECUTE } else { 0 };
        if !self.decides || self.uid == 0 {
            return (READ | WRITE | any_execute) & possible;
        }
        let class = match () {
            () if attr.uid == self.uid => attr.mode >> 6,
            () if self.in_group(attr.gid) => attr.mode >> 3,
            () => attr.mode,
        };
        class & possible
    }

    /// Refuses unless all of `wanted` is granted, or the kernel will judge.
    pub fn check(&self, attr: &Attr, wanted: u32) -> Result<(), Error> {
        self.check_writable(wanted)?;
        if wanted & !self.granted(attr) == 0 {
            return Ok(());
        }
        // Where the kernel judges, it refuses, too, unless an ACL names nobody.
        self.tell_if_squashed();
        if self.judged { Ok(()) } else { Err(Error::Access) }
    }

    /// The error for a missing right.
    pub(super) fn denied(&self) -> Error {
        self.tell_if_squashed();
        Error::Access
    }

    /// Logs why a client's root lacks a right: the client itself reports only "permission denied".
    fn tell_if_squashed(&self) {
        static DENIED: LogLimit = LogLimit::new();
        if self.was_root
            && let Some(left_out) = DENIED.pass(rt::now())
        {
            tracing::info!(
                "root of an NFS client is mapped to nobody, whom a mode refuses; to allow it: weft serve --no-root-squash or \
                 --export SHARE:no_root_squash, or in a configuration file \
                 shares.SHARE.nfs.squash = \"no_root_squash\"{left_out}"
            );
        }
    }

    /// Refuses changes of a share that is read-only for this caller.
    pub fn check_writable(&self, wanted: u32) -> Result<(), Error> {
        if self.read_only && wanted & WRITE != 0 { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Whether the caller owns the node: an owner may read and write a file that it opened before the mode changed.
    pub fn owns(&self, attr: &Attr) -> bool {
        !self.decides || self.uid == 0 || self.uid == attr.uid
    }

    /// Checks the creation of a name in a directory.
    pub fn check_make(&self, dir: &Attr) -> Result<(), Error> {
        self.check(dir, WRITE | EXECUTE)
    }

    /// Checks the removal of a name from a directory; in a sticky one, only the owner's own files may be removed.
    pub fn check_unmake(&self, dir: &Attr, victim: &Attr) -> Result<(), Error> {
        self.check_make(dir)?;
        let sticky = !self.judged && dir.mode & 0o1000 != 0 && !self.owns(dir) && !self.owns(victim);
        if sticky { Err(Error::Access) } else { Ok(()) }
    }

    /// Checks the creation of another name for a file, like Linux's fs.protected_hardlinks (proc_sys_fs(5)). A name in a directory of
    /// his own is more than he has: there he can replace the file, and its owner cannot remove it any more. The store refuses
    /// directories.
    pub fn check_link(&self, file: &Attr) -> Result<(), Error> {
        let lends = file.mode & 0o4000 != 0 || file.mode & 0o2010 == 0o2010;
        let may_use =
            file.kind == Kind::File && !lends && self.granted(file) & (READ | WRITE) == READ | WRITE;
        if self.judged || self.owns(file) || may_use || file.kind == Kind::Dir {
            Ok(())
        } else {
            Err(Error::NotPermitted)
        }
    }

    /// Whether the caller may create devices: only root may, where the server decides; the kernel judges others.
    pub fn makes_devices(&self) -> bool {
        !self.decides || self.judged || self.uid == 0
    }

    /// Checks a change of attributes (POSIX chmod, chown, utimensat). Only an owner may set the owner or group, even to
    /// the present one: chown(2) as root then clears set-user-id, set-group-id and file capabilities.
    pub fn check_set(&self, attr: &Attr, set: &SetAttr) -> Result<(), Error> {
        self.check_writable(WRITE)?;
        if !self.decides || self.uid == 0 {
            return Ok(());
        }
        let owns = attr.uid == self.uid;
        let gives_away = set.uid.is_some_and(|uid| uid != attr.uid);
        let foreign_group = set.gid.is_some_and(|gid| gid != attr.gid && !self.in_group(gid));
        let to = |time: Option<SetTime>| matches!(time, Some(SetTime::To(_)));
        let touches = set.atime.is_some() || set.mtime.is_some();
        let assigns = set.uid.is_some() || set.gid.is_some();
        let as_owner = assigns || set.mode.is_some() || to(set.atime) || to(set.mtime);
        if gives_away || foreign_group || (as_owner && !owns) {
            return Err(Error::NotPermitted);
        }
        if touches && !owns {
            self.check(attr, WRITE)?;
        }
        Ok(())
    }

    /// The same attributes without the set-group-id bit if it would grant a group that the caller is not in (POSIX
    /// chmod).
    pub fn settable(&self, attr: &Attr, set: SetAttr) -> SetAttr {
        let group = set.gid.unwrap_or(attr.gid);
        self.lending(group, set)
    }

    fn lending(&self, group: u32, set: SetAttr) -> SetAttr {
        let lends = !self.decides || self.uid == 0 || self.in_group(group);
        SetAttr { mode: set.mode.map(|mode| if lends { mode } else { mode & !0o2000 }), ..set }
    }

    /// The attributes of a new node, which belongs to the caller where the server decides. A caller other than root
    /// cannot create nodes for others: a requested owner is ignored, as knfsd does, because some clients send one.
    pub fn owned(&self, set: SetAttr, dir: &Attr) -> SetAttr {
        if !self.decides {
            return set;
        }
        let root = self.uid == 0;
        // A directory with the set-group-id bit passes its group on.
        let given = if dir.mode & 0o2000 != 0 { dir.gid } else { self.gid };
        let uid = set.uid.filter(|_| root);
        let gid = set.gid.filter(|gid| root || self.in_group(*gid));
        let (uid, gid, group) = match self.judged {
            // The kernel makes the caller the owner, and knows which group the directory gives.
            true => (uid, gid, gid.unwrap_or(given)),
            false => (uid.or(Some(self.uid)), gid.or(Some(given)), gid.unwrap_or(given)),
        };
        self.lending(group, SetAttr { uid, gid, ..set })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use weft_store::NodeId;
    use weft_wire::rpc::AuthSys;

    use super::*;

    fn sys(uid: u32, gid: u32, more: &[u32]) -> Credential {
        let mut sys = AuthSys::new(Bytes::new(), uid, gid);
        more.iter().for_each(|gid| sys.push_gid(*gid));
        Credential::Sys(sys)
    }

    fn attr(kind: Kind, mode: u32, uid: u32, gid: u32) -> Attr {
        let t = weft_store::Timestamp::default();
        Attr {
            node: NodeId(2),
            fileid: 2,
            stable: weft_store::Stable([0; 24]),
            kind,
            size: 0,
            allocated: 0,
            nlink: 1,
            mode,
            uid,
            gid,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            is_sealed: false,
        }
    }

    const DECIDES: Policy = Policy { decides: true, squash_root: true };

    #[test]
    fn mode_bits_by_class() {
        let file = attr(Kind::File, 0o640, 10, 20);
        let granted = |uid, gid, more: &[u32]| Caller::of(&sys(uid, gid, more), DECIDES).granted(&file);
        assert_eq!(granted(10, 1, &[]), READ | WRITE);
        assert_eq!(granted(11, 20, &[]), READ);
        assert_eq!(granted(11, 1, &[5, 20]), READ);
        assert_eq!(granted(11, 1, &[]), 0);
        // The owner's class applies even where another would grant more.
        let odd = attr(Kind::File, 0o077, 10, 20);
        assert_eq!(Caller::of(&sys(10, 20, &[]), DECIDES).granted(&odd), 0);
    }

    #[test]
    fn root_is_nobody_unless_told_otherwise() {
        let secret = attr(Kind::File, 0o600, 0, 0);
        assert_eq!(Caller::of(&sys(0, 0, &[0]), DECIDES).granted(&secret), 0);
        assert_eq!(Caller::of(&Credential::None, DECIDES).granted(&secret), 0);
        let trusting = Policy { squash_root: false, ..DECIDES };
        let root = Caller::of(&sys(0, 0, &[]), trusting);
        assert_eq!(root.granted(&secret), READ | WRITE);
        assert!(root.makes_devices() && !Caller::of(&sys(0, 0, &[]), DECIDES).makes_devices());
        assert_eq!(root.granted(&attr(Kind::File, 0o100, 5, 5)), READ | WRITE | EXECUTE);
        // A server that is not root acts as itself for everyone.
        let itself = Policy { decides: false, squash_root: true };
        assert_eq!(Caller::of(&sys(5, 5, &[]), itself).granted(&secret), READ | WRITE);
    }

    #[test]
    fn what_is_set_by_whom() {
        let file = attr(Kind::File, 0o666, 10, 20);
        let caller = |uid, gid| Caller::of(&sys(uid, gid, &[]), DECIDES);
        let set = SetAttr::default;
        let ok = |uid, gid, set: SetAttr| caller(uid, gid).check_set(&file, &set).is_ok();
        assert!(
            ok(10, 1, SetAttr { mode: Some(0), ..set() }) && !ok(11, 20, SetAttr { mode: Some(0), ..set() })
        );
        assert!(
            !ok(10, 1, SetAttr { uid: Some(11), ..set() }) && ok(10, 1, SetAttr { uid: Some(10), ..set() })
        );
        assert!(
            ok(10, 1, SetAttr { gid: Some(1), ..set() }) && !ok(10, 1, SetAttr { gid: Some(2), ..set() })
        );
        // Nobody else sets the present owner or group, which would cost the file its set-user-id bit; its owner does.
        for (uid, gid) in [(Some(10), None), (None, Some(20)), (Some(10), Some(20))] {
            let same = SetAttr { uid, gid, ..set() };
            assert!(ok(10, 1, same.clone()) && !ok(11, 20, same), "{uid:?} {gid:?}");
        }
        let whole = SetAttr { mode: Some(0o600), uid: Some(10), gid: Some(1), size: Some(0), ..set() };
        assert!(ok(10, 1, whole.clone()) && !ok(11, 1, whole));
        let now = SetAttr { mtime: Some(SetTime::Now), ..set() };
        let then = SetAttr { mtime: Some(SetTime::To(weft_store::Timestamp::default())), ..set() };
        assert!(ok(11, 1, now.clone()) && !ok(11, 1, then.clone()) && ok(10, 1, then));
        let sticky = attr(Kind::Dir, 0o1777, 0, 0);
        assert!(caller(10, 1).check_unmake(&sticky, &file).is_ok());
        assert!(caller(11, 1).check_unmake(&sticky, &file).is_err());
    }
    #[test]
    fn nobody_makes_what_is_anothers_or_lends_a_group_of_others() {
        let asked = |uid, gid, mode| SetAttr { uid, gid, mode: Some(mode), ..SetAttr::default() };
        let user = Caller::of(&sys(10, 20, &[30]), DECIDES);
        let root = Caller::of(&sys(0, 0, &[]), Policy { squash_root: false, ..DECIDES });
        let (plain, handing) = (attr(Kind::Dir, 0o777, 0, 40), attr(Kind::Dir, 0o2777, 0, 40));
        let made = |caller: &Caller, dir: &Attr, set| {
            let set = caller.owned(set, dir);
            (set.uid.unwrap(), set.gid.unwrap(), set.mode.unwrap())
        };
        assert_eq!(made(&user, &plain, asked(Some(0), Some(0), 0o4755)), (10, 20, 0o4755));
        assert_eq!(made(&user, &plain, asked(None, Some(30), 0o2755)), (10, 30, 0o2755));
        assert_eq!(made(&user, &handing, asked(None, None, 0o2755)), (10, 40, 0o755));
        assert_eq!(made(&root, &handing, asked(Some(5), Some(6), 0o6755)), (5, 6, 0o6755));
        assert_eq!(made(&root, &handing, asked(None, None, 0o2755)), (0, 40, 0o2755));
        // The same for existing nodes, including folders.
        for kind in [Kind::File, Kind::Dir] {
            let mode = |caller: &Caller, group, gid| {
                caller.settable(&attr(kind, 0o755, 10, group), asked(None, gid, 0o3777)).mode.unwrap()
            };
            assert_eq!(mode(&user, 40, None), 0o1777);
            assert_eq!(mode(&user, 40, Some(30)), 0o3777);
            assert_eq!(mode(&user, 20, None), 0o3777);
            assert_eq!(mode(&root, 40, None), 0o3777);
        }
    }
}
