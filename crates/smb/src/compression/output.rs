//! Appends decompressed bytes to a buffer of the declared length; never panics or writes outside it, whatever the
//! decoder asks for.

use super::Corrupt;

/// `at <= out.len()`.
pub(super) struct Output<'a> {
    out: &'a mut [u8],
    at: usize,
}

const LONG: Corrupt = Corrupt("longer than declared");

impl<'a> Output<'a> {
    pub(super) fn new(out: &'a mut [u8]) -> Output<'a> {
        Output { out, at: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.at >= self.out.len()
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.at
    }

    pub(super) fn put(&mut self, byte: u8) -> Result<(), Corrupt> {
        *self.out.get_mut(self.at).ok_or(LONG)? = byte;
        self.at = self.at.saturating_add(1);
        Ok(())
    }

    pub(super) fn put_all(&mut self, bytes: &[u8]) -> Result<(), Corrupt> {
        let rest = self.out.get_mut(self.at..).ok_or(LONG)?;
        rest.get_mut(..bytes.len()).ok_or(LONG)?.copy_from_slice(bytes);
        self.at = self.at.saturating_add(bytes.len());
        Ok(())
    }

    /// Appends `len` bytes, copied from `distance` bytes back; source and destination may overlap.
    pub(super) fn repeat(&mut self, distance: usize, len: usize) -> Result<(), Corrupt> {
        let from = self.at.checked_sub(distance).filter(|_| distance > 0);
        let from = from.ok_or(Corrupt("a match before the start of the data"))?;
        let end = self.at.checked_add(len).filter(|end| *end <= self.out.len()).ok_or(LONG)?;
        if let (1, Some(byte)) = (distance, self.out.get(from).copied()) {
            self.out.get_mut(self.at..end).ok_or(LONG)?.fill(byte);
        } else {
            let mut done = 0usize;
            while done < len {
                // Each copy doubles the bytes that the next one can take.
                let step = distance.saturating_add(done).min(len.saturating_sub(done));
                // In bounds: `from + step <= at + done`, and `at + done + step <= end`.
                self.out.copy_within(from..from.saturating_add(step), self.at.saturating_add(done));
                done = done.saturating_add(step);
            }
        }
        self.at = end;
        Ok(())
    }

    /// Lets `fill` append up to `most` bytes; it cannot refer to earlier output.
    pub(super) fn apart(
        &mut self,
        most: usize,
        fill: impl FnOnce(&mut Output<'_>) -> Result<(), Corrupt>,
    ) -> Result<(), Corrupt> {
        let end = self.at.saturating_add(most).min(self.out.len());
        let mut part = Output::new(self.out.get_mut(self.at..end).unwrap_or_default());
        fill(&mut part)?;
        self.at = self.at.saturating_add(part.len());
        Ok(())
    }
}
