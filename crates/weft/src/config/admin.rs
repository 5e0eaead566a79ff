//! The address of the admin server, and the file with its token.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use weft_machine::file::pipe;
use zeroize::Zeroizing;

use super::secret::{self, Exposed, Secret};

/// Introduces the path of a Unix socket.
const UNIX: &str = "unix:";
/// Bounds of a token's length: the lower one is 96 bits in base64.
const TOKEN_CHARS: std::ops::RangeInclusive<usize> = 16..=1024;

/// Where the admin server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AdminAddress {
    /// At an address of this host.
    Tcp(SocketAddr),
    /// At a Unix socket.
    Unix(PathBuf),
}

/// A text that is not such an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write an address with its port, such as 127.0.0.1:9470, or unix:PATH, not {0:?}")]
pub(crate) struct NoAdminAddress(String);

impl FromStr for AdminAddress {
    type Err = NoAdminAddress;

    fn from_str(text: &str) -> Result<AdminAddress, NoAdminAddress> {
        let wrong = || NoAdminAddress(text.to_owned());
        if let Some(path) = text.strip_prefix(UNIX) {
            return if path.is_empty() { Err(wrong()) } else { Ok(AdminAddress::Unix(path.into())) };
        }
        if let Some(port) = text.strip_prefix("localhost:") {
            let port = port.parse().map_err(|_| wrong())?;
            return Ok(AdminAddress::Tcp((Ipv4Addr::LOCALHOST, port).into()));
        }
        text.parse().map(AdminAddress::Tcp).map_err(|_| wrong())
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminAddress::Tcp(addr) => addr.fmt(f),
            AdminAddress::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl AdminAddress {
    /// The address, if hosts other than this one may reach it.
    pub(crate) fn reached_by_others(&self) -> Option<IpAddr> {
        match self {
            AdminAddress::Tcp(addr) if !addr.ip().to_canonical().is_loopback() => Some(addr.ip()),
            _ => None,
        }
    }

    /// The same, with a relative path in this folder.
    pub(super) fn within(self, folder: &Path) -> AdminAddress {
        match self {
            AdminAddress::Unix(path) => AdminAddress::Unix(folder.join(path)),
            tcp @ AdminAddress::Tcp(_) => tcp,
        }
    }
}

/// Why a file holds no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenFault {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// Other users may read it, or change it.
    #[error(transparent)]
    Exposed(#[from] Exposed),
    /// Its content is too short, too long, or not one word.
    #[error(
        "holds no token: write one word of {} to {} characters, for example by `openssl rand -base64 24`",
        TOKEN_CHARS.start(), TOKEN_CHARS.end()
    )]
    Content,
}

/// Reads a token, the only line of a file, which one of these users must own.
pub(super) fn read_token(path: &Path, owners: &[u32]) -> Result<Zeroizing<String>, TokenFault> {
    use std::io::Read;
    let file = pipe::Input::open(path)?;
    secret::check(Secret::Token, file.metadata(), owners)?;
    let mut text = Zeroizing::new(String::new());
    // Three more: the end of the line (CR LF), and one to see that it is too long.
    let most = *TOKEN_CHARS.end() as u64 + 3;
    match file.take(most).read_to_string(&mut text) {
        Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(TokenFault::Content),
        read => read?,
    };
    let token = text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n')).unwrap_or(&text);
    let is_word = token.bytes().all(|byte| byte.is_ascii_graphic());
    match is_word && TOKEN_CHARS.contains(&token.len()) {
        true => Ok(Zeroizing::new(token.to_owned())),
        false => Err(TokenFault::Content),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_address_has_a_port_or_is_a_socket() {
        let parse = |text: &str| text.parse::<AdminAddress>();
        assert_eq!(parse("127.0.0.1:9470").unwrap().reached_by_others(), None);
        assert_eq!(parse("localhost:0"), Ok(AdminAddress::Tcp("127.0.0.1:0".parse().unwrap())));
        assert_eq!(parse("[::1]:1").unwrap().reached_by_others(), None);
        assert_eq!(parse("[::ffff:127.0.0.1]:1").unwrap().reached_by_others(), None);
        for others in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
            assert!(parse(others).unwrap().reached_by_others().is_some(), "{others}");
        }
        assert_eq!(parse("unix:/run/a").unwrap().reached_by_others(), None);
        assert_eq!(parse("unix:a").unwrap().within(Path::new("/b")).to_string(), "unix:/b/a");
        for wrong in
            ["", "9470", "127.0.0.1", "unix:", "/run/a", "localhost", "localhost:x", "host:1", "::1:80000"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_token_is_one_word_that_nobody_else_can_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = |content: &[u8], mode: u32| {
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read_token(&path, &secret::owners(None))
        };
        let word = "abcdefghijklmnop";
        assert_eq!(read(format!("{word}\n").as_bytes(), 0o600).unwrap().as_str(), word);
        assert_eq!(read(word.as_bytes(), 0o400).unwrap().as_str(), word);
        assert_eq!(read(format!("{word}\r\n").as_bytes(), 0o600).unwrap().as_str(), word);
        assert_eq!(read(format!("{}\r\n", "a".repeat(1024)).as_bytes(), 0o600).unwrap().len(), 1024);
        for mode in [0o640, 0o604, 0o660] {
            let refused = read(word.as_bytes(), mode);
            assert!(matches!(refused, Err(TokenFault::Exposed(Exposed::Open("600")))), "{mode:o}");
        }
        let long = "a".repeat(1025);
        for wrong in [
            &b""[..],
            b"short",
            b"abcdefgh ijklmnop",
            b"abcdefghijklmnop\n\n",
            b"abcdefghijklmnop\r",
            b"\xff\xfe",
            long.as_bytes(),
        ] {
            assert!(matches!(read(wrong, 0o600), Err(TokenFault::Content)), "{wrong:?}");
        }
        assert!(matches!(read_token(&dir.path().join("none"), &[]), Err(TokenFault::Unreadable(_))));
        // The file of a user who is not among its owners.
        read(word.as_bytes(), 0o600).unwrap();
        let foreign = read_token(&path, &[u32::MAX]).unwrap_err();
        assert!(matches!(foreign, TokenFault::Exposed(Exposed::Foreign { .. })), "{foreign}");
    }
}
