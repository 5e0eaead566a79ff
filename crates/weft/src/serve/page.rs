//! The status page: one HTML document in the binary, with its style and script, and the policy that binds it.
//!
//! The page holds no data, so everybody who reaches the server may load it; it asks for the status by itself, with the
//! token that the user types. Its policy (CSP) admits this script and this style by their hashes and nothing else:
//! no other origin, no form, no frame, and no markup from strings (Trusted Types).

use std::sync::LazyLock;

use hyper::header::HeaderValue;
use ring::digest::{SHA256, digest};

/// The style, and what stands before it.
macro_rules! style {
    () => {
        include_str!("page/page.css")
    };
}

macro_rules! script {
    () => {
        include_str!("page/page.js")
    };
}

/// The document up to the tag of its body, which says what the server shows to whom.
const HEAD: &str = concat!(include_str!("page/head.html"), "<style>", style!(), "</style>\n</head>\n");
const BODY: &str =
    concat!(include_str!("page/body.html"), "<script>", script!(), "</script>\n</body>\n</html>\n");

/// What the page can show to whoever loads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shows {
    /// Everything.
    All,
    /// Nothing without a token, so it asks for one first.
    WithToken,
    /// The status without names.
    WithoutNames,
}

/// The document.
pub(super) fn document(shows: Shows) -> String {
    let shows = match shows {
        Shows::All => "all",
        Shows::WithToken => "with-token",
        Shows::WithoutNames => "without-names",
    };
    format!("{HEAD}<body data-shows=\"{shows}\">\n{BODY}")
}

/// Its Content-Security-Policy.
pub(super) static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let policy = policy();
    // Hashes in base64 are visible ASCII.
    HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

fn policy() -> String {
    let hash = |text: &str| base64(digest(&SHA256, text.as_bytes()).as_ref());
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        hash(script!()),
        hash(style!())
    )
}

/// RFC 4648 section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            text.push(if digit <= group.len() { DIGITS[value as usize] as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        // RFC 4648 section 10.
        for (text, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(text.as_bytes()), coded);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "+/8=");
    }

    /// What a browser hashes is the text between the tags.
    #[test]
    fn the_policy_admits_the_script_and_the_style_and_nothing_else() {
        let document = document(Shows::All);
        let between = |begin: &str, end: &str| {
            assert_eq!(document.matches(begin).count(), 1, "{begin}");
            document.split_once(begin).unwrap().1.split_once(end).unwrap().0.to_owned()
        };
        for (begin, end) in [("<script>", "</script>"), ("<style>", "</style>")] {
            let hash = base64(digest(&SHA256, between(begin, end).as_bytes()).as_ref());
            assert!(policy().contains(&format!("'sha256-{hash}'")), "{begin}");
        }
        assert!(!policy().contains("unsafe"));
        assert_eq!(POLICY.to_str().unwrap(), policy());
    }

    /// A browser would refuse these, and the page would silently lack them.
    #[test]
    fn the_document_needs_nothing_from_elsewhere() {
        let document = document(Shows::WithToken);
        let lower = document.to_lowercase();
        // The name of a dialect of XML is no address that anybody loads.
        let lower = lower.replace("http://www.w3.org/2000/svg", "");
        for forbidden in [
            "http:",
            "https:",
            "//cdn",
            "@import",
            "url(",
            " style=",
            "innerhtml",
            "outerhtml",
            "insertadjacenthtml",
            "document.write",
            "eval(",
        ] {
            // "http:" is also the name of a protocol that the script compares with.
            let lower = lower.replace("\"http:\"", "");
            assert!(!lower.contains(forbidden), "{forbidden}");
        }
        for handler in ["onclick", "onload", "onerror", "onsubmit", "oninput", "onchange"] {
            assert!(!lower.contains(&format!("{handler}=")), "{handler}");
        }
        assert!(document.len() < 64 << 10, "{} bytes", document.len());
        assert!(document.contains("<body data-shows=\"with-token\">"));
    }
}
