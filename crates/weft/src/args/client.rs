//! The command lines of the clients, and their options for connecting.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{number, parse_dialect, parse_within};

/// An option for NFS that only SMB has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option} is for SMB; {because}")]
pub(crate) struct OnlySmb {
    option: &'static str,
    because: &'static str,
}

/// How a client reaches the server.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    /// Shared memory if the server is on this host, else an RDMA device if both hosts have one, else iWARP, else TCP;
    /// the command prints which one it uses
    Auto,
    /// Plain TCP
    Tcp,
    /// RDMA over TCP (iWARP), in user space
    Iwarp,
    /// RDMA over shared memory, on one host
    Shm,
    /// RDMA through a device of this host (rdma-core)
    Rnic,
}

/// Options of every command that connects to a server.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Connect {
    /// How to reach the server
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    /// Use no CRC on iWARP unless the server asks for one
    #[arg(long)]
    pub no_crc: bool,
    /// Encrypt the SMB session
    #[arg(long)]
    pub encrypt: bool,
    /// Sign the SMB session
    #[arg(long)]
    pub sign: bool,
    /// Compress SMB over TCP if the server supports it
    #[arg(long)]
    pub compress: bool,
    /// Oldest SMB dialect to speak: 2.1, 3.0, 3.0.2 or 3.1.1 [default: 3.0]. With 2.1, only --sign proves that the
    /// server knows the password and that nobody in between has changed its messages
    #[arg(long, value_name = "DIALECT", value_parser = parse_dialect)]
    pub min_dialect: Option<weft_smb::server::Dialect>,
    /// Show your Kerberos ticket (kinit) instead of a password (SMB) or Unix ids (NFS, with the protection that the export
    /// prefers: ?sec=krb5p in the URL names one); HOST must be the name in cifs/HOST or nfs/HOST
    #[arg(short, long)]
    pub kerberos: bool,
    /// Connections to the server's address [default: 1]; an SMB session adds one to each of the server's other
    /// addresses
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=16))]
    pub channels: Option<u32>,
}

impl Connect {
    /// The default options with this transport.
    pub(crate) fn by(transport: Transport) -> Connect {
        Connect {
            transport,
            no_crc: false,
            encrypt: false,
            sign: false,
            compress: false,
            min_dialect: None,
            kerberos: false,
            channels: None,
        }
    }

    /// Refuses options for NFS that only SMB has: a user who asks for encryption must not send plain text.
    pub(crate) fn check_nfs(&self) -> Result<(), OnlySmb> {
        let of_smb = [
            (
                self.encrypt,
                "--encrypt",
                "for NFS, append ?sec=krb5p to the URL, which takes a Kerberos ticket",
            ),
            (self.sign, "--sign", "for NFS, append ?sec=krb5i to the URL, which takes a Kerberos ticket"),
            (self.compress, "--compress", "NFS has no compression"),
            (
                self.min_dialect.is_some(),
                "--min-dialect",
                "to choose an NFS version, append ?vers=3 or ?vers=4.1 to the URL",
            ),
        ];
        match of_smb.into_iter().find(|(asked, ..)| *asked) {
            Some((_, option, because)) => Err(OnlySmb { option, because }),
            None => Ok(()),
        }
    }
}

/// `weft cp`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  weft cp smb://alice@127.0.0.1:4450/data/big.iso ./copy.iso --transport iwarp\n  \
weft cp ./big.iso smb://alice@127.0.0.1:4450/data/\n  \
weft cp nfs://nas/data/big.iso ./copy.iso\n  \
weft cp 'nfs://127.0.0.1:2049/data/big.iso?mountport=20048' ./copy.iso\n\n\
The password comes from WEFT_PASSWORD or is asked for."
)]
pub(crate) struct Cp {
    /// A local file, - for standard input (as destination: output), smb://USER@HOST:PORT/SHARE/PATH, or
    /// nfs://HOST:PORT/EXPORT/PATH?vers=3|4.1&sec=sys|krb5|krb5i|krb5p&mountport=N&rdmaport=N
    pub from: String,
    /// The destination, in the same forms; in a folder (or with a trailing slash) the copy keeps the file's name
    pub to: String,
    /// Copy folders with their contents
    #[arg(short, long)]
    pub recursive: bool,
    #[command(flatten)]
    pub transfer: Transfer,
    /// Files copied at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = number::<u32>(1..=64))]
    pub files: u32,
}

/// Options of every command that copies.
#[derive(clap::Args, Debug)]
pub(crate) struct Transfer {
    #[command(flatten)]
    pub connect: Connect,
    /// Bytes of one operation, 512 to 16M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = |text: &str| parse_within(text, 512, 16 << 20))]
    pub block: u64,
    /// Operations outstanding per file
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = number::<u32>(1..=1024))]
    pub queue_depth: u32,
    /// Do not read the copy back to compare it
    #[arg(long)]
    pub no_verify: bool,
    /// Keep the partial file when a copy fails or is interrupted; the next run continues from it
    #[arg(long)]
    pub resume: bool,
    /// Seconds to keep reconnecting when all connections to an SMB server are lost; 0 fails at once
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = number::<u32>(0..=86400))]
    pub patience: u32,
    /// Print only errors: no transport, progress bar or summary; --json still prints its object
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub json: bool,
}

impl Transfer {
    /// How long to keep reconnecting to a lost server.
    pub(crate) fn patience(&self) -> std::time::Duration {
        std::time::Duration::from_secs(self.patience.into())
    }
}

/// `weft sync`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  weft sync ./photos smb://alice@nas/data/photos\n  \
weft sync --delete smb://alice@nas/data/photos ./photos\n\n\
A file is copied if its size or its time differs. The copy gets the time of its source.")]
pub(crate) struct Sync {
    /// Source folder: a local one, smb://USER@HOST:PORT/SHARE/PATH or nfs://HOST:PORT/EXPORT/PATH
    pub from: String,
    /// Destination folder; created if missing
    pub to: String,
    /// After copying, delete files that the source does not have
    #[arg(long)]
    pub delete: bool,
    /// Only print what would be done
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub transfer: Transfer,
    /// Files copied at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = number::<u32>(1..=64))]
    pub files: u32,
}

/// `weft cat`.
#[derive(clap::Args, Debug)]
pub(crate) struct Cat {
    /// smb://USER@HOST:PORT/SHARE/PATH or nfs://HOST:PORT/EXPORT/PATH?mountport=N
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<String>,
    #[command(flatten)]
    pub connect: Connect,
}

/// `weft put`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  tar c ./photos | weft put smb://alice@nas/data/photos.tar")]
pub(crate) struct Put {
    /// smb://USER@HOST:PORT/SHARE/PATH or nfs://HOST:PORT/EXPORT/PATH?mountport=N
    pub url: String,
    #[command(flatten)]
    pub connect: Connect,
    /// Print the result as a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `weft stat`.
#[derive(clap::Args, Debug)]
pub(crate) struct Stat {
    /// smb://USER@HOST:PORT/SHARE/PATH or nfs://HOST:PORT/EXPORT/PATH?mountport=N
    pub url: String,
    #[command(flatten)]
    pub connect: Connect,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `weft ls`.
#[derive(clap::Args, Debug)]
pub(crate) struct Ls {
    /// smb://USER@HOST:PORT[/SHARE[/PATH]] or nfs://HOST:PORT/EXPORT[/PATH]?mountport=N; without a share, lists the
    /// shares
    pub url: String,
    #[command(flatten)]
    pub connect: Connect,
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// The user to log on as if the URL names none.
pub(crate) fn default_user() -> String {
    let named = |variable| std::env::var(variable).ok().filter(|name| !name.is_empty());
    named("USER").or_else(|| named("LOGNAME")).unwrap_or_else(|| "weft".into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::{Args, Command};

    /// `--encrypt` was ignored for nfs://, and data that should have been encrypted went in plain text.
    #[test]
    fn what_smb_alone_has_is_refused_for_nfs() {
        let connect = |options: &str| {
            let line = ["weft ls nfs://h/s", options].join(" ");
            let args = Args::parse_from(line.split(' ').filter(|word| !word.is_empty()));
            let Command::Ls(ls) = args.command else { panic!("ls") };
            ls.connect
        };
        for option in ["--encrypt", "--sign", "--compress", "--min-dialect 3.0"] {
            let says = connect(option).check_nfs().unwrap_err().to_string();
            assert!(says.contains(" is for SMB; ") && says.starts_with("--"), "{option}: {says}");
            let url = crate::url::Url::parse("nfs://h/s").unwrap().unwrap();
            assert!(crate::connect::check(&url, &connect(option)).is_err(), "{option}");
            assert!(crate::connect::password_for(&url, &connect(option)).is_err(), "{option}");
        }
        for option in ["", "--no-crc", "--channels 2", "--transport tcp", "-k", "--kerberos"] {
            assert_eq!(connect(option).check_nfs(), Ok(()), "{option}");
        }
        let sys = crate::url::Url::parse("nfs://h/s?sec=sys").unwrap().unwrap();
        assert!(crate::connect::check(&sys, &connect("")).is_ok());
        assert!(crate::connect::check(&sys, &connect("-k")).is_err());
    }
}
