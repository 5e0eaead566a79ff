//! The messages between a conductor and its agents.

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use weft_load::result::EndSample;
use weft_load::run::Counted;
use weft_load::workload::Workload;
use zeroize::Zeroizing;

use super::crew::{ClientConfig, Named, Waiting};
use crate::Failure;
use crate::args::{Connect, Transport};
use crate::password;
use crate::url::{Scheme, Url};

/// The environment variable with the token.
pub(super) const TOKEN: &str = "WEFT_AGENT_TOKEN";
/// The port that agents listen on.
pub(super) const PORT: u16 = 7175;

/// How a client connects, as sent over the wire: everything except the password.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct WireConfig {
    url: String,
    transport: String,
    no_crc: bool,
    encrypt: bool,
    sign: bool,
    compress: bool,
    channels: Option<u32>,
    congestion: Option<String>,
}

impl WireConfig {
    /// Leaves the password out.
    pub(super) fn of(config: &ClientConfig) -> WireConfig {
        let name = config.connect.transport.to_possible_value();
        WireConfig {
            url: super::own::root(&config.url),
            transport: name.map_or_else(String::new, |value| value.get_name().to_owned()),
            no_crc: config.connect.no_crc,
            encrypt: config.connect.encrypt,
            sign: config.connect.sign,
            compress: config.connect.compress,
            channels: config.connect.channels,
            congestion: config.congestion.clone(),
        }
    }

    /// The client's configuration on the agent's host, with the password of the agent's environment.
    pub(super) fn received(self) -> Result<ClientConfig, Failure> {
        let url = Url::parse(&self.url)?.ok_or("no URL")?;
        let transport = Transport::from_str(&self.transport, false)?;
        let password = match url.scheme {
            Scheme::Nfs => Zeroizing::new(String::new()),
            Scheme::Smb => std::env::var(password::VARIABLE).map(Zeroizing::new).map_err(|_| {
                format!("the agent has no password for {}: start it with {}", url.host, password::VARIABLE)
            })?,
        };
        let WireConfig { no_crc, encrypt, sign, compress, channels, congestion, .. } = self;
        let connect = Connect { no_crc, encrypt, sign, compress, channels, ..Connect::by(transport) };
        Ok(ClientConfig { url, connect, password: Arc::new(password), congestion })
    }
}

/// A request of a conductor.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Ask {
    /// Starts this many threads in place of the previous ones, and chooses how they wait.
    Threads { threads: u32, waiting: Waiting },
    /// Thread `thread` becomes client number `key`, with these files.
    Open {
        thread: u32,
        key: u32,
        // Hosts of other versions know it by this name.
        #[serde(rename = "way")]
        config: WireConfig,
        files: Vec<Named>,
    },
    /// Starts the clients of this number.
    Drive { key: u32, workloads: Vec<Workload> },
    /// Asks for the operations since the start, and whether a client has failed.
    Progress,
    /// Starts counting.
    Begin,
    /// Stops counting.
    End,
    /// No new operation starts from now on.
    Stop,
    /// Asks for the counts.
    Counted,
    /// Closes the clients of this number.
    Close(u32),
    /// Starts observing the resource use of the server on this host.
    Observe,
    /// Asks for the resource use since then.
    Observed,
}

/// The agent's answer.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Answer {
    Done,
    Progress {
        operations: u64,
        failed: bool,
    },
    Counted {
        counted: Box<Counted>,
        cpu: Duration,
    },
    /// The use of the server and of this host while observed.
    Observed(Box<EndSample>),
    Failed(String),
}
