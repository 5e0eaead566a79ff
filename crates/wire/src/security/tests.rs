//! Round trips of descriptors, as bytes and as text.

use super::*;

const TEXTS: [&str; 6] = [
    "O:S-1-22-1-1000G:S-1-22-2-100D:(A;OICI;FA;;;WD)(D;;0x10000;;;S-1-5-21-1-2-3-1001)",
    "O:S-1-5-18D:PAI(A;OICIIOID;FA;;;CO)(A;NP;FR;;;AU)",
    "G:S-1-1-0D:",
    "D:NO_ACCESS_CONTROL",
    "O:S-1-0x123456789ABC-1",
    "",
];

#[test]
fn descriptors_come_back_as_they_went() {
    for text in TEXTS {
        let descriptor: SecurityDescriptor = text.parse().unwrap();
        assert_eq!(descriptor.to_string(), text);
        let bytes = descriptor.to_bytes();
        assert_eq!(SecurityDescriptor::parse(&bytes).unwrap(), descriptor, "{text}");
        for len in 0..bytes.len() {
            assert!(SecurityDescriptor::parse(&bytes[..len]).is_err(), "{text} cut to {len}");
        }
    }
}

#[test]
fn text_that_is_no_descriptor_is_refused() {
    for text in
        ["x", "O:", "O:S-1", "D:X", "D:(A;;FA;;;)", "D:(A;;FA;;WD)", "D:(X;;FA;;;WD)", "D:(A;XX;FA;;;WD)"]
    {
        assert!(text.parse::<SecurityDescriptor>().is_err(), "{text}");
    }
    assert!("S-1-5-1-2-3-4-5-6-7-8-9-10-11-12-13-14-15-16".parse::<Sid>().is_err());
    assert!("S-1-0x1000000000000".parse::<Sid>().is_err());
}

#[test]
fn entries_of_other_kinds_are_kept_as_they_came() {
    let other = Ace::Other { kind: 5, flags: AceFlags::CONTAINER_INHERIT, body: vec![9; 12] };
    let descriptor = SecurityDescriptor { dacl: Dacl::List(vec![other]), ..SecurityDescriptor::default() };
    assert_eq!(SecurityDescriptor::parse(&descriptor.to_bytes()).unwrap(), descriptor);
}
