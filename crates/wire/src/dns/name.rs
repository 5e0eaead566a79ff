//! A domain name (RFC 1035 3.1, 4.1.4), of UTF-8 labels (RFC 6762 16).

use std::fmt;

use super::malformed::Malformed;

/// The longest label.
const MAX_LABEL: usize = 63;
/// The longest name, with the lengths of its labels and its end.
const MAX_NAME: usize = 255;
/// The two top bits of a pointer.
const POINTER: u8 = 0xc0;

/// A name: its labels, each of 1 to 63 bytes, at most 255 bytes together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name(Vec<Vec<u8>>);

impl Name {
    /// A name of these labels; `None` if one is empty or too long, or all are too long.
    #[must_use]
    pub fn new<'a>(labels: impl IntoIterator<Item = &'a str>) -> Option<Name> {
        let labels: Vec<Vec<u8>> = labels.into_iter().map(|label| label.as_bytes().to_vec()).collect();
        let fits = labels.iter().all(|label| (1..=MAX_LABEL).contains(&label.len()));
        let total = labels.iter().map(|label| label.len().saturating_add(1)).sum::<usize>().saturating_add(1);
        (fits && total <= MAX_NAME).then_some(Name(labels))
    }

    /// Whether both are the same name: the case of ASCII letters does not matter.
    #[must_use]
    pub fn is(&self, other: &Name) -> bool {
        same(&self.0, &other.0)
    }
}

fn same(a: &[Vec<u8>], b: &[Vec<u8>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.eq_ignore_ascii_case(b))
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, label) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(".")?;
            }
            write!(f, "{}", String::from_utf8_lossy(label).escape_debug())?;
        }
        Ok(())
    }
}

/// A packet with names.
pub(super) struct Labels<'a> {
    pub bytes: &'a [u8],
}

impl Labels<'_> {
    /// The name at a position, and the position after it. Every pointer must lead to before the labels that it ends, so
    /// that no name is endless.
    pub(super) fn parse(&self, mut at: usize) -> Result<(Name, usize), Malformed> {
        let (mut labels, mut total, mut after, mut limit) = (Vec::new(), 1usize, None, at);
        loop {
            let len = *self.bytes.get(at).ok_or(Malformed::Truncated)?;
            let next = at.saturating_add(1);
            match len {
                0 => return Ok((Name(labels), after.unwrap_or(next))),
                len if len & POINTER == POINTER => {
                    let low = *self.bytes.get(next).ok_or(Malformed::Truncated)?;
                    let to = usize::from(u16::from_be_bytes([len & !POINTER, low]));
                    if to >= limit {
                        return Err(Malformed::Name);
                    }
                    after.get_or_insert(next.saturating_add(1));
                    (at, limit) = (to, to);
                }
                len if len & POINTER != 0 => return Err(Malformed::Name),
                len => {
                    let end = next.saturating_add(usize::from(len));
                    let label = self.bytes.get(next..end).ok_or(Malformed::Truncated)?;
                    total = total.saturating_add(label.len()).saturating_add(1);
                    if total > MAX_NAME {
                        return Err(Malformed::Name);
                    }
                    labels.push(label.to_vec());
                    at = end;
                }
            }
        }
    }
}

/// Emits names; ends of names that were emitted before become pointers.
#[derive(Default)]
pub(super) struct Compressor {
    known: Vec<(Vec<Vec<u8>>, u16)>,
    is_off: bool,
}

impl Compressor {
    /// One that does not compress.
    pub(super) fn none() -> Compressor {
        Compressor { known: Vec::new(), is_off: true }
    }

    pub(super) fn emit(&mut self, name: &Name, out: &mut Vec<u8>) {
        let mut rest = name.0.as_slice();
        while let Some((label, after)) = rest.split_first() {
            if let Some((_, to)) = self.known.iter().find(|(known, _)| same(known, rest)) {
                let [high, low] = to.to_be_bytes();
                out.extend([high | POINTER, low]);
                return;
            }
            // A pointer has 14 bits.
            if let Some(at) = u16::try_from(out.len()).ok().filter(|at| *at < 1 << 14 && !self.is_off) {
                self.known.push((rest.to_vec(), at));
            }
            out.push(u8::try_from(label.len()).unwrap_or_default());
            out.extend(label);
            rest = after;
        }
        out.push(0);
    }
}
