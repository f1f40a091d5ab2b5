//! The name hashes that order indexed directories: legacy, half-MD4 and TEA, each over signed or unsigned
//! bytes.
//!
//! Owns: the hash of one name, and the codes of the hash versions. Does **not** own: case folding (the caller
//! folds first), and the SipHash of encrypted and casefolded directories (it needs a secret key; the entries
//! store its value).
//!
//! Invariants
//! 1. The lowest bit of a hash is 0: index entries use it as the continuation flag.
//! 2. A hash is never [`EOF_HASH`]: readdir uses that value as "end of directory".
//! 3. No function allocates: a builder hashes every name of an image once or twice.
//!
//! Source: kernel Documentation/filesystems/ext4/directory.rst.

/// The hash that no name has: readdir positions use it for the end of the directory.
pub const EOF_HASH: u32 = 0x7FFF_FFFF << 1;

/// A hash version, with the signedness of bytes above 0x7F.
///
/// Each index root stores the algorithm (0, 1, 2 or 6). The superblock's flags store the signedness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HashVersion {
    /// The first ext3 hash, bytes as signed numbers.
    Legacy,
    /// Half-MD4, bytes as signed numbers; mke2fs's default.
    HalfMd4,
    /// Tiny Encryption Algorithm, bytes as signed numbers.
    Tea,
    /// [`Legacy`](Self::Legacy) over unsigned bytes.
    LegacyUnsigned,
    /// [`HalfMd4`](Self::HalfMd4) over unsigned bytes.
    HalfMd4Unsigned,
    /// [`Tea`](Self::Tea) over unsigned bytes.
    TeaUnsigned,
    /// SipHash-2-4 with a secret key, in directories that are both encrypted and casefolded.
    SipHash,
}

impl HashVersion {
    /// The version for the code on disk and the superblock's signedness (`s_flags` bit 1: unsigned); `None`
    /// for other codes.
    #[must_use]
    pub fn from_code(code: u8, unsigned: bool) -> Option<Self> {
        Some(match (code, unsigned) {
            (0, false) => Self::Legacy,
            (1, false) => Self::HalfMd4,
            (2, false) => Self::Tea,
            (0, true) => Self::LegacyUnsigned,
            (1, true) => Self::HalfMd4Unsigned,
            (2, true) => Self::TeaUnsigned,
            (6, _) => Self::SipHash,
            _ => return None,
        })
    }

    /// The code stored in index roots and the superblock: 0, 1, 2 or 6.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Legacy | Self::LegacyUnsigned => 0,
            Self::HalfMd4 | Self::HalfMd4Unsigned => 1,
            Self::Tea | Self::TeaUnsigned => 2,
            Self::SipHash => 6,
        }
    }

    /// Whether bytes above 0x7F are read as positive numbers.
    #[must_use]
    pub fn is_unsigned(self) -> bool {
        matches!(self, Self::LegacyUnsigned | Self::HalfMd4Unsigned | Self::TeaUnsigned)
    }
}

/// The hash of a name: `hash` orders the index, `minor` orders names with equal hashes for readdir.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NameHash {
    /// The index key; its lowest bit is 0.
    pub hash: u32,
    /// The second key of readdir; 0 for the legacy hash.
    pub minor: u32,
}

/// Converts the superblock's `s_hash_seed`, 16 bytes, to the four words that [`dirhash`] takes.
#[must_use]
pub fn seed_words(seed: &[u8; 16]) -> [u32; 4] {
    std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|j| seed[4 * i + j])))
}

/// The hash of `name` with `version` and the file system's seed (if it is zero: MD4's own initial values).
///
/// `None` for [`HashVersion::SipHash`], which needs a key. Any length can be hashed; names on disk have 1 to
/// 255 bytes.
#[must_use]
pub fn dirhash(version: HashVersion, seed: &[u32; 4], name: &[u8]) -> Option<NameHash> {
    let mut buf = if *seed == [0; 4] { MD4_INITIAL } else { *seed };
    let (hash, minor) = match version {
        HashVersion::Legacy => (legacy(name, |byte| byte as i8 as u32), 0),
        HashVersion::LegacyUnsigned => (legacy(name, u32::from), 0),
        HashVersion::HalfMd4 | HashVersion::HalfMd4Unsigned => {
            let mut rest = name;
            while !rest.is_empty() {
                half_md4_round(&mut buf, &pack::<8>(rest, version.is_unsigned()));
                rest = rest.get(32..).unwrap_or(&[]);
            }
            (buf[1], buf[2])
        }
        HashVersion::Tea | HashVersion::TeaUnsigned => {
            let mut rest = name;
            while !rest.is_empty() {
                tea_round(&mut buf, &pack::<4>(rest, version.is_unsigned()));
                rest = rest.get(16..).unwrap_or(&[]);
            }
            (buf[0], buf[1])
        }
        HashVersion::SipHash => return None,
    };
    Some(NameHash { hash: clear_reserved(hash), minor })
}

const MD4_INITIAL: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

/// Clears the continuation bit and avoids the end-of-directory value (invariants 1 and 2).
fn clear_reserved(hash: u32) -> u32 {
    let hash = hash & !1;
    if hash == EOF_HASH { EOF_HASH - 2 } else { hash }
}

fn legacy(name: &[u8], widen: impl Fn(u8) -> u32) -> u32 {
    let (mut newer, mut older) = (0x12A3_FE2Du32, 0x37AB_E8F9u32);
    for &byte in name {
        let mut h = older.wrapping_add(newer ^ widen(byte).wrapping_mul(7_152_373));
        if h & 0x8000_0000 != 0 {
            h = h.wrapping_sub(0x7FFF_FFFF);
        }
        older = newer;
        newer = h;
    }
    newer << 1
}

/// The next `N` words to digest: up to 4*N bytes of `rest`, big-endian, padded with the length of all of
/// `rest`.
///
/// A signed byte is added as a negative number, so it borrows from the next higher byte. A full word of
/// signed bytes is the unsigned word minus 0x100 at the position of each byte that has its top bit set.
fn pack<const N: usize>(rest: &[u8], unsigned: bool) -> [u32; N] {
    let borrow = if unsigned { 0 } else { 0x0080_8080u32 };
    let len = rest.len() as u32;
    let pad = len | len << 8;
    let pad = pad | pad << 16;
    let mut words = [pad; N];
    let mut chunks = rest.chunks_exact(4);
    for word in &mut words {
        if let Some(chunk) = chunks.next() {
            let packed = u32::from_be_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
            *word = packed.wrapping_sub((packed & borrow) << 1);
        } else {
            for &byte in chunks.remainder() {
                let value = if unsigned { u32::from(byte) } else { byte as i8 as u32 };
                *word = (*word << 8).wrapping_add(value);
            }
            break;
        }
    }
    words
}

fn tea_round(buf: &mut [u32; 4], key: &[u32; 4]) {
    let (mut b0, mut b1, mut sum) = (buf[0], buf[1], 0u32);
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9E37_79B9);
        b0 = b0.wrapping_add(
            (b1 << 4).wrapping_add(key[0]) ^ b1.wrapping_add(sum) ^ (b1 >> 5).wrapping_add(key[1]),
        );
        b1 = b1.wrapping_add(
            (b0 << 4).wrapping_add(key[2]) ^ b0.wrapping_add(sum) ^ (b0 >> 5).wrapping_add(key[3]),
        );
    }
    buf[0] = buf[0].wrapping_add(b0);
    buf[1] = buf[1].wrapping_add(b1);
}

fn half_md4_round(buf: &mut [u32; 4], words: &[u32; 8]) {
    /// Eight steps. The four registers rotate by one position in each step.
    fn steps(
        state: [u32; 4],
        words: &[u32; 8],
        order: [usize; 8],
        shifts: [u32; 4],
        mix: impl Fn(u32, u32, u32) -> u32,
        constant: u32,
    ) -> [u32; 4] {
        let [mut a, mut b, mut c, mut d] = state;
        for (i, &at) in order.iter().enumerate() {
            let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(words[at]).wrapping_add(constant);
            (a, b, c, d) = (d, sum.rotate_left(shifts[i % 4]), b, c);
        }
        [a, b, c, d]
    }
    let select = |x: u32, y: u32, z: u32| z ^ (x & (y ^ z));
    let majority = |x: u32, y: u32, z: u32| (x & y).wrapping_add((x ^ y) & z);
    let parity = |x: u32, y: u32, z: u32| x ^ y ^ z;

    let state = steps(*buf, words, [0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19], select, 0);
    let state = steps(state, words, [1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13], majority, 0x5A82_7999);
    let state = steps(state, words, [3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15], parity, 0x6ED9_EBA1);
    for (word, value) in buf.iter_mut().zip(state) {
        *word = word.wrapping_add(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use HashVersion::{HalfMd4, HalfMd4Unsigned, Legacy, LegacyUnsigned, Tea, TeaUnsigned};
    use proptest::prelude::*;

    fn hex(version: HashVersion, seed: &[u32; 4], name: &str) -> String {
        let NameHash { hash, minor } = dirhash(version, seed, name.as_bytes()).unwrap();
        if version.code() == 0 { format!("{hash:08x}") } else { format!("{hash:08x}/{minor:08x}") }
    }

    #[test]
    fn the_vectors_of_the_reference_tools() {
        let rows = [
            ("a", "e74b53e2", "d5fa7d7a/acb48187", "6d0ea4c0/c18922df"),
            ("test0", "c3dad87e", "026adbda/ba3fae72", "14cf1792/302d4809"),
            ("test206800000", "66c6099c", "7b4bd5a6/f591278a", "86054888/47ee85c4"),
            ("0123456789abcdef0123456789abcdefXYZ", "2c99118e", "8bcbda6a/6461879f", "58919b2c/9d173559"),
            ("naïve", "442f7420", "1b42012a/fcf9d17a", "784c5732/901303be"),
        ];
        for (name, legacy, half_md4, tea) in rows {
            assert_eq!(hex(Legacy, &[0; 4], name), legacy, "{name}");
            assert_eq!(hex(HalfMd4, &[0; 4], name), half_md4, "{name}");
            assert_eq!(hex(Tea, &[0; 4], name), tea, "{name}");
        }
        assert_eq!(hex(LegacyUnsigned, &[0; 4], "naïve"), "275d661a");
        assert_eq!(hex(HalfMd4Unsigned, &[0; 4], "naïve"), "8262460a/cd3f58e1");
        assert_eq!(hex(TeaUnsigned, &[0; 4], "naïve"), "6811c436/0ce98207");
    }

    #[test]
    fn a_seed_from_the_superblock_replaces_the_initial_values() {
        let seed =
            [0xAA, 0xAA, 0xAA, 0xAA, 0xBB, 0xBB, 0xCC, 0xCC, 0xDD, 0xDD, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE];
        assert_eq!(hex(Tea, &seed_words(&seed), "test0"), "c2e254c6/598202df");
    }

    #[test]
    fn siphash_needs_a_key_and_codes_round_trip() {
        assert_eq!(dirhash(HashVersion::SipHash, &[0; 4], b"x"), None);
        for code in 0..=255u8 {
            for unsigned in [false, true] {
                let version = HashVersion::from_code(code, unsigned);
                assert_eq!(version.is_some(), matches!(code, 0 | 1 | 2 | 6));
                if let Some(version) = version {
                    assert_eq!(version.code(), code);
                    assert_eq!(version.is_unsigned(), unsigned && code != 6);
                }
            }
        }
        assert_eq!(clear_reserved(EOF_HASH | 1), EOF_HASH - 2);
    }

    /// The packing as the specification describes it, byte by byte, to compare with the word-at-a-time
    /// version.
    fn pack_slowly(rest: &[u8], unsigned: bool) -> [u32; 8] {
        let len = rest.len() as u32;
        let pad = (len | len << 8) | (len | len << 8) << 16;
        let mut words = [pad; 8];
        for (i, &byte) in rest.iter().take(32).enumerate() {
            let value = if unsigned { i32::from(byte) } else { i32::from(byte as i8) };
            words[i / 4] = (value as u32).wrapping_add(words[i / 4] << 8);
        }
        words
    }

    proptest! {
        #[test]
        fn packing_by_words_equals_packing_by_bytes(
            name in prop::collection::vec(any::<u8>(), 0..80),
            unsigned: bool,
        ) {
            prop_assert_eq!(pack::<8>(&name, unsigned), pack_slowly(&name, unsigned));
        }

        #[test]
        fn hashes_keep_their_invariants(
            name in prop::collection::vec(any::<u8>(), 0..300),
            seed: [u32; 4],
            code in 0u8..3,
            unsigned: bool,
        ) {
            let version = HashVersion::from_code(code, unsigned).unwrap();
            let hash = dirhash(version, &seed, &name).unwrap().hash;
            prop_assert_eq!(hash & 1, 0);
            prop_assert_ne!(hash, EOF_HASH);
            let ascii: Vec<u8> = name.iter().map(|b| b & 0x7F).collect();
            prop_assert_eq!(
                dirhash(HashVersion::from_code(code, false).unwrap(), &seed, &ascii),
                dirhash(HashVersion::from_code(code, true).unwrap(), &seed, &ascii)
            );
        }
    }
}
