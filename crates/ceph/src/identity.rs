//! Which image it is: names can be given to others.

/// Tells an image from others that have had its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster, a UUID.
    pub fsid: String,
    /// The image's id in its pool.
    pub image: String,
    /// When it was created, in microseconds of Unix time.
    pub created_us: i64,
}
