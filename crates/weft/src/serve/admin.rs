//! The admin socket of this server: its permissions, and the dispatch of requests. `crate::admin` defines the
//! requests.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;
use weft_machine::rt;
use weft_store::audit::Audit;

use super::audit::{self, By};
use super::error::{AdminFault, StartError};
use super::neighbours;
use super::reload::Reload;
use super::replica::Replicas;
use super::status;
use super::volumes::{GrowError, Growths};
use crate::Failure;
use crate::admin::Request;
use crate::admin::endpoint::{Endpoint, Handler};
use crate::admin::replica::{Command, Reply};
use crate::config::{Plan, key};
use crate::listen::Stop;
use crate::listen::unix::SocketFile;
use crate::status::slow::SlowOperations;

/// The answer to replication requests by a server that does not replicate.
const NO_REPLICAS: &str =
    "this server does not replicate: start it with --replica (weft serve --volume NAME --nbd --replica)";

/// The admin socket, if there is a directory for it.
pub(super) struct Admin {
    endpoint: Option<Endpoint>,
    /// Its directory.
    pub dir: Option<PathBuf>,
    stop: Stop,
}

impl Admin {
    /// Binds the admin socket. A failure is an error only if its directory was named.
    pub(super) fn bind(plan: &Plan, stop: &Stop) -> Result<Admin, StartError> {
        let (dir, is_named) = (plan.state_dir(), plan.config().state_dir.is_some());
        let bound = match &dir {
            Some(dir) if dir.is_file() => Err(AdminFault::File(dir.clone())),
            Some(dir) => Endpoint::bind(dir).map_err(|source| AdminFault::Bind { dir: dir.clone(), source }),
            None => Err(AdminFault::NoPlace),
        };
        let endpoint = match bound {
            Ok(endpoint) => {
                // After our own socket exists: of two servers that start at the same time, at least one sees the
                // other.
                if let Some(dir) = &dir {
                    neighbours::sharing_state(dir, is_named);
                }
                Some(endpoint)
            }
            Err(fault) if is_named => {
                let key = plan.config().sources.named(&key::STATE_DIR);
                return Err(StartError::Admin { key, fault });
            }
            Err(fault) => {
                tracing::warn!("{fault}; `weft status` will not find this server: give a --state-dir");
                None
            }
        };
        Ok(Admin { endpoint, dir, stop: stop.clone() })
    }

    /// Answers requests from now on. Returns the socket's file, which is removed on drop.
    pub(super) fn open(self, managed: Managed) -> Option<SocketFile> {
        let mut endpoint = self.endpoint?;
        let file = endpoint.take_file();
        let managed = Rc::new(managed);
        let handler: Handler = Rc::new(move |request, uid, hung_up| {
            let managed = managed.clone();
            Box::pin(async move { managed.carry_out(request, By::User(uid), &hung_up).await })
        });
        rt::spawn(endpoint.serve(handler, self.stop)).detach();
        file
    }
}

/// The parts of a server that requests are about.
pub(super) struct Managed {
    pub subject: Arc<status::Subject>,
    pub replicas: Option<Arc<Replicas>>,
    pub growths: Growths,
    pub reload: Arc<Reload>,
    pub audit: Audit,
}

impl Managed {
    /// Carries a request out.
    async fn carry_out(&self, request: Request, by: By, hung_up: &Stop) -> Result<Value, Failure> {
        let replicas = self.replicas.clone();
        match request {
            Request::Grow { volume, size } => {
                if replicas.is_some_and(|replicas| replicas.has(&volume)) {
                    return Err(GrowError::Replicated { volume, size }.into());
                }
                let command = format!("grow volume {volume} to {size} bytes");
                let grown = self.growths.grow(&volume, size).await.map_err(Failure::from);
                audit::commanded(&self.audit, by, command, &grown);
                Ok(grown?.into())
            }
            Request::Users => {
                self.reload.users(by).await?;
                Ok(self.reload.configured_user().into())
            }
            Request::Reload { file } => {
                if file.is_some_and(|file| !self.reload.uses(&file)) {
                    return Ok(Value::Null);
                }
                Ok(serde_json::to_value(self.reload.run(by).await?)?)
            }
            Request::Replica(command) => {
                let reply = match (replicas, command) {
                    (Some(replicas), Command::Status) => replicas.command(Command::Status, hung_up).await?,
                    (Some(replicas), command) => {
                        let shown = serde_json::to_string(&command)?;
                        let reply = replicas.command(command, hung_up).await;
                        audit::commanded(&self.audit, by, format!("replica {shown}"), &reply);
                        reply?
                    }
                    (None, Command::Status) => Reply::Status(Vec::new()),
                    (None, _) => return Err(NO_REPLICAS.into()),
                };
                Ok(serde_json::to_value(reply)?)
            }
            // The cores are not asked: one of them may be stuck in what is to be shown.
            Request::Slow => Ok(serde_json::to_value(SlowOperations::now())?),
            Request::Status => {
                let status = self.subject.status().await?;
                let replicas = replicas.map_or_else(Vec::new, |replicas| replicas.told());
                Ok(serde_json::to_value(status.with_replicas(replicas))?)
            }
        }
    }
}
