//! Bytes as hexadecimal digits.

/// Two lower-case digits per byte.
pub(crate) fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// [`hex`] backwards; takes upper-case digits too.
pub(crate) fn of_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let digit = |byte: u8| u8::try_from(char::from(byte).to_digit(16)?).ok();
    pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_digits_are_the_same() {
        assert_eq!(hex([0x00, 0x9f, 0xe0]), "009fe0");
        assert_eq!(of_hex("009FE0"), Some(vec![0x00, 0x9f, 0xe0]));
        assert_eq!(of_hex(""), Some(Vec::new()));
        for wrong in ["0", "0g", "+1", "\u{e4}"] {
            assert_eq!(of_hex(wrong), None, "{wrong}");
        }
    }
}
