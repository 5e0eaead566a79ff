//! Whether Valgrind runs this program, by a client request (Valgrind's manual, 3.1; `valgrind.h`).
//!
//! Valgrind translates instructions and runs them some fifty times slower than the processor, but its time-stamp
//! counter is the processor's. So what decides by the length of a task's turn asks here.

/// Whether Valgrind runs this program. Without it the request is a rotation by 128 bits and an exchange of a register
/// with itself, which do nothing.
#[cfg(target_arch = "x86_64")]
pub(crate) fn runs_this() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut depth: u64 = 0;
    // SAFETY: the instructions leave every register as it was, but for the flags; Valgrind sets `rdx` to the answer, and
    // reads the request.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") depth,
            options(nostack, readonly),
        );
    }
    depth > 0
}

/// Not asked: nothing is counted on other processors.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn runs_this() -> bool {
    false
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_processor_does_not_answer() {
        assert!(!super::runs_this(), "unless Valgrind runs the tests");
    }
}
