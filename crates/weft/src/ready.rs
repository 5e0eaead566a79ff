//! The line that reports that everything listens, as text or JSON. Scripts rely on both forms: fields are added,
//! never changed.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::Serialize;

use crate::config::AbsentShare;
use crate::out::ShellCommand;
use crate::shares::Described;
use crate::url::escaped;

/// The listening ports and addresses.
#[derive(Serialize, Debug)]
pub(crate) struct Ready {
    /// Always true; identifies this object in a stream of others.
    pub ready: bool,
    /// The process number.
    pub pid: u32,
    /// The address that everything listens on, or the first of several.
    pub listen: IpAddr,
    /// All addresses.
    pub addresses: Vec<IpAddr>,
    /// The user who may log on.
    pub user: String,
    /// TCP port of SMB, if there are shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smb_port: Option<u16>,
    /// Port of SMB Direct.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smbd_port: Option<u16>,
    /// The providers that serve SMB Direct (and NFS over RDMA).
    pub providers: Vec<&'static str>,
    /// Port of NFS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nfs_port: Option<u16>,
    /// Port of NFS over RDMA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nfs_rdma_port: Option<u16>,
    /// Port of MOUNT.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mountd_port: Option<u16>,
    /// Port of rpcbind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpcbind_port: Option<u16>,
    /// TCP port of the admin server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_port: Option<u16>,
    /// Its Unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_socket: Option<PathBuf>,
    /// Whether NFS, MOUNT and rpcbind are also served over UDP.
    pub nfs_udp: bool,
    /// The shares.
    pub shares: Vec<ReadyShare>,
    /// NBD.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub nbd: Option<ReadyNbd>,
    /// The volumes, if any are served.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<ReadyVolume>,
    /// Volumes on the command line that cannot be served.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_served: Vec<ReadyAbsent>,
    /// Shares of the configuration file whose folders cannot be served.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shares_not_served: Vec<ReadyAbsent>,
    /// What drives the sockets: "io_uring" or "epoll".
    pub driver: &'static str,
}

/// NBD in the ready line.
#[derive(Serialize, Debug)]
pub(crate) struct ReadyNbd {
    /// Whether NBD is served under TLS, and only so.
    pub nbd_tls: bool,
    /// TCP port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nbd_port: Option<u16>,
    /// Unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nbd_socket: Option<PathBuf>,
}

/// A volume in the ready line.
#[derive(Serialize, Debug)]
pub(crate) struct ReadyVolume {
    /// Its name, which NBD clients ask for.
    pub name: String,
    /// "ram", "file", "device" or "rbd".
    pub kind: &'static str,
    /// The file, device, image or memory that holds it.
    pub source: String,
    /// Bytes.
    pub size: u64,
}

/// A volume or share that is not served, in the ready line.
#[derive(Serialize, Debug)]
pub(crate) struct ReadyAbsent {
    /// Its name.
    pub name: String,
    /// The reason, and what to type.
    pub why: String,
}

impl From<&AbsentShare> for ReadyAbsent {
    fn from(absent: &AbsentShare) -> ReadyAbsent {
        ReadyAbsent { name: absent.name.clone(), why: absent.told() }
    }
}

/// A share in the ready line.
#[derive(Serialize, Debug)]
pub(crate) struct ReadyShare {
    /// Its name.
    pub name: String,
    /// "dir", "ram" or "volumes".
    pub kind: &'static str,
    /// The folder, the size of the ramdisk, or the number of volumes.
    pub source: String,
    /// Whether NFS offers it, if NFS is served.
    #[serde(skip)]
    pub by_nfs: bool,
}

impl From<&Described> for ReadyShare {
    fn from(described: &Described) -> ReadyShare {
        let share = &described.share;
        ReadyShare {
            name: share.name.to_string(),
            kind: share.vfs.kind(),
            source: described.source.clone(),
            by_nfs: share.rules.withheld_from_nfs().is_none(),
        }
    }
}

impl Ready {
    /// The line, without its newline.
    pub(crate) fn line(&self, json: bool) -> String {
        if json {
            return serde_json::to_string(self).expect("plain data is JSON");
        }
        let mut line = "ready".to_owned();
        for (name, port) in self.ports() {
            line += &format!(" {name}={port}");
        }
        if let Some(socket) = self.nbd.as_ref().and_then(|nbd| nbd.nbd_socket.as_ref()) {
            line += &format!(" nbd-socket={}", field(&socket.to_string_lossy(), "/"));
        }
        if let Some(socket) = &self.admin_socket {
            line += &format!(" admin-socket={}", field(&socket.to_string_lossy(), "/"));
        }
        line += &format!(" listen={}", self.listen);
        if self.addresses.len() > 1 {
            let all: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
            line += &format!(" addresses={}", all.join(","));
        }
        if !self.shares.is_empty() {
            let names: Vec<String> = self.shares.iter().map(|s| field(&s.name, "")).collect();
            line += &format!(" shares={}", names.join(","));
        }
        if !self.volumes.is_empty() {
            let names: Vec<String> = self.volumes.iter().map(|v| field(&v.name, "")).collect();
            line += &format!(" volumes={}", names.join(","));
        }
        line
    }

    /// The ports, each with its service's name.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (&'static str, u16)> + use<> {
        let ports = [
            ("smb", self.smb_port),
            ("smbd", self.smbd_port),
            ("nfs", self.nfs_port),
            ("nfs-rdma", self.nfs_rdma_port),
            ("mountd", self.mountd_port),
            ("rpcbind", self.rpcbind_port),
            ("admin", self.admin_port),
            ("nbd", self.nbd.as_ref().and_then(|nbd| nbd.nbd_port)),
        ];
        ports.into_iter().filter_map(|(name, port)| Some((name, port?)))
    }

    /// Example commands for connecting, for a person at the terminal; `host` is in URL form.
    pub(crate) fn how_to(&self, host: &str) -> String {
        let mut text = String::new();
        let user = &self.user;
        if let Some(port) = self.smb_port {
            for share in &self.shares {
                let (name, share_by_nfs) = (&share.name, share.by_nfs);
                text += &format!("share {name} ({}, {})\n", share.kind, share.source);
                // smbclient takes IPv6 addresses only without brackets.
                let bare = host.trim_start_matches('[').trim_end_matches(']');
                let smbclient = ShellCommand::new("smbclient").operand(format!("//{bare}/{name}"));
                text += &format!("  {}\n", smbclient.option("-p", port.to_string()).option("-U", user));
                let (user, name) = (escaped(user, ""), escaped(name, ""));
                let ls = ShellCommand::new("weft ls").operand(format!("smb://{user}@{host}:{port}/{name}"));
                text += &format!("  {ls}\n");
                if let Some(nfs) = self.nfs_port.filter(|_| share_by_nfs) {
                    let mount = self.mountd_port.unwrap_or(nfs);
                    // libnfs 4, which Debian 12 has, does not decode names.
                    let path = if share.name.contains(['%', '?']) { &name } else { &share.name };
                    let url = format!("nfs://{host}/{path}?version=3&nfsport={nfs}&mountport={mount}");
                    text += &format!("  {}\n", ShellCommand::new("nfs-ls").operand(url));
                }
            }
        }
        for volume in &self.volumes {
            let name = &volume.name;
            text += &format!("volume {name} ({})\n", volume.source);
            for uri in self.nbd.iter().flat_map(|nbd| nbd.uris(host, name)) {
                text += &format!("  {}\n", ShellCommand::new("nbdinfo").operand(uri));
            }
        }
        if let Some(port) = self.smbd_port {
            text += &format!("SMB Direct on port {port} by {}\n", self.providers.join(" and "));
        }
        text
    }
}

/// A name as a field of the line, which scripts split at blanks and commas: escaped as in URLs.
fn field(name: &str, also: &str) -> String {
    escaped(name, also).replace(',', "%2C")
}

impl ReadyNbd {
    /// A volume's URIs for clients ("NBD Uniform Resource Indicator format").
    fn uris(&self, host: &str, name: &str) -> Vec<String> {
        let name = escaped(name, "");
        let scheme = if self.nbd_tls { "nbds" } else { "nbd" };
        let tcp = self.nbd_port.map(|port| format!("{scheme}://{host}:{port}/{name}"));
        let unix = |path: &PathBuf| {
            format!("{scheme}+unix:///{name}?socket={}", escaped(&path.to_string_lossy(), "/"))
        };
        let unix = self.nbd_socket.as_ref().map(unix);
        tcp.into_iter().chain(unix).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_can_be_split() {
        assert_eq!(field("my data,1", ""), "my%20data%2C1");
        assert_eq!(field("photos-2_\u{fc}", ""), "photos-2_\u{fc}");
        assert_eq!(field("/run/a b=c", "/"), "/run/a%20b=c");
    }

    #[test]
    fn what_is_to_be_typed_can_be_typed() {
        let share = |name: &str, by_nfs| ReadyShare {
            name: name.to_owned(),
            kind: "dir",
            source: "/srv".to_owned(),
            by_nfs,
        };
        let ready = Ready {
            ready: true,
            pid: 1,
            listen: [127, 0, 0, 1].into(),
            addresses: vec![],
            user: "a b".to_owned(),
            smb_port: Some(4450),
            smbd_port: None,
            providers: vec![],
            nfs_port: Some(2049),
            nfs_rdma_port: None,
            mountd_port: None,
            rpcbind_port: None,
            admin_port: None,
            admin_socket: None,
            nfs_udp: false,
            shares: vec![share("my share's $x", true), share("secret", false)],
            nbd: None,
            volumes: vec![],
            not_served: vec![],
            shares_not_served: vec![],
            driver: "epoll",
        };
        let text = ready.how_to("127.0.0.1");
        assert!(text.contains(r"smbclient '//127.0.0.1/my share'\''s $x' -p 4450 -U 'a b'"), "{text}");
        assert!(text.contains("weft ls smb://a%20b@127.0.0.1:4450/my%20share%27s%20%24x\n"), "{text}");
        assert!(text.contains(r"nfs-ls 'nfs://127.0.0.1/my share'\''s $x?"), "{text}");
        // NFS does not offer it.
        assert!(
            text.contains("smbclient //127.0.0.1/secret") && !text.contains("nfs://127.0.0.1/secret"),
            "{text}"
        );
    }
}
