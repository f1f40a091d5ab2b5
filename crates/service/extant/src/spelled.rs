//! Encodes names of encrypted directories as names that every system accepts.
//!
//! Without the key, the names of an encrypted directory are ciphertext: arbitrary bytes, including slashes
//! and NUL. Programs that use them as file names (a mount, a copy, an archive) encode them:
//!
//! ```text
//! printable ASCII as it is; other bytes, '/', '%', a leading '~' as %XX         if at most 255 bytes long
//! ~ base64url                                                                   names of up to 190 bytes
//! ~ base64url of the first 150 bytes . 8 hex digits of FNV-1a over all bytes    others, found by a listing
//! ```
//!
//! Owns: the encoding and the decoding. Does **not** own: which directories are encrypted
//! ([`flags::ENCRYPT`](crate::flags)).
//!
//! Invariants
//! 1. An encoded name has 1 to 255 bytes of printable ASCII and no slash. "." and ".." stay unchanged.
//! 2. Different names have different encodings, except in the third form if their hashes collide.
//!
//! Source: base64url is RFC 4648, section 5, without padding; FNV-1a (32 bits) is RFC 9923. The encoding is
//! specific to this project. It differs from the kernel's fscrypt encoding, which depends on the directory's
//! secrets.

use std::borrow::Cow;

/// Maximum number of bytes of a name, encoded or not.
const NAME_MAX: usize = 255;
/// Bytes of the name that the third form contains.
const SHOWN: usize = 150;
/// The first byte of the second and the third form.
const MARK: u8 = b'~';

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The result of decoding.
///
/// ```
/// use extant::spelled::{Meaning, meaning};
///
/// assert_eq!(meaning(b"a%2Fb"), Meaning::Name(b"a/b".to_vec()));
/// assert_eq!(meaning(b"a/b"), Meaning::Nothing);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// A decoded name, which may exist.
    Name(Vec<u8>),
    /// The third form, which does not contain all bytes: the name in the directory with this encoding.
    Listed,
    /// Not the encoding of any name.
    Nothing,
}

/// Encodes a name of an encrypted directory. Names of more than 255 bytes, which no directory holds, get the
/// third form.
///
/// ```
/// assert_eq!(&*extant::spelled::spell(b"a/b%\xff"), b"a%2Fb%25%FF");
/// ```
#[must_use]
pub fn spell(name: &[u8]) -> Cow<'_, [u8]> {
    let is_plain = |at: usize, byte: u8| {
        (0x21..=0x7e).contains(&byte) && !matches!(byte, b'/' | b'%') && !(at == 0 && byte == MARK)
    };
    let escapes = name.iter().enumerate().filter(|&(at, byte)| !is_plain(at, *byte)).count();
    if name.len().saturating_add(escapes.saturating_mul(2)) <= NAME_MAX {
        if escapes == 0 {
            return Cow::Borrowed(name);
        }
        let mut spelled = Vec::with_capacity(name.len() + 2 * escapes);
        for (at, byte) in name.iter().enumerate() {
            match is_plain(at, *byte) {
                true => spelled.push(*byte),
                false => spelled.extend(format!("%{byte:02X}").bytes()),
            }
        }
        return Cow::Owned(spelled);
    }
    let mut spelled = vec![MARK];
    if name.len() <= (NAME_MAX - 1) * 3 / 4 {
        encode(name, &mut spelled);
    } else {
        encode(&name[..SHOWN], &mut spelled);
        spelled.extend(format!(".{:08x}", hash(name)).bytes());
    }
    Cow::Owned(spelled)
}

/// Decodes the result of [`spell`].
///
/// ```
/// use extant::spelled::{Meaning, meaning};
///
/// assert_eq!(meaning(b"a%2Fb"), Meaning::Name(b"a/b".to_vec()));
/// assert_eq!(meaning(b"a/b"), Meaning::Nothing);
/// ```
#[must_use]
pub fn meaning(spelled: &[u8]) -> Meaning {
    let name = match spelled.strip_prefix(&[MARK]) {
        Some(rest) if rest.contains(&b'.') => return Meaning::Listed,
        Some(rest) => decode(rest),
        None => unescape(spelled),
    };
    // Each name has exactly one encoding; reject all others.
    match name {
        Some(name) if *spell(&name) == *spelled => Meaning::Name(name),
        _ => Meaning::Nothing,
    }
}

fn unescape(spelled: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    let mut name = Vec::with_capacity(spelled.len());
    let mut rest = spelled;
    while let [first, after @ ..] = rest {
        (name, rest) = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                name.push(digit(high)? << 4 | digit(low)?);
                (name, after)
            }
            (b'%', _) => return None,
            (byte, after) => {
                name.push(*byte);
                (name, after)
            }
        };
    }
    Some(name)
}

fn encode(bytes: &[u8], into: &mut Vec<u8>) {
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digits = (0..=group.len()).map(|at| DIGITS[(bits >> (18 - 6 * at) & 63) as usize]);
        into.extend(digits);
    }
}

fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    for group in text.chunks(4) {
        let mut bits = 0;
        for at in 0..4 {
            let value = match group.get(at) {
                Some(digit) => DIGITS.iter().position(|known| known == digit)? as u32,
                None => 0,
            };
            bits = bits << 6 | value;
        }
        // A group of one digit holds no byte; the caller detects it by encoding the result again.
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_one_spelling_that_leads_back() {
        let mut seen = std::collections::HashSet::new();
        for seed in [0u32, 7, 0x2f, 0xff] {
            for len in 1..=255u32 {
                let name: Vec<u8> =
                    (0..len).map(|at| (at.wrapping_mul(seed).wrapping_add(seed ^ len)) as u8).collect();
                let spelled = spell(&name).into_owned();
                assert!((1..=255).contains(&spelled.len()), "{name:?}");
                assert!(spelled.iter().all(|byte| (0x21..=0x7e).contains(byte) && *byte != b'/'), "{name:?}");
                match meaning(&spelled) {
                    Meaning::Name(back) => assert_eq!(back, name),
                    other => assert!(other == Meaning::Listed && len > 190, "{name:?}: {other:?}"),
                }
                if seen.insert(name) {
                    assert!(spelled.len() <= 255);
                }
            }
        }
        let all: std::collections::HashSet<Vec<u8>> =
            seen.iter().map(|name| spell(name).into_owned()).collect();
        assert_eq!(all.len(), seen.len());
    }

    #[test]
    fn the_three_forms() {
        for (name, spelled) in
            [(&b".."[..], &b".."[..]), (b"plain~", b"plain~"), (b"~x", b"%7Ex"), (b"\0/ %", b"%00%2F%20%25")]
        {
            assert_eq!(&*spell(name), spelled);
        }
        let middle = spell(&[0xff; 190]).into_owned();
        assert_eq!((middle.len(), &middle[..4]), (255, &b"~___"[..]));
        let long = spell(&[0xff; 191]).into_owned();
        assert_eq!((long.len(), long[201]), (210, b'.'));
    }

    #[test]
    fn other_spellings_mean_nothing() {
        for wrong in
            [&b"%"[..], b"%2", b"%2f", b"%41", b"%zz", b"a/b", b"~", b"~QQ", b"~A", b"~!!!!", b" ", b"\xff"]
        {
            assert_eq!(meaning(wrong), Meaning::Nothing, "{}", String::from_utf8_lossy(wrong));
        }
    }
}
