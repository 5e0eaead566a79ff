//! A stand-alone DFS namespace: shares that are roots, and links in them to other shares.
//!
//! Spec: [MS-DFSC] 3.2 (root target), [MS-SMB2] 3.3.5.9 (names are normalized), 3.3.5.15.2 (referrals). Owns the
//! configured links. There are no domains, sites or costs, and targets are not probed: clients get the targets in the
//! configured order and try them in that order.

use weft_wire::smb2::NtStatus;
use weft_wire::smb2::dfs::{Flags, NEWEST, Request, Response, Target};
use weft_wire::smb2::utf16;

use super::answer::Failure;

/// How long clients cache referrals of links and of roots: Windows' values.
const LINK_SECONDS: u32 = 1800;
const ROOT_SECONDS: u32 = 300;
/// Targets per link.
const MAX_TARGETS: usize = 16;
/// Links per server.
const MAX_LINKS: usize = 4096;
/// How a link is written.
const FORM: &str = "write ROOT/NAME=//HOST/SHARE, for example dfs/projects=//nas/projects";
/// STATUS_FS_DRIVER_REQUIRED: the server has no DFS.
const FS_DRIVER_REQUIRED: NtStatus = NtStatus(0xC000_019C);

/// A link: a name below a root that refers to other shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The share that is the root.
    root: String,
    /// The names from the root to the link; at least one.
    names: Vec<String>,
    /// `\server\share\path`, best first; at least one.
    targets: Vec<String>,
}

impl Link {
    /// Parses `ROOT/NAME=//HOST/SHARE[/PATH][,//HOST/SHARE]`. Errors say what to write.
    pub fn parse(text: &str) -> Result<Link, String> {
        let (from, to) = text.split_once('=').ok_or(FORM)?;
        let (root, path) = from.split_once('/').ok_or(FORM)?;
        Link::new(root, path, to.split(','))
    }

    /// A link at a path below a share. Errors say what to write.
    pub fn new<'a>(
        root: &str,
        path: &str,
        targets: impl IntoIterator<Item = &'a str>,
    ) -> Result<Link, String> {
        let names: Vec<String> = path.split('/').map(str::to_owned).collect();
        let bad = |name: &String| name.is_empty() || name == "." || name == ".." || name.contains('\\');
        if root.is_empty() || names.iter().any(bad) {
            let from = format!("{root}/{path}");
            return Err(format!("{from:?} is not a path below a share, for example dfs/projects"));
        }
        let targets: Vec<String> = targets
            .into_iter()
            .map(|target| {
                let slashes = target.trim().replace('/', "\\");
                let parts: Vec<&str> =
                    slashes.trim_start_matches('\\').trim_end_matches('\\').split('\\').collect();
                match slashes.starts_with("\\\\")
                    && parts.len() >= 2
                    && parts.iter().all(|part| !part.is_empty())
                {
                    true => Ok(format!("\\{}", parts.join("\\"))),
                    false => Err(format!("{target:?} is not a valid link target: write //HOST/SHARE, for example //nas/projects")),
                }
            })
            .collect::<Result<_, _>>()?;
        if targets.is_empty() {
            return Err("the link has no target: write //HOST/SHARE".to_owned());
        }
        if targets.len() > MAX_TARGETS {
            return Err(format!("{:?} has more than {MAX_TARGETS} targets", format!("{root}/{path}")));
        }
        Ok(Link { root: root.to_owned(), names, targets })
    }

    /// The path of the link in its share.
    pub fn path(&self) -> String {
        self.names.join("/")
    }

    /// The targets, as `//server/share/path`, best first.
    pub fn targets(&self) -> impl Iterator<Item = String> {
        self.targets.iter().map(|target| format!("/{}", target.replace('\\', "/")))
    }

    /// The share that the link makes a root.
    pub fn root(&self) -> &str {
        &self.root
    }
}

/// The links of a server.
#[derive(Clone, Debug, Default)]
pub struct Namespace(Vec<Link>);

/// Links that make no namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNamespace {
    /// There are too many.
    #[error("more than {MAX_LINKS} DFS links")]
    TooMany,
    /// Two links of one root conflict: one is at the path of the other, or below it.
    #[error(
        "the DFS links {root}/{} and {root}/{} conflict: give one link both targets, separated by a comma",
        .paths[0], .paths[1]
    )]
    Conflict {
        /// The share.
        root: String,
        /// The paths of the links in it.
        paths: [String; 2],
    },
}

impl Namespace {
    /// A namespace of these links.
    ///
    /// # Errors
    /// There are too many of them, or two of them conflict.
    pub fn new(links: Vec<Link>) -> Result<Namespace, BadNamespace> {
        if links.len() > MAX_LINKS {
            return Err(BadNamespace::TooMany);
        }
        for (i, one) in links.iter().enumerate() {
            for other in links.iter().take(i) {
                if same(&one.root, &other.root)
                    && (begins(&one.names, &other.names) || begins(&other.names, &one.names))
                {
                    let paths = [other.path(), one.path()];
                    return Err(BadNamespace::Conflict { root: other.root.clone(), paths });
                }
            }
        }
        Ok(Namespace(links))
    }

    /// Whether there are any.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a share is a root.
    pub(super) fn is_root(&self, share: &str) -> bool {
        self.0.iter().any(|link| same(&link.root, share))
    }

    /// Whether a path in a share goes through a link, or ends at one.
    pub(super) fn covers(&self, share: &str, path: &str) -> bool {
        !self.0.is_empty() && self.find(share, &split(path)).is_some()
    }

    fn find(&self, share: &str, path: &[&str]) -> Option<&Link> {
        self.0.iter().find(|link| same(&link.root, share) && begins(path, &link.names))
    }

    /// The directories of a share that contain links, each once.
    pub(super) fn directories(&self, share: &str) -> Vec<&[String]> {
        let mut all: Vec<&[String]> = Vec::new();
        for link in self.0.iter().filter(|link| same(&link.root, share)) {
            let [dir @ .., _] = link.names.as_slice() else { continue };
            if !all.iter().any(|known| known.len() == dir.len() && begins(known, dir)) {
                all.push(dir);
            }
        }
        all
    }

    /// The names in directory `path` of a share that are links.
    pub(super) fn links_in<'a>(
        &'a self,
        share: &'a str,
        path: &'a [String],
    ) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter_map(move |link| {
            let (last, before) = link.names.split_last()?;
            let here = same(&link.root, share) && before.len() == path.len() && begins(before, path);
            here.then_some(last.as_str())
        })
    }

    /// 3.2.4.1: converts a file name in a namespace, `server\root\path`, to a path in the share.
    pub(super) fn normalize<'a>(&self, share: &str, name: &'a str) -> Result<&'a str, NtStatus> {
        let rest = name.trim_start_matches('\\').split_once('\\').map_or("", |(_server, rest)| rest);
        let (root, path) = rest.split_once('\\').unwrap_or((rest, ""));
        // An empty name means the root itself.
        if !name.is_empty() && !same(root, share) {
            return Err(NtStatus::OBJECT_PATH_NOT_FOUND);
        }
        Ok(path)
    }

    /// Answers FSCTL_DFS_GET_REFERRALS, or its newer form, in at most `limit` bytes. Roots for which `may_use` is false do
    /// not exist for the caller: their links name other servers and shares.
    pub(super) fn answer(
        &self,
        input: &[u8],
        newer: bool,
        limit: u32,
        may_use: impl Fn(&str) -> bool,
    ) -> Result<Vec<u8>, Failure> {
        if self.is_empty() {
            return Err(FS_DRIVER_REQUIRED.into());
        }
        let parse = if newer { Request::parse_ex } else { Request::parse };
        let request = parse(input).map_err(|_| Failure::from(NtStatus::INVALID_PARAMETER))?;
        if let [_, root, ..] = &split(&request.path)[..]
            && self.is_root(root)
            && !may_use(root)
        {
            return Err(NtStatus::NOT_FOUND.into());
        }
        self.refer(&request, limit)
    }

    /// 3.2.5: the referral for a path.
    fn refer(&self, request: &Request, limit: u32) -> Result<Vec<u8>, Failure> {
        let path = split(&request.path);
        // A request without a server or share asks for domains or controllers, which do not exist here.
        let [server, share, below @ ..] = &path[..] else {
            return Err(NtStatus::INVALID_PARAMETER.into());
        };
        if request.max_level == 0 {
            return Err(NtStatus::INVALID_PARAMETER.into());
        }
        if !self.is_root(share) {
            return Err(NtStatus::NOT_FOUND.into());
        }
        let version = request.max_level.min(NEWEST);
        let link = self.find(share, below);
        let count = link.map_or(0, |link| link.names.len()).saturating_add(2);
        let about: String = path.iter().take(count).flat_map(|name| ["\\", name]).collect();
        let (flags, seconds, targets) = match link {
            Some(link) => (Flags::STORAGE_SERVERS, LINK_SECONDS, link.targets.clone()),
            // The root is on this server, under whatever name the client knows us by.
            None => (
                Flags::REFERRAL_SERVERS | Flags::STORAGE_SERVERS,
                ROOT_SECONDS,
                vec![format!("\\{server}\\{share}")],
            ),
        };
        let flags = if version == 1 { Flags::REFERRAL_SERVERS | Flags::STORAGE_SERVERS } else { flags };
        let response = Response {
            version,
            // Counted in the path as the client wrote it; a path is never longer than a message.
            path_consumed: u16::try_from(utf16::encoded_len(&about))
                .map_err(|_| NtStatus::INVALID_PARAMETER)?,
            flags,
            root: link.is_none(),
            seconds,
            path: about,
            // Each target is a set of its own, so the order counts.
            targets: targets.into_iter().map(|address| Target { address, set_boundary: true }).collect(),
        };
        response.emit(limit as usize).ok_or(NtStatus::BUFFER_OVERFLOW.into())
    }
}

fn split(path: &str) -> Vec<&str> {
    path.split('\\').filter(|name| !name.is_empty()).collect()
}

/// [MS-DFSC] 3.2.5.5: compares case-insensitively.
fn same(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b) || a.to_lowercase() == b.to_lowercase()
}

fn begins(path: &[impl AsRef<str>], front: &[impl AsRef<str>]) -> bool {
    path.len() >= front.len() && front.iter().zip(path).all(|(a, b)| same(a.as_ref(), b.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
        let links = ["dfs/Link=//one/share,//two/share/sub", "dfs/dir/deep=//three/x"];
        Namespace::new(links.into_iter().map(|link| Link::parse(link).unwrap()).collect()).unwrap()
    }

    fn refer(path: &str, max_level: u16) -> Result<Response, NtStatus> {
        let request = Request { max_level, path: path.into() };
        let bytes = namespace().refer(&request, 4096).map_err(|failure| failure.status)?;
        Ok(Response::parse(&bytes).unwrap())
    }

    #[test]
    fn what_a_link_is_written_like() {
        let link = Link::parse("dfs/a/b=//host/share/sub/").unwrap();
        assert_eq!(link.root(), "dfs");
        assert_eq!(link.targets, [r"\host\share\sub"]);
        assert_eq!(
            (link.path(), link.targets().collect()),
            ("a/b".into(), vec!["//host/share/sub".to_owned()])
        );
        for bad in [
            "",
            "dfs=//h/s",
            "dfs/=//h/s",
            "/a=//h/s",
            "dfs/a",
            "dfs/a=",
            "dfs/a=h/s",
            "dfs/a=//h",
            "dfs/../a=//h/s",
        ] {
            let refused = Link::parse(bad).unwrap_err();
            let says = ["//HOST/SHARE", "is not a path below a share, for example dfs/projects"];
            assert!(says.iter().any(|says| refused.contains(says)), "{bad}: {refused}");
        }
        let two = |a: &str, b: &str| Namespace::new(vec![Link::parse(a).unwrap(), Link::parse(b).unwrap()]);
        let conflict = two("dfs/a=//h/s", "DFS/A/b=//h/s").unwrap_err().to_string();
        assert!(conflict.contains("dfs/a and dfs/A/b"), "{conflict}");
        assert!(two("dfs/a=//h/s", "dfs/ab=//h/s").is_ok());
    }

    #[test]
    fn a_link_is_told_with_what_it_stands_for() {
        let answer = refer(r"\Srv\DFS\lINK\some\file", 4).unwrap();
        assert_eq!(answer.path, r"\Srv\DFS\lINK");
        assert_eq!(usize::from(answer.path_consumed), 2 * answer.path.len());
        assert_eq!((answer.root, answer.flags, answer.version), (false, Flags::STORAGE_SERVERS, 4));
        let targets: Vec<_> = answer.targets.iter().map(|target| target.address.as_str()).collect();
        assert_eq!(targets, [r"\one\share", r"\two\share\sub"]);
        assert_eq!(refer(r"\srv\dfs\dir\deep", 3).unwrap().targets.len(), 1);
        assert_eq!(refer(r"\srv\dfs\link", 9).unwrap().version, 4);
    }

    #[test]
    fn a_root_is_where_the_client_asked() {
        for path in [r"\srv.example\dfs", r"srv.example\dfs\dir", r"\srv.example\dfs\linked"] {
            let answer = refer(path, 3).unwrap();
            assert_eq!((answer.root, answer.targets.len(), answer.path_consumed), (true, 1, 32), "{path}");
            assert_eq!(answer.targets[0].address, r"\srv.example\dfs");
        }
    }

    #[test]
    fn what_is_not_here() {
        assert_eq!(refer(r"\srv\other\x", 4).unwrap_err(), NtStatus::NOT_FOUND);
        assert_eq!(refer("", 4).unwrap_err(), NtStatus::INVALID_PARAMETER);
        assert_eq!(refer(r"\domain", 4).unwrap_err(), NtStatus::INVALID_PARAMETER);
        assert_eq!(refer(r"\srv\dfs", 0).unwrap_err(), NtStatus::INVALID_PARAMETER);
        let request = Request { max_level: 4, path: r"\srv\dfs".into() };
        assert_eq!(namespace().refer(&request, 8).unwrap_err().status, NtStatus::BUFFER_OVERFLOW);
        let none = Namespace::default().answer(&[], false, 4096, |_| true);
        assert_eq!(none.unwrap_err().status, FS_DRIVER_REQUIRED);
    }

    #[test]
    fn a_root_that_the_caller_may_not_use_is_not_here() {
        let mut bytes = 4u16.to_le_bytes().to_vec();
        bytes.extend(r"\srv\dfs\link".encode_utf16().chain([0]).flat_map(u16::to_le_bytes));
        let answer = |may_use: bool| namespace().answer(&bytes, false, 4096, |root| may_use && root == "dfs");
        assert!(answer(true).is_ok());
        assert_eq!(answer(false).unwrap_err().status, NtStatus::NOT_FOUND);
    }

    #[test]
    fn names_lose_their_front() {
        let normalize = |name| namespace().normalize("dfs", name);
        assert_eq!(normalize(r"srv\DFS\a\b"), Ok(r"a\b"));
        assert_eq!(normalize(r"srv\dfs"), Ok(""));
        assert_eq!(normalize(""), Ok(""));
        assert_eq!(normalize(r"srv\other\a"), Err(NtStatus::OBJECT_PATH_NOT_FOUND));
        assert_eq!(normalize("a"), Err(NtStatus::OBJECT_PATH_NOT_FOUND));
        assert!(namespace().covers("DFS", r"link\a") && namespace().covers("dfs", r"dir\deep"));
        assert!(!namespace().covers("dfs", "dir") && !namespace().covers("other", "link"));
        let dir = ["DIR".to_owned()];
        assert_eq!(namespace().links_in("dfs", &[]).collect::<Vec<_>>(), ["Link"]);
        assert_eq!(namespace().links_in("dfs", &dir).collect::<Vec<_>>(), ["deep"]);
    }
}
