//! To be written: shared memory primitives.
