//! What `--version` prints, and a status: the number, and what the program was built from (see `build.rs`).

use std::sync::LazyLock;

/// The number of the version.
pub(crate) const NUMBER: &str = env!("CARGO_PKG_VERSION");
/// The commit with its date, or the kind of the build; empty if neither is known.
pub(crate) const BUILD: &str = env!("WEFT_BUILD");

/// Both.
pub(crate) static FULL: LazyLock<String> = LazyLock::new(|| text(NUMBER, BUILD));

/// A version of this or another program.
pub(crate) fn text(number: &str, build: &str) -> String {
    if build.is_empty() { number.to_owned() } else { format!("{number} ({build})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_its_build_if_it_is_known() {
        assert_eq!(text("0.1.0", "06aed850, 2026-11-28"), "0.1.0 (06aed850, 2026-11-28)");
        assert_eq!(text("0.1.0", ""), "0.1.0");
        assert!(FULL.starts_with(NUMBER));
    }
}
