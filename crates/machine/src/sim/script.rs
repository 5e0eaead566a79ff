//! Decisions read from bytes: how a fuzzer, or a seed, drives a world.
//!
//! After the end, the bytes read as zeros. So every input is valid, and a small change of the input changes the run a
//! little. The reader must stop when the script is over.

/// Decisions, read from bytes.
#[derive(Debug)]
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// A script from these bytes.
    pub fn new(bytes: &'a [u8]) -> Script<'a> {
        Script(bytes)
    }

    /// Nothing but zeros is left.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// True for odd bytes.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// True for one byte in `n`, 0 among them.
    pub fn one_in(&mut self, n: u8) -> bool {
        self.byte().is_multiple_of(n)
    }

    /// True for one byte in `n`, 0 not among them: never after the end of the script.
    pub fn rarely(&mut self, n: u8) -> bool {
        self.byte() % n == n - 1
    }

    /// The next two bytes.
    pub fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// The next eight bytes.
    pub fn long(&mut self) -> u64 {
        let mut long = [0; 8];
        let bytes = self.bytes(8);
        long[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(long)
    }

    /// A number below `n`, which is not 0 and fits in 16 bits.
    pub fn below(&mut self, n: usize) -> usize {
        let drawn = if n <= 256 { usize::from(self.byte()) } else { usize::from(self.word()) };
        drawn % n
    }

    /// One of these; there must be at least one.
    pub fn one_of<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }

    /// A number near the edges of most ranges: small, a power of two or near it, or any.
    pub fn edge(&mut self) -> u64 {
        match self.byte() % 16 {
            0..=3 => 0,
            4..=6 => u64::from(self.byte()),
            7..=9 => u64::from(self.byte()) << 12,
            10 => u64::MAX - u64::from(self.byte()),
            11 => (i64::MAX as u64).wrapping_add(u64::from(self.byte())).wrapping_sub(3),
            12 => (1u64 << (self.byte() % 64)).wrapping_sub(u64::from(self.byte() % 3)),
            13 => u64::from(u32::MAX) - u64::from(self.byte()),
            14 => u64::from(self.word()),
            _ => self.long(),
        }
    }

    /// The next bytes, at most `n`.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// All remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}
