//! Extended attributes: FileFullEaInformation ([MS-FSCC] 2.4.16) and the list of requested names (2.4.16.1).

use crate::smb2::Malformed;
use crate::smb2::field::{Put, Reader, chained, len16, len32, pad, patch_u32, since};

/// Most attributes in one list; a file system stores a few dozen.
pub const MAX_EAS: usize = 4096;

/// One extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullEa {
    /// [`FullEa::NEED_EA`] or 0; other bits are not checked here.
    pub flags: u8,
    /// ASCII, case-insensitive.
    pub name: Vec<u8>,
    /// Empty removes the attribute.
    pub value: Vec<u8>,
}

const HEAD: usize = 8;

impl FullEa {
    /// FILE_NEED_EA: programs that do not understand the attribute must not open the file.
    pub const NEED_EA: u8 = 0x80;

    /// Parses a list.
    pub fn parse_list(bytes: &[u8]) -> Result<Vec<FullEa>, Malformed> {
        let mut list = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            if list.len() == MAX_EAS {
                return Err(Malformed("too many extended attributes"));
            }
            let mut r = Reader::new(rest);
            let (next, flags) = (r.u32()? as usize, r.u8()?);
            let (name_len, value_len) = (usize::from(r.u8()?), usize::from(r.u16()?));
            let name = r.take(name_len)?.to_vec();
            if r.u8()? != 0 {
                return Err(Malformed("extended attribute name"));
            }
            list.push(FullEa { flags, name, value: r.take(value_len)?.to_vec() });
            rest = chained(rest, next, HEAD, "extended attribute")?;
        }
        Ok(list)
    }

    /// Appends a list; each entry is 4-byte aligned. Names have at most 255 bytes, values 65,535.
    pub fn emit_list(list: &[FullEa], out: &mut Vec<u8>) {
        let start = out.len();
        let mut list = list.iter().peekable();
        while let Some(ea) = list.next() {
            let at = out.len();
            out.put_u32(0);
            out.put_u8(ea.flags);
            out.put_u8(u8::try_from(ea.name.len()).unwrap_or(u8::MAX));
            out.put_u16(len16(ea.value.len()));
            out.put(&ea.name);
            out.put_u8(0);
            out.put(&ea.value);
            if list.peek().is_some() {
                pad(out, start, 4);
                let next = len32(since(out, at));
                patch_u32(out, at, next);
            }
        }
    }
}

/// FILE_GET_EA_INFORMATION: the requested names.
pub fn parse_names(bytes: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
    let mut names = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        if names.len() == MAX_EAS {
            return Err(Malformed("too many extended attributes"));
        }
        let mut r = Reader::new(rest);
        let (next, len) = (r.u32()? as usize, usize::from(r.u8()?));
        names.push(r.take(len)?.to_vec());
        if r.u8()? != 0 {
            return Err(Malformed("extended attribute name"));
        }
        rest = chained(rest, next, 6, "extended attribute name")?;
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_back_and_no_truncation_is_taken_for_one() {
        let ea = |name: &[u8], value: &[u8]| FullEa { flags: 0, name: name.into(), value: value.into() };
        let list = vec![
            ea(b"A", b"1"),
            FullEa { flags: FullEa::NEED_EA, ..ea(b"LONGER", b"") },
            ea(b"B", &[7; 300]),
        ];
        let mut bytes = Vec::new();
        FullEa::emit_list(&list, &mut bytes);
        assert_eq!(FullEa::parse_list(&bytes), Ok(list.clone()));
        for len in 1..bytes.len() {
            assert!(FullEa::parse_list(&bytes[..len]).is_err(), "{len}");
        }
        assert_eq!(FullEa::parse_list(&[]), Ok(vec![]));
        let asked = [&[12, 0, 0, 0, 2][..], b"AB\0\0\0\0\0", &[0, 0, 0, 0, 1], b"C\0"].concat();
        assert_eq!(parse_names(&asked), Ok(vec![b"AB".to_vec(), b"C".to_vec()]));
        for len in 1..asked.len() {
            assert!(parse_names(&asked[..len]).is_err(), "{len}");
        }
    }
}
