//! FILETIME: 100-nanosecond intervals since 1601-01-01 UTC ([MS-DTYP] 2.3.3, [MS-FSCC] 2.1.1, and 2.4.7 for 0, -1 and
//! -2 in set operations).

/// Seconds from 1601 to 1970.
const UNIX_EPOCH_SECS: i64 = 11_644_473_600;
const PER_SEC: u64 = 10_000_000;

/// A time on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Filetime(pub u64);

impl Filetime {
    /// In a set operation: do not change the time. In a response: unknown.
    pub const ZERO: Filetime = Filetime(0);
    /// In a set operation: stop updating the time implicitly through this handle.
    pub const FREEZE: Filetime = Filetime(u64::MAX);
    /// In a set operation: update the time implicitly again.
    pub const THAW: Filetime = Filetime(u64::MAX - 1);

    /// Converts Unix time. Times before 1601 become [`Filetime::ZERO`], times after the year 30828 the latest signed
    /// FILETIME.
    pub fn from_unix(secs: i64, nanos: u32) -> Filetime {
        const LATEST: u64 = i64::MAX as u64;
        let since_1601 = secs.saturating_add(UNIX_EPOCH_SECS);
        let Ok(secs) = u64::try_from(since_1601) else { return Filetime::ZERO };
        let ticks = secs.saturating_mul(PER_SEC).saturating_add(u64::from(nanos / 100));
        Filetime(ticks.min(LATEST))
    }

    /// Unix seconds and nanoseconds below 1,000,000,000.
    pub fn to_unix(self) -> (i64, u32) {
        let secs = ((self.0 / PER_SEC) as i64).saturating_sub(UNIX_EPOCH_SECS);
        (secs, ((self.0 % PER_SEC) as u32).saturating_mul(100))
    }

    /// The time that a set operation requests; `None` for 0, -1 and -2, which are not times.
    pub fn to_set(self) -> Option<Filetime> {
        (self != Filetime::ZERO && self < Filetime::THAW).then_some(self)
    }
}
