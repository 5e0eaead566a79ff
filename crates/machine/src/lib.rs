//! The hardware and the kernel: buffers, clock, sockets, files, shared memory and cores, real and simulated.
//!
//! The rest of Weft uses time, memory and the network only through this crate, so the simulator can replace them. It is
//! one of the rooms where `unsafe` is allowed (`rdma::rnic` and `kerberos` are the others).
//!
//! The crate owns the buffer pool's slabs, the reactor of each core, and every file descriptor. It knows no protocol.

pub mod budget;
pub mod buf;
pub mod clock;
pub mod confine;
pub mod counters;
pub mod cpu;
pub mod credentials;
pub mod deadline;
pub mod file;
pub mod heap;
pub mod log;
pub mod meter;
pub mod net;
pub mod nss;
pub mod payload;
pub mod random;
pub mod recorder;
pub mod rt;
pub mod shm;
pub mod sim;
pub mod umask;
mod valgrind;

pub use budget::{Budget, Charge};
pub use buf::{Buf, Pool, Window};
pub use clock::Time;
pub use file::{DataRanges, File, FileRange, InMemory, MappedRange, Piece};
pub use log::LogLimit;
pub use net::{Listener, Peer, Source, Stream};
pub use nss::Account;
pub use payload::{Payload, PayloadSource, RemotePayload};
