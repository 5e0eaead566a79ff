//! `--export NAME:OPTIONS`: NFS options of a share, with the words of exports(5). The server enforces them.

use weft_store::rules::{Export, Flavor, NOBODY, Network, NotANetwork, Ports, Protection, Squash};

/// One `--export`. It changes only what its words name: other rules of the share, such as those of a file, stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportOption {
    /// The share.
    pub name: String,
    /// The words, in their order.
    words: Vec<ExportWord>,
}

/// One word of an `--export`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ExportWord {
    ReadOnly(bool),
    Async(bool),
    Ports(Ports),
    Squash(Squash),
    AnonUid(u32),
    AnonGid(u32),
    /// Together with the other networks of the option.
    Net(Network),
    Sec(Vec<Flavor>),
    Protection(Protection),
}

impl ExportOption {
    /// Changes an export as the words say; the last of two words about one rule counts, as in exports(5).
    pub(crate) fn apply(&self, export: &mut Export) {
        if self.words.iter().any(|word| matches!(word, ExportWord::Net(_))) {
            export.networks.clear();
        }
        for word in &self.words {
            match word {
                ExportWord::ReadOnly(read_only) => export.read_only = *read_only,
                ExportWord::Async(asynchronous) => export.asynchronous = *asynchronous,
                ExportWord::Ports(ports) => export.ports = Some(*ports),
                ExportWord::Squash(squash) => export.squash = Some(*squash),
                ExportWord::AnonUid(id) => export.anonymous.0 = Some(*id),
                ExportWord::AnonGid(id) => export.anonymous.1 = Some(*id),
                ExportWord::Net(network) => export.networks.push(*network),
                ExportWord::Sec(flavors) => export.flavors.clone_from(flavors),
                ExportWord::Protection(protection) => export.protection = *protection,
            }
        }
    }

    /// The keys, in a share's table `nfs`, of the rules that the words are about.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.words.iter().map(|word| match word {
            ExportWord::ReadOnly(_) => "read_only",
            ExportWord::Async(_) => "async",
            ExportWord::Ports(_) => "secure",
            ExportWord::Squash(_) => "squash",
            ExportWord::AnonUid(_) => "anonuid",
            ExportWord::AnonGid(_) => "anongid",
            ExportWord::Net(_) => "net",
            ExportWord::Sec(_) => "sec",
            ExportWord::Protection(_) => "xprtsec",
        })
    }
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
    #[error("sec={0}: write sys, none, krb5, krb5i or krb5p, or several of them, such as sec=krb5i:krb5p")]
    Flavor(String),
    #[error(
        "{0:?} is not an export option: write ro, rw, sync, async, secure, insecure, root_squash, no_root_squash, all_squash, \
         anonuid=N, anongid=N, net=ADDRESS/BITS (repeatable), sec=sys:none:krb5:krb5i:krb5p (one or more) or xprtsec=none|tls|mtls"
    )]
    Option(String),
}

/// Parses `NAME:OPTION,OPTION...`.
pub(crate) fn parse(text: &str) -> Result<ExportOption, ExportError> {
    let (name, options) = text.split_once(':').ok_or(ExportError::Shape)?;
    if name.is_empty() {
        return Err(ExportError::NoName);
    }
    let words = options.split(',').filter(|option| !option.is_empty()).map(word);
    Ok(ExportOption { name: name.to_owned(), words: words.collect::<Result<_, _>>()? })
}

fn word(option: &str) -> Result<ExportWord, ExportError> {
    let (word, value) = option.split_once('=').map_or((option, None), |(word, value)| (word, Some(value)));
    Ok(match (word, value) {
        ("ro", None) => ExportWord::ReadOnly(true),
        ("rw", None) => ExportWord::ReadOnly(false),
        ("root_squash", None) => ExportWord::Squash(Squash::Root),
        ("no_root_squash", None) => ExportWord::Squash(Squash::None),
        ("all_squash", None) => ExportWord::Squash(Squash::All),
        ("secure", None) => ExportWord::Ports(Ports::Reserved),
        ("insecure", None) => ExportWord::Ports(Ports::Any),
        ("sync", None) => ExportWord::Async(false),
        ("async", None) => ExportWord::Async(true),
        ("anonuid", Some(id)) => ExportWord::AnonUid(id_of(id)?),
        ("anongid", Some(id)) => ExportWord::AnonGid(id_of(id)?),
        ("net", Some(net)) => {
            let wrong = |source| ExportError::Network { net: net.to_owned(), source };
            ExportWord::Net(net.parse().map_err(wrong)?)
        }
        ("sec", Some(flavors)) => ExportWord::Sec(flavors.split(':').map(flavor).collect::<Result<_, _>>()?),
        ("xprtsec", Some("none")) => ExportWord::Protection(Protection::None),
        ("xprtsec", Some("tls")) => ExportWord::Protection(Protection::Tls),
        ("xprtsec", Some("mtls")) => ExportWord::Protection(Protection::Mutual),
        _ => return Err(ExportError::Option(option.to_owned())),
    })
}

fn id_of(text: &str) -> Result<u32, ExportError> {
    text.parse().map_err(|_| ExportError::Id(text.to_owned()))
}

fn flavor(text: &str) -> Result<Flavor, ExportError> {
    match text {
        "sys" => Ok(Flavor::Sys),
        "none" => Ok(Flavor::None),
        "krb5" => Ok(Flavor::Krb5),
        "krb5i" => Ok(Flavor::Krb5i),
        "krb5p" => Ok(Flavor::Krb5p),
        _ => Err(ExportError::Flavor(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(text: &str) -> Export {
        let mut export = Export::default();
        parse(text).unwrap().apply(&mut export);
        export
    }

    #[test]
    fn options_are_those_of_exports() {
        let text =
            "data:ro,all_squash,anonuid=1000,anongid=100,net=192.0.2.0/24,net=::1,sec=sys,xprtsec=mtls";
        assert_eq!(parse(text).unwrap().name, "data");
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
        assert_eq!(export(text), expected);
        let several = vec![Flavor::Krb5p, Flavor::Krb5i, Flavor::Krb5, Flavor::Sys];
        assert_eq!(export("data:sec=krb5p:krb5i:krb5:sys").flavors, several);
        let ports = |text| export(text).ports;
        assert_eq!(ports("data:secure"), Some(Ports::Reserved));
        assert_eq!(ports("data:secure,insecure"), Some(Ports::Any), "the last counts, as in exports(5)");
        assert!(export("data:rw").is_plain());
        let asynchronous = |text| export(text).asynchronous;
        assert!(asynchronous("data:async") && !asynchronous("data:async,sync") && !asynchronous("data:"));
    }

    #[test]
    fn a_word_changes_its_rule_and_no_other() {
        let strict = Export {
            read_only: true,
            squash: Some(Squash::All),
            networks: vec!["192.0.2.0/24".parse().unwrap()],
            protection: Protection::Mutual,
            ports: Some(Ports::Reserved),
            ..Export::default()
        };
        let over = |text: &str| {
            let (mut export, option) = (strict.clone(), parse(text).unwrap());
            option.apply(&mut export);
            (export, option.keys().collect::<Vec<_>>())
        };
        assert_eq!(over("a:async"), (Export { asynchronous: true, ..strict.clone() }, vec!["async"]));
        let any = Export { ports: Some(Ports::Any), ..strict.clone() };
        assert_eq!(over("a:insecure"), (any, vec!["secure"]));
        // The networks of the option replace the others.
        let networks = vec!["::1".parse().unwrap(), "::2".parse().unwrap()];
        assert_eq!(over("a:net=::1,net=::2").0, Export { networks, ..strict.clone() });
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
            ("data:sec=krb5x", "krb5i or krb5p"),
            ("data:sec=krb5p:", "write sys, none"),
            ("data:sec=", "write sys, none"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
