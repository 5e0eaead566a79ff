//! Stories of a server and of clients that follow the rules, stretch them, or break them, under virtual time.

mod channels;
mod compound;
mod compressed;
mod damage;
mod flow;
mod handles;
mod harness;
mod negotiation;
mod persistent;
mod posix;
mod protection;
mod sessions;
