//! GPT-2's alphabet of 256 printable characters, one for each byte (`bytes_to_unicode` in its `encoder.py`).

/// The bytes that `token` spells; none when a character is not in the alphabet.
pub(crate) fn bytes(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte).collect()
}

fn byte(character: char) -> Option<u8> {
    // Printable Latin-1 stands for itself; the other 68 bytes follow from U+0100 in their order.
    match u32::from(character) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The character that stands for `byte`.
pub(crate) fn spell(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u32::from(byte),
        0x00..=0x20 => u32::from(byte) + 0x100,
        0x7F..=0xA0 => u32::from(byte) - 0x7F + 0x121,
        0xAD => 0x143,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::*;

    #[test]
    fn the_alphabet_has_every_byte_once() {
        let mut all: Vec<u8> = ByteLevel::alphabet().into_iter().filter_map(byte).collect();
        all.sort_unstable();
        assert_eq!(all, (0..=255).collect::<Vec<u8>>());
        assert!((0..=255).all(|value| byte(spell(value)) == Some(value)));
        assert_eq!(byte('Ġ'), Some(b' '));
        assert_eq!(byte('Ċ'), Some(b'\n'));
        assert_eq!(byte('\u{144}'), None);
    }
}
