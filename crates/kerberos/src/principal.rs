//! The name of somebody in a realm.
//!
//! Spec: RFC 1964 2.1.1, RFC 4120 6.2 (how it is written).
//! Does not: take names with instances (`alice/admin`) or quoted characters for users.

/// Who a ticket is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The part before the realm, `alice` or `cifs/host`.
    pub name: String,
    /// The realm.
    pub realm: String,
}

impl Principal {
    /// Reads `name@REALM`; `None` for what has no realm, several, or quoted characters.
    pub fn parse(text: &str) -> Option<Principal> {
        let (name, realm) = text.split_once('@')?;
        let plain = !text.contains('\\') && !realm.contains('@') && !name.is_empty() && !realm.is_empty();
        plain.then(|| Principal { name: name.to_owned(), realm: realm.to_owned() })
    }

    /// Whether it is somebody by himself, not an instance or a service.
    pub fn is_plain(&self) -> bool {
        !self.name.contains('/')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let alice = Principal::parse("alice@EXAMPLE.ORG").unwrap();
        assert_eq!((alice.name.as_str(), alice.realm.as_str()), ("alice", "EXAMPLE.ORG"));
        assert!(alice.is_plain());
        assert!(!Principal::parse("cifs/host@R").unwrap().is_plain());
        for bad in ["", "alice", "alice@", "@R", "a@b@R", "a\\@b@R", "a\\/b@R"] {
            assert_eq!(Principal::parse(bad), None, "{bad}");
        }
    }
}
