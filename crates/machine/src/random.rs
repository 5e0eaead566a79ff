//! Random numbers from the system, which nobody can guess; under simulation, numbers from the seed, which repeat with it.
//!
//! They come from getrandom(2). A simulation draws them from a generator of their own, so that taking one does not change the
//! order in which tasks run.

use std::io;

use crate::sim;

/// The system provides no random numbers: neither getrandom(2) nor /dev/urandom is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no random numbers: {0}")]
pub struct Unavailable(getrandom::Error);

impl From<Unavailable> for io::Error {
    fn from(e: Unavailable) -> io::Error {
        io::Error::other(e)
    }
}

/// Fills all of `bytes`.
///
/// # Errors
/// No random numbers are available; bytes filled until then are no secret.
pub fn fill(bytes: &mut [u8]) -> Result<(), Unavailable> {
    match sim::current() {
        Some(world) => {
            world.fill_secret(bytes);
            Ok(())
        }
        None => getrandom::fill(bytes).map_err(Unavailable),
    }
}

/// `N` random bytes.
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

    #[test]
    fn a_seed_repeats_them() {
        let of = |seed| sim::Sim::new(seed).run(async { [bytes::<32>().unwrap(), bytes::<32>().unwrap()] });
        let [a, b] = of(7);
        assert!(a != b && of(7) == [a, b] && of(8) != [a, b]);
    }
}
