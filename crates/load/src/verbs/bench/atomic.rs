//! The fastest possible round trip between two processes: a word in shared memory, written in turns.
//!
//! The caller owns the words. Both sides spin.
//!
//! ```text
//! word 0   the client's turn number     one cache line each
//! word 8   the server's answer
//! word 16  not zero: the server ends
//! ```

use std::hint::spin_loop;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_machine::shm::Words;

use crate::verbs::pace::Pace;
use crate::verbs::times::{Quantiles, Times};

/// Number of words required.
pub const WORDS: usize = 512;

const PING: usize = 0;
const PONG: usize = 8;
const END: usize = 16;
/// Checks for a reply between two checks for the end.
const LOOKS: u32 = 1024;

/// Answers until the client ends it.
pub fn serve(words: &Words) {
    let mut last = 0;
    while words[END].load(Ordering::Relaxed) == 0 {
        for _ in 0..LOOKS {
            let turn = words[PING].load(Ordering::Acquire);
            if turn != last {
                words[PONG].store(turn, Ordering::Release);
                last = turn;
            } else {
                spin_loop();
            }
        }
    }
}

/// Ends the server.
pub fn end(words: &Words) {
    words[END].store(1, Ordering::Relaxed);
}

/// Round trips for `time`, after a warm-up; `None` if the server does not answer within ten seconds.
pub fn measure(words: &Words, time: Duration) -> Option<Quantiles> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let mut turn = words[PING].load(Ordering::Relaxed);
    let mut times = Times::default();
    let started = Instant::now();
    let from = started + Pace::warm_up(time);
    let until = from + time;
    let mut last = started;
    // At least one counted round trip, however busy the machine is.
    while last < until || times.count() == 0 {
        turn += 1;
        words[PING].store(turn, Ordering::Release);
        let mut looks = 0u32;
        while words[PONG].load(Ordering::Acquire) != turn {
            spin_loop();
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) && last.elapsed() > PATIENCE {
                return None;
            }
        }
        let now = Instant::now();
        if last >= from {
            times.record(now - last);
        }
        last = now;
    }
    times.quantiles()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_goes_back_and_forth() {
        let words = Words::create("weft-test", WORDS).unwrap();
        let theirs = words.clone();
        let server = std::thread::spawn(move || serve(&theirs));
        let seen = measure(&words, Duration::from_millis(20)).unwrap();
        assert!(seen.min_us > 0.0 && seen.max_us >= seen.p50_us);
        end(&words);
        server.join().unwrap();
    }
}
