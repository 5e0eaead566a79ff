//! The resident memory of a process.
//!
//! Memory that the kernel keeps for it (socket buffers, page tables) is not included.

use std::fs;
use std::io;

/// Resident bytes of the process `pid`: its own pages, and the shared ones that it has touched.
pub fn resident(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other(format!("process {pid} shows no VmRSS")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_memory_is_resident() {
        let before = resident(std::process::id()).unwrap();
        let block = vec![1u8; 64 << 20];
        let after = resident(std::process::id()).unwrap();
        assert!(after >= before + (32 << 20), "{before} {after}");
        drop(block);
        assert!(resident(0).is_err());
    }
}
