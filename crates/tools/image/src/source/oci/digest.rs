//! Computation of blob digests.

use std::str::FromStr;

use oci_spec::image::{Digest as BlobId, DigestAlgorithm};
use sha2::Digest as _;

/// A digest that is being computed.
pub(in crate::source) enum Hash {
    Sha256(sha2::Sha256),
    Sha384(sha2::Sha384),
    Sha512(sha2::Sha512),
}

impl Hash {
    /// A hash for the algorithm of this digest. `None` if the algorithm is unknown, or if its digests are not
    /// plain hexadecimal.
    pub(in crate::source) fn of(digest: &BlobId) -> Option<Self> {
        match digest.algorithm() {
            DigestAlgorithm::Sha256 => Some(Self::Sha256(sha2::Sha256::new())),
            DigestAlgorithm::Sha384 => Some(Self::Sha384(sha2::Sha384::new())),
            DigestAlgorithm::Sha512 => Some(Self::Sha512(sha2::Sha512::new())),
            _ => None,
        }
    }

    pub(in crate::source) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Sha384(hash) => hash.update(bytes),
            Self::Sha512(hash) => hash.update(bytes),
        }
    }

    pub(in crate::source) fn hex(self) -> String {
        let bytes = match self {
            Self::Sha256(hash) => hash.finalize().to_vec(),
            Self::Sha384(hash) => hash.finalize().to_vec(),
            Self::Sha512(hash) => hash.finalize().to_vec(),
        };
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The digest in a file name (`HEX`, `HEX.json`, `blobs/sha256/HEX`). It is sha256, as in Docker's file
/// names.
pub(super) fn of_name(name: &str) -> Option<BlobId> {
    let last = name.rsplit('/').next().unwrap_or(name);
    let hex = last.split('.').next().unwrap_or(last);
    let is_digest = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_digest.then(|| BlobId::from_str(&format!("sha256:{hex}")).ok()).flatten()
}
