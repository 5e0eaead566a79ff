//! A limit of answers by unicast: a bucket of tokens. Answers by multicast have the limits of RFC 6762 6.

use std::time::Duration;

use weft_machine::Time;

/// The limit.
#[derive(Clone, Debug)]
pub struct Bucket {
    tokens: u32,
    most: u32,
    /// The time for one token.
    interval: Duration,
    since: Time,
}

impl Bucket {
    /// Allows a burst of this many, and this many per second.
    pub fn new(now: Time, most: u32, per_second: u32) -> Bucket {
        let interval = Duration::from_secs(1).checked_div(per_second).unwrap_or(Duration::MAX);
        Bucket { tokens: most, most, interval, since: now }
    }

    /// Whether there is a token left; takes it.
    pub fn take(&mut self, now: Time) -> bool {
        let come = now.since(self.since).as_nanos().checked_div(self.interval.as_nanos()).unwrap_or(0);
        if let Some(come) =
            u32::try_from(come).ok().filter(|come| *come < self.most.saturating_sub(self.tokens))
        {
            self.tokens = self.tokens.saturating_add(come);
            self.since = self.since + self.interval.saturating_mul(come);
        } else {
            self.tokens = self.most;
            self.since = now;
        }
        let taken = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_followed_by_a_rate() {
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        let mut bucket = Bucket::new(at(0), 3, 10);
        let taken = |bucket: &mut Bucket, millis| (0..5).filter(|_| bucket.take(at(millis))).count();
        assert_eq!(taken(&mut bucket, 0), 3);
        assert_eq!(taken(&mut bucket, 99), 0);
        assert_eq!(taken(&mut bucket, 100), 1);
        assert_eq!(taken(&mut bucket, 350), 2);
        assert_eq!(taken(&mut bucket, 400), 1, "what was begun counts");
        assert_eq!(taken(&mut bucket, 60_000), 3);
    }
}
