//! The table of connected clients by ClientGuid, which fixes one dialect per client.
//!
//! Spec: [MS-SMB2] 3.3.1.16, 3.3.5.5.3 (dialect verification), 3.3.7.1 (its end). Owns an entry per client for as long
//! as one of its connections has logged on.
//!
//! Without this rule a man in the middle could downgrade one of a client's connections unnoticed, while the others seem
//! secure.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_wire::smb2::{Dialect, Guid};

/// GlobalClientTable. The number of connections bounds it.
#[derive(Default)]
pub(super) struct Clients(Mutex<HashMap<Guid, Client>>);

struct Client {
    dialect: Dialect,
    connections: usize,
}

/// A connection's entry in the table, removed on drop.
pub(super) struct Ticket {
    clients: Arc<Clients>,
    guid: Guid,
}

impl Clients {
    /// Adds a connection of a client; `None` if the client's other connections use another dialect.
    pub fn enter(self: &Arc<Clients>, guid: Guid, dialect: Dialect) -> Option<Ticket> {
        let mut table = self.lock();
        let client = table.entry(guid).or_insert(Client { dialect, connections: 0 });
        if client.dialect != dialect {
            return None;
        }
        client.connections = client.connections.saturating_add(1);
        Some(Ticket { clients: self.clone(), guid })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Guid, Client>> {
        // Every update completes before anything can panic, so a poisoned lock is harmless.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut table = self.clients.lock();
        if let Some(client) = table.get_mut(&self.guid) {
            client.connections = client.connections.saturating_sub(1);
            if client.connections == 0 {
                table.remove(&self.guid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_speaks_one_dialect_until_its_last_connection_has_gone() {
        let clients = Arc::<Clients>::default();
        let first = clients.enter([1; 16], Dialect::V3_1_1).unwrap();
        let second = clients.enter([1; 16], Dialect::V3_1_1).unwrap();
        assert!(clients.enter([1; 16], Dialect::V2_1).is_none());
        assert!(clients.enter([2; 16], Dialect::V2_1).is_some(), "another client");
        drop(first);
        assert!(clients.enter([1; 16], Dialect::V2_1).is_none());
        drop(second);
        assert!(clients.enter([1; 16], Dialect::V2_1).is_some());
        assert!(clients.lock().is_empty());
    }
}
