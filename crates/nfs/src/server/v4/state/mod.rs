//! What the server remembers of NFSv4 clients: who they are, their sessions, owners, opens, locks, and leases.
//!
//! What: [`States`], one for the server. Spec: RFC 7530 section 9, RFC 8881 section 8.
//! Owns: clients and all that hangs on them. Does not: carry out operations; open files (they are handed in).
//!
//! Locking: `clients` has one mutex for the table of clients and one in each client, both for short sections and never
//! nested the other way round; nobody waits for a disk under either. What comes to a client and what ends it meet at the
//! client's own (`clients::leaving`). A state id is looked up in one of many shards, a session likewise; what READ and WRITE
//! need is behind a lock that readers share. An owner's requests take turns (`owner`), which is an order, not a lock.

pub mod back;
pub mod budget;
pub mod clients;
pub mod delegation;
pub mod grace;
pub mod lease;
pub mod numbers;
pub mod offload;
pub mod owned;
pub mod owner;
pub mod ranges;
pub mod session;
pub mod speaker;
pub mod stateids;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use weft_machine::budget::Full;
use weft_machine::{Budget, Charge, Time};

pub use back::Back;
pub use clients::{Callback, Client};
pub use delegation::Delegation;
pub use lease::Lease;
pub use offload::Offload;
pub use owner::{Answered, LockOwner, Owner, Turn, Turned};
pub use ranges::{LockedBy, Ranges, Unchanged};
pub use session::{Begun, Session};
pub use speaker::Speaker;
pub use stateids::{Held, Kind, State};

use crate::server::durable::{Durable, Who};
use budget::{DESCRIPTOR_SHARE, DESCRIPTORS_OF_OPEN};
use clients::Table;
use delegation::Delegated;
use grace::Grace;
use numbers::Numbers;
use session::{Questions, Sessions};
use stateids::Stateids;

/// Bounds of what clients can make the server remember.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a client may be silent before others may take what it holds.
    pub lease: Duration,
    /// Clients, confirmed or not.
    pub clients: usize,
    /// Sessions of a client.
    pub sessions: usize,
    /// Slots of a session.
    pub slots: u32,
    /// Memory for what is kept of all clients, those of NLM among them, in bytes. An address gets at most a fifth.
    pub memory: usize,
    /// Descriptors of the files that clients have open. An address gets at most half.
    pub descriptors: usize,
    /// Largest reply that is kept for a retry, in bytes: a session keeps one for each slot.
    pub cached_reply: u32,
    /// Operations of a compound.
    pub operations: u32,
    /// Owners of opens, and of locks, of a client.
    pub owners: usize,
    /// Opens, locks and delegations of a client.
    pub states: usize,
    /// Slots of a back channel.
    pub back_slots: u32,
    /// How long a file that was wanted by several is nobody's to cache.
    pub contention: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            lease: Duration::from_secs(60),
            clients: 4096,
            sessions: 64,
            slots: 64,
            memory: 128 << 20,
            descriptors: usize::MAX,
            cached_reply: 8 << 10,
            operations: 128,
            owners: 16_384,
            states: 65_536,
            back_slots: 16,
            contention: Duration::from_secs(20),
        }
    }
}

/// All of it.
pub struct States {
    pub limits: Limits,
    /// Of this run of the server: a state or client of another one is told from those that never were.
    epoch: u32,
    /// Ids of clients and states.
    numbers: Numbers,
    /// Of requests in slots.
    pub questions: Questions,
    pub budget: Budget,
    /// Of [`Limits::descriptors`].
    descriptors: Budget,
    clients: Mutex<Table>,
    ids: Stateids,
    sessions: Sessions,
    pub delegated: Arc<Delegated>,
    pub grace: Grace,
    durable: Option<Durable>,
}

impl States {
    /// `epoch` differs from run to run. `before`: who had state in the last one; `silent`: others had locks by NLM.
    pub fn new(
        limits: Limits,
        epoch: u32,
        durable: Option<Durable>,
        before: Vec<Who>,
        silent: bool,
        now: Time,
    ) -> States {
        States {
            limits,
            epoch: epoch.max(1),
            numbers: Numbers::new(),
            questions: Questions::default(),
            budget: Budget::new(limits.memory),
            descriptors: Budget::shared(limits.descriptors, DESCRIPTOR_SHARE),
            clients: Mutex::default(),
            ids: Stateids::default(),
            sessions: Sessions::default(),
            delegated: Arc::default(),
            grace: Grace::until(now + limits.lease, before, silent),
            durable,
        }
    }

    /// Room for the descriptors of one more open or delegation of a client.
    pub fn descriptors(&self, client: &Client) -> Result<Charge, Full> {
        self.descriptors.charge(client.holder().clone(), DESCRIPTORS_OF_OPEN)
    }

    /// What outlives this run.
    pub fn durable(&self) -> Option<&Durable> {
        self.durable.as_ref()
    }
}
