//! OCI image layouts: reads the entries of all layers, bottom to top, for a directory and a tag.
//!
//! ```text
//! oci-layout                      version
//! index.json                      descriptors with tags and platforms
//!   └─ (an index of the image's platforms, optional)
//!        └─ manifest              descriptors of the layers
//! blobs/sha256/HEX                every blob, named by the digest of its bytes
//! ```
//!
//! The same image also exists as an archive of such a layout (oci-archive, and `docker save` from Docker 25
//! on), as an archive with Docker's own manifest.json (`docker save` before), and as skopeo's `dir:`, which
//! has blobs and their manifest in one directory.
//!
//! Owns: the choice of one manifest; the check of every blob against its digest and size, and of every
//! unpacked layer against the image's configuration; and the translation of whiteout names. Does **not** own:
//! tar (see `tar`), applying whiteouts to a tree, or the image's configuration (entry point, environment),
//! which is not part of a file system.
//!
//! A separate thread verifies the stored bytes of the layers while they are read, so that the walk needs no
//! second pass. No entry of a tampered layer reaches an image, because [`read_oci`] fails before its caller
//! writes anything.
//!
//! Whiteouts are determined by the last component of a member's name:
//!
//! | name | meaning |
//! |---|---|
//! | `.wh..wh..opq` | [`Kind::Opaque`] for its directory |
//! | `.wh..wh.` anything else, also as a directory | none: bookkeeping of AUFS |
//! | `.wh.NAME` | [`Kind::Whiteout`] of NAME |
//! | `.wh.`, `.wh..`, `.wh...` | none, with a warning: they hide no name |
//!
//! Source: OCI image-spec v1.1, image-layout.md, image-index.md, manifest.md, layer.md, descriptor.md.

mod digest;
mod docker;
mod store;

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use oci_spec::image::{Descriptor, Digest as BlobId, ImageIndex, ImageManifest, MediaType, OciLayout};

pub(super) use self::digest::Hash;
use self::store::Store;

use super::blob::Blob;
use super::entry::{Entry, Kind};
use super::fault::{Rule, ShownPath, SourceFault, Warning};
use super::spool::Spool;
use super::tar::{Compression, TarReader, TarReport, Unpacking};

/// Maximum size of a JSON document in bytes. Registries refuse manifests above 4 MiB.
const DOCUMENT_BYTES_MAX: u64 = 16 << 20;
/// Maximum depth of indexes between index.json and the manifest.
const INDEX_DEPTH_MAX: usize = 4;

const TAG: &str = "org.opencontainers.image.ref.name";
const CONTAINERD_NAME: &str = "io.containerd.image.name";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// The accepted media types of layers. The first bytes of a layer determine its compression.
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

/// The media types of a container image's configuration.
const CONFIG_TYPES: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

const INCOMPLETE: &str = "the layout is damaged or incomplete: copy the image again";

/// The platform to choose if an image has several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// `linux`.
    pub os: String,
    /// Go's name for the architecture: `amd64`, `arm64`, `riscv64`.
    pub architecture: String,
    /// Variant (`v7`), if one is requested.
    pub variant: Option<String>,
}

impl Platform {
    /// Linux on an architecture, given by any common name: `amd64` or `x86_64`, `arm64/v8`, `arm/v7`.
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

    /// Linux on the architecture that this program was built for.
    #[must_use]
    pub fn host() -> Self {
        match std::env::consts::ARCH {
            "powerpc64" if cfg!(target_endian = "little") => Self::linux("ppc64le"),
            "powerpc64" => Self::linux("ppc64"),
            architecture => Self::linux(architecture),
        }
    }

    /// Rates an offered platform. A smaller value is a better match; `None` is no match.
    ///
    /// A missing variant means the default of the architecture (v7 for `arm`, v8 for `arm64`). Lower variants
    /// run on higher ones. A higher variant matches only if no variant was requested, and only as the last
    /// choice.
    fn rank(&self, offered: &oci_spec::image::Platform) -> Option<u32> {
        if offered.os().to_string() != self.os || offered.architecture().to_string() != self.architecture {
            return None;
        }
        let usual = match self.architecture.as_str() {
            "arm" => "v7",
            "arm64" => "v8",
            "amd64" => "v1",
            _ => "",
        };
        let wanted = self.variant.as_deref().unwrap_or(usual);
        let has = offered.variant().as_deref().unwrap_or(usual);
        if has == wanted {
            return Some(0);
        }
        let number = |variant: &str| variant.strip_prefix('v').and_then(|digits| digits.parse::<u32>().ok());
        match (number(wanted), number(has)) {
            (Some(wanted), Some(has)) if has < wanted => Some(wanted - has),
            _ if self.variant.is_some() => None,
            (Some(wanted), Some(has)) => Some(1000 + (has - wanted).min(1000)),
            _ => Some(3000),
        }
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// A layer that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerReport {
    /// `sha256:…` of the blob.
    pub digest: String,
    /// Media type in the manifest.
    pub media_type: String,
    /// Size of the blob in bytes.
    pub blob_bytes: u64,
    /// Statistics of the layer's archive.
    pub tar: TarReport,
}

/// The result of reading a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OciReport {
    /// `sha256:…` of the chosen manifest.
    pub manifest: String,
    /// Its layers, bottom first.
    pub layers: Vec<LayerReport>,
}

/// A layer to read.
struct Layer {
    /// `layer sha256:…`, for messages.
    place: String,
    /// Digest of the blob; for `docker save`, the name of its file.
    name: String,
    media_type: String,
    blob: Blob,
    compression: Compression,
    /// Digest of the bytes as stored.
    stored: Option<BlobId>,
    /// Digest of the unpacked bytes.
    unpacked: Option<BlobId>,
}

/// The form in which an image is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// oci-layout, index.json, blobs.
    Layout,
    /// `docker save` before Docker 25, whose archives are no OCI layout.
    DockerSave,
    /// skopeo's `dir:`.
    SkopeoDir,
}

/// The location of an image, and the choice among several.
#[derive(Debug, Clone, Copy)]
pub struct OciImage<'i> {
    /// A layout's directory, an archive, or skopeo's `dir:`.
    pub path: &'i Path,
    /// A tag or a digest. Without one, the location must have only one image.
    pub reference: Option<&'i str>,
    /// The platform to choose if an image has several.
    pub platform: &'i Platform,
    /// Limit on the unpacked size of a layer.
    pub unpacking: Unpacking,
}

/// Reads one image and passes every entry of every layer to `sink`, bottom layer first. Calls `next_layer`
/// with the number of each layer, from 0, before its entries.
///
/// Payloads of entries may be read after this function has returned.
///
/// # Errors
/// The location has no image, or not the requested one; a blob does not match its digest; a layer is not tar,
/// gzip or zstd, or its unpacked size exceeds the limit; any fault of [`super::tar`]; or an error of `sink`.
pub fn read_oci<E: From<SourceFault>>(
    image: OciImage<'_>,
    spool: &mut Spool,
    next_layer: &mut dyn FnMut(usize),
    sink: &mut dyn FnMut(Entry) -> Result<(), E>,
    warn: &mut dyn FnMut(Warning),
) -> Result<OciReport, E> {
    let store = Store::open(image.path, spool, image.unpacking, warn)?;
    let layout = Layout::of(&store)?;
    let (manifest, layers) = layout.layers_of(&image, warn)?;
    // If the sink fails, verification stops early. If reading fails, verification continues, because it may
    // find the cause.
    let given_up = AtomicBool::new(false);
    let (read, verified) = std::thread::scope(|scope| {
        let verifying = scope.spawn(|| layout.verify_layers(&layers, &given_up));
        let read = layout.read_layers(&layers, image.unpacking, spool, next_layer, sink, warn);
        given_up.store(matches!(&read, Err(LayerFault::Sink(_))), Ordering::Relaxed);
        let verified = verifying.join();
        (read, verified.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    match (read, verified) {
        (Err(LayerFault::Sink(fault)), _) => Err(fault),
        // A wrong digest is the likely cause of any other fault.
        (_, Err(fault)) | (Err(LayerFault::Source(fault)), Ok(())) => Err(fault.into()),
        (Ok(layers), Ok(())) => Ok(OciReport { manifest, layers }),
    }
}

/// The error that ended the walk.
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
    store: &'a Store,
    form: Form,
}

impl<'a> Layout<'a> {
    /// Detects the form of an image, and checks the version of a layout.
    fn of(store: &'a Store) -> Result<Self, SourceFault> {
        const GIVE: &str = "give a directory or archive with oci-layout and index.json (oci:, oci-archive:), an archive of \
                            `docker save`, or a directory of `skopeo copy ... dir:`";
        let mut layout = Self { store, form: Form::Layout };
        if let Some(marker) = store.find("oci-layout")? {
            let document: OciLayout = layout.parsed("oci-layout", &layout.bytes_of(&marker)?)?;
            let version = document.image_layout_version();
            if version.split('.').next() != Some("1") {
                let rule = format!("the layout has version {version}; versions 1.x are known");
                let advice = "copy the image into a layout of version 1.0.0";
                return Err(layout.fault("oci-layout", Rule::new(rule, advice)));
            }
            return Ok(layout);
        }
        let Some(manifest) = store.find("manifest.json")? else {
            return Err(layout.fault("oci-layout", Rule::new("this is not an OCI image layout", GIVE)));
        };
        let document: serde_json::Value = layout.parsed("manifest.json", &layout.bytes_of(&manifest)?)?;
        layout.form = if document.is_array() { Form::DockerSave } else { Form::SkopeoDir };
        Ok(layout)
    }

    fn fault(&self, place: impl Into<String>, rule: Rule) -> SourceFault {
        SourceFault::Oci {
            layout: self.store.path().to_owned(),
            place: place.into(),
            rule: rule.rule.into_owned(),
            advice: rule.advice,
        }
    }

    fn warning(&self, place: &str, text: &str) -> Warning {
        Warning {
            archive: ShownPath::of(self.store.path()).to_string(),
            entry_no: 0,
            offset: 0,
            path: Vec::new(),
            text: format!("{place}: {text}"),
        }
    }

    /// The name of the requested manifest, and its layers, bottom first.
    fn layers_of(
        &self,
        image: &OciImage<'_>,
        warn: &mut dyn FnMut(Warning),
    ) -> Result<(String, Vec<Layer>), SourceFault> {
        if self.form == Form::DockerSave || self.is_of_docker(image.reference)? {
            return self.docker_layers(image.reference);
        }
        let (id, manifest) = self.manifest(image.reference, image.platform)?;
        for layer in manifest.layers() {
            self.check_layer(layer)?;
        }
        let mut unpacked = self.diff_ids(&manifest)?;
        if unpacked.is_empty() && !manifest.layers().is_empty() {
            let text = "the image's configuration lists no digests of unpacked layers: they are held against those of their blobs only";
            warn(self.warning("configuration", text));
        }
        unpacked.resize(manifest.layers().len(), None);
        let one = |(layer, unpacked): (&Descriptor, Option<BlobId>)| {
            let place = format!("layer {}", layer.digest());
            let blob = self.blob(&place, layer.digest())?;
            let compression = self.compression_of(&place, &blob)?;
            let (name, media_type) = (layer.digest().to_string(), layer.media_type().to_string());
            let stored = Some(layer.digest().clone());
            Ok(Layer { place, name, media_type, blob, compression, stored, unpacked })
        };
        let layers =
            manifest.layers().iter().zip(unpacked).map(one).collect::<Result<Vec<_>, SourceFault>>()?;
        Ok((id, layers))
    }

    /// The digests of the unpacked layers in the image's configuration; empty if it has none.
    fn diff_ids(&self, manifest: &ImageManifest) -> Result<Vec<Option<BlobId>>, SourceFault> {
        let place = format!("configuration {}", manifest.config().digest());
        let document = self.document(&place, manifest.config())?;
        let media_type = manifest.config().media_type().to_string();
        if !CONFIG_TYPES.contains(&media_type.as_str()) {
            return Ok(Vec::new());
        }
        self.listed_ids(&place, &document, manifest.layers().len())
    }

    /// `rootfs.diff_ids` of a configuration for an image of `layers` layers.
    fn listed_ids(
        &self,
        place: &str,
        document: &[u8],
        layers: usize,
    ) -> Result<Vec<Option<BlobId>>, SourceFault> {
        let document: serde_json::Value = self.parsed(place, document)?;
        let Some(listed) = document.pointer("/rootfs/diff_ids").and_then(serde_json::Value::as_array) else {
            return Ok(Vec::new());
        };
        if listed.len() != layers {
            let rule = format!("it lists {} unpacked layers, and the manifest has {layers}", listed.len());
            return Err(self.fault(place, Rule::new(rule, INCOMPLETE)));
        }
        let parsed = |id: &serde_json::Value| {
            let digest = id.as_str().and_then(|id| BlobId::from_str(id).ok());
            digest.filter(|id| Hash::of(id).is_some()).map(Some).ok_or_else(|| self.unknown_digest(place))
        };
        listed.iter().map(parsed).collect()
    }

    /// Detects the compression of a layer by its first bytes. A blob of 0 bytes is an empty layer; Docker
    /// creates and accepts such layers.
    fn compression_of(&self, place: &str, blob: &Blob) -> Result<Compression, SourceFault> {
        let mut first = [0; 512];
        let got = super::tar::read_full(&mut blob.reader(), &mut first)
            .map_err(|e| SourceFault::io("read layer", &blob.path, e))?;
        Compression::of(&first[..got]).map_err(|other| {
            let rule = format!("it is packed by {other}, which is not supported");
            self.fault(
                place,
                Rule::new(rule, "copy the image with layers that are plain, or packed by gzip or zstd"),
            )
        })
    }

    /// The requested manifest and its digest.
    fn manifest(
        &self,
        reference: Option<&str>,
        platform: &Platform,
    ) -> Result<(String, ImageManifest), SourceFault> {
        if self.form == Form::SkopeoDir {
            return self.skopeo_manifest(reference, platform);
        }
        let index: ImageIndex = self.parsed("index.json", &self.file_bytes("index.json")?)?;
        let by_digest = reference.and_then(|reference| BlobId::from_str(reference).ok());
        // A tag may contain a colon, too.
        let by_digest = by_digest.filter(|digest| Hash::of(digest).is_some());
        let mut place = String::from("index.json");
        let mut chosen = match by_digest {
            Some(digest) => self.by_digest(&index, &digest)?,
            None => self.by_tag(&index, reference, platform)?,
        };
        self.follow(&mut place, &mut chosen, platform)
    }

    /// Follows a descriptor through indexes of platforms to a manifest.
    fn follow(
        &self,
        place: &mut String,
        chosen: &mut Descriptor,
        platform: &Platform,
    ) -> Result<(String, ImageManifest), SourceFault> {
        for _ in 0..INDEX_DEPTH_MAX {
            let media_type = chosen.media_type().to_string();
            let id = chosen.digest().clone();
            match (chosen.media_type(), media_type.as_str()) {
                (MediaType::ImageManifest, _) | (_, DOCKER_MANIFEST) => {
                    let place = format!("manifest {id}");
                    let manifest: ImageManifest = self.parsed(&place, &self.document(&place, chosen)?)?;
                    return Ok((id.to_string(), manifest));
                }
                (MediaType::ImageIndex, _) | (_, DOCKER_INDEX) => {
                    *place = format!("index {id}");
                    let nested: ImageIndex = self.parsed(place, &self.document(place, chosen)?)?;
                    let all: Vec<&Descriptor> = nested.manifests().iter().collect();
                    *chosen = self.by_platform(place, &all, platform)?.clone();
                }
                _ => {
                    let rule = format!("{id} has the media type {media_type}, which is no image");
                    return Err(
                        self.fault(place.as_str(), Rule::new(rule, "name an image by its tag or digest"))
                    );
                }
            }
        }
        Err(self.fault(place.as_str(), Rule::new("indexes are nested too deeply", INCOMPLETE)))
    }

    /// Finds a descriptor by digest: any that index.json lists, or a blob that it does not list but that is a
    /// manifest.
    fn by_digest(&self, index: &ImageIndex, digest: &BlobId) -> Result<Descriptor, SourceFault> {
        if let Some(named) = index.manifests().iter().find(|descriptor| descriptor.digest() == digest) {
            return Ok(named.clone());
        }
        // Only a nested index lists the manifest of one platform. The document's own mediaType gives its
        // type.
        let place = format!("blob {digest}");
        let bytes = self.bytes_of(&self.blob(&place, digest)?)?;
        let document: serde_json::Value = self.parsed(&place, &bytes)?;
        let media_type = match document.get("mediaType").and_then(serde_json::Value::as_str) {
            Some(media_type) => MediaType::from(media_type),
            None if document.get("manifests").is_some() => MediaType::ImageIndex,
            None => MediaType::ImageManifest,
        };
        Ok(Descriptor::new(media_type, bytes.len() as u64, digest.clone()))
    }

    /// Finds a descriptor by tag; without a tag, the only image.
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
        // One image with several tags is still one image.
        if rest.iter().all(|other| other.digest() == first.digest()) {
            return Ok((*first).clone());
        }
        // One image whose platforms are listed here instead of in a separate index.
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

    /// The best descriptor for `platform`. A single descriptor without a platform is accepted, too.
    fn by_platform<'d>(
        &self,
        place: &str,
        descriptors: &[&'d Descriptor],
        platform: &Platform,
    ) -> Result<&'d Descriptor, SourceFault> {
        let ranked = descriptors.iter().filter_map(|d| {
            d.platform().as_ref().and_then(|offered| platform.rank(offered)).map(|rank| (rank, d))
        });
        // The first one of several with the same rank.
        if let Some((_, found)) = ranked.min_by_key(|(rank, _)| *rank) {
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

    /// Refuses a descriptor that is not a layer, or whose blob is missing, before anything is read.
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
        let blob = self.blob(&place, layer.digest())?;
        self.check_size(&place, layer.size(), blob.len)
    }

    fn read_layers<E: From<SourceFault>>(
        &self,
        layers: &[Layer],
        unpacking: Unpacking,
        spool: &mut Spool,
        next_layer: &mut dyn FnMut(usize),
        sink: &mut dyn FnMut(Entry) -> Result<(), E>,
        warn: &mut dyn FnMut(Warning),
    ) -> Result<Vec<LayerReport>, LayerFault<E>> {
        let mut reports = Vec::with_capacity(layers.len());
        for (number, layer) in layers.iter().enumerate() {
            next_layer(number);
            if layer.blob.len == 0 {
                warn(self.warning(&layer.place, "it has no bytes at all; taken as an empty layer"));
                continue;
            }
            let image = ShownPath::of(self.store.path());
            let name = format!("{image}, layer {} of {} {}", number + 1, layers.len(), layer.name);
            // For an uncompressed layer the configuration's digest is that of the blob, which the other
            // thread verifies.
            let wanted = layer.unpacked.as_ref().filter(|_| layer.compression != Compression::None);
            let mut reader = TarReader::open_blob(name, &layer.blob, unpacking, wanted.and_then(Hash::of))?;
            while let Some(entry) = reader.next_entry(spool, warn)? {
                match translated(entry) {
                    Ok(Some(entry)) => sink(entry).map_err(LayerFault::Sink)?,
                    Ok(None) => {}
                    Err(path) => warn(reader.warning_of_last(&path, "it is a whiteout of no name; left out")),
                }
            }
            if let Some(wanted) = wanted {
                let found = reader.take_digest().unwrap_or_default();
                self.check_unpacked(&layer.place, wanted, &found)?;
            }
            reports.push(LayerReport {
                digest: layer.name.clone(),
                media_type: layer.media_type.clone(),
                blob_bytes: layer.blob.len,
                tar: reader.report(),
            });
        }
        spool.flush()?;
        Ok(reports)
    }

    fn verify_layers(&self, layers: &[Layer], given_up: &AtomicBool) -> Result<(), SourceFault> {
        let mut seen = BTreeSet::new();
        for layer in layers {
            let unpacked = layer.unpacked.as_ref().filter(|_| layer.compression == Compression::None);
            for (id, is_blob) in [(layer.stored.as_ref(), true), (unpacked, false)] {
                let Some(id) = id else { continue };
                // An uncompressed layer has the same digest in the manifest and in the configuration: verify
                // it once.
                if !seen.insert((layer.blob.start, layer.blob.path.clone(), id.to_string())) {
                    continue;
                }
                let Some(found) = self.digest_of(&layer.place, &layer.blob, id, given_up)? else {
                    return Ok(());
                };
                match is_blob {
                    true => self.check_digest(&layer.place, id, &found)?,
                    false => self.check_unpacked(&layer.place, id, &found)?,
                }
            }
        }
        Ok(())
    }

    /// The digest of a blob, with the algorithm of `like`. `None` if the caller cancelled the verification.
    fn digest_of(
        &self,
        place: &str,
        blob: &Blob,
        like: &BlobId,
        given_up: &AtomicBool,
    ) -> Result<Option<String>, SourceFault> {
        let mut hash = Hash::of(like).ok_or_else(|| self.unknown_digest(place))?;
        let (mut reader, mut piece) = (blob.reader(), vec![0; 1 << 20]);
        loop {
            let got = super::tar::read_full(&mut reader, &mut piece)
                .map_err(|e| SourceFault::io("read layer", &blob.path, e))?;
            if got == 0 {
                return Ok(Some(hash.hex()));
            }
            if given_up.load(Ordering::Relaxed) {
                return Ok(None);
            }
            hash.update(&piece[..got]);
        }
    }

    fn check_size(&self, place: &str, expected: u64, found: u64) -> Result<(), SourceFault> {
        if expected == found {
            return Ok(());
        }
        let rule = format!("its blob has {found} bytes, and its descriptor says {expected}");
        Err(self.fault(place, Rule::new(rule, INCOMPLETE)))
    }

    fn check_digest(&self, place: &str, expected: &BlobId, found: &str) -> Result<(), SourceFault> {
        if found == expected.digest() {
            return Ok(());
        }
        let rule = format!(
            "its bytes have the digest {}:{found}: they are not what was signed for",
            expected.algorithm()
        );
        Err(self.fault(place, Rule::new(rule, INCOMPLETE)))
    }

    fn check_unpacked(&self, place: &str, expected: &BlobId, found: &str) -> Result<(), SourceFault> {
        if found == expected.digest() {
            return Ok(());
        }
        let algorithm = expected.algorithm();
        let rule = format!(
            "unpacked it has the digest {algorithm}:{found}, and the image's configuration lists {expected}"
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
        let bytes = self.bytes_of(&self.blob(place, descriptor.digest())?)?;
        self.check_size(place, descriptor.size(), bytes.len() as u64)?;
        let mut hash = Hash::of(descriptor.digest()).ok_or_else(|| self.unknown_digest(place))?;
        hash.update(&bytes);
        self.check_digest(place, descriptor.digest(), &hash.hex())?;
        Ok(bytes)
    }

    fn parsed<T: serde::de::DeserializeOwned>(&self, place: &str, bytes: &[u8]) -> Result<T, SourceFault> {
        serde_json::from_slice(bytes)
            .map_err(|e| self.fault(place, Rule::new(format!("the document is malformed ({e})"), INCOMPLETE)))
    }

    /// The blob of a digest. Only algorithms with plain hexadecimal digests are accepted, so no digest leads
    /// out of the layout.
    fn blob(&self, place: &str, digest: &BlobId) -> Result<Blob, SourceFault> {
        Hash::of(digest).ok_or_else(|| self.unknown_digest(place))?;
        let hex = digest.digest();
        let names = match self.form {
            Form::SkopeoDir => vec![hex.to_owned(), format!("{hex}.manifest.json"), format!("{hex}.tar")],
            Form::Layout | Form::DockerSave => vec![format!("blobs/{}/{hex}", digest.algorithm().as_ref())],
        };
        for name in &names {
            if let Some(blob) = self.store.find(name)? {
                return Ok(blob);
            }
        }
        Err(self.missing(place, &names[0]))
    }

    /// The error for a required file that does not exist.
    fn missing(&self, place: &str, name: &str) -> SourceFault {
        let gone = std::io::Error::from_raw_os_error(rustix::io::Errno::NOENT.raw_os_error());
        match self.store {
            Store::Dir(_) if place.starts_with("layer") => {
                SourceFault::io("open layer", self.store.path_of(name), gone)
            }
            Store::Dir(_) => SourceFault::io("open", self.store.path_of(name), gone),
            Store::Archive { .. } => {
                self.fault(place, Rule::new(format!("{name} is not in the archive"), INCOMPLETE))
            }
        }
    }

    fn file_bytes(&self, name: &str) -> Result<Vec<u8>, SourceFault> {
        self.bytes_of(&self.store.find(name)?.ok_or_else(|| self.missing(name, name))?)
    }

    fn bytes_of(&self, blob: &Blob) -> Result<Vec<u8>, SourceFault> {
        let mut bytes = Vec::new();
        blob.reader()
            .take(DOCUMENT_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| SourceFault::io("read", &blob.path, e))?;
        if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
            let rule = format!("the document is larger than {DOCUMENT_BYTES_MAX} bytes");
            return Err(self.fault(ShownPath::of(&blob.path).to_string(), Rule::new(rule, INCOMPLETE)));
        }
        Ok(bytes)
    }
}

/// Interprets whiteout names. Returns `None` for AUFS's bookkeeping. A whiteout that hides no name is an
/// error, which is its path.
fn translated(mut entry: Entry) -> Result<Option<Entry>, Vec<u8>> {
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
        return Err(entry.path);
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
            Err(_) => "a word".into(),
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
        assert_eq!(said(b"a/.wh."), "a word");
        assert_eq!(said(b"a/.wh..."), "a word");
        assert_eq!(said(b"a/.wh/b"), "Fifo a/.wh/b");
        assert_eq!(said(b"a/.wh..hidden"), "Whiteout a/.hidden");
    }

    #[test]
    fn architectures_go_by_the_names_of_go() {
        assert_eq!(Platform::linux("x86_64"), Platform::linux("amd64"));
        assert_eq!(Platform::linux("arm64/v8").to_string(), "linux/arm64/v8");
    }
}
