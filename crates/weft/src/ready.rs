//! The one line that says that everything listens.
//!
//! Owns: its two forms. Scripts rely on both: fields are added, never changed.

use std::net::IpAddr;

use serde::Serialize;

use crate::shares::Described;

/// What listens where.
#[derive(Serialize, Debug)]
pub(crate) struct Ready {
    /// Always true; tells this object from others in a stream.
    pub ready: bool,
    /// This process.
    pub pid: u32,
    /// The address that everything listens on.
    pub listen: IpAddr,
    /// Who may log on.
    pub user: String,
    /// TCP port of SMB.
    pub smb_port: u16,
    /// Port of SMB Direct.
    pub smbd_port: u16,
    /// The providers that SMB Direct (and NFS over RDMA) is served on.
    pub providers: Vec<&'static str>,
    /// TCP port of NFS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nfs_port: Option<u16>,
    /// Port of NFS over RDMA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nfs_rdma_port: Option<u16>,
    /// TCP port of MOUNT.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mountd_port: Option<u16>,
    /// What is served.
    pub shares: Vec<ReadyShare>,
    /// What drives the sockets: "io_uring" or "epoll".
    pub driver: &'static str,
}

/// A share in the ready line.
#[derive(Serialize, Debug)]
pub(crate) struct ReadyShare {
    /// Its name.
    pub name: String,
    /// "dir" or "ram".
    pub kind: &'static str,
    /// The folder, or the size of the ramdisk.
    pub source: String,
}

impl From<&Described> for ReadyShare {
    fn from(described: &Described) -> ReadyShare {
        let share = &described.share;
        ReadyShare { name: share.name.to_string(), kind: share.vfs.kind(), source: described.source.clone() }
    }
}

impl Ready {
    /// The line, without its end.
    pub(crate) fn line(&self, json: bool) -> String {
        if json {
            return serde_json::to_string(self).expect("plain data is JSON");
        }
        let mut line = format!("ready smb={} smbd={}", self.smb_port, self.smbd_port);
        for (name, port) in
            [("nfs", self.nfs_port), ("nfs-rdma", self.nfs_rdma_port), ("mountd", self.mountd_port)]
        {
            if let Some(port) = port {
                line += &format!(" {name}={port}");
            }
        }
        let shares: Vec<&str> = self.shares.iter().map(|s| s.name.as_str()).collect();
        line + &format!(" listen={} shares={}", self.listen, shares.join(","))
    }

    /// How to connect, for a person who reads the terminal.
    pub(crate) fn how_to(&self) -> String {
        let mut text = String::new();
        let (host, user, port) = (self.listen, &self.user, self.smb_port);
        for share in &self.shares {
            let name = &share.name;
            text += &format!("share {name} ({}, {})\n", share.kind, share.source);
            text += &format!("  smbclient //{host}/{name} -p {port} -U {user}\n");
            text += &format!("  weft ls smb://{user}@{host}:{port}/{name}\n");
            if let Some(nfs) = self.nfs_port {
                let mount = self.mountd_port.unwrap_or(nfs);
                text +=
                    &format!("  nfs-ls 'nfs://{host}/{name}?version=3&nfsport={nfs}&mountport={mount}'\n");
            }
        }
        text + &format!("SMB Direct on port {} by {}\n", self.smbd_port, self.providers.join(" and "))
    }
}
