//! The connections of a status by kind: a protocol over a transport and an RDMA provider.

use serde::{Deserialize, Serialize};

use super::{Ended, Status, Traffic};

/// The connections of one protocol, transport and provider.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OfKind {
    /// As of a connection.
    pub protocol: String,
    /// As of a connection.
    pub transport: String,
    /// As of a connection.
    pub provider: Option<String>,
    /// Open connections.
    pub open: u64,
    /// Open ones that do not use RDMA although the server offers it.
    pub without_rdma: u64,
    /// Connections that have ended.
    pub ended: u64,
    /// What all of them have carried.
    pub traffic: Traffic,
}

impl Status {
    /// All its connections, also those that have ended, in the order of their kinds.
    pub(crate) fn of_kinds(&self) -> Vec<OfKind> {
        let mut kinds: Vec<OfKind> = Vec::new();
        let mut add = |one: &Ended, open: bool, without_rdma: bool| {
            let key = |kind: &OfKind| {
                (&kind.protocol, &kind.transport, &kind.provider).cmp(&(
                    &one.protocol,
                    &one.transport,
                    &one.provider,
                ))
            };
            let at = kinds.binary_search_by(key).unwrap_or_else(|at| {
                let Ended { protocol, transport, provider, .. } = one.clone();
                kinds.insert(at, OfKind { protocol, transport, provider, ..OfKind::default() });
                at
            });
            if let Some(kind) = kinds.get_mut(at) {
                let count = if open { &mut kind.open } else { &mut kind.ended };
                *count = count.saturating_add(one.connections);
                kind.without_rdma += u64::from(without_rdma);
                kind.traffic = kind.traffic + one.traffic;
            }
        };
        for ended in &self.ended {
            add(ended, false, false);
        }
        for connection in &self.connections {
            add(&Ended::of(connection), true, connection.advice.is_some());
        }
        kinds
    }
}
