//! One connection.
