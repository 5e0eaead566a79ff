//! Names of unfinished copies: `.NAME.weft-partial`, or `.NAME.TAG.weft-partial`.

/// The suffix of these names.
const PARTIAL_SUFFIX: &str = ".weft-partial";
/// The longest name in bytes that file systems accept; it is not longer in SMB's characters.
const MAX_NAME: usize = 255;

/// A hash of a few words.
pub(crate) fn mixed(words: impl IntoIterator<Item = u64>) -> u32 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    words.into_iter().fold(0xcbf2_9ce4, mix) as u32
}

/// A hash of a text.
pub(crate) fn mixed_text(text: &str) -> u32 {
    mixed(text.bytes().map(u64::from))
}

/// The name of an unfinished copy of `name`. A long name is truncated, and a hash of the full name distinguishes it
/// from others with the same beginning.
pub(crate) fn partial_name(name: &str, tag: &str) -> String {
    let whole = format!(".{name}{tag}{PARTIAL_SUFFIX}");
    if whole.len() <= MAX_NAME {
        return whole;
    }
    let tag = format!("~{:08x}{tag}", mixed_text(name));
    let mut len = MAX_NAME - 1 - tag.len() - PARTIAL_SUFFIX.len();
    while !name.is_char_boundary(len) {
        len -= 1;
    }
    format!(".{}{tag}{PARTIAL_SUFFIX}", &name[..len])
}

/// Whether a file is a running or interrupted copy.
pub(crate) fn is_partial(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(PARTIAL_SUFFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_names_are_never_too_long() {
        assert_eq!(partial_name("a", ""), ".a.weft-partial");
        assert_eq!(partial_name("a", ".12345678"), ".a.12345678.weft-partial");
        for name in ["n".repeat(255), "\u{1f600}".repeat(63), format!("x{}", "é".repeat(127))] {
            for tag in ["", ".12345678"] {
                let partial = partial_name(&name, tag);
                assert!(partial.len() <= MAX_NAME && partial.len() > MAX_NAME - 4, "{partial}");
                assert!(is_partial(&partial));
            }
        }
        let names = ["a", "b"].map(|end| partial_name(&format!("{}{end}", "n".repeat(254)), ""));
        assert_ne!(names[0], names[1]);
    }
}
