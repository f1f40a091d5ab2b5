//! Images that are not OCI layouts: archives of `docker save`, and skopeo's `dir:`.
//!
//! ```text
//! docker save                                        skopeo copy ... dir:
//! manifest.json  [{Config, RepoTags, Layers}, ...]   manifest.json  a manifest, or an index of platforms
//! HEX.json       configuration, named by its digest  HEX            blobs, named by their digests
//! ID/layer.tar   layers, uncompressed, maybe links   HEX.manifest.json  of each platform
//! ```
//! Docker 25 and later save an OCI layout together with such a manifest.json. The layout is then used, except
//! for names that only manifest.json contains (`alpine:3.20`).

use std::str::FromStr;

use oci_spec::image::{Descriptor, Digest as BlobId, ImageIndex, ImageManifest};
use serde::Deserialize;

use super::{Form, Hash, INCOMPLETE, Layer, Layout, Platform, digest};
use crate::source::fault::{Rule, SourceFault};

/// One image in an archive.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Vec<String>,
}

impl Saved {
    /// Whether a reference names this image: by tag (`alpine:3.20`), by `alpine` for the tag `latest`, or by
    /// the digest of its configuration.
    fn is_called(&self, reference: &str) -> bool {
        let tags = self.repo_tags.iter().flatten();
        let latest = format!("{reference}:latest");
        let is_config = digest::of_name(&self.config)
            .is_some_and(|id| reference == id.to_string() || reference == id.digest());
        is_config || tags.into_iter().any(|tag| tag == reference || *tag == latest)
    }
}

impl Layout<'_> {
    fn saved(&self) -> Result<Vec<Saved>, SourceFault> {
        self.parsed("manifest.json", &self.file_bytes("manifest.json")?)
    }

    /// Whether the layout also has Docker's manifest.json, and that file has an image of this reference.
    pub(super) fn is_of_docker(&self, reference: Option<&str>) -> Result<bool, SourceFault> {
        let Some(reference) = reference.filter(|_| self.form == Form::Layout) else { return Ok(false) };
        if !reference.contains(':') || BlobId::from_str(reference).is_ok_and(|id| Hash::of(&id).is_some()) {
            return Ok(false);
        }
        if self.store.find("manifest.json")?.is_none() {
            return Ok(false);
        }
        Ok(self.saved().is_ok_and(|all| all.iter().any(|image| image.is_called(reference))))
    }

    /// The name and the layers of a `docker save` image.
    pub(super) fn docker_layers(&self, reference: Option<&str>) -> Result<(String, Vec<Layer>), SourceFault> {
        let all = self.saved()?;
        let called: Vec<&Saved> =
            all.iter().filter(|image| reference.is_none_or(|reference| image.is_called(reference))).collect();
        let tags = || {
            let tags: Vec<&str> =
                all.iter().flat_map(|image| image.repo_tags.iter().flatten()).map(String::as_str).collect();
            if tags.is_empty() {
                "it has no tags".to_owned()
            } else {
                format!("its tags are {}", tags.join(", "))
            }
        };
        let image = match (called.as_slice(), reference) {
            ([], Some(reference)) => {
                let rule = format!("there is no image with the tag \"{reference}\": {}", tags());
                return Err(self.fault("manifest.json", Rule::new(rule, "name one of them")));
            }
            ([], None) => return Err(self.fault("manifest.json", Rule::new("it holds no image", INCOMPLETE))),
            ([first, rest @ ..], _) if rest.iter().all(|other| other.config == first.config) => *first,
            (several, _) => {
                let rule = format!("it holds {} images: {}", several.len(), tags());
                return Err(self.fault("manifest.json", Rule::new(rule, "name one by its tag")));
            }
        };
        let place = format!("configuration {}", image.config);
        let config = self.file_bytes(&image.config)?;
        if let Some(id) = digest::of_name(&image.config)
            && let Some(mut hash) = Hash::of(&id)
        {
            hash.update(&config);
            self.check_digest(&place, &id, &hash.hex())?;
        }
        let mut unpacked = self.listed_ids(&place, &config, image.layers.len())?;
        unpacked.resize(image.layers.len(), None);
        let one = |(name, unpacked): (&String, Option<BlobId>)| {
            let place = format!("layer {name}");
            let blob = self.store.find(name)?.ok_or_else(|| self.missing(&place, name))?;
            let compression = self.compression_of(&place, &blob)?;
            // Only blobs are named by their own digest; older names are IDs of the layer's history.
            let stored = digest::of_name(name).filter(|_| name.starts_with("blobs/"));
            let media_type = "application/vnd.docker.image.rootfs.diff.tar".to_owned();
            Ok(Layer { place, name: name.clone(), media_type, blob, compression, stored, unpacked })
        };
        let layers = image.layers.iter().zip(unpacked).map(one).collect::<Result<Vec<_>, SourceFault>>()?;
        Ok((image.config.clone(), layers))
    }

    /// The manifest in skopeo's `dir:`.
    pub(super) fn skopeo_manifest(
        &self,
        reference: Option<&str>,
        platform: &Platform,
    ) -> Result<(String, ImageManifest), SourceFault> {
        if let Some(reference) = reference {
            let rule = format!("it holds one image, without a name, and \"{reference}\" was asked for");
            return Err(self.fault("manifest.json", Rule::new(rule, "leave the tag out")));
        }
        let bytes = self.file_bytes("manifest.json")?;
        let document: serde_json::Value = self.parsed("manifest.json", &bytes)?;
        if document.get("manifests").is_none() {
            return Ok(("manifest.json".to_owned(), self.parsed("manifest.json", &bytes)?));
        }
        let index: ImageIndex = self.parsed("manifest.json", &bytes)?;
        let all: Vec<&Descriptor> = index.manifests().iter().collect();
        let mut chosen = self.by_platform("manifest.json", &all, platform)?.clone();
        self.follow(&mut "manifest.json".to_owned(), &mut chosen, platform)
    }
}
