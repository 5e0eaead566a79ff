//! Stories of a server and its clients, which follow the rules, stretch them or break them, under virtual time.

#[cfg(test)]
mod acting;
#[cfg(test)]
mod admission;
#[cfg(test)]
mod audit;
#[cfg(test)]
mod channels;
#[cfg(test)]
mod compound;
#[cfg(test)]
mod compressed;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod flow;
pub mod fuzz;
#[cfg(test)]
mod handles;
#[cfg_attr(not(test), allow(dead_code, unused_imports, reason = "fuzzers use some of it"))]
mod harness;
#[cfg(test)]
mod negotiation;
#[cfg(test)]
mod persistent;
#[cfg(test)]
mod posix;
#[cfg(test)]
mod protection;
#[cfg(test)]
mod relay;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod system;
