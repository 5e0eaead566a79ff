//! A backend whose failures are recorded as problems of its disk.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;

use super::{Health, Takes};
use crate::vfs::{Backend, Caller, Created, Effect, Error, Layer, Op, Outcome};

/// See the module.
pub(crate) struct Heard {
    backend: Arc<dyn Backend>,
    health: Arc<Health>,
}

impl Heard {
    pub(crate) fn new(backend: Arc<dyn Backend>, health: Arc<Health>) -> Heard {
        Heard { backend, health }
    }
}

/// The name that an operation changes, if its outcome says something about the disk. An extended attribute does not:
/// ext4 has little space for them even on an empty disk.
fn changes(op: &Op) -> Option<Option<Vec<u8>>> {
    match op.effect() {
        Effect::AddsName { name, .. } | Effect::RemovesName { name, .. } => Some(Some(name.to_vec())),
        Effect::Moves { to, .. } => Some(Some(to.name.clone())),
        Effect::SetsAttributes(_) | Effect::Flushes | Effect::OpensToWrite => Some(None),
        Effect::SetsXattrs(_) | Effect::Inspects | Effect::Reads | Effect::AsksToRemove => None,
    }
}

impl Layer for Heard {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        if let Op::MayUnlink { .. } = op {
            let asked = self.backend.submit(op, by);
            return Box::pin(async move {
                let asked = asked.await;
                if asked.is_err() {
                    // Checking whether a name may be removed says nothing about the disk.
                    self.health.heard(&asked, Takes::Nothing, || None);
                }
                asked
            });
        }
        let changes = changes(&op);
        let makes = matches!(op, Op::Create { .. });
        // Clients may ask for any size, even one that no disk has.
        let sizes = matches!(op, Op::Setattr { .. });
        let submitted = self.backend.submit(op, by);
        match changes {
            None => submitted,
            Some(name) => Box::pin(async move {
                let done = submitted.await;
                let path = || name.map(|name| PathBuf::from(OsString::from_vec(name)));
                let takes = match &done {
                    Ok(Outcome::Created(Created { is_new: true, .. })) => Takes::Name,
                    Err(_) if makes => Takes::Name,
                    _ => Takes::Nothing,
                };
                if !(sizes && matches!(done, Err(Error::NoSpace | Error::OverQuota))) {
                    self.health.heard(&done, takes, path);
                }
                done
            }),
        }
    }
}
