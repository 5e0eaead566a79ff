//! A partner of a group: another side of the same partnership.

use crate::status::Mode;

/// A partner, as the host knows it.
#[derive(Clone, Debug)]
pub struct Partner {
    /// Its name.
    pub name: String,
    /// Whether writes wait for it while it is a destination.
    pub mode: Mode,
}
