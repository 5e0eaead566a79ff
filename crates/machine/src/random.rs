//! Random numbers of the system, which nobody guesses.
//!
//! Spec: getrandom(2). Does not: offer numbers that are the same again under simulation; what has to be so is given
//! its numbers as an argument.

use std::io;

/// The system gives no random numbers: without getrandom(2) and without /dev/urandom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no random numbers: {0}")]
pub struct Unavailable(getrandom::Error);

impl From<Unavailable> for io::Error {
    fn from(e: Unavailable) -> io::Error {
        io::Error::other(e)
    }
}

/// Fills all of it.
///
/// # Errors
/// There are none; what was filled until then is no secret.
pub fn fill(bytes: &mut [u8]) -> Result<(), Unavailable> {
    getrandom::fill(bytes).map_err(Unavailable)
}

/// So many.
///
/// # Errors
/// As [`fill`].
pub fn bytes<const N: usize>() -> Result<[u8; N], Unavailable> {
    let mut bytes = [0; N];
    fill(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_alike() {
        let (a, b) = (bytes::<32>().unwrap(), bytes::<32>().unwrap());
        assert!(a != b && a != [0; 32]);
        let mut all = vec![0; 3000];
        fill(&mut all).unwrap();
        assert!(all.chunks(100).all(|chunk| chunk.iter().any(|byte| *byte != 0)));
        assert_eq!((bytes::<0>(), fill(&mut [])), (Ok([]), Ok(())));
    }
}
