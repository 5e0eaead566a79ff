//! UTF-16LE strings ([MS-SMB2] 2.2 "Unicode strings", [MS-DTYP] 2.1.10).
//!
//! [`decode`] refuses unpaired surrogates in requests, because no file of a Weft share can have such a name. A listing
//! of another server may contain them; [`decode_lossy`] replaces them by U+FFFD.

use super::Malformed;

/// The string, or an error for an odd number of bytes or an unpaired surrogate.
pub fn decode(bytes: &[u8]) -> Result<String, Malformed> {
    let units = units(bytes)?;
    // Most names are ASCII and skip the general path.
    if bytes.as_chunks::<2>().0.iter().all(|[low, high]| *high == 0 && low.is_ascii()) {
        return Ok(bytes.iter().step_by(2).map(|&b| char::from(b)).collect());
    }
    char::decode_utf16(units)
        .collect::<Result<_, _>>()
        .map_err(|_| Malformed("unpaired surrogate in a string"))
}

/// The string with U+FFFD for each unpaired surrogate; an error for an odd number of bytes.
pub fn decode_lossy(bytes: &[u8]) -> Result<String, Malformed> {
    Ok(char::decode_utf16(units(bytes)?).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
}

/// Appends `text`, without a terminator.
pub fn encode(text: &str, out: &mut Vec<u8>) {
    out.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
}

/// Length of `text` in bytes when encoded.
pub fn encoded_len(text: &str) -> usize {
    text.encode_utf16().count().saturating_mul(2)
}

fn units(bytes: &[u8]) -> Result<impl Iterator<Item = u16> + '_, Malformed> {
    if !bytes.len().is_multiple_of(2) {
        return Err(Malformed("a UTF-16 string has an odd number of bytes"));
    }
    Ok(bytes.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit)))
}
