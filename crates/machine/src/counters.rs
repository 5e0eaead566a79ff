//! The kernel's counters of a process, for users with the permission: processor cycles, system calls.
//!
//! They use perf_event_open(2) with the first version of its attributes, 64 bytes, which every kernel accepts. A
//! counter has one descriptor for each thread that exists when counting begins; threads that start later are counted
//! with the thread that started them. Nothing is estimated; a counter that is not permitted (containers, virtual
//! machines without such counters, /proc/sys/kernel/perf_event_paranoid) is an error.

use std::fs;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

/// PERF_TYPE_HARDWARE and PERF_TYPE_TRACEPOINT.
const HARDWARE: u32 = 0;
const TRACEPOINT: u32 = 2;
/// PERF_COUNT_HW_CPU_CYCLES.
const CPU_CYCLES: u64 = 0;
/// Bit `inherit` of the flags.
const INHERIT: u64 = 1 << 1;
/// PERF_FLAG_FD_CLOEXEC.
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
/// The files with the number of the tracepoint of all system calls.
const SYSCALLS: [&str; 2] = [
    "/sys/kernel/tracing/events/raw_syscalls/sys_enter/id",
    "/sys/kernel/debug/tracing/events/raw_syscalls/sys_enter/id",
];

/// `struct perf_event_attr`, PERF_ATTR_SIZE_VER0.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

/// A counter of all threads of a process.
#[derive(Debug)]
pub struct Counter(Vec<OwnedFd>);

impl Counter {
    /// Processor cycles, in user space and in the kernel.
    pub fn cycles(pid: u32) -> io::Result<Counter> {
        Counter::open(pid, HARDWARE, CPU_CYCLES)
    }

    /// System calls. Counting them makes each a little slower.
    pub fn syscalls(pid: u32) -> io::Result<Counter> {
        let id = SYSCALLS.iter().find_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok());
        let id = id.ok_or_else(|| io::Error::other("the kernel's tracepoints cannot be read"))?;
        Counter::open(pid, TRACEPOINT, id)
    }

    fn open(pid: u32, kind: u32, config: u64) -> io::Result<Counter> {
        let mut threads = Vec::new();
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let thread = thread?.file_name();
            let thread = thread.to_str().and_then(|thread| thread.parse().ok());
            match open(thread.ok_or_else(|| io::Error::other("a thread without a number"))?, kind, config) {
                Ok(fd) => threads.push(fd),
                // A thread that ended between the listing and this.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Counter(threads))
    }

    /// The count since it was opened.
    pub fn read(&self) -> io::Result<u64> {
        let mut sum = 0u64;
        for fd in &self.0 {
            let mut count = [0u8; 8];
            match rustix::io::read(fd.as_fd(), &mut count)? {
                8 => sum += u64::from_ne_bytes(count),
                _ => return Err(io::Error::other("a counter without a count")),
            }
        }
        Ok(sum)
    }
}

fn open(thread: libc::pid_t, kind: u32, config: u64) -> io::Result<OwnedFd> {
    let size = std::mem::size_of::<Attributes>() as u32;
    let attributes = Attributes { kind, size, config, flags: INHERIT, ..Attributes::default() };
    let any_cpu: libc::c_int = -1;
    let no_group: libc::c_int = -1;
    // SAFETY: the attributes are a valid structure of the size that they state and outlive the call, which only reads
    // them.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(&attributes),
            thread,
            any_cpu,
            no_group,
            CLOSE_ON_EXEC,
        )
    };
    let fd = libc::c_int::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both may be refused where the tests run; a granted counter must count.
    #[test]
    fn what_is_granted_counts() {
        let pid = std::process::id();
        if let Ok(calls) = Counter::syscalls(pid) {
            for _ in 0..100 {
                fs::metadata("/").unwrap();
            }
            assert!(calls.read().unwrap() >= 100);
        }
        if let Ok(cycles) = Counter::cycles(pid) {
            let before = cycles.read().unwrap();
            let sum = (0..1_000_000u64).fold(0, |sum, n| std::hint::black_box(sum ^ n));
            std::hint::black_box(sum);
            assert!(cycles.read().unwrap() > before + 1_000_000);
        }
        assert!(Counter::cycles(u32::MAX).is_err() && Counter::syscalls(u32::MAX).is_err());
    }

    #[test]
    fn the_attributes_have_the_size_that_every_kernel_takes() {
        assert_eq!(std::mem::size_of::<Attributes>(), 64);
    }
}
