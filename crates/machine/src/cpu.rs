//! CPU time of a process, this one or another, from the process's clock (clock_getcpuclockid(3)).
//!
//! The clock includes every thread that the process ever had. The sum over `/proc/PID/task` does not: it decreases when
//! a thread ends. Nothing is estimated; what cannot be read is an error.

use std::io;
use std::time::Duration;

/// CPU time that all threads of process `pid` have used, including ended ones, in nanoseconds. It never decreases. If
/// the process does not exist, the error is [`io::ErrorKind::NotFound`].
pub fn time_of(pid: u32) -> io::Result<Duration> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::NotFound)?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is valid for the write of one clockid_t.
    match unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } {
        0 => {}
        libc::ESRCH => return Err(io::ErrorKind::NotFound.into()),
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write of one timespec; the kernel checks the clock.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        let error = io::Error::last_os_error();
        // The process ended after its clock was looked up, and the clock's id is invalid now.
        return Err(if error.raw_os_error() == Some(libc::EINVAL) {
            io::ErrorKind::NotFound.into()
        } else {
            error
        });
    }
    let seconds = u64::try_from(time.tv_sec).map_err(io::Error::other)?;
    let nanos = u32::try_from(time.tv_nsec).map_err(io::Error::other)?;
    Ok(Duration::new(seconds, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Duration {
        time_of(std::process::id()).unwrap()
    }

    /// Works until the process has used `more` CPU time, however long a busy machine makes it wait.
    fn work(more: Duration) {
        let before = own();
        while own() - before < more {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn a_busy_process_uses_time() {
        work(Duration::from_millis(5));
    }

    #[test]
    fn the_time_of_a_thread_that_ended_still_counts() {
        let before = own();
        std::thread::spawn(|| work(Duration::from_millis(20))).join().unwrap();
        assert!(own() - before >= Duration::from_millis(20));
    }

    #[test]
    fn a_process_that_is_gone_is_not_found() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(time_of(child.id()).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(time_of(u32::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
