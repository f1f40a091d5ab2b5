//! Names of casefolded directories: equal if their folded forms are equal.
//!
//! The kernel's form is NFDICF: decomposed, without the code points that Unicode calls ignorable by default,
//! case folded (common and full). The tables here may be newer than those of the image (12.1). A name that
//! folds differently there is not found by its hash, but by comparing all names.
//! Source: kernel Documentation/filesystems/ext4/directory.rst.

use std::borrow::Cow;

use caseless::Caseless;
use unicode_normalization::UnicodeNormalization;

/// The folded form. A name that is not UTF-8 is its own form.
#[must_use]
pub fn fold(name: &[u8]) -> Cow<'_, [u8]> {
    let Ok(text) = std::str::from_utf8(name) else { return Cow::Borrowed(name) };
    if text.is_ascii() {
        return if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            Cow::Owned(text.to_ascii_lowercase().into_bytes())
        } else {
            Cow::Borrowed(name)
        };
    }
    let folded = text.chars().nfd().filter(|c| !is_ignorable(*c)).default_case_fold().nfd();
    Cow::Owned(folded.collect::<String>().into_bytes())
}

/// Whether the form is the same in all versions of Unicode since 12.1: names of ASCII, Latin, Greek, Cyrillic
/// and Armenian letters, and names that are not UTF-8.
#[must_use]
pub fn is_stable(name: &[u8]) -> bool {
    std::str::from_utf8(name).map_or(true, |text| text.chars().all(|c| u32::from(c) < 0x590))
}

/// Default_Ignorable_Code_Point.
fn is_ignorable(c: char) -> bool {
    matches!(u32::from(c),
        0xAD | 0x34F | 0x61C | 0x115F..=0x1160 | 0x17B4..=0x17B5 | 0x180B..=0x180F | 0x200B..=0x200F
        | 0x202A..=0x202E | 0x2060..=0x206F | 0x3164 | 0xFE00..=0xFE0F | 0xFEFF | 0xFFA0 | 0xFFF0..=0xFFF8
        | 0x1_BCA0..=0x1_BCA3 | 0x1_D173..=0x1_D17A | 0xE_0000..=0xE_0FFF)
}

#[cfg(test)]
mod tests {
    use super::{fold, is_stable};

    #[test]
    fn names_whose_form_never_changes() {
        for name in ["plain", "straße", "Ωμέγα", "Жук"] {
            assert!(is_stable(name.as_bytes()), "{name}");
        }
        assert!(is_stable(b"A\xFFB") && !is_stable("日本".as_bytes()));
    }

    #[test]
    fn forms_that_are_equal() {
        for (a, b) in [
            ("HELLO", "hello"),
            ("STRASSE", "straße"),
            ("\u{C5}ngstr\u{F6}m", "A\u{30A}NGSTRO\u{308}M"),
            ("ΣΊΣΥΦΟΣ", "σίσυφος"),
            ("so\u{AD}ft", "SOFT"),
        ] {
            assert_eq!(fold(a.as_bytes()), fold(b.as_bytes()), "{a} and {b}");
        }
        assert_ne!(fold("é".as_bytes()), fold(b"e"));
        assert_eq!(fold(b"A\xFFB").as_ref(), b"A\xFFB", "no UTF-8: its own form");
    }
}
