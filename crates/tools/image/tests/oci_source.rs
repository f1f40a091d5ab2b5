//! The OCI reader with layouts written by these tests: tags, platforms, whiteouts, and every kind of invalid
//! layout.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use extant_image::source::entry::{Entry, Kind};
use extant_image::source::fault::SourceFault;
use extant_image::source::oci::{OciImage, OciReport, Platform, read_oci};
use extant_image::source::spool::Spool;
use extant_image::source::tar::Unpacking;
use serde_json::{Value, json};
use sha2::Digest;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// A layout that a test writes.
struct Layout(tempfile::TempDir);

impl Layout {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("blobs/sha256")).unwrap();
        fs::write(dir.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self(dir)
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    /// Writes a blob and returns its descriptor.
    fn blob(&self, media_type: &str, bytes: &[u8]) -> Value {
        let hex: String = sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(self.dir().join("blobs/sha256").join(&hex), bytes).unwrap();
        json!({ "mediaType": media_type, "digest": format!("sha256:{hex}"), "size": bytes.len() })
    }

    /// Writes an image with these layers.
    fn image(&self, layers: &[Value]) -> Value {
        let config = self.blob("application/vnd.oci.image.config.v1+json", b"{}");
        let manifest =
            json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
        self.blob(MANIFEST, manifest.to_string().as_bytes())
    }

    fn index(&self, manifests: &[Value]) {
        let index = json!({ "schemaVersion": 2, "manifests": manifests });
        fs::write(self.dir().join("index.json"), index.to_string()).unwrap();
    }

    fn blob_path(&self, descriptor: &Value) -> std::path::PathBuf {
        let digest = descriptor["digest"].as_str().unwrap();
        self.dir().join("blobs/sha256").join(digest.strip_prefix("sha256:").unwrap())
    }

    fn read(&self, reference: Option<&str>) -> Result<(Vec<(usize, Entry)>, OciReport), String> {
        self.read_for(reference, &Platform::linux("amd64"))
    }

    fn read_for(
        &self,
        reference: Option<&str>,
        platform: &Platform,
    ) -> Result<(Vec<(usize, Entry)>, OciReport), String> {
        self.read_at(self.dir(), reference, platform, Unpacking::default(), &mut Vec::new())
    }

    /// Reads the image at a path, and collects warnings in a list.
    fn read_at(
        &self,
        path: &Path,
        reference: Option<&str>,
        platform: &Platform,
        unpacking: Unpacking,
        warnings: &mut Vec<String>,
    ) -> Result<(Vec<(usize, Entry)>, OciReport), String> {
        let mut spool = Spool::new(std::env::temp_dir());
        let layer = std::cell::Cell::new(usize::MAX);
        let mut entries = Vec::new();
        let report = read_oci(
            OciImage { path, reference, platform, unpacking },
            &mut spool,
            &mut |number| layer.set(number),
            &mut |entry| {
                entries.push((layer.get(), entry));
                Ok::<(), SourceFault>(())
            },
            &mut |warning| warnings.push(warning.to_string()),
        );
        report.map(|report| (entries, report)).map_err(|fault| fault.to_string())
    }
}

fn tagged(mut descriptor: Value, tag: &str) -> Value {
    descriptor["annotations"] = json!({ "org.opencontainers.image.ref.name": tag });
    descriptor
}

fn on(mut descriptor: Value, os: &str, architecture: &str) -> Value {
    descriptor["platform"] = json!({ "os": os, "architecture": architecture });
    descriptor
}

/// A tar archive of regular files, or of directories if the name ends with a slash.
fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, text) in files {
        let mut block = [0u8; 512];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[100..108].copy_from_slice(b"0000644\0");
        block[124..136].copy_from_slice(format!("{:011o}\0", text.len()).as_bytes());
        block[156] = if name.ends_with('/') { b'5' } else { b'0' };
        block[257..265].copy_from_slice(b"ustar\x0000");
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend_from_slice(&block);
        archive.extend_from_slice(text.as_bytes());
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// `layer path: content`, one line per entry.
fn story(entries: &[(usize, Entry)]) -> Vec<String> {
    let line = |(layer, entry): &(usize, Entry)| {
        let what = match &entry.kind {
            Kind::File { size, payload } => {
                let mut bytes = vec![0; *size as usize];
                for run in &payload.runs {
                    payload
                        .backing
                        .read_exact_at(&mut bytes[..run.len as usize], run.backing_offset)
                        .unwrap();
                }
                String::from_utf8(bytes).unwrap()
            }
            other => format!("{other:?}"),
        };
        format!("{layer} {}: {what}", String::from_utf8_lossy(&entry.path))
    };
    entries.iter().map(line).collect()
}

#[test]
fn layers_come_bottom_to_top_with_their_whiteouts() {
    let layout = Layout::new();
    let first = tar(&[("etc/", ""), ("etc/a", "one"), ("etc/b", "two")]);
    let second = tar(&[
        ("etc/.wh.a", ""),
        ("opt/", ""),
        ("opt/.wh..wh..opq", ""),
        (".wh..wh.aufs", ""),
        ("opt/c", "3"),
    ]);
    let third = tar(&[("etc/b", "new")]);
    let layers = [
        layout.blob(LAYER, &first),
        layout.blob("application/vnd.oci.image.layer.v1.tar+gzip", &gzip(&second)),
        layout.blob(
            "application/vnd.docker.image.rootfs.diff.tar.zstd",
            &zstd::encode_all(&third[..], 1).unwrap(),
        ),
    ];
    layout.index(&[tagged(layout.image(&layers), "v1")]);
    let (entries, report) = layout.read(Some("v1")).unwrap();
    assert_eq!(
        story(&entries),
        [
            "0 etc: Directory",
            "0 etc/a: one",
            "0 etc/b: two",
            "1 etc/a: Whiteout",
            "1 opt: Directory",
            "1 opt: Opaque",
            "1 opt/c: 3",
            "2 etc/b: new",
        ]
    );
    let digests: Vec<&str> = report.layers.iter().map(|layer| layer.digest.as_str()).collect();
    assert_eq!(digests, layers.iter().map(|layer| layer["digest"].as_str().unwrap()).collect::<Vec<_>>());
    assert_eq!(report.layers[0].blob_bytes, first.len() as u64);
    assert_eq!(report.layers[1].tar.entries, 5);
}

#[test]
fn an_image_is_found_by_tag_by_digest_and_by_being_the_only_one() {
    let layout = Layout::new();
    let image = |text| layout.image(&[layout.blob(LAYER, &tar(&[("f", text)]))]);
    let (old, new) = (image("old"), image("new"));
    let text = |reference: Option<&str>| layout.read(reference).map(|(entries, _)| story(&entries).concat());

    layout.index(std::slice::from_ref(&old));
    assert_eq!(text(None).unwrap(), "0 f: old");
    layout.index(&[tagged(old.clone(), "stable"), tagged(old.clone(), "1.0")]);
    assert_eq!(text(None).unwrap(), "0 f: old", "one image with two tags is one");

    layout.index(&[tagged(old.clone(), "stable"), tagged(new.clone(), "latest")]);
    assert_eq!(text(Some("latest")).unwrap(), "0 f: new");
    assert_eq!(text(Some(old["digest"].as_str().unwrap())).unwrap(), "0 f: old");
    let refusal = text(None).unwrap_err();
    assert!(refusal.contains("holds 2 images: its tags are latest, stable; name one"), "{refusal}");
    let refusal = text(Some("v9")).unwrap_err();
    assert!(refusal.contains("no image with the tag \"v9\": its tags are latest, stable"), "{refusal}");

    layout.index(&[old.clone(), new]);
    let refusal = text(Some("v9")).unwrap_err();
    assert!(refusal.contains("it has no tags, but the digests sha256:"), "{refusal}");
    layout.index(&[]);
    assert!(text(None).unwrap_err().contains("the layout holds no image"));
}

#[test]
fn the_platform_decides_within_an_image() {
    let layout = Layout::new();
    let image = |text| layout.image(&[layout.blob(LAYER, &tar(&[("f", text)]))]);
    let (amd, arm, attestation) = (image("amd"), image("arm"), image("attestation"));
    let all = [
        on(attestation, "unknown", "unknown"),
        on(amd.clone(), "linux", "amd64"),
        on(arm.clone(), "linux", "arm64"),
    ];
    let nested = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": all });
    let nested = layout.blob(INDEX, nested.to_string().as_bytes());
    for index in [vec![tagged(nested, "v1")], all.to_vec()] {
        layout.index(&index);
        let text = |platform| layout.read_for(None, &platform).map(|(entries, _)| story(&entries).concat());
        assert_eq!(text(Platform::linux("x86_64")).unwrap(), "0 f: amd");
        assert_eq!(text(Platform::linux("arm64")).unwrap(), "0 f: arm");
        let refusal = text(Platform::linux("riscv64")).unwrap_err();
        assert!(
            refusal.contains("no image for linux/riscv64, but for linux/amd64, linux/arm64;"),
            "{refusal}"
        );
        // The manifest of a platform, selected by its digest, although only the nested index lists it.
        let (entries, report) = layout.read(Some(arm["digest"].as_str().unwrap())).unwrap();
        assert_eq!(story(&entries), ["0 f: arm"]);
        assert_eq!(report.manifest, arm["digest"].as_str().unwrap());
    }
}

#[test]
fn a_tampered_or_missing_blob_is_refused() {
    let layout = Layout::new();
    for (media_type, pack) in [(LAYER, false), ("application/vnd.oci.image.layer.v1.tar+gzip", true)] {
        let plain = tar(&[("f", "content")]);
        let bytes = if pack { gzip(&plain) } else { plain };
        let layer = layout.blob(media_type, &bytes);
        let image = layout.image(std::slice::from_ref(&layer));
        layout.index(std::slice::from_ref(&image));
        assert!(layout.read(None).is_ok());
        let path = layout.blob_path(&layer);
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            let refusal = layout.read(None).unwrap_err();
            assert!(refusal.contains("its bytes have the digest sha256:"), "{at}: {refusal}");
        }
        fs::write(&path, &bytes[1..]).unwrap();
        assert!(layout.read(None).unwrap_err().contains("and its descriptor says"));
        fs::remove_file(&path).unwrap();
        assert!(layout.read(None).unwrap_err().starts_with("cannot open layer"));
        fs::write(layout.blob_path(&image), b"{\"schemaVersion\": 2}").unwrap();
        assert!(layout.read(None).unwrap_err().contains("descriptor says"));
    }
}

#[test]
fn what_is_no_layout_and_no_layer_is_refused_by_name() {
    let layout = Layout::new();
    let refusal_of = |layers: &[Value]| {
        layout.index(&[layout.image(layers)]);
        layout.read(None).unwrap_err()
    };
    let encrypted = "application/vnd.oci.image.layer.v1.tar+gzip+encrypted";
    let refusal = refusal_of(&[layout.blob(encrypted, b"secret")]);
    assert!(refusal.contains(&format!("the media type {encrypted}, which is no known layer")), "{refusal}");
    let refusal = refusal_of(&[layout.blob(LAYER, b"this is not tar at all")]);
    assert!(
        refusal.contains("layer 1 of 1 sha256:") && refusal.contains("in the middle of a header"),
        "{refusal}"
    );
    let digest = format!("sha512-256:{}", "a".repeat(64));
    let refusal = refusal_of(&[json!({ "mediaType": LAYER, "digest": digest, "size": 1 })]);
    assert!(refusal.contains("neither sha256, sha384 nor sha512"), "{refusal}");
    for digest in ["sha256:../../../../etc/passwd", "sha256:", "../x:y", "sha256:ABCD"] {
        let refusal = refusal_of(&[json!({ "mediaType": LAYER, "digest": digest, "size": 1 })]);
        assert!(refusal.contains("the document is malformed"), "{digest}: {refusal}");
    }

    fs::write(layout.dir().join("index.json"), "{").unwrap();
    assert!(layout.read(None).unwrap_err().contains("index.json: the document is malformed"));
    fs::write(layout.dir().join("oci-layout"), r#"{"imageLayoutVersion":"2.0.0"}"#).unwrap();
    assert!(layout.read(None).unwrap_err().contains("the layout has version 2.0.0"));
    fs::remove_file(layout.dir().join("oci-layout")).unwrap();
    assert!(layout.read(None).unwrap_err().contains("this is not an OCI image layout"));
}

/// Docker creates layers of 0 bytes, and some tools create names that begin like a whiteout and hide no name.
/// Docker accepts both.
#[test]
fn layers_without_bytes_and_whiteouts_of_no_name_are_left_out_with_a_word() {
    let layout = Layout::new();
    let odd = tar(&[("good", "1"), ("etc/.wh.", ""), ("etc/.wh...", "")]);
    layout.index(&[layout.image(&[layout.blob(LAYER, b""), layout.blob(LAYER, &odd)])]);
    let mut warnings = Vec::new();
    let platform = Platform::linux("amd64");
    let read = layout.read_at(layout.dir(), None, &platform, Unpacking::default(), &mut warnings);
    assert_eq!(story(&read.unwrap().0), ["1 good: 1"]);
    let has = |part: &str| warnings.iter().filter(|warning| warning.contains(part)).count();
    assert_eq!((has("has no bytes at all"), has("whiteout of no name")), (1, 2), "{warnings:?}");
}

/// The configuration has the digests of unpacked layers, and the manifest has the configuration's digest.
/// Another program may recompress a layer, so only these digests identify the intended content.
#[test]
fn unpacked_layers_and_the_configuration_are_what_the_image_says() {
    let layout = Layout::new();
    let layer = tar(&[("f", "text")]);
    let sha256 = |bytes: &[u8]| -> String {
        sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let packed = layout.blob("application/vnd.oci.image.layer.v1.tar+gzip", &gzip(&layer));
    let plain = layout.blob(LAYER, &layer);
    let with_ids = |layers: &[&Value], ids: &[String]| {
        let ids: Vec<String> = ids.iter().map(|id| format!("sha256:{id}")).collect();
        let config = json!({ "rootfs": { "type": "layers", "diff_ids": ids } });
        let config = layout.blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
        let manifest =
            json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
        layout.index(&[layout.blob(MANIFEST, manifest.to_string().as_bytes())]);
        config
    };
    let good = sha256(&layer);
    with_ids(&[&packed, &plain], &[good.clone(), good.clone()]);
    assert_eq!(story(&layout.read(None).unwrap().0), ["0 f: text", "1 f: text"]);
    for (layer, place) in [(&packed, "packed"), (&plain, "plain")] {
        with_ids(&[layer], &[sha256(b"other")]);
        let refusal = layout.read(None).unwrap_err();
        assert!(refusal.contains("and the image's configuration lists sha256:"), "{place}: {refusal}");
        assert!(refusal.contains(&good), "{place}: {refusal}");
    }
    with_ids(&[&packed], &[good.clone(), good.clone()]);
    let refusal = layout.read(None).unwrap_err();
    assert!(refusal.contains("lists 2 unpacked layers, and the manifest has 1"), "{refusal}");
    // A tampered configuration.
    let config = with_ids(&[&packed], std::slice::from_ref(&good));
    let path = layout.blob_path(&config);
    let text = fs::read_to_string(&path).unwrap().replace("layers", "strata");
    fs::write(&path, text).unwrap();
    let refusal = layout.read(None).unwrap_err();
    assert!(refusal.contains("configuration sha256:") && refusal.contains("signed for"), "{refusal}");
    fs::remove_file(&path).unwrap();
    assert!(layout.read(None).unwrap_err().starts_with("cannot open "));
}

/// A few MiB of zstd or gzip can unpack to terabytes of zeros, for which the disk of the image would need
/// room.
#[test]
fn a_layer_that_unpacks_to_more_than_it_may_is_refused() {
    let layout = Layout::new();
    let large = tar(&[("zeros", &"\0".repeat(3 << 20))]);
    layout
        .index(&[layout.image(&[layout.blob("application/vnd.oci.image.layer.v1.tar+gzip", &gzip(&large))])]);
    let platform = Platform::linux("amd64");
    let read = |unpacking| layout.read_at(layout.dir(), None, &platform, unpacking, &mut Vec::new());
    assert!(read(Unpacking::ByRatio).is_ok());
    assert!(read(Unpacking::AtMost(4 << 20)).is_ok());
    let refusal = read(Unpacking::AtMost(1 << 20)).unwrap_err();
    assert!(
        refusal.contains("it unpacks to more than 1048576 bytes")
            && refusal.contains("allow it to unpack to more"),
        "{refusal}"
    );
}

/// To Docker, `arm` without a variant means v7: the best image that runs there is used, not the first in the
/// list.
#[test]
fn the_best_variant_of_an_architecture_is_taken() {
    let layout = Layout::new();
    let arm = |variant: &str| {
        let layer = layout.blob(LAYER, &tar(&[("f", variant)]));
        let mut descriptor = on(layout.image(&[layer]), "linux", "arm");
        if !variant.is_empty() {
            descriptor["platform"]["variant"] = variant.into();
        }
        descriptor
    };
    let chosen = |offered: &[&str], asked: &str| {
        let all: Vec<Value> = offered.iter().map(|variant| arm(variant)).collect();
        layout.index(&all);
        layout.read_for(None, &Platform::linux(asked)).map(|read| story(&read.0).join(""))
    };
    assert_eq!(chosen(&["v5", "v6", "v7"], "arm").unwrap(), "0 f: v7");
    assert_eq!(chosen(&["v8", "v5", "v6"], "arm").unwrap(), "0 f: v6");
    assert_eq!(chosen(&["v6", "v7"], "arm/v6").unwrap(), "0 f: v6");
    assert_eq!(chosen(&["v5", "v8"], "arm/v7").unwrap(), "0 f: v5");
    assert_eq!(chosen(&["v5", ""], "arm/v7").unwrap(), "0 f: ");
    assert!(chosen(&["v7", "v8"], "arm/v6").unwrap_err().contains("no image for linux/arm/v6"));
}

/// The same image as an archive of the layout, in the form of `docker save` before Docker 25, and as skopeo's
/// `dir:`.
#[test]
fn archives_and_directories_of_other_tools_hold_images_too() {
    let layout = Layout::new();
    let first = tar(&[("etc/", ""), ("etc/a", "one")]);
    let second = tar(&[("etc/.wh.a", ""), ("etc/b", "two")]);
    let layers = [
        layout.blob(LAYER, &first),
        layout.blob("application/vnd.oci.image.layer.v1.tar+gzip", &gzip(&second)),
    ];
    let image = layout.image(&layers);
    layout.index(&[tagged(image.clone(), "v1")]);
    let expected = ["0 etc: Directory", "0 etc/a: one", "1 etc/a: Whiteout", "1 etc/b: two"];
    let platform = Platform::linux("amd64");
    let mut warnings = Vec::new();
    let mut read = |path: &Path, reference| {
        layout.read_at(path, reference, &platform, Unpacking::default(), &mut warnings)
    };
    let other = tempfile::tempdir().unwrap();
    let text = |path: &Path| fs::read_to_string(path).unwrap();

    // oci-archive, uncompressed and compressed.
    let mut members: Vec<(String, Vec<u8>)> = vec![
        ("oci-layout".into(), fs::read(layout.dir().join("oci-layout")).unwrap()),
        ("index.json".into(), fs::read(layout.dir().join("index.json")).unwrap()),
    ];
    for blob in fs::read_dir(layout.dir().join("blobs/sha256")).unwrap() {
        let blob = blob.unwrap();
        let name = format!("blobs/sha256/{}", blob.file_name().to_str().unwrap());
        members.push((name, fs::read(blob.path()).unwrap()));
    }
    let archive = |members: &[(String, Vec<u8>)]| {
        let mut all = Vec::new();
        for (name, bytes) in members {
            // The bytes are arbitrary: the header is that of a text of the same length.
            let header = tar(&[(name, &"x".repeat(bytes.len()))]);
            all.extend_from_slice(&header[..512]);
            all.extend_from_slice(bytes);
            all.resize(all.len().next_multiple_of(512), 0);
        }
        all.resize(all.len() + 1024, 0);
        all
    };
    let path = other.path().join("image.tar");
    for bytes in [archive(&members), gzip(&archive(&members))] {
        fs::write(&path, bytes).unwrap();
        assert_eq!(story(&read(&path, Some("v1")).unwrap().0), expected);
        assert_eq!(story(&read(&path, None).unwrap().0), expected);
    }

    // docker save; the names of the layers do not depend on their bytes.
    let ids: Vec<String> = [&first, &second]
        .map(|bytes| {
            let hex: String = sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            format!("sha256:{hex}")
        })
        .into();
    let config = json!({ "rootfs": { "type": "layers", "diff_ids": ids } });
    let config = config.to_string().into_bytes();
    let hex: String = sha2::Sha256::digest(&config).iter().map(|byte| format!("{byte:02x}")).collect();
    let saved = json!([{ "Config": format!("{hex}.json"), "RepoTags": ["busybox:1.2"], "Layers": ["aa/layer.tar", "bb/layer.tar"] }]);
    let docker = |second: &[u8], config: &[u8]| {
        archive(&[
            (format!("{hex}.json"), config.to_vec()),
            ("aa/layer.tar".into(), first.clone()),
            ("bb/layer.tar".into(), second.to_vec()),
            ("manifest.json".into(), saved.to_string().into_bytes()),
        ])
    };
    fs::write(&path, docker(&second, &config)).unwrap();
    let by_digest = format!("sha256:{hex}");
    for reference in [None, Some("busybox:1.2"), Some(by_digest.as_str())] {
        assert_eq!(story(&read(&path, reference).unwrap().0), expected, "{reference:?}");
    }
    assert!(read(&path, Some("busybox")).unwrap_err().contains("its tags are busybox:1.2"));
    fs::write(&path, docker(&tar(&[("etc/b", "bad")]), &config)).unwrap();
    assert!(read(&path, None).unwrap_err().contains("and the image's configuration lists"));
    fs::write(&path, docker(&second, b"{}")).unwrap();
    assert!(read(&path, None).unwrap_err().contains("signed for"));

    // skopeo's dir:.
    for blob in fs::read_dir(layout.dir().join("blobs/sha256")).unwrap() {
        let blob = blob.unwrap();
        fs::copy(blob.path(), other.path().join(blob.file_name())).unwrap();
    }
    fs::write(other.path().join("version"), "Directory Transport Version: 1.1\n").unwrap();
    fs::write(other.path().join("manifest.json"), text(&layout.blob_path(&image))).unwrap();
    assert_eq!(story(&read(other.path(), None).unwrap().0), expected);
    assert!(read(other.path(), Some("v1")).unwrap_err().contains("leave the tag out"));
}

#[test]
fn indexes_without_end_are_refused() {
    let layout = Layout::new();
    let mut descriptor = layout.image(&[]);
    for _ in 0..10 {
        let index = json!({ "schemaVersion": 2, "manifests": [on(descriptor, "linux", "amd64")] });
        descriptor = layout.blob(INDEX, index.to_string().as_bytes());
    }
    layout.index(&[descriptor]);
    assert!(layout.read(None).unwrap_err().contains("nested too deeply"));
}

#[test]
fn the_callers_own_fault_ends_the_walk_as_it_is() {
    #[derive(Debug)]
    enum Own {
        Enough,
        Source,
    }
    impl From<SourceFault> for Own {
        fn from(_: SourceFault) -> Self {
            Self::Source
        }
    }
    let layout = Layout::new();
    layout.index(&[layout.image(&[layout.blob(LAYER, &tar(&[("f", "")]))])]);
    let mut spool = Spool::new(std::env::temp_dir());
    let platform = Platform::host();
    let mut sink = |_| Err(Own::Enough);
    let at = |path| OciImage { path, reference: None, platform: &platform, unpacking: Unpacking::default() };
    let outcome = read_oci(at(layout.dir()), &mut spool, &mut |_| (), &mut sink, &mut |_| ());
    assert!(matches!(outcome, Err(Own::Enough)));
    let outcome = read_oci(at(Path::new("/nonexistent")), &mut spool, &mut |_| (), &mut sink, &mut |_| ());
    assert!(matches!(outcome, Err(Own::Source)));
}
