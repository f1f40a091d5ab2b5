//! OCI image layouts: from a directory and a tag to the entries of all layers, bottom to top.
//!
//! ```text
//! oci-layout                      version
//! index.json                      descriptors with tags and platforms
//!   └─ (index of one image's platforms, perhaps)
//!        └─ manifest              descriptors of the layers
//! blobs/sha256/HEX                every blob under the digest of its bytes
//! ```
//!
//! Owns: the choice of one manifest, the check of every blob against its digest and size, and the translation of
//! whiteout names. Does **not** own: tar (see `tar`), applying whiteouts to a tree, the image's configuration
//! (entry point, environment: no part of a file system).
//!
//! A layer's bytes are verified by a thread of their own while they are read: the walk costs no second pass, and no
//! entry of a tampered layer outlives it, because [`read_oci`] fails before its caller writes anything.
//!
//! Whiteouts, by the last component of a member's name:
//!
//! | name | becomes |
//! |---|---|
//! | `.wh..wh..opq` | [`Kind::Opaque`] for its directory |
//! | `.wh..wh.` anything else, also as a directory | nothing: bookkeeping of AUFS |
//! | `.wh.NAME` | [`Kind::Whiteout`] of NAME |
//!
//! Source: OCI image-spec v1.1, image-layout.md, image-index.md, manifest.md, layer.md, descriptor.md.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use oci_spec::image::{
    Descriptor, Digest as BlobId, DigestAlgorithm, ImageIndex, ImageManifest, MediaType, OciLayout,
};
use sha2::Digest as _;

use super::entry::{Entry, Kind};
use super::fault::{Rule, ShownPath, SourceFault, Warning};
use super::spool::Spool;
use super::tar::{TarReader, TarReport};

/// Largest JSON document that is read: registries refuse manifests above 4 MiB.
const DOCUMENT_BYTES_MAX: u64 = 16 << 20;
/// How many indexes may stand between index.json and the manifest.
const INDEX_DEPTH_MAX: usize = 4;

const TAG: &str = "org.opencontainers.image.ref.name";
const CONTAINERD_NAME: &str = "io.containerd.image.name";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// All that a layer may be; whether and how it is compressed is seen from its first bytes.
const LAYER_TYPES: &[&str] = &[
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
];

const INCOMPLETE: &str = "the layout is damaged or incomplete: copy the image again";

/// The platform to choose where an image has several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// `linux`.
    pub os: String,
    /// Go's name of the architecture: `amd64`, `arm64`, `riscv64`.
    pub architecture: String,
    /// Variant (`v7`), if it matters.
    pub variant: Option<String>,
}

impl Platform {
    /// Linux on an architecture by any of its usual names: `amd64` or `x86_64`, `arm64/v8`, `arm/v7`.
    #[must_use]
    pub fn linux(architecture: &str) -> Self {
        let (architecture, variant) = match architecture.split_once('/') {
            Some((architecture, variant)) => (architecture, Some(variant.to_owned())),
            None => (architecture, None),
        };
        let architecture = match architecture {
            "x86_64" => "amd64",
            "x86" | "i386" | "i686" => "386",
            "aarch64" => "arm64",
            "powerpc64le" => "ppc64le",
            "loongarch64" => "loong64",
            go => go,
        };
        Self { os: "linux".into(), architecture: architecture.to_owned(), variant }
    }

    /// Linux on the architecture of this program.
    #[must_use]
    pub fn host() -> Self {
        match std::env::consts::ARCH {
            "powerpc64" if cfg!(target_endian = "little") => Self::linux("ppc64le"),
            "powerpc64" => Self::linux("ppc64"),
            architecture => Self::linux(architecture),
        }
    }

    fn matches(&self, offered: &oci_spec::image::Platform) -> bool {
        offered.os().to_string() == self.os
            && offered.architecture().to_string() == self.architecture
            && (self.variant.is_none() || *offered.variant() == self.variant)
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// One layer as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerReport {
    /// `sha256:…` of the blob.
    pub digest: String,
    /// Media type as the manifest has it.
    pub media_type: String,
    /// Size of the blob in bytes.
    pub blob_bytes: u64,
    /// What was in it.
    pub tar: TarReport,
}

/// What was read from a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OciReport {
    /// `sha256:…` of the manifest that was chosen.
    pub manifest: String,
    /// Its layers, bottom first.
    pub layers: Vec<LayerReport>,
}

/// Reads one image of an OCI layout: hands every entry of every layer to `sink`, bottom layer first, and calls
/// `next_layer` before each with its number from 0.
///
/// `reference` is a tag or a digest; without one, the layout must hold one image only. `platform` decides where an
/// image has several.
///
/// Payloads of entries may be read once this function has returned.
///
/// # Errors
/// A layout that is none, lacks what was asked for, or has a blob whose bytes are not those of its digest; a layer that
/// is no tar, gzip or zstd; any fault of [`super::tar`]; whatever `sink` returns.
pub fn read_oci<E: From<SourceFault>>(
    layout_dir: &Path,
    reference: Option<&str>,
    platform: &Platform,
    spool: &mut Spool,
    next_layer: &mut dyn FnMut(usize),
    sink: &mut dyn FnMut(Entry) -> Result<(), E>,
    warn: &mut dyn FnMut(Warning),
) -> Result<OciReport, E> {
    let layout = Layout { dir: layout_dir };
    layout.check()?;
    let (manifest_id, manifest) = layout.manifest(reference, platform)?;
    for layer in manifest.layers() {
        layout.check_layer(layer)?;
    }
    // Verifying stops early when the caller wants no more. When reading fails it goes on: it may know why.
    let given_up = AtomicBool::new(false);
    let (read, verified) = std::thread::scope(|scope| {
        let verifying = scope.spawn(|| layout.verify_layers(manifest.layers(), &given_up));
        let read = layout.read_layers(manifest.layers(), spool, next_layer, sink, warn);
        given_up.store(matches!(&read, Err(LayerFault::Sink(_))), Ordering::Relaxed);
        let verified = verifying.join();
        (read, verified.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    match (read, verified) {
        (Err(LayerFault::Sink(fault)), _) => Err(fault),
        // A wrong digest explains whatever else went wrong.
        (_, Err(fault)) | (Err(LayerFault::Source(fault)), Ok(())) => Err(fault.into()),
        (Ok(layers), Ok(())) => Ok(OciReport { manifest: manifest_id.to_string(), layers }),
    }
}

/// Who stopped the walk.
enum LayerFault<E> {
    Source(SourceFault),
    Sink(E),
}

impl<E> From<SourceFault> for LayerFault<E> {
    fn from(fault: SourceFault) -> Self {
        Self::Source(fault)
    }
}

struct Layout<'a> {
    dir: &'a Path,
}

impl Layout<'_> {
    fn fault(&self, place: impl Into<String>, rule: Rule) -> SourceFault {
        SourceFault::Oci {
            layout: self.dir.to_owned(),
            place: place.into(),
            rule: rule.rule.into_owned(),
            advice: rule.advice,
        }
    }

    /// Is this a layout at all, of a version that is known?
    fn check(&self) -> Result<(), SourceFault> {
        const GIVE: &str =
            "give the directory that holds oci-layout and index.json; unpack an image archive first";
        let metadata = std::fs::metadata(self.dir).map_err(|e| SourceFault::io("open", self.dir, e))?;
        let marker = self.dir.join("oci-layout");
        if !metadata.is_dir() || !marker.exists() {
            return Err(self.fault("oci-layout", Rule::new("this is not an OCI image layout", GIVE)));
        }
        let document: OciLayout = self.parsed("oci-layout", &self.file_bytes(&marker)?)?;
        let version = document.image_layout_version();
        if version.split('.').next() != Some("1") {
            let rule = format!("the layout has version {version}; versions 1.x are known");
            return Err(
                self.fault("oci-layout", Rule::new(rule, "copy the image into a layout of version 1.0.0"))
            );
        }
        Ok(())
    }

    /// The manifest that was asked for, with its digest.
    fn manifest(
        &self,
        reference: Option<&str>,
        platform: &Platform,
    ) -> Result<(BlobId, ImageManifest), SourceFault> {
        let index: ImageIndex = self.parsed("index.json", &self.file_bytes(&self.dir.join("index.json"))?)?;
        let by_digest = reference.and_then(|reference| BlobId::from_str(reference).ok());
        // Tags may have a colon, too.
        let by_digest = by_digest.filter(|digest| Hash::of(digest).is_some());
        let mut place = String::from("index.json");
        let mut chosen = match by_digest {
            Some(digest) => self.by_digest(&index, &digest)?,
            None => self.by_tag(&index, reference, platform)?,
        };
        for _ in 0..INDEX_DEPTH_MAX {
            let media_type = chosen.media_type().to_string();
            let id = chosen.digest().clone();
            match (chosen.media_type(), media_type.as_str()) {
                (MediaType::ImageManifest, _) | (_, DOCKER_MANIFEST) => {
                    let place = format!("manifest {id}");
                    let manifest: ImageManifest = self.parsed(&place, &self.document(&place, &chosen)?)?;
                    return Ok((id, manifest));
                }
                (MediaType::ImageIndex, _) | (_, DOCKER_INDEX) => {
                    place = format!("index {id}");
                    let nested: ImageIndex = self.parsed(&place, &self.document(&place, &chosen)?)?;
                    let all: Vec<&Descriptor> = nested.manifests().iter().collect();
                    chosen = self.by_platform(&place, &all, platform)?.clone();
                }
                _ => {
                    let rule = format!("{id} has the media type {media_type}, which is no image");
                    return Err(self.fault(place, Rule::new(rule, "name an image by its tag or digest")));
                }
            }
        }
        Err(self.fault(place, Rule::new("indexes are nested too deeply", INCOMPLETE)))
    }

    /// By digest: anything that index.json names, or a blob that it does not name but that is a manifest.
    fn by_digest(&self, index: &ImageIndex, digest: &BlobId) -> Result<Descriptor, SourceFault> {
        if let Some(named) = index.manifests().iter().find(|descriptor| descriptor.digest() == digest) {
            return Ok(named.clone());
        }
        // A manifest of one platform stands in a nested index only; its own mediaType says what it is.
        let place = format!("blob {digest}");
        let path = self.blob_path(&place, digest)?;
        let bytes = self.file_bytes(&path)?;
        let document: serde_json::Value = self.parsed(&place, &bytes)?;
        let media_type = match document.get("mediaType").and_then(serde_json::Value::as_str) {
            Some(media_type) => MediaType::from(media_type),
            None if document.get("manifests").is_some() => MediaType::ImageIndex,
            None => MediaType::ImageManifest,
        };
        Ok(Descriptor::new(media_type, bytes.len() as u64, digest.clone()))
    }

    /// By tag; without one, the only image.
    fn by_tag(
        &self,
        index: &ImageIndex,
        tag: Option<&str>,
        platform: &Platform,
    ) -> Result<Descriptor, SourceFault> {
        let annotation = |descriptor: &Descriptor, key: &str| -> Option<String> {
            descriptor.annotations().as_ref().and_then(|all| all.get(key).cloned())
        };
        let tags = || {
            let tags: BTreeSet<String> =
                index.manifests().iter().filter_map(|d| annotation(d, TAG)).collect();
            match tags.len() {
                0 => {
                    let digests: Vec<String> =
                        index.manifests().iter().map(|d| d.digest().to_string()).collect();
                    format!("it has no tags, but the digests {}", digests.join(", "))
                }
                _ => format!("its tags are {}", Vec::from_iter(tags).join(", ")),
            }
        };
        let candidates: Vec<&Descriptor> = match tag {
            None => index.manifests().iter().collect(),
            Some(tag) => {
                let with = |key: &str| -> Vec<&Descriptor> {
                    index.manifests().iter().filter(|d| annotation(d, key).as_deref() == Some(tag)).collect()
                };
                Some(with(TAG)).filter(|found| !found.is_empty()).unwrap_or_else(|| with(CONTAINERD_NAME))
            }
        };
        let (Some(first), rest) = (candidates.first(), candidates.get(1..).unwrap_or_default()) else {
            let (rule, advice) = match tag {
                Some(tag) if !index.manifests().is_empty() => {
                    (format!("there is no image with the tag \"{tag}\": {}", tags()), "name one of them")
                }
                _ => ("the layout holds no image".into(), INCOMPLETE),
            };
            return Err(self.fault("index.json", Rule::new(rule, advice)));
        };
        // One image under several tags is still one.
        if rest.iter().all(|other| other.digest() == first.digest()) {
            return Ok((*first).clone());
        }
        // One image, its platforms listed here instead of in an index of its own.
        let one_name = |d: &&Descriptor| annotation(d, TAG) == annotation(first, TAG);
        if candidates.iter().all(|d| d.platform().is_some() && one_name(d)) {
            return self.by_platform("index.json", &candidates, platform).cloned();
        }
        let rule = match tag {
            Some(tag) => format!("{} images have the tag \"{tag}\"", candidates.len()),
            None => format!("the layout holds {} images: {}", candidates.len(), tags()),
        };
        Err(self.fault("index.json", Rule::new(rule, "name one by its tag or digest")))
    }

    /// The first descriptor for `platform`; the only one if it does not say for which it is.
    fn by_platform<'d>(
        &self,
        place: &str,
        descriptors: &[&'d Descriptor],
        platform: &Platform,
    ) -> Result<&'d Descriptor, SourceFault> {
        let matching =
            |d: &&&Descriptor| d.platform().as_ref().is_some_and(|offered| platform.matches(offered));
        if let Some(found) = descriptors.iter().find(matching) {
            return Ok(found);
        }
        if let [only] = descriptors
            && only.platform().is_none()
        {
            return Ok(only);
        }
        let offered: BTreeSet<String> = descriptors
            .iter()
            .filter_map(|d| d.platform().as_ref())
            // Attestations are listed as unknown/unknown.
            .filter(|offered| offered.os().to_string() != "unknown")
            .map(|offered| {
                let (os, architecture) = (offered.os().to_string(), offered.architecture().to_string());
                Platform { os, architecture, variant: offered.variant().clone() }.to_string()
            })
            .collect();
        let rule = match offered.len() {
            0 => format!("there is no image for {platform}, nor for any platform"),
            _ => format!("there is no image for {platform}, but for {}", Vec::from_iter(offered).join(", ")),
        };
        Err(self.fault(place, Rule::new(rule, "ask for one of these architectures")))
    }

    /// Refuses what is no layer, and what is not there, before anything is read.
    fn check_layer(&self, layer: &Descriptor) -> Result<(), SourceFault> {
        let place = format!("layer {}", layer.digest());
        let media_type = layer.media_type().to_string();
        if !LAYER_TYPES.contains(&media_type.as_str()) {
            let rule = format!("it has the media type {media_type}, which is no known layer");
            return Err(self.fault(
                place,
                Rule::new(
                    rule,
                    "layers must be tar archives, plain or packed by gzip or zstd, and not encrypted",
                ),
            ));
        }
        let path = self.blob_path(&place, layer.digest())?;
        let metadata = std::fs::metadata(&path).map_err(|e| SourceFault::io("open layer", &path, e))?;
        if !metadata.is_file() {
            return Err(self.fault(place, Rule::new("its blob is not a regular file", INCOMPLETE)));
        }
        self.check_size(&place, layer.size(), metadata.len())
    }

    fn read_layers<E: From<SourceFault>>(
        &self,
        layers: &[Descriptor],
        spool: &mut Spool,
        next_layer: &mut dyn FnMut(usize),
        sink: &mut dyn FnMut(Entry) -> Result<(), E>,
        warn: &mut dyn FnMut(Warning),
    ) -> Result<Vec<LayerReport>, LayerFault<E>> {
        let mut reports = Vec::with_capacity(layers.len());
        for (number, layer) in layers.iter().enumerate() {
            next_layer(number);
            let digest = layer.digest();
            let path = self.blob_path("layer", digest)?;
            let name =
                format!("{}, layer {} of {} {digest}", ShownPath::of(self.dir), number + 1, layers.len());
            let mut reader = TarReader::open_named(name, path)?;
            while let Some(entry) = reader.next_entry(spool, warn)? {
                if let Some(entry) =
                    translated(entry).map_err(|(path, rule)| reader.fault_of_last(&path, rule))?
                {
                    sink(entry).map_err(LayerFault::Sink)?;
                }
            }
            reports.push(LayerReport {
                digest: digest.to_string(),
                media_type: layer.media_type().to_string(),
                blob_bytes: layer.size(),
                tar: reader.report(),
            });
        }
        spool.flush()?;
        Ok(reports)
    }

    fn verify_layers(&self, layers: &[Descriptor], given_up: &AtomicBool) -> Result<(), SourceFault> {
        let mut seen = BTreeSet::new();
        for layer in layers.iter().filter(|layer| seen.insert(layer.digest().to_string())) {
            let place = format!("layer {}", layer.digest());
            let path = self.blob_path(&place, layer.digest())?;
            let unreadable = |e| SourceFault::io("read layer", &path, e);
            let mut file = File::open(&path).map_err(unreadable)?;
            let mut hash = Hash::of(layer.digest()).ok_or_else(|| self.unknown_digest(&place))?;
            let mut piece = vec![0; 1 << 20];
            let mut size = 0;
            loop {
                let got = super::tar::read_full(&mut file, &mut piece).map_err(unreadable)?;
                if got == 0 {
                    break;
                }
                if given_up.load(Ordering::Relaxed) {
                    return Ok(());
                }
                hash.update(&piece[..got]);
                size += got as u64;
            }
            self.check_size(&place, layer.size(), size)?;
            self.check_digest(&place, layer.digest(), hash)?;
        }
        Ok(())
    }

    fn check_size(&self, place: &str, expected: u64, found: u64) -> Result<(), SourceFault> {
        if expected == found {
            return Ok(());
        }
        let rule = format!("its blob has {found} bytes, and its descriptor says {expected}");
        Err(self.fault(place, Rule::new(rule, INCOMPLETE)))
    }

    fn check_digest(&self, place: &str, expected: &BlobId, hash: Hash) -> Result<(), SourceFault> {
        let found = hash.hex();
        if found == expected.digest() {
            return Ok(());
        }
        let rule = format!(
            "its bytes have the digest {}:{found}: they are not what was signed for",
            expected.algorithm()
        );
        Err(self.fault(place, Rule::new(rule, INCOMPLETE)))
    }

    fn unknown_digest(&self, place: &str) -> SourceFault {
        self.fault(
            place,
            Rule::new("its digest is neither sha256, sha384 nor sha512", "copy the image with sha256"),
        )
    }

    /// The bytes of a JSON document, verified.
    fn document(&self, place: &str, descriptor: &Descriptor) -> Result<Vec<u8>, SourceFault> {
        let bytes = self.file_bytes(&self.blob_path(place, descriptor.digest())?)?;
        self.check_size(place, descriptor.size(), bytes.len() as u64)?;
        let mut hash = Hash::of(descriptor.digest()).ok_or_else(|| self.unknown_digest(place))?;
        hash.update(&bytes);
        self.check_digest(place, descriptor.digest(), hash)?;
        Ok(bytes)
    }

    fn parsed<T: serde::de::DeserializeOwned>(&self, place: &str, bytes: &[u8]) -> Result<T, SourceFault> {
        serde_json::from_slice(bytes)
            .map_err(|e| self.fault(place, Rule::new(format!("the document is malformed ({e})"), INCOMPLETE)))
    }

    /// `blobs/ALGORITHM/HEX`; only algorithms whose digests are plain hexadecimal, so no digest leads out of the layout.
    fn blob_path(&self, place: &str, digest: &BlobId) -> Result<PathBuf, SourceFault> {
        Hash::of(digest).ok_or_else(|| self.unknown_digest(place))?;
        Ok(self.dir.join("blobs").join(digest.algorithm().as_ref()).join(digest.digest()))
    }

    fn file_bytes(&self, path: &Path) -> Result<Vec<u8>, SourceFault> {
        let file = File::open(path).map_err(|e| SourceFault::io("open", path, e))?;
        let mut bytes = Vec::new();
        file.take(DOCUMENT_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| SourceFault::io("read", path, e))?;
        if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
            let rule = format!("the document is larger than {DOCUMENT_BYTES_MAX} bytes");
            return Err(self.fault(ShownPath::of(path).to_string(), Rule::new(rule, INCOMPLETE)));
        }
        Ok(bytes)
    }
}

/// A digest in the making.
enum Hash {
    Sha256(sha2::Sha256),
    Sha384(sha2::Sha384),
    Sha512(sha2::Sha512),
}

impl Hash {
    fn of(digest: &BlobId) -> Option<Self> {
        match digest.algorithm() {
            DigestAlgorithm::Sha256 => Some(Self::Sha256(sha2::Sha256::new())),
            DigestAlgorithm::Sha384 => Some(Self::Sha384(sha2::Sha384::new())),
            DigestAlgorithm::Sha512 => Some(Self::Sha512(sha2::Sha512::new())),
            _ => None,
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Sha384(hash) => hash.update(bytes),
            Self::Sha512(hash) => hash.update(bytes),
        }
    }

    fn hex(self) -> String {
        let bytes = match self {
            Self::Sha256(hash) => hash.finalize().to_vec(),
            Self::Sha384(hash) => hash.finalize().to_vec(),
            Self::Sha512(hash) => hash.finalize().to_vec(),
        };
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// An entry with its whiteout name understood; `None` for AUFS's bookkeeping.
fn translated(mut entry: Entry) -> Result<Option<Entry>, (Vec<u8>, Rule)> {
    const WHITEOUT: &[u8] = b".wh.";
    const AUFS: &[u8] = b".wh..wh.";
    const OPAQUE: &[u8] = b".wh..wh..opq";
    let (parent, name) = match entry.path.iter().rposition(|&b| b == b'/') {
        Some(slash) => (&entry.path[..slash], &entry.path[slash + 1..]),
        None => (&b""[..], &entry.path[..]),
    };
    if parent.split(|&b| b == b'/').any(|component| component.starts_with(AUFS)) {
        return Ok(None);
    }
    let Some(hidden) = name.strip_prefix(WHITEOUT) else {
        return Ok(Some(entry));
    };
    if name == OPAQUE {
        entry.path = parent.to_vec();
        entry.kind = Kind::Opaque;
        return Ok(Some(entry));
    }
    if name.starts_with(AUFS) {
        return Ok(None);
    }
    if matches!(hidden, b"" | b"." | b"..") {
        return Err((entry.path, Rule::damaged("it is a whiteout of no name")));
    }
    entry.path = if parent.is_empty() { hidden.to_vec() } else { [parent, b"/", hidden].concat() };
    entry.kind = Kind::Whiteout;
    Ok(Some(entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::entry::{Metadata, Time};

    fn entry(path: &[u8]) -> Entry {
        let metadata = Metadata {
            permissions: 0o644,
            uid: 0,
            gid: 0,
            mtime: Time::default(),
            atime: None,
            ctime: None,
            crtime: None,
            xattrs: Vec::new(),
        };
        Entry { path: path.to_vec(), metadata, kind: Kind::Fifo }
    }

    #[test]
    fn whiteout_names_become_what_they_mean() {
        let said = |path: &[u8]| match translated(entry(path)) {
            Err(_) => "refused".into(),
            Ok(None) => "nothing".into(),
            Ok(Some(entry)) => format!("{:?} {}", entry.kind, ShownPath(&entry.path)),
        };
        assert_eq!(said(b"a/.wh.b"), "Whiteout a/b");
        assert_eq!(said(b".wh.b"), "Whiteout b");
        assert_eq!(said(b"a/.wh..wh..opq"), "Opaque a");
        assert_eq!(said(b".wh..wh..opq"), "Opaque ");
        assert_eq!(said(b".wh..wh.aufs"), "nothing");
        assert_eq!(said(b"a/.wh..wh.plnk"), "nothing");
        assert_eq!(said(b".wh..wh.plnk/17.5"), "nothing");
        assert_eq!(said(b"a/.wh."), "refused");
        assert_eq!(said(b"a/.wh..."), "refused");
        assert_eq!(said(b"a/.wh/b"), "Fifo a/.wh/b");
        assert_eq!(said(b"a/.wh..hidden"), "Whiteout a/.hidden");
    }

    #[test]
    fn architectures_go_by_the_names_of_go() {
        assert_eq!(Platform::linux("x86_64"), Platform::linux("amd64"));
        assert_eq!(Platform::linux("arm64/v8").to_string(), "linux/arm64/v8");
    }
}
