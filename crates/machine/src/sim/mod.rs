//! To be written: the simulated twin.
