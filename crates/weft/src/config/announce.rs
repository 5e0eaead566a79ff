//! Checks the keys of the table `announce`: whether and how the server announces itself on its networks.

use weft_announce::MAX_NAME;

use super::error::Give;
use super::key::{self, Key};
use super::{ConfigError, Problem, ServeConfig, WORKGROUP};
use crate::default_port;

/// RFC 1123 2.1.
fn is_name(name: &str) -> bool {
    let is_label = |c: u8| c.is_ascii_alphanumeric() || c == b'-';
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(is_label)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// The rules of these keys.
pub(super) fn check(config: &ServeConfig) -> Result<(), ConfigError> {
    let announce = &config.announce;
    let switch = if announce.mdns { key::ANNOUNCE_MDNS } else { key::ANNOUNCE_WS_DISCOVERY };
    if let Some(name) = announce.name.as_ref().filter(|name| !is_name(name)) {
        let why = "write a name of 1 to 63 letters, digits and hyphens, without dots, as hosts have it";
        return Err(config.wrong(key::ANNOUNCE_NAME.with(key::quoted(name)), Problem::Unfit(why)));
    }
    if !announce.is_on() {
        let given = [
            (announce.name.is_some(), key::ANNOUNCE_NAME),
            (announce.workgroup != WORKGROUP, key::ANNOUNCE_WORKGROUP),
            (!announce.interfaces.is_empty(), key::ANNOUNCE_INTERFACES),
        ];
        let given = given.into_iter().find_map(|(is_given, key)| is_given.then_some(key));
        let ways = Give::One(vec![key::ANNOUNCE_MDNS.with(true), key::ANNOUNCE_WS_DISCOVERY.with(true)]);
        return config.needs(given, "a way to announce the server", ways);
    }
    let addresses = config.addresses();
    let is_alone = addresses.all().iter().all(|ip| ip.to_canonical().is_loopback());
    let everywhere = config.with_value(&key::LISTEN, "0.0.0.0", Some("[\"0.0.0.0\"]".to_owned()));
    config.needs(
        is_alone.then(|| switch.with(true)),
        "an address that other hosts reach, because this server listens on loopback only",
        Give::All(vec![everywhere]),
    )
}

/// What works, and probably not as meant.
pub(super) fn warnings(config: &ServeConfig) -> Option<ConfigError> {
    let port = config.listeners.smb_port;
    let is_closed = config.announce.ws_discovery && port != default_port::SMB && port != 0;
    let why = "Windows shows this server and cannot open it, because it connects to SMB port 445 only; set it to 445";
    let key: Key = config.with_value(&key::SMB_PORT, port, Some(port.to_string()));
    is_closed.then(|| config.wrong(key, Problem::Unfit(why)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::AnnounceConfig;
    use super::super::file::parse;
    use super::*;

    fn checked(text: &str) -> Result<(), String> {
        let config = parse(Path::new("weft.toml"), text).unwrap();
        check(&config).map_err(|e| e.to_string())
    }

    const EVERYWHERE: &str = "listeners.addresses = [\"0.0.0.0\"]\n";

    #[test]
    fn a_server_that_nobody_else_reaches_is_not_announced() {
        let refused = checked("[announce]\nmdns = true\n").unwrap_err();
        assert_eq!(
            refused,
            "weft.toml:2:1: announce.mdns = true needs an address that other hosts reach, because this server listens on loopback \
             only: give listeners.addresses = [\"0.0.0.0\"]"
        );
        let refused = checked("listeners.addresses = [\"127.0.0.1\"]\n[announce]\nws_discovery = true\n");
        assert!(refused.unwrap_err().contains("announce.ws_discovery = true needs an address"));
        assert_eq!(checked(&format!("{EVERYWHERE}[announce]\nmdns = true\n")), Ok(()));
        assert_eq!(checked(""), Ok(()));
    }

    #[test]
    fn a_name_is_that_of_a_host() {
        let long = "n".repeat(64);
        for name in ["nas.local", "my nas", "-a", "a-", "ä", &long] {
            let refused = checked(&format!("{EVERYWHERE}[announce]\nmdns = true\nname = \"{name}\"\n"));
            assert!(refused.unwrap_err().contains("letters, digits and hyphens"), "{name}");
        }
        assert_eq!(checked(&format!("{EVERYWHERE}[announce]\nmdns = true\nname = \"nas-1\"\n")), Ok(()));
        for (node, name) in [("nas.example.com", "nas"), ("my_nas", "my-nas"), ("_", "weft"), ("", "weft")] {
            assert_eq!(AnnounceConfig::default().name_on(node), name);
        }
    }

    #[test]
    fn no_key_is_without_effect() {
        for line in ["name = \"nas\"", "workgroup = \"HOME\"", "interfaces = [\"eth0\"]"] {
            let refused = checked(&format!("{EVERYWHERE}[announce]\n{line}\n")).unwrap_err();
            let ways = "give announce.mdns = true or announce.ws_discovery = true";
            assert!(refused.ends_with(ways), "{refused}");
        }
    }

    #[test]
    fn another_port_than_that_of_windows_is_told() {
        let warned = |port: u16| {
            let text = format!("[listeners]\nsmb_port = {port}\n[announce]\nws_discovery = true\n");
            warnings(&parse(Path::new("weft.toml"), &text).unwrap()).map(|e| e.to_string())
        };
        assert!(warned(4450).unwrap().contains("listeners.smb_port = 4450: Windows shows"));
        assert_eq!(warned(445), None);
    }
}
