//! A Kerberos principal.
//!
//! Spec: RFC 1964 2.1.1, RFC 4120 6.2 (text form). Names with instances (`alice/admin`) or quoted characters are not
//! accepted as users.

/// The principal that a ticket was issued to or for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The part before the realm, `alice` or `cifs/host`.
    pub name: String,
    /// The realm.
    pub realm: String,
}

impl Principal {
    /// Parses `name@REALM`; `None` if there is no realm, more than one, or a quoted character.
    pub fn parse(text: &str) -> Option<Principal> {
        let (name, realm) = text.split_once('@')?;
        let plain = !text.contains('\\') && !realm.contains('@') && !name.is_empty() && !realm.is_empty();
        plain.then(|| Principal { name: name.to_owned(), realm: realm.to_owned() })
    }

    /// Whether this is a plain user name: not an instance or a service, and without what an account's name uses to name a
    /// domain.
    pub fn is_plain(&self) -> bool {
        !self.name.contains(['/', '\\', '@'])
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
        for name in ["alice/admin", "alice@OTHER", "OTHER\\alice"] {
            assert!(!Principal { name: name.into(), realm: "R".into() }.is_plain(), "{name}");
        }
        for bad in ["", "alice", "alice@", "@R", "a@b@R", "a\\@b@R", "a\\/b@R"] {
            assert_eq!(Principal::parse(bad), None, "{bad}");
        }
    }
}
