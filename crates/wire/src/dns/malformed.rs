//! Why bytes are not a message of DNS.

/// Most questions and records of a parsed message: a packet of 9,000 bytes could name more than a thousand.
pub const MAX_ENTRIES: usize = 512;

/// Why bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// It ends too early.
    #[error("it ends too early")]
    Truncated,
    /// A name with a pointer that does not lead back, or that is too long.
    #[error("a name that does not end, or is longer than 255 bytes")]
    Name,
    /// The data of a record have another form.
    #[error("a record of type {0} with other data")]
    Data(u16),
    /// More than [`MAX_ENTRIES`].
    #[error("more than {MAX_ENTRIES} questions and records")]
    TooMany,
}
