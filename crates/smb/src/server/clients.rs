//! The table of connected clients by ClientGuid and user, which fixes one dialect per client.
//!
//! Spec: [MS-SMB2] 3.3.1.16, 3.3.5.5.3 (dialect verification), 3.3.7.1 (its end). Owns an entry per user of a client for
//! as long as the user is logged on over one of its connections.
//!
//! Without this rule a man in the middle could downgrade one of a client's connections unnoticed, while the others seem
//! secure. A ClientGuid is no secret, because it is sent before the log-on: a user who claims another one's must not keep
//! that user from logging on. So the rule holds for the connections of one user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_wire::smb2::{Dialect, Guid};

/// A client, as one of its users.
type Name = (Guid, Arc<str>);

/// GlobalClientTable. The number of connections and their sessions bounds it.
#[derive(Default)]
pub(super) struct Clients(Mutex<HashMap<Name, Client>>);

struct Client {
    dialect: Dialect,
    connections: usize,
}

/// A connection's entry in the table, removed on drop.
pub(super) struct Ticket {
    clients: Arc<Clients>,
    name: Name,
}

impl Ticket {
    /// Its user.
    pub fn user(&self) -> &str {
        &self.name.1
    }
}

impl Clients {
    /// Adds a connection of a client's user; `None` if the user's other connections from it use another dialect.
    pub fn enter(self: &Arc<Clients>, guid: Guid, user: &Arc<str>, dialect: Dialect) -> Option<Ticket> {
        let mut table = self.lock();
        let name = (guid, user.clone());
        let client = table.entry(name.clone()).or_insert(Client { dialect, connections: 0 });
        if client.dialect != dialect {
            return None;
        }
        client.connections = client.connections.saturating_add(1);
        Some(Ticket { clients: self.clone(), name })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Client>> {
        // Every update completes before anything can panic, so a poisoned lock is harmless.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut table = self.clients.lock();
        if let Some(client) = table.get_mut(&self.name) {
            client.connections = client.connections.saturating_sub(1);
            if client.connections == 0 {
                table.remove(&self.name);
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
        let (alice, bob): (Arc<str>, Arc<str>) = ("alice".into(), "bob".into());
        let first = clients.enter([1; 16], &alice, Dialect::V3_1_1).unwrap();
        let second = clients.enter([1; 16], &alice, Dialect::V3_1_1).unwrap();
        assert!(clients.enter([1; 16], &alice, Dialect::V2_1).is_none());
        assert!(clients.enter([2; 16], &alice, Dialect::V2_1).is_some(), "another client");
        assert!(clients.enter([1; 16], &bob, Dialect::V2_1).is_some(), "whoever claims to be it");
        drop(first);
        assert!(clients.enter([1; 16], &alice, Dialect::V2_1).is_none());
        drop(second);
        assert!(clients.enter([1; 16], &alice, Dialect::V2_1).is_some());
        assert!(clients.lock().is_empty());
    }
}
