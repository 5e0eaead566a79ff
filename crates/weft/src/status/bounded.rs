//! The status as the admin server answers it: lists with limits, and, for those who may not see them, without the names
//! of users, addresses of clients and paths.
//!
//! `weft status` shows everything. A page and its scrapers ask every second, so their answer must not grow with the
//! number of clients; what is left out is counted.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::usage::RdmaState;
use super::{Connection, Status};

/// Connections in an answer; those that do not use RDMA although they could come first.
pub(crate) const MAX_CONNECTIONS: usize = 256;
/// Shares in an answer.
pub(crate) const MAX_SHARES: usize = 256;
/// Volumes in an answer.
pub(crate) const MAX_VOLUMES: usize = 256;
/// Replication groups in an answer, and lines about them.
pub(crate) const MAX_REPLICAS: usize = 128;
/// Sessions of a connection in an answer.
pub(crate) const MAX_SESSIONS: usize = 16;
/// Shares of a session in an answer.
pub(crate) const MAX_SESSION_SHARES: usize = 16;

/// Replaces a text with paths or addresses.
const LEFT_OUT: &str = "weft status says more";

/// What the lists of an answer leave out.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct More {
    /// Connections.
    pub connections: usize,
    /// Shares.
    pub shares: usize,
    /// Volumes.
    pub volumes: usize,
    /// Replication groups.
    pub replicas: usize,
    /// Sessions of the connections that are in the answer.
    pub sessions: usize,
    /// Shares of the sessions that are in the answer.
    pub session_shares: usize,
}

/// Shortens a list; returns how many are gone.
fn cut<T>(list: &mut Vec<T>, most: usize) -> usize {
    let gone = list.len().saturating_sub(most);
    list.truncate(most);
    gone
}

impl Status {
    /// The same with lists of limited length.
    pub(crate) fn bounded(&self) -> Status {
        // Only what remains is cloned.
        let order = |connection: &&Connection| match connection.rdma.state {
            RdmaState::NotUsed => 0,
            RdmaState::InMessages => 1,
            _ => 2,
        };
        let mut shown: Vec<&Connection> = self.connections.iter().collect();
        if shown.len() > MAX_CONNECTIONS {
            shown.sort_by_key(order);
        }
        let mut more = More { connections: cut(&mut shown, MAX_CONNECTIONS), ..More::default() };
        let mut connections: Vec<Connection> = shown.into_iter().cloned().collect();
        for connection in &mut connections {
            more.sessions += cut(&mut connection.sessions, MAX_SESSIONS);
            for session in &mut connection.sessions {
                more.session_shares += cut(&mut session.shares, MAX_SESSION_SHARES);
                cut(&mut session.encrypted_shares, MAX_SESSION_SHARES);
            }
        }
        let mut status = Status { connections, ..self.without_connections() };
        more.shares = cut(&mut status.shares, MAX_SHARES);
        more.volumes = cut(&mut status.volumes, MAX_VOLUMES);
        more.replicas = cut(&mut status.replicas, MAX_REPLICAS);
        cut(&mut status.replication, MAX_REPLICAS);
        Status { more, ..status }
    }

    /// The same without the names of users, addresses of clients and partners, paths, and texts that may contain them:
    /// what `/metrics` shows, too.
    pub(crate) fn without_names(mut self) -> Status {
        let hide = |text: &mut Option<String>| {
            if let Some(text) = text {
                LEFT_OUT.clone_into(text);
            }
        };
        self.listen.clear();
        self.config = None;
        hide(&mut self.state_warning);
        for warning in &mut self.warnings {
            LEFT_OUT.clone_into(warning);
        }
        for share in &mut self.shares {
            share.source.clear();
            hide(&mut share.warning);
            hide(&mut share.not_served);
        }
        for volume in &mut self.volumes {
            volume.source.clear();
            hide(&mut volume.warning);
            hide(&mut volume.not_served);
        }
        self.replicas.clear();
        for line in &mut self.replication {
            line.text =
                if line.needs_attention { format!("{}: {LEFT_OUT}", line.role) } else { line.role.clone() };
            (line.reason, line.remedy) = (None, None);
        }
        let mut hosts: HashMap<String, usize> = HashMap::new();
        for connection in &mut self.connections {
            let host = connection.peer.rsplit_once(':').map_or(&*connection.peer, |(host, _)| host);
            let next = hosts.len() + 1;
            let number = *hosts.entry(host.to_owned()).or_insert(next);
            connection.peer = format!("client {number}");
            connection.client = None;
            connection.nfs = None;
            for session in &mut connection.sessions {
                session.id.clear();
                session.user.clear();
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Nfs, ReplicaLine, Session, Share, Volume};
    use super::*;
    use crate::status::usage::Usage;

    #[test]
    fn an_answer_does_not_grow_with_the_number_of_clients_and_keeps_those_with_advice() {
        let session = || Session { shares: vec!["s".into(); 20], ..Session::default() };
        let connection = |state| Connection {
            rdma: Usage { state, ..Usage::default() },
            sessions: (0..MAX_SESSIONS + 2).map(|_| session()).collect(),
            ..Connection::default()
        };
        let mut connections: Vec<Connection> = (0..1000).map(|_| connection(RdmaState::Used)).collect();
        connections.push(connection(RdmaState::InMessages));
        connections.push(connection(RdmaState::NotUsed));
        let status = Status {
            connections,
            shares: vec![Share::default(); MAX_SHARES + 3],
            volumes: vec![Volume::default(); MAX_VOLUMES + 4],
            replication: vec![ReplicaLine::default(); MAX_REPLICAS + 5],
            ..Status::default()
        };
        let told = status.bounded();
        assert_eq!(told.connections.len(), MAX_CONNECTIONS);
        let states: Vec<_> = told.connections.iter().take(3).map(|c| c.rdma.state).collect();
        assert_eq!(states, [RdmaState::NotUsed, RdmaState::InMessages, RdmaState::Used]);
        assert_eq!((told.shares.len(), told.volumes.len(), told.replication.len()), (256, 256, 128));
        let sessions = 2 * MAX_CONNECTIONS;
        let session_shares = 4 * MAX_SESSIONS * MAX_CONNECTIONS;
        let more = More { connections: 746, shares: 3, volumes: 4, replicas: 0, sessions, session_shares };
        assert_eq!(told.more, more);
        let few = Status { connections: vec![Connection::default()], ..Status::default() }.bounded();
        assert_eq!((few.connections.len(), few.more), (1, More::default()));
    }

    /// The text of the answer is searched, so that a field that somebody adds is found.
    #[test]
    fn without_names_no_secret_word_is_left() {
        let secret = || "s3cret".to_owned();
        let connection = |peer: &str| Connection {
            peer: peer.into(),
            protocol: "smb".into(),
            client: Some(secret()),
            sessions: vec![Session { id: secret(), user: secret(), ..Session::default() }],
            nfs: Some(Nfs { uids: vec![4_711_000] }),
            ..Connection::default()
        };
        let line = |needs_attention| ReplicaLine {
            group: "g".into(),
            role: "source".into(),
            text: secret(),
            needs_attention,
            reason: Some(secret()),
            remedy: Some(secret()),
        };
        let status = Status {
            listen: secret(),
            config: Some(secret()),
            state_warning: Some(secret()),
            warnings: vec![secret()],
            shares: vec![Share {
                name: "data".into(),
                source: secret(),
                warning: Some(secret()),
                not_served: Some(secret()),
                ..Share::default()
            }],
            volumes: vec![Volume {
                source: secret(),
                warning: Some(secret()),
                not_served: Some(secret()),
                ..Volume::default()
            }],
            replication: vec![line(true), line(false)],
            connections: vec![connection("192.0.2.1:1"), connection("[s3cret]:2"), connection("192.0.2.1:3")],
            ..Status::default()
        }
        .without_names();
        let text = serde_json::to_string(&status).unwrap();
        for word in ["s3cret", "192.0.2", "4711000"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
        let peers: Vec<_> = status.connections.iter().map(|c| c.peer.as_str()).collect();
        assert_eq!(peers, ["client 1", "client 2", "client 1"], "the same host has the same number");
        assert_eq!(status.shares[0].warning.as_deref(), Some(LEFT_OUT), "that there is a problem stays");
    }
}
