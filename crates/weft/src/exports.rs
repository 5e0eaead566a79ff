//! `--export NAME:OPTIONS`: NFS options of a share, with the words of exports(5). The server enforces them.

use weft_store::rules::{Export, Flavor, NOBODY, NotANetwork, Ports, Protection, Squash};

/// One `--export`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportOption {
    /// The share.
    pub name: String,
    /// The rules for its clients.
    pub export: Export,
}

/// Why text is not an `--export`, and what to write.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    #[error("write NAME:OPTION,OPTION, for example data:ro,net=192.0.2.0/24")]
    Shape,
    #[error("the share's name is missing before the colon")]
    NoName,
    #[error("net={net}: {source}")]
    Network { net: String, source: NotANetwork },
    #[error("{0:?} is not a numeric user or group id; nobody is {NOBODY}")]
    Id(String),
    #[error("sec={0}: NFS with Kerberos is not supported yet")]
    Kerberos(String),
    #[error("sec={0}: write sys, none, or sys:none")]
    Flavor(String),
    #[error(
        "{0:?} is not an export option: write ro, rw, sync, async, secure, insecure, root_squash, no_root_squash, all_squash, \
         anonuid=N, anongid=N, net=ADDRESS/BITS (repeatable), sec=sys:none or xprtsec=none|tls|mtls"
    )]
    Option(String),
}

/// Parses `NAME:OPTION,OPTION...`.
pub(crate) fn parse(text: &str) -> Result<ExportOption, ExportError> {
    let (name, options) = text.split_once(':').ok_or(ExportError::Shape)?;
    if name.is_empty() {
        return Err(ExportError::NoName);
    }
    let mut export = Export::default();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let (word, value) =
            option.split_once('=').map_or((option, None), |(word, value)| (word, Some(value)));
        match (word, value) {
            ("ro", None) => export.read_only = true,
            ("rw", None) => export.read_only = false,
            ("root_squash", None) => export.squash = Some(Squash::Root),
            ("no_root_squash", None) => export.squash = Some(Squash::None),
            ("all_squash", None) => export.squash = Some(Squash::All),
            ("secure", None) => export.ports = Some(Ports::Reserved),
            ("sync", None) => export.asynchronous = false,
            ("async", None) => export.asynchronous = true,
            ("insecure", None) => export.ports = Some(Ports::Any),
            ("anonuid", Some(id)) => export.anonymous.0 = Some(id_of(id)?),
            ("anongid", Some(id)) => export.anonymous.1 = Some(id_of(id)?),
            ("net", Some(net)) => {
                let wrong = |source| ExportError::Network { net: net.to_owned(), source };
                export.networks.push(net.parse().map_err(wrong)?);
            }
            ("sec", Some(flavors)) => {
                export.flavors = flavors.split(':').map(flavor).collect::<Result<_, _>>()?
            }
            ("xprtsec", Some("none")) => export.protection = Protection::None,
            ("xprtsec", Some("tls")) => export.protection = Protection::Tls,
            ("xprtsec", Some("mtls")) => export.protection = Protection::Mutual,
            _ => return Err(ExportError::Option(option.to_owned())),
        }
    }
    Ok(ExportOption { name: name.to_owned(), export })
}

fn id_of(text: &str) -> Result<u32, ExportError> {
    text.parse().map_err(|_| ExportError::Id(text.to_owned()))
}

fn flavor(text: &str) -> Result<Flavor, ExportError> {
    match text {
        "sys" => Ok(Flavor::Sys),
        "none" => Ok(Flavor::None),
        "krb5" | "krb5i" | "krb5p" => Err(ExportError::Kerberos(text.to_owned())),
        _ => Err(ExportError::Flavor(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_exports() {
        let text =
            "data:ro,all_squash,anonuid=1000,anongid=100,net=192.0.2.0/24,net=::1,sec=sys,xprtsec=mtls";
        let parsed = parse(text).unwrap();
        assert_eq!(parsed.name, "data");
        let expected = Export {
            read_only: true,
            squash: Some(Squash::All),
            anonymous: (Some(1000), Some(100)),
            networks: vec!["192.0.2.0/24".parse().unwrap(), "::1".parse().unwrap()],
            flavors: vec![Flavor::Sys],
            protection: Protection::Mutual,
            ports: None,
            asynchronous: false,
        };
        assert_eq!(parsed.export, expected);
        let ports = |text| parse(text).unwrap().export.ports;
        assert_eq!(ports("data:secure"), Some(Ports::Reserved));
        assert_eq!(ports("data:secure,insecure"), Some(Ports::Any), "the last counts, as in exports(5)");
        assert!(parse("data:rw").unwrap().export.is_plain());
        let asynchronous = |text| parse(text).unwrap().export.asynchronous;
        assert!(asynchronous("data:async") && !asynchronous("data:async,sync") && !asynchronous("data:"));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_to_write() {
        for (text, says) in [
            ("data", "NAME:OPTION"),
            (":ro", "share's name"),
            ("data:readonly", "not an export option"),
            ("data:ro=1", "not an export option"),
            ("data:insecure=yes", "secure, insecure"),
            ("data:anonuid=me", "numeric"),
            ("data:net=192.0.2.1/24", "write 192.0.2.0/24"),
            ("data:sec=krb5p", "Kerberos"),
            ("data:sec=", "write sys, none"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
