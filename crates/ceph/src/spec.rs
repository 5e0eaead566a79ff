//! The name of an image: `[POOL/[NAMESPACE/]]IMAGE`, as the `rbd` command writes it, but with its pool.

use std::fmt;
use std::str::FromStr;

/// The longest part; librbd's own limit for an image's name (RBD_MAX_IMAGE_NAME_SIZE, with its zero).
const MAX_PART: usize = 95;

/// An image of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSpec {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; empty for the default one.
    pub namespace: String,
    /// The image.
    pub image: String,
}

/// Why a text names no image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSpec {
    /// It has no pool, or too many parts.
    #[error("write POOL/IMAGE or POOL/NAMESPACE/IMAGE")]
    Parts,
    /// A part is empty or too long, or has a character with a meaning of its own.
    #[error("names have 1 to {MAX_PART} bytes, without '@', '/' and control characters")]
    Name,
}

impl FromStr for ImageSpec {
    type Err = BadSpec;

    fn from_str(text: &str) -> Result<ImageSpec, BadSpec> {
        let parts: Vec<&str> = text.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return Err(BadSpec::Parts),
        };
        // '@' begins a snapshot, which cannot be written to.
        let fits = |part: &str| {
            (1..=MAX_PART).contains(&part.len()) && !part.contains(|c: char| c == '@' || c.is_control())
        };
        match [Some(pool), namespace, Some(image)].into_iter().flatten().all(fits) {
            true => Ok(ImageSpec {
                pool: pool.to_owned(),
                namespace: namespace.unwrap_or_default().to_owned(),
                image: image.to_owned(),
            }),
            false => Err(BadSpec::Name),
        }
    }
}

impl fmt::Display for ImageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ImageSpec { pool, namespace, image } = self;
        match namespace.is_empty() {
            true => write!(f, "{pool}/{image}"),
            false => write!(f, "{pool}/{namespace}/{image}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_written_as_it_is_read() {
        for text in ["rbd/vm1", "rbd/team/vm1", "a b/c.d"] {
            assert_eq!(text.parse::<ImageSpec>().unwrap().to_string(), text);
        }
        assert_eq!("p/n/i".parse::<ImageSpec>().unwrap().namespace, "n");
        for text in ["", "vm1", "a/b/c/d"] {
            assert_eq!(text.parse::<ImageSpec>(), Err(BadSpec::Parts), "{text}");
        }
        let long = format!("rbd/{}", "x".repeat(96));
        for text in ["/", "rbd/", "/vm1", "rbd//vm1", "rbd/vm1@snap", "rbd/v\0m", &long] {
            assert_eq!(text.parse::<ImageSpec>(), Err(BadSpec::Name), "{text}");
        }
    }
}
