//! The server's state of NFSv4 clients: their identities, sessions, owners, opens, locks and leases.
//!
//! [`States`] exists once per server. See RFC 7530 section 9 and RFC 8881 section 8. Operations are carried out, and
//! files opened, elsewhere.
//!
//! Locking: `clients` has one mutex for the table of clients and one in each client; both protect short sections, are
//! always nested in this order, and are never held while waiting for a disk. Additions to a client and its end are
//! ordered by the client's own mutex (`clients::leaving`). State ids and sessions are looked up in one of many
//! shards; what READ and WRITE need is behind a lock that readers share. An owner's requests run in sequence
//! (`owner`), which is an order, not a lock.

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
pub use owner::{Answered, LockOwner, Owner, OwnerSequence, SequenceCheck};
pub use ranges::{LockedBy, Ranges, Unchanged};
pub use session::{Begun, Session, TakenSlot};
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

/// Limits on the state that clients can create.
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
    /// Memory for the state of all clients, including NLM's, in bytes. An address gets at most a fifth.
    pub memory: usize,
    /// File descriptors of clients' opens. An address gets at most half.
    pub descriptors: usize,
    /// Largest reply cached for repetitions, in bytes: a session caches one per slot.
    pub cached_reply: u32,
    /// Operations of a compound.
    pub operations: u32,
    /// Owners of opens and of locks, per client.
    pub owners: usize,
    /// Opens, locks and delegations, per client.
    pub states: usize,
    /// Slots of a back channel.
    pub back_slots: u32,
    /// How long a contended file is not delegated to anybody.
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

/// The state of all clients.
pub struct States {
    pub limits: Limits,
    /// Identifies this run of the server: distinguishes states and clients of other runs from ones that never
    /// existed.
    epoch: u32,
    /// Ids of clients and states.
    numbers: Numbers,
    /// Hashes of requests in slots.
    pub questions: Questions,
    pub budget: Budget,
    /// The budget of [`Limits::descriptors`].
    descriptors: Budget,
    clients: Mutex<Table>,
    ids: Stateids,
    sessions: Sessions,
    pub delegated: Arc<Delegated>,
    pub grace: Grace,
    durable: Option<Durable>,
}

impl States {
    /// `epoch` differs in every run. `before`: clients that had state in the last run; `silent`: hosts held NLM
    /// locks.
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

    /// Reserves the descriptors of one more open or delegation of a client.
    pub fn descriptors(&self, client: &Client) -> Result<Charge, Full> {
        self.descriptors.charge(client.holder().clone(), DESCRIPTORS_OF_OPEN)
    }

    /// The state that outlives this run.
    pub fn durable(&self) -> Option<&Durable> {
        self.durable.as_ref()
    }
}
