//! Identifies the holder of a certificate: the names that its authority has signed, in one value.
//!
//! The fields are those of RFC 5280 4.1 and 4.2.1.6. Nothing is verified here; TLS has already done that.
//!
//! The value covers the names, not the key or the issuer: a host that renews its certificate, perhaps under the next
//! intermediate authority, stays the same host. A certificate without any names identifies only itself.

use ring::digest::{Context, SHA256};

/// The holder of a certificate: SHA-256 over the names in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Holder(pub [u8; 32]);

const SEQUENCE: u8 = 0x30;
const OCTET_STRING: u8 = 0x04;
const OBJECT: u8 = 0x06;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// 2.5.29.17.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

impl Holder {
    /// The holder of a certificate in DER.
    pub fn of(certificate: &[u8]) -> Holder {
        let (subject, names) = names(certificate).unwrap_or_default();
        let parts =
            if subject.is_empty() && names.is_empty() { [certificate, &[]] } else { [subject, names] };
        let mut digest = Context::new(&SHA256);
        for part in parts {
            // Hashed with their lengths, so that nothing can move from one into the other.
            digest.update(&(part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let mut holder = [0; 32];
        holder.copy_from_slice(digest.finish().as_ref());
        Holder(holder)
    }
}

/// The subject, and the value of subjectAltName; empty if missing.
fn names(certificate: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut certificate, _) = inside(certificate, SEQUENCE)?;
    let mut fields = take(&mut certificate, SEQUENCE)?;
    if fields.first() == Some(&VERSION) {
        take(&mut fields, VERSION)?;
    }
    // serialNumber, signature, issuer, validity.
    for _ in 0..4 {
        let tag = *fields.first()?;
        take(&mut fields, tag)?;
    }
    let subject = take(&mut fields, SEQUENCE)?;
    while let Some(&tag) = fields.first() {
        let mut value = take(&mut fields, tag)?;
        if tag == EXTENSIONS {
            let mut extensions = take(&mut value, SEQUENCE)?;
            while !extensions.is_empty() {
                let mut extension = take(&mut extensions, SEQUENCE)?;
                if take(&mut extension, OBJECT)? != SUBJECT_ALT_NAME {
                    continue;
                }
                if extension.first() != Some(&OCTET_STRING) {
                    // critical
                    let tag = *extension.first()?;
                    take(&mut extension, tag)?;
                }
                return Some((subject, take(&mut extension, OCTET_STRING)?));
            }
        }
    }
    Some((subject, &[]))
}

/// Takes the next element, which must have this tag, and returns its content.
fn take<'a>(from: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (content, rest) = inside(from, tag)?;
    *from = rest;
    Some(content)
}

/// The content of the first element of `der`, and the bytes after it.
fn inside(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, der) = der.split_first()?;
    let (&short, der) = der.split_first()?;
    if found != tag {
        return None;
    }
    let (len, der) = match usize::from(short) {
        len @ 0..=0x7f => (len, der),
        // RFC 5280 certificates have definite lengths; four bytes are more than TLS carries.
        long @ 0x81..=0x84 => {
            let (len, der) = der.split_at_checked(long - 0x80)?;
            (len.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), der)
        }
        _ => return None,
    };
    der.split_at_checked(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(tag: u8, content: &[&[u8]]) -> Vec<u8> {
        let content = content.concat();
        let mut der = vec![tag, 0x82];
        der.extend_from_slice(&(content.len() as u16).to_be_bytes());
        der.extend_from_slice(&content);
        der
    }

    /// A certificate with a serial number, an issuer, a subject and other names.
    fn certificate(serial: u8, issuer: &[u8], subject: &[u8], names: Option<&[u8]>) -> Vec<u8> {
        let version = element(VERSION, &[&[2, 1, 2]]);
        let fixed = [&version[..], &[2, 1, serial], &element(SEQUENCE, &[])].concat();
        let subject = element(SEQUENCE, &[subject]);
        let key = element(SEQUENCE, &[&[3, 1, serial]]);
        let usage = element(SEQUENCE, &[&[OBJECT, 3, 0x55, 0x1d, 0x0f], &[OCTET_STRING, 1, 7]]);
        let names = names.map(|names| {
            let names = element(OCTET_STRING, &[names]);
            element(SEQUENCE, &[&[OBJECT, 3], SUBJECT_ALT_NAME, &[1, 1, 0xff], &names])
        });
        let listed = element(SEQUENCE, &[&usage, &names.unwrap_or_default()]);
        let extensions = element(EXTENSIONS, &[&listed]);
        let (issuer, validity) = (element(SEQUENCE, &[issuer]), element(SEQUENCE, &[&[serial]]));
        let signed = element(SEQUENCE, &[&fixed, &issuer, &validity, &subject, &key, &extensions]);
        element(SEQUENCE, &[&signed, &element(SEQUENCE, &[]), &[3, 1, serial]])
    }

    #[test]
    fn a_renewed_certificate_is_for_the_same_holder() {
        let holder = |serial, issuer: &[u8], subject: &[u8], names: Option<&[u8]>| {
            Holder::of(&certificate(serial, issuer, subject, names))
        };
        let host = holder(1, b"R10", b"CN=a", Some(b"a.example"));
        assert_eq!(holder(2, b"R11", b"CN=a", Some(b"a.example")), host);
        assert_ne!(holder(1, b"R10", b"CN=b", Some(b"a.example")), host);
        assert_ne!(holder(1, b"R10", b"CN=a", Some(b"b.example")), host);
        assert_ne!(holder(1, b"R10", b"CN=a", None), host);
        // Either alone identifies the holder; and nothing moves from one into the other.
        assert_eq!(holder(1, b"R10", b"", Some(b"a")), holder(2, b"R11", b"", Some(b"a")));
        assert_ne!(holder(1, b"R10", b"", Some(b"ab")), holder(1, b"R10", b"ab", None));
        // A certificate without names equals only itself.
        assert_ne!(holder(1, b"R10", b"", None), holder(2, b"R10", b"", None));
        assert_eq!(holder(1, b"R10", b"", None), holder(1, b"R10", b"", None));
    }

    #[test]
    fn what_is_cut_off_names_nobody() {
        let whole = certificate(1, b"R10", b"CN=a", Some(b"a.example"));
        for end in 0..whole.len() {
            assert_ne!(Holder::of(&whole[..end]), Holder::of(&whole), "{end}");
        }
    }
}
