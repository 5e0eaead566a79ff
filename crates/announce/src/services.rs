//! The services of an announcement, as DNS-SD describes them (RFC 6763): a type, an instance, a port, and text.
//!
//! | type | instance | text |
//! |---|---|---|
//! | `_smb` | the server | |
//! | `_nfs` | one for each export: `SHARE on SERVER` | `path=/SHARE` |
//! | `_adisk` | the server, if it has destinations of Time Machine | `sys=...`, and `dkN=...` for each |
//! | `_device-info` | the server | `model=...` |

use crate::announcement::{AnnouncedShare, Announcement};

/// Most exports that are announced: each is an instance that clients list.
pub const MAX_EXPORTS: usize = 64;
/// Longest text of a service, so that its record fits a packet beside others.
pub const MAX_TEXT: usize = 1000;
/// Longest label of a name.
const MAX_LABEL: usize = 63;

/// The port of `_adisk`. Nothing listens there: all servers announce the port of discard (RFC 863).
const DISCARD: u16 = 9;

/// A service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    /// Its type, over TCP.
    pub kind: &'static str,
    /// The name that users see.
    pub instance: String,
    /// Its port.
    pub port: u16,
    /// Its text: strings, each after its length.
    pub text: Vec<u8>,
}

/// The services of a server.
#[must_use]
pub fn services(announcement: &Announcement) -> Vec<Service> {
    let Announcement { name, smb_port, nfs_port, shares, model, .. } = announcement;
    let of_server = |kind, port, text| Service { kind, instance: label(name, ""), port, text };
    let mut services = Vec::new();
    if let Some(port) = *smb_port {
        services.push(of_server("_smb", port, Vec::new()));
        services.extend(time_machine(shares).map(|text| of_server("_adisk", DISCARD, text)));
        services.push(of_server("_device-info", 0, strings([format!("model={model}")])));
    }
    let exports = shares.iter().filter_map(|share| Some((share, share.export.as_ref()?)));
    if let Some(port) = *nfs_port {
        for (share, path) in exports.clone().take(MAX_EXPORTS) {
            let instance = label(&share.name, &format!(" on {name}"));
            services.push(Service { kind: "_nfs", instance, port, text: strings([format!("path={path}")]) });
        }
        let left_out = exports.count().saturating_sub(MAX_EXPORTS);
        if left_out > 0 {
            tracing::warn!("{left_out} NFS exports are not announced: at most {MAX_EXPORTS} are");
        }
    }
    services
}

/// The text of the destinations of Time Machine, if there are any. In `adVF`, 0x80 is Time Machine and 0x02 SMB; 0x100
/// at `sys` is Time Machine for users who log on.
fn time_machine(shares: &[AnnouncedShare]) -> Option<Vec<u8>> {
    let mut text = strings(["sys=waMa=0,adVF=0x100".to_owned()]);
    let mut number = 0u32;
    for share in shares.iter().filter(|share| share.time_machine) {
        let disk = format!("dk{number}=adVN={},adVF=0x82", share.name);
        let fits = disk.len() < 256 && text.len().saturating_add(disk.len()) < MAX_TEXT;
        // A comma would end the name.
        if !fits || share.name.contains(',') {
            tracing::warn!(
                "share {} is not announced for Time Machine: its name has a comma or is too long, or there are too many shares",
                share.name
            );
            continue;
        }
        text.extend(strings([disk]));
        number = number.saturating_add(1);
    }
    (number > 0).then_some(text)
}

/// Strings of a TXT record (RFC 6763 6.1). Longer ones than 255 bytes, which a path may be, are cut off.
fn strings<const N: usize>(list: [String; N]) -> Vec<u8> {
    let mut text = Vec::new();
    for string in list {
        let string = clipped(&string, 255);
        text.push(u8::try_from(string.len()).unwrap_or(u8::MAX));
        text.extend(string.as_bytes());
    }
    text
}

/// A label of this text and this end; both are cut off if they are too long for it.
pub(crate) fn label(text: &str, end: &str) -> String {
    let end = clipped(end, MAX_LABEL / 2);
    format!("{}{end}", clipped(text, MAX_LABEL.saturating_sub(end.len())))
}

/// The beginning of a text, of at most so many bytes.
fn clipped(text: &str, most: usize) -> &str {
    let end = text
        .char_indices()
        .map(|(at, c)| at.saturating_add(c.len_utf8()))
        .take_while(|end| *end <= most)
        .last();
    text.get(..end.unwrap_or(0)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use weft_wire::wsd::Uuid;

    use super::*;
    use crate::announcement::MAX_NAME;

    fn announcement() -> Announcement {
        let share = |name: &str, time_machine, exported: bool| AnnouncedShare {
            name: name.into(),
            time_machine,
            export: exported.then(|| format!("/{name}")),
        };
        Announcement {
            mdns: true,
            ws_discovery: true,
            name: "nas".into(),
            workgroup: "WORKGROUP".into(),
            model: "RackMac".into(),
            version: "1".into(),
            id: Uuid::of_random([1; 16]),
            interfaces: Vec::new(),
            listen: Vec::new(),
            smb_port: Some(445),
            nfs_port: Some(2049),
            shares: vec![
                share("team", false, true),
                share("backup", true, false),
                share("more", true, false),
            ],
        }
    }

    fn shown(announcement: &Announcement) -> Vec<String> {
        let text =
            |service: &Service| String::from_utf8_lossy(&service.text).replace(|c: char| c.is_control(), "|");
        let line = |one: &Service| format!("{} {} {} {}", one.kind, one.instance, one.port, text(one));
        services(announcement).iter().map(line).collect()
    }

    #[test]
    fn a_server_has_a_service_for_each_protocol() {
        let all = announcement();
        assert_eq!(
            shown(&all),
            [
                "_smb nas 445 ",
                "_adisk nas 9 |sys=waMa=0,adVF=0x100|dk0=adVN=backup,adVF=0x82|dk1=adVN=more,adVF=0x82",
                "_device-info nas 0 |model=RackMac",
                "_nfs team on nas 2049 |path=/team",
            ]
        );
        let without = Announcement { smb_port: None, nfs_port: None, ..all.clone() };
        assert_eq!(shown(&without), [""; 0]);
        let plain = Announcement { nfs_port: None, shares: Vec::new(), ..all };
        assert_eq!(shown(&plain), ["_smb nas 445 ", "_device-info nas 0 |model=RackMac"]);
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let share = |i: usize| AnnouncedShare {
            name: format!("{i:03}{}", "ä".repeat(40)),
            time_machine: true,
            export: Some("/x".into()),
        };
        let comma = AnnouncedShare { name: "a,b".into(), time_machine: true, export: None };
        let shares = [comma].into_iter().chain((0..100).map(share)).collect();
        let name = "n".repeat(MAX_NAME);
        let many = services(&Announcement { shares, name, ..announcement() });
        assert_eq!(many.iter().filter(|one| one.kind == "_nfs").count(), MAX_EXPORTS);
        assert!(many.iter().all(|one| one.text.len() <= MAX_TEXT && one.instance.len() <= MAX_LABEL));
        let disks = many.iter().find(|one| one.kind == "_adisk").unwrap();
        let disks = String::from_utf8_lossy(&disks.text).into_owned();
        assert!(
            disks.contains("dk0=adVN=000") && disks.contains("dk7=") && !disks.contains("a,b"),
            "{disks}"
        );
    }
}
