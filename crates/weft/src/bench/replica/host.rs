//! A server with its own volumes, started for a measurement as a substitute for a host. This file owns its process
//! and its state directory.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use weft_load::measure::{self, server_cpu, server_memory};
use weft_load::result::EndSample;
use weft_machine::random;
use weft_store::volume::{Create, Storage, Volumes};

use crate::Failure;
use crate::admin::replica::{self, Command, Group, Reply};
use crate::admin::{self, Request};
use crate::args::Transport;
use crate::bench::secret;
use crate::bench::server::CONGESTION;
use crate::child::Service;
use crate::password;
use crate::serve::replica::config::{Address, Password};

const USER: &str = "bench";
/// Groups are created and removed here, which a server warns about. Errors are asked for and reported.
const LOG: &str = "error,weft_replica=off";
/// Size of each side's log: the minimum.
const LOG_BYTES: u64 = 64 << 20;
/// How long a command may take that waits for the other side.
const PATIENCE: Duration = Duration::from_secs(60);

/// A volume to serve: in memory, or in a sparse file.
pub(super) struct Disk {
    pub name: &'static str,
    pub size: u64,
    pub in_memory: bool,
}

/// See the module.
pub(super) struct Host {
    service: Service,
    admin: admin::Server,
    password: String,
}

impl Host {
    /// Creates the volumes in `folder`, which this process has created, and serves them.
    pub(super) fn start(folder: &Path, disks: &[Disk]) -> Result<Host, Failure> {
        let state = folder.join("state");
        let volumes = Volumes::at(state.join("volumes"));
        for disk in disks {
            let id = random::bytes()?;
            let file = |name| -> PathBuf { folder.join(format!("{name}.img")) };
            let storage = if disk.in_memory { Storage::Ram } else { Storage::File(file(disk.name)) };
            let created = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
            let size = Some(disk.size);
            volumes
                .create(disk.name, &Create { storage, size, allocate: false, direct: false, id, created })?;
        }
        let state_dir = state.to_str().ok_or("the folder for temporary files has no name in UTF-8")?;
        let mut args = vec!["serve", "--json", "--replica", "--user", USER, "--state-dir", state_dir];
        args.extend(["--smb-port", "0", "--smbd-port", "0", "--nbd-port", "0", "--congestion", CONGESTION]);
        args.extend(disks.iter().flat_map(|disk| ["--volume", disk.name]));
        let password = secret::generate()?;
        let password_of = Some((password::VARIABLE, &*password));
        let service = Service::start_apart(&args, password_of, Stdio::null(), LOG)?;
        let admin = admin::servers(&state)?.into_iter().find(|server| server.pid == service.pid());
        let admin = admin.ok_or("a server that was started has no admin socket")?;
        Ok(Host { service, admin, password })
    }

    /// The NBD port of its disks.
    pub(super) fn nbd_port(&self) -> Result<u16, Failure> {
        self.service.port("nbd_port")
    }

    fn ask(&self, command: Command) -> Result<Reply, Failure> {
        Ok(serde_json::from_value(self.admin.ask_within(&Request::Replica(command), PATIENCE)?)?)
    }

    /// Replicates a volume of this host to the volume with the same name on another.
    pub(super) fn replicate(
        &self,
        volume: &str,
        other: &Host,
        transport: Transport,
        synchronous: bool,
    ) -> Result<(), Failure> {
        let address = Address {
            host: "127.0.0.1".into(),
            port: other.service.port("smb_port")?,
            user: USER.into(),
            password: Password::new(&other.password),
            transport,
            encrypt: false,
            compress: false,
        };
        let create = replica::Create {
            volumes: vec![volume.to_owned()],
            their_volumes: vec![volume.to_owned()],
            group: None,
            address,
            synchronous,
            seeded: false,
            overwrite: true,
            log_bytes: Some(LOG_BYTES),
            return_host: None,
            on_loss: None,
            on_congestion: None,
        };
        self.ask(Command::Create(Box::new(create))).map(drop)
    }

    /// Ends that replication.
    pub(super) fn let_go(&self, group: &str) -> Result<(), Failure> {
        self.ask(Command::Remove { group: group.to_owned(), to: None, force: false }).map(drop)
    }

    /// The group of a volume, and its engine's report on its only destination.
    pub(super) fn group(&self, name: &str) -> Result<(Group, Value), Failure> {
        let Reply::Status(groups) = self.ask(Command::Status)? else {
            return Err("unexpected answer of a server".into());
        };
        let group = groups.into_iter().find(|group| group.name == name);
        let group = group.ok_or_else(|| format!("there is no group {name}"))?;
        if let Some(why) = &group.stopped {
            return Err(format!("{name} has stopped: {why}").into());
        }
        let peer = group.engine["peers"].get(0).cloned().unwrap_or(Value::Null);
        Ok((group, peer))
    }

    fn process(&self) -> measure::Server {
        measure::Server { pid: self.service.pid() }
    }

    /// Processor time so far.
    pub(super) fn cpu(&self) -> Result<Duration, Failure> {
        Ok(server_cpu(self.process())?)
    }

    /// Resident memory.
    pub(super) fn memory(&self) -> Result<u64, Failure> {
        Ok(server_memory(self.process())?)
    }

    /// Its cost since its processor time was `before`; `idle_percent` is the machine's.
    pub(super) fn cost(&self, before: Duration, idle_percent: &[f64]) -> Result<EndSample, Failure> {
        Ok(EndSample {
            cpu: Some(self.cpu()?.saturating_sub(before)),
            memory_bytes: Some(self.memory()?),
            idle_percent: idle_percent.to_vec(),
            ..EndSample::default()
        })
    }

    /// Ends it; an unsuccessful exit is an error.
    pub(super) fn stop(self) -> Result<(), Failure> {
        self.service.stop()
    }
}
