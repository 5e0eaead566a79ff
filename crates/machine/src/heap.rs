//! The allocator of the program, and the memory that it holds back.
//!
//! An operation makes a few short-lived allocations above the sizes that the system allocator serves fast: with it,
//! malloc and free took a fifth of the instructions of an 8 KiB READ.
//!
//! mimalloc returns freed memory to the system only while somebody allocates, and by default it asks for huge pages. So
//! after a burst a server that is left alone kept the freed memory, and more each time the kernel joined its pages into
//! huge ones: 60 MiB where 16 had been in use before. Now somebody calls [`trim`], and the feature `no_thp` prevents the
//! request. Where the administrator wants huge pages for all programs, they are used as before. (A process can forbid
//! them to itself, but then volumes in memory are not mapped in huge pages either.)

pub use mimalloc::MiMalloc as Allocator;

/// Returns memory that was freed a second ago or earlier to the system. To be called now and then while the program is
/// idle; what other threads freed counts as well, if whole pages of theirs became free.
pub fn trim() {
    // SAFETY: any thread may call it at any time, also where mimalloc is not the global allocator.
    unsafe { libmimalloc_sys::mi_collect(false) };
}

#[cfg(test)]
mod tests {
    use std::alloc::{GlobalAlloc as _, Layout};
    use std::time::{Duration, Instant};
    use std::{fs, thread};

    use super::*;

    /// Memory of this process that belongs to no file, in bytes.
    fn resident() -> usize {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    }

    #[test]
    fn freed_memory_goes_back_to_the_system() {
        const BLOCKS: usize = 64 << 10;
        let block = Layout::from_size_align(4096, 8).unwrap();
        let before = resident();
        let blocks: Vec<_> = (0..BLOCKS)
            .map(|_| {
                // SAFETY: the size is not 0.
                let at = unsafe { Allocator.alloc_zeroed(block) };
                assert!(!at.is_null());
                // SAFETY: the block has 4096 bytes.
                unsafe { at.write_bytes(1, 4096) };
                at
            })
            .collect();
        // Other tests run at the same time, so this is about the greater part.
        assert!(resident() > before + BLOCKS * 3072, "the blocks are used");
        for at in blocks {
            // SAFETY: from this allocator, with this layout, freed once.
            unsafe { Allocator.dealloc(at, block) };
        }
        let until = Instant::now() + Duration::from_secs(20);
        while resident() > before + BLOCKS * 1024 {
            assert!(Instant::now() < until, "{} MiB more", (resident() - before) >> 20);
            thread::sleep(Duration::from_millis(200));
            trim();
        }
    }
}
