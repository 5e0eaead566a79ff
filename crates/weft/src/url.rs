//! URLs of remote files: `smb://USER@HOST:PORT/SHARE/PATH` and
//! `nfs://HOST:PORT/EXPORT/PATH?vers=4.1&sec=krb5p&mountport=N&rdmaport=N`. Parsing neither resolves names nor connects.

use std::fmt;
use std::path::Path;

use crate::args::default_user;
use crate::default_port;
use crate::host::{in_brackets, is_ipv6};
use crate::misuse::Misuse;
use crate::out::{ShellCommand, shell_word};

/// The protocol of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// SMB.
    Smb,
    /// NFS.
    Nfs,
}

/// A version of NFS that Weft's client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NfsVersion {
    /// 3.
    V3,
    /// 4.1.
    V41,
}

/// How an NFS server learns who calls, and how calls are protected: mount's option `sec=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Security {
    /// Unix ids.
    Sys,
    /// A Kerberos ticket.
    Krb5,
    /// The same with integrity.
    Krb5i,
    /// The same with encryption.
    Krb5p,
}

impl Security {
    const ALL: [Security; 4] = [Security::Sys, Security::Krb5, Security::Krb5i, Security::Krb5p];

    /// Its name in a URL.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Security::Sys => "sys",
            Security::Krb5 => "krb5",
            Security::Krb5i => "krb5i",
            Security::Krb5p => "krb5p",
        }
    }
}

/// A remote file or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    /// Protocol.
    pub scheme: Scheme,
    /// The user to log on as (SMB); may be empty.
    pub user: String,
    /// Name or address of the server.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Whether the URL contains the port; otherwise it is the protocol's default.
    pub port_named: bool,
    /// SMB share or NFS export.
    pub share: String,
    /// Path inside the share, `/` between components, none at either end.
    pub path: String,
    /// Whether the URL ended with a slash, which means a folder.
    pub folder: bool,
    /// TCP port of MOUNT (NFS).
    pub mount_port: Option<u16>,
    /// RDMA port, if the server does not announce it.
    pub rdma_port: Option<u16>,
    /// NFS version, if the URL chooses one.
    pub version: Option<NfsVersion>,
    /// Security flavor of NFS, if the URL chooses one.
    pub security: Option<Security>,
}

/// An error in a URL; the message shows how to write it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum UrlError {
    #[error("{0} names no share: write {below}; `{list}` lists the shares", below = .0.below("SHARE/PATH"), list = .0.listing())]
    NoShare(Box<Url>),
    #[error("{0} names no export: write {below}; `{list}` lists the exports", below = .0.below("EXPORT/PATH"), list = .0.listing())]
    NoNfsExport(Box<Url>),
    #[error("{0} has an IPv6 address without brackets: write {typed}", typed = shell_word(.1))]
    Brackets(String, String),
    #[error("{0} has brackets that enclose no IPv6 address ({1}): write {2}://[::1]/..., or [::1]:PORT")]
    Bracket(String, &'static str, &'static str),
    #[error("{0:?} is not a port: a number from 1 to 65535")]
    Port(String),
    #[error("{0}: {1:?} is not a port: write a number from 1 to 65535, or omit the colon")]
    HostPort(String, String),
    #[error(
        "{0:?} is not a URL option: the options are mountport=N, rdmaport=N and (for NFS) vers=3, vers=4.1, sec=sys, sec=krb5, sec=krb5i or sec=krb5p; write a question mark in a name as %3F"
    )]
    Option(String),
    #[error(
        "the URL ends in a question mark, which must be followed by options; write a question mark in a name as %3F"
    )]
    NoOption,
    #[error("mountport is an option for NFS: omit it for SMB")]
    MountOfSmb,
    #[error(
        "NFS has no log-on: instead of {0}, the server gets the user and group ids of the user who runs weft, or the Kerberos ticket; write {typed}",
        typed = shell_word(.1)
    )]
    NfsUser(String, String),
    #[error("vers={0:?} is not a supported NFS version: write vers=3 or vers=4.1")]
    Version(String),
    #[error(
        "sec={0:?} is not a security flavor: write sec=sys (Unix ids), sec=krb5 (Kerberos), sec=krb5i (with integrity) or sec=krb5p (encrypted)"
    )]
    Security(String),
    #[error("mountport is an option for NFSv3, not for vers=4.1: omit one of the two")]
    NoMount,
    #[error(
        "the URL contains a password: set WEFT_PASSWORD instead, because every user can see command lines"
    )]
    Password,
    #[error(
        "{0:?} has a % that is not followed by two hexadecimal digits of UTF-8: write a percent sign in a name as %25"
    )]
    Escape(String),
    #[error("{0} is a Windows share name, and no local folder has this name; write smb://{user}@{1}", user = default_user())]
    Unc(String, String),
    #[error(
        "{0} is an export in mount's syntax, and no local file has this name; write nfs://{1}, or smb://USER@HOST/SHARE for SMB"
    )]
    Export(String, String),
    #[error("{0}:// is not supported: write smb://USER@HOST/SHARE/PATH or nfs://HOST/EXPORT/PATH")]
    Scheme(String),
    #[error("weft uses smb:// for cifs://: write {typed}", typed = shell_word(.0))]
    Cifs(String),
    #[error("{0:?} begins with a blank: write {typed}", typed = shell_word(.1))]
    Blank(String, String),
    #[error("{0:?} names no host: write {1}://HOST/SHARE/PATH")]
    NoHost(String, &'static str),
    #[error("{0} names no user; write {typed}", typed = shell_word(.1))]
    NoUser(String, String),
    #[error("{0} is not a URL; write {1}")]
    NoUrl(String, String),
}

impl Url {
    /// Parses a URL; returns `None` for a local path.
    pub(crate) fn parse(text: &str) -> Result<Option<Url>, UrlError> {
        match Url::parse_server(text)? {
            Some(url) if url.share.is_empty() => Err(match url.scheme {
                Scheme::Smb => UrlError::NoShare(Box::new(url.with_user())),
                Scheme::Nfs => UrlError::NoNfsExport(Box::new(url)),
            }),
            url => Ok(url),
        }
    }

    /// Parses a URL that must name a file on a server.
    pub(crate) fn of_file(text: &str) -> Result<Url, crate::Failure> {
        let url = Url::parse(text)?.ok_or_else(|| UrlError::no_url(text, "SHARE/PATH"))?;
        match url.path.is_empty() || url.folder {
            true => {
                Err(Misuse::new(format!("{url} names no file; add its path: {}", url.join("FILE"))).into())
            }
            false => Ok(url),
        }
    }

    /// Parses a URL that may lack a share.
    pub(crate) fn parse_server(text: &str) -> Result<Option<Url>, UrlError> {
        // Schemes are not case-sensitive (RFC 3986 section 3.1).
        let split = text.split_once("://").map(|(scheme, rest)| (scheme.to_ascii_lowercase(), rest));
        let split = split.as_ref().map(|(scheme, rest)| (scheme.as_str(), *rest));
        let (scheme, rest, default_port) = match split {
            Some(("smb", rest)) => (Scheme::Smb, rest, default_port::SMB),
            Some(("nfs", rest)) => (Scheme::Nfs, rest, default_port::NFS),
            Some(("cifs", rest)) => {
                let meant = Url::parse_server(&format!("smb://{rest}"))?;
                return Err(UrlError::Cifs(meant.map_or(text.to_owned(), |url| url.with_user().to_string())));
            }
            Some((other, _)) if ["smb", "nfs", "cifs"].contains(&other.trim_start()) => {
                return Err(UrlError::Blank(text.to_owned(), text.trim_start().to_owned()));
            }
            Some((other, _)) if !other.is_empty() && other.bytes().all(|b| b.is_ascii_alphanumeric()) => {
                return Err(UrlError::Scheme(other.to_owned()));
            }
            _ => return no_url(text).map(|()| None),
        };
        // A query without an option is a name with an unescaped question mark; without it, the URL would name another
        // file.
        let (rest, query) = match rest.split_once('?') {
            Some((_, "")) => return Err(UrlError::NoOption),
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        if user.contains(':') {
            return Err(UrlError::Password);
        }
        let port_of = |text: &str| match text.parse::<u16>() {
            Ok(0) | Err(_) => Err(UrlError::Port(text.to_owned())),
            Ok(port) => Ok(port),
        };
        if let Some(bracketed) = bracketed(host) {
            return Err(UrlError::Brackets(text.to_owned(), text.replacen(host, &bracketed, 1)));
        }
        let name = if scheme == Scheme::Smb { "smb" } else { "nfs" };
        let bracketed = in_brackets(host).map_err(|why| UrlError::Bracket(text.to_owned(), why, name))?;
        // Names and IPv4 addresses have no colons.
        let (host, port) = bracketed
            .or_else(|| host.rsplit_once(':').map(|(host, port)| (host, Some(port))))
            .unwrap_or((host, None));
        if host.is_empty() {
            return Err(UrlError::NoHost(text.to_owned(), name));
        }
        let wrong_port = |port: &str| UrlError::HostPort(text.to_owned(), port.to_owned());
        let (port_named, port) = match port {
            Some(port) => (true, port_of(port).map_err(|_| wrong_port(port))?),
            None => (false, default_port),
        };
        let mut components = path.split('/').filter(|c| !c.is_empty());
        let share = components.next().unwrap_or("");
        let (mut mount_port, mut rdma_port, mut version, mut security) = (None, None, None, None);
        for option in query.into_iter().flat_map(|query| query.split('&')) {
            match option.split_once('=') {
                Some(("mountport", _)) if scheme == Scheme::Smb => return Err(UrlError::MountOfSmb),
                Some(("mountport", port)) => mount_port = Some(port_of(port)?),
                Some(("rdmaport", port)) => rdma_port = Some(port_of(port)?),
                Some(("vers", "3")) if scheme == Scheme::Nfs => version = Some(NfsVersion::V3),
                Some(("vers", "4" | "4.1")) if scheme == Scheme::Nfs => version = Some(NfsVersion::V41),
                Some(("vers", other)) if scheme == Scheme::Nfs => {
                    return Err(UrlError::Version(other.to_owned()));
                }
                Some(("sec", name)) if scheme == Scheme::Nfs => {
                    let known = Security::ALL.into_iter().find(|known| known.name() == name);
                    security = Some(known.ok_or_else(|| UrlError::Security(name.to_owned()))?);
                }
                _ => return Err(UrlError::Option(option.to_owned())),
            }
        }
        if scheme == Scheme::Nfs && authority.contains('@') {
            let without = text.replacen(&format!("{user}@"), "", 1);
            return Err(UrlError::NfsUser(user.to_owned(), without));
        }
        if version == Some(NfsVersion::V41) && mount_port.is_some() {
            return Err(UrlError::NoMount);
        }
        Ok(Some(Url {
            scheme,
            user: unescape(user)?,
            host: host.to_owned(),
            port,
            port_named,
            share: unescape(share)?,
            path: unescape(&components.collect::<Vec<_>>().join("/"))?,
            folder: path.ends_with('/'),
            mount_port,
            rdma_port,
            version,
            security,
        }))
    }

    /// An SMB URL must name a user, unless a Kerberos ticket does.
    pub(crate) fn check_user(&self, kerberos: bool) -> Result<(), UrlError> {
        if !self.user.is_empty() || kerberos {
            return Ok(());
        }
        Err(UrlError::NoUser(self.to_string(), self.clone().with_user().to_string()))
    }

    /// The same URL with a user: this user, if it names none and the protocol needs one.
    fn with_user(self) -> Url {
        let user = if self.user.is_empty() { default_user() } else { self.user.clone() };
        Url { user, ..self }
    }

    /// The same URL without share and path.
    pub(crate) fn server(&self) -> Url {
        Url { share: String::new(), path: String::new(), folder: false, ..self.clone() }
    }

    /// The command that lists this URL.
    pub(crate) fn listing(&self) -> ShellCommand {
        ShellCommand::new("weft ls").operand(self.to_string())
    }

    /// The server's URL followed by placeholders for the names that the user must add.
    fn below(&self, words: &str) -> String {
        let (share, path) = words.split_once('/').unwrap_or((words, ""));
        shell_word(Url { share: share.to_owned(), path: path.to_owned(), ..self.clone() }.to_string())
    }

    /// The last component: the file's own name.
    pub(crate) fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or("")
    }

    /// The same URL with `name` under its path.
    pub(crate) fn join(&self, name: &str) -> Url {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}/{name}", self.path) };
        Url { path, folder: false, ..self.clone() }
    }
}

/// In a form that can be typed again: with the port only if one was given, and escaped for a shell.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Smb => "smb",
            Scheme::Nfs => "nfs",
        };
        write!(f, "{scheme}://")?;
        if !self.user.is_empty() {
            write!(f, "{}@", escaped(&self.user, ""))?;
        }
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(&self.host)?,
        }
        if self.port_named {
            write!(f, ":{}", self.port)?;
        }
        if !self.share.is_empty() {
            write!(f, "/{}", escaped(&self.share, ""))?;
        }
        if !self.path.is_empty() {
            write!(f, "/{}", escaped(&self.path, "/"))?;
        }
        if self.folder && !self.share.is_empty() {
            f.write_str("/")?;
        }
        let version = self.version.map(|version| match version {
            NfsVersion::V3 => "vers=3".to_owned(),
            NfsVersion::V41 => "vers=4.1".to_owned(),
        });
        let mount = self.mount_port.map(|port| format!("mountport={port}"));
        let rdma = self.rdma_port.map(|port| format!("rdmaport={port}"));
        let security = self.security.map(|security| format!("sec={}", security.name()));
        let options: Vec<String> = [version, security, mount, rdma].into_iter().flatten().collect();
        match options.is_empty() {
            true => Ok(()),
            false => write!(f, "?{}", options.join("&")),
        }
    }
}

impl UrlError {
    /// The error for text that is not a URL, with the probable intention; `wanted` names the parts that the command
    /// needs below the server.
    pub(crate) fn no_url(text: &str, wanted: &str) -> UrlError {
        let local = text.is_empty() || text.starts_with(['/', '.', '~', '-']) || Path::new(text).exists();
        let meant = match Url::parse_server(&format!("smb://{text}")) {
            Ok(Some(url)) if !local => Some(url.with_user()),
            _ => None,
        };
        let below = |share: &str| if wanted.is_empty() { String::new() } else { format!("/{share}") };
        let (typed, write) = match meant {
            Some(url) if url.share.is_empty() => {
                (text.to_owned(), format!("{url}{}, or nfs://{}/EXPORT", below(wanted), url.host))
            }
            Some(url) => (text.to_owned(), format!("{url}, or nfs:// in place of smb://")),
            None => {
                let typed = if text.is_empty() { "\"\"".to_owned() } else { text.to_owned() };
                let user = default_user();
                (typed, format!("smb://{user}@HOST{} or nfs://HOST/EXPORT", below(wanted)))
            }
        };
        UrlError::NoUrl(typed, write)
    }
}

/// Escapes characters that have a meaning in a URL or to a shell. Letters of any script, and characters in `also`,
/// stay.
pub(crate) fn escaped(text: &str, also: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_alphanumeric() || "-._+,=@".contains(c) || also.contains(c) => escaped.push(c),
            c => {
                let mut bytes = [0; 4];
                c.encode_utf8(&mut bytes).bytes().for_each(|byte| escaped.push_str(&format!("%{byte:02X}")));
            }
        }
    }
    escaped
}

/// Refuses text that looks like a remote name of another program, unless it names a local file, because it would be
/// created.
fn no_url(text: &str) -> Result<(), UrlError> {
    // It is easy to forget the slashes.
    for scheme in ["smb", "nfs"] {
        if let Some(rest) = text.strip_prefix(scheme).and_then(|rest| rest.strip_prefix(':'))
            && !Path::new(text).exists()
        {
            let rest = rest.trim_start_matches('/');
            let write = if rest.is_empty() { "HOST/SHARE/PATH" } else { rest };
            return Err(UrlError::NoUrl(text.to_owned(), format!("{scheme}://{write}")));
        }
    }
    let unc = text.replace('\\', "/");
    if let Some(rest) = unc.strip_prefix("//")
        && let Some((host, _)) = rest.split_once('/')
        && !host.is_empty()
        // Linux treats // as /.
        && !Path::new("/").join(host).exists()
    {
        return Err(UrlError::Unc(text.to_owned(), rest.to_owned()));
    }
    if let Some((host, path)) = text.split_once(":/")
        && !host.is_empty()
        && !host.contains('/')
        && !Path::new(text).exists()
    {
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        return Err(UrlError::Export(text.to_owned(), format!("{host}/{}", path.trim_start_matches('/'))));
    }
    Ok(())
}

/// Adds brackets to an IPv6 address without them. A decimal number after several colons that equals a port of weft or
/// of the protocols is treated as a port, because it is unlikely as part of an address.
fn bracketed(host: &str) -> Option<String> {
    const PORTS: [&str; 5] = ["445", "2049", "4450", "5445", "20049"];
    match host.rsplit_once(':') {
        Some((address, port))
            if is_ipv6(address)
                && port.parse::<u16>().is_ok_and(|n| n > 0)
                && (PORTS.contains(&port) || !is_ipv6(host)) =>
        {
            Some(format!("[{address}]:{port}"))
        }
        _ => is_ipv6(host).then(|| format!("[{host}]")),
    }
}

/// Replaces %XX escapes.
fn unescape(text: &str) -> Result<String, UrlError> {
    let broken = || UrlError::Escape(text.to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16)).ok_or_else(broken);
        let value = digit()? * 16 + digit()?;
        bytes.push(u8::try_from(value).map_err(|_| broken())?);
    }
    String::from_utf8(bytes).map_err(|_| broken())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_smb_url_names_user_host_share_and_path() {
        let url = Url::parse("smb://alice@127.0.0.1:4450/data/a%20b/big.iso").unwrap().unwrap();
        assert_eq!(
            url,
            Url {
                scheme: Scheme::Smb,
                user: "alice".into(),
                host: "127.0.0.1".into(),
                port: 4450,
                port_named: true,
                share: "data".into(),
                path: "a b/big.iso".into(),
                folder: false,
                mount_port: None,
                rdma_port: None,
                version: None,
                security: None,
            }
        );
        assert_eq!(url.file_name(), "big.iso");
        assert_eq!(url.to_string(), "smb://alice@127.0.0.1:4450/data/a%20b/big.iso");
    }

    #[test]
    fn an_nfs_url_carries_its_ports() {
        let url = Url::parse("nfs://[::1]/data/?mountport=20048&rdmaport=20049").unwrap().unwrap();
        assert_eq!(
            (url.host.as_str(), url.port, url.mount_port, url.rdma_port),
            ("::1", 2049, Some(20048), Some(20049))
        );
        assert!(url.folder);
        assert_eq!(url.join("x").path, "x");
        let version = |query: &str| Url::parse(&format!("nfs://h/s?{query}")).map(|url| url.unwrap().version);
        assert_eq!(version("vers=3&mountport=5"), Ok(Some(NfsVersion::V3)));
        assert_eq!(version("rdmaport=5"), Ok(None));
        assert_eq!(version("vers=4.1"), Ok(Some(NfsVersion::V41)));
        assert_eq!(version("vers=4&mountport=5"), Err(UrlError::NoMount));
        let security =
            |query: &str| Url::parse(&format!("nfs://h/s?{query}")).map(|url| url.unwrap().security);
        assert_eq!(security("vers=3&sec=krb5p"), Ok(Some(Security::Krb5p)));
        assert_eq!(security("sec=sys"), Ok(Some(Security::Sys)));
        assert_eq!(security("vers=4.1"), Ok(None));
    }

    #[test]
    fn what_is_printed_can_be_typed_again() {
        for text in [
            "smb://alice@nas",
            "smb://alice@nas/data",
            "smb://alice@nas/data/",
            "smb://nas:445/data/big.iso",
            "smb://a%3Ab%2Fc@[fe80::1%eth0]:4450/a%3Fb/100%25/%27%20%26.txt",
            "nfs://[::1]/data/\u{fc}?vers=3&mountport=20048&rdmaport=20049",
            "nfs://nas.example.org/data/x?vers=4.1&sec=krb5i",
        ] {
            let url = Url::parse_server(text).unwrap().unwrap();
            assert_eq!(url.to_string(), text);
            assert_eq!(Url::parse_server(&url.to_string()).unwrap().unwrap(), url);
        }
        // The protocol's default port was not written, and another may have answered.
        let url = Url { port: 4450, ..Url::parse("smb://alice@localhost/data").unwrap().unwrap() };
        assert_eq!(url.to_string(), "smb://alice@localhost/data");
        assert_eq!(url.join("x").server().to_string(), "smb://alice@localhost");
    }

    #[test]
    fn what_is_no_url_is_named_with_what_to_type() {
        let says = |text: &str, wanted: &str| UrlError::no_url(text, wanted).to_string();
        let user = default_user();
        assert_eq!(
            says("localhost", ""),
            format!("localhost is not a URL; write smb://{user}@localhost, or nfs://localhost/EXPORT")
        );
        assert!(
            says("bob@nas:4450/data/x", "")
                .ends_with("write smb://bob@nas:4450/data/x, or nfs:// in place of smb://")
        );
        assert!(says("nas", "SHARE/PATH").contains(&format!("smb://{user}@nas/SHARE/PATH")));
        for local in ["/tmp", ".", "./x", ""] {
            assert!(says(local, "SHARE/PATH").contains(&format!("smb://{user}@HOST/SHARE/PATH")), "{local}");
        }
        assert!(says("", "").starts_with("\"\" is not a URL"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(Url::parse("/tmp/file"), Ok(None));
        let says = |text: &str| Url::parse(text).unwrap_err().to_string();
        assert!(says("smb://a@host:5").contains("`weft ls smb://a@host:5` lists the shares"));
        assert!(says("nfs://host").contains("`weft ls nfs://host`"));
        let with_port = says("nfs://host?mountport=5");
        assert!(with_port.contains("write 'nfs://host/EXPORT/PATH?mountport=5'"), "{with_port}");
        assert!(with_port.contains("`weft ls 'nfs://host?mountport=5'`"), "{with_port}");
        assert!(says("nfs://bob@host/s?vers=3").contains("write 'nfs://host/s?vers=3'"));
        assert!(says("smb://a@::1/s").contains("write 'smb://a@[::1]/s'"));
        assert!(says("smb://a@host/s/who?me").contains("%3F"));
        assert!(says("smb:a@host/s").contains("write smb://a@host/s"));
        assert!(says("smb:/a@host/s").contains("write smb://a@host/s"));
        for (text, port) in
            [("smb://h:99999/s", "99999"), ("smb://h:0/s", "0"), ("smb://a@[::1]:/s", ""), ("nfs://h:/s", "")]
        {
            let told = says(text);
            assert!(told.starts_with(&format!("{text}: {port:?} is not a port")), "{told}");
        }
        assert!(matches!(Url::parse("smb://u:p@h/s"), Err(UrlError::Password)));
        assert!(matches!(Url::parse("nfs://h/s?x=1"), Err(UrlError::Option(_))));
        assert!(matches!(Url::parse("nfs://h/s?vers=2"), Err(UrlError::Version(_))));
        assert!(matches!(Url::parse("smb://h/s?vers=3"), Err(UrlError::Option(_))));
        assert!(matches!(Url::parse("smb://h/s?sec=krb5"), Err(UrlError::Option(_))));
        assert!(says("nfs://h/s?sec=krb6").contains("write sec=sys"));
        assert!(matches!(Url::parse("smb://h/s/%zz"), Err(UrlError::Escape(_))));
        assert!(matches!(Url::parse("nfs://h/s?rdmaport=0"), Err(UrlError::Port(_))));
        assert!(matches!(Url::parse("smb:///s"), Err(UrlError::NoHost(..))));
        assert!(says("cifs://a@h/s").contains("write smb://a@h/s"));
        assert!(says("http://h/s").contains("is not supported"));
        assert!(says("smb://h/s/100%").contains("write a percent sign in a name as %25"));
        assert!(says(" smb://a@h/s").contains("write smb://a@h/s"));
        assert!(says("smb://alice@::1:4450/data").contains("write 'smb://alice@[::1]:4450/data'"));
        assert!(says("smb://a@1:2:3:4:5:6:7:8:9/s").contains("write 'smb://a@[1:2:3:4:5:6:7:8]:9/s'"));
        assert_eq!(Url::parse("SMB://a@h/s"), Url::parse("smb://a@h/s"));
        assert_eq!(Url::parse("Nfs://h/s"), Url::parse("nfs://h/s"));
    }

    /// `smb://a@[::1/x` was taken for `smb://a@[::1]/x`.
    #[test]
    fn brackets_that_enclose_no_address_are_refused_with_the_url() {
        for (text, why) in [
            ("smb://a@[::1/x", "not closed"),
            ("smb://a@[::1:445/x", "not closed"),
            ("smb://a@[::1]x/s", "text other than a port"),
            ("smb://a@[::1]445/s", "text other than a port"),
            ("smb://a@::1]/s", "do not begin"),
            ("nfs://ho[st]/s", "do not begin"),
            ("nfs://[host]/s", "not an IPv6 address"),
            ("nfs://[]/s", "not an IPv6 address"),
            ("nfs://[fe80::1%]/s", "not an IPv6 address"),
            ("nfs://[[::1]]/s", "not an IPv6 address"),
        ] {
            let told = Url::parse_server(text).expect_err(text).to_string();
            assert!(told.starts_with(text) && told.contains(why), "{told}");
        }
        let zone = Url::parse("nfs://[fe80::1%eth0]:2050/s").unwrap().unwrap();
        assert_eq!((&*zone.host, zone.port), ("fe80::1%eth0", 2050));
    }

    /// `what?` was truncated to `what`, another file, which was overwritten.
    #[test]
    fn a_question_mark_without_an_option_is_refused() {
        for text in [
            "smb://a@h/data/what?",
            "smb://a@h/data/con?",
            "nfs://h/data/what?",
            "smb://a@h?",
            "smb://a@h/data/what?/x",
        ] {
            let says = Url::parse_server(text).unwrap_err().to_string();
            assert!(says.contains("%3F"), "{text}: {says}");
        }
        for text in ["smb://a@h/d/f?&", "smb://a@h/d/f?rdmaport=5445&"] {
            assert!(matches!(Url::parse_server(text), Err(UrlError::Option(_))), "{text}");
        }
    }

    #[test]
    fn what_the_other_protocol_has_is_refused() {
        assert_eq!(Url::parse("smb://a@h/s?mountport=20048"), Err(UrlError::MountOfSmb));
        let says = Url::parse("nfs://bob@h/s/x").unwrap_err().to_string();
        assert!(says.contains("instead of bob") && says.ends_with("write nfs://h/s/x"), "{says}");
    }

    #[test]
    fn names_of_other_programs_are_known() {
        let says = |text: &str| Url::parse(text).unwrap_err().to_string();
        assert!(says("//nas/data/x").contains("@nas/data/x"), "{}", says("//nas/data/x"));
        assert!(says(r"\\nas\data\x").contains("@nas/data/x"));
        assert!(says("nas:/export/x").contains("nfs://nas/export/x"));
        assert!(says("alice@nas:/export").contains("nfs://nas/export"));
        // An existing local file or folder is local, whatever its name.
        assert_eq!(Url::parse("//tmp/x"), Ok(None));
        assert_eq!(Url::parse("./nas:/x"), Ok(None));
        assert_eq!(Url::parse("a:b"), Ok(None));
    }

    #[test]
    fn smb_wants_a_user() {
        let url = Url::parse("smb://nas:4450/data/x").unwrap().unwrap();
        let says = url.check_user(false).unwrap_err().to_string();
        assert!(
            says.starts_with("smb://nas:4450/data/x names no user") && says.contains("@nas:4450/data/x"),
            "{says}"
        );
        assert_eq!(url.check_user(true), Ok(()));
    }
}
