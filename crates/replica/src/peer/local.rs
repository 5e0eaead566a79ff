//! A destination in the same process, as a peer of its source.

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use weft_machine::Payload;
use weft_wire::repl::control::{Refusal, Request, Response};

use super::{Error, Peer};
use crate::destination::Destination;
use crate::record::Record;

/// A destination in the same process.
#[derive(Debug)]
pub struct Local(Arc<Destination>);

impl Local {
    /// See [`Local`].
    pub fn new(destination: Arc<Destination>) -> Local {
        Local(destination)
    }
}

impl Peer for Local {
    fn control(&self, request: Request) -> LocalBoxFuture<'_, Result<Response, Error>> {
        Box::pin(async move { Ok(self.0.control(request).await) })
    }

    fn append(&self, session: u64, records: Vec<Record>) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async move { Ok(self.0.append(session, records).await?) })
    }

    fn write_blocks(
        &self,
        session: u64,
        member: u16,
        offset: u64,
        data: Payload,
    ) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let data = data.into_chain(self.0.pool()).await.map_err(|_| Refusal::Io)?;
            Ok(self.0.write_blocks(session, member, offset, data).await?)
        })
    }
}
