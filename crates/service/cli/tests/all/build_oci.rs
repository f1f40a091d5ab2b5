//! OCI layouts: layers on top of each other, with whiteouts and opaque directories, in all compressions; and
//! the messages for invalid layouts.

use crate::common;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::common::{
    SOURCE, Tar, assert_has, assert_names, build, debugfs_cat, debugfs_names, debugfs_stat, pack, try_build,
};
use extant_testkit::{e2fsck_clean, scratch};
use serde_json::{Value, json};
use sha2::Digest;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// A layout being built, in `layout` of a scratch directory, so that images lie beside it.
pub(crate) struct Layout {
    scratch: tempfile::TempDir,
    manifests: Vec<Value>,
}

impl Layout {
    pub(crate) fn new() -> Self {
        let scratch = scratch();
        let dir = scratch.path().join("layout");
        std::fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
        std::fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self { scratch, manifests: Vec::new() }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.scratch.path().join("layout")
    }

    fn image(&self) -> PathBuf {
        self.scratch.path().join("image")
    }

    /// An argument of the form `LAYOUT:REFERENCE`.
    fn with(&self, reference: &str) -> OsString {
        let mut text = self.dir().into_os_string();
        text.push(":");
        text.push(reference);
        text
    }

    /// Writes a blob and returns its descriptor.
    fn blob(&self, media_type: &str, bytes: &[u8]) -> Value {
        let hex: String = sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(self.dir().join("blobs/sha256").join(&hex), bytes).unwrap();
        json!({ "mediaType": media_type, "digest": format!("sha256:{hex}"), "size": bytes.len() })
    }

    /// A layer with this compression (empty: none).
    fn layer(&self, packing: &str, tar: Tar<Vec<u8>>) -> Value {
        match packing {
            "" => self.blob(LAYER, &tar.bytes()),
            "gz" => self.blob(&format!("{LAYER}+gzip"), &pack("gz", &tar.bytes())),
            _ => self.blob(&format!("{LAYER}+zstd"), &pack("zst", &tar.bytes())),
        }
    }

    /// A layer of these bytes, not compressed.
    pub(crate) fn plain_layer(&self, tar: &[u8]) -> Value {
        self.blob(LAYER, tar)
    }

    /// Adds an image of these layers, with a tag if one is given.
    pub(crate) fn add(&mut self, tag: Option<&str>, layers: &[Value]) {
        let config = self.blob(CONFIG, br#"{"architecture":"amd64","os":"linux"}"#);
        let manifest =
            json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
        let mut descriptor = self.blob(MANIFEST, manifest.to_string().as_bytes());
        if let Some(tag) = tag {
            descriptor["annotations"] = json!({ "org.opencontainers.image.ref.name": tag });
        }
        self.manifests.push(descriptor);
        let index = json!({ "schemaVersion": 2, "manifests": self.manifests });
        std::fs::write(self.dir().join("index.json"), index.to_string()).unwrap();
    }

    fn blob_path(&self, descriptor: &Value) -> PathBuf {
        let digest = descriptor["digest"].as_str().unwrap();
        self.dir().join("blobs/sha256").join(digest.strip_prefix("sha256:").unwrap())
    }
}

fn base() -> Tar<Vec<u8>> {
    let mut tar = Tar::in_memory();
    tar.dir("./").dir("./usr/").dir("./usr/bin/").file("./usr/bin/sh", "shell").symlink("./bin", "usr/bin");
    tar.dir("etc").file("etc/hosts", "base").file("etc/gone", "base").file("etc/kept", "base");
    tar.dir("cache")
        .file("cache/one", "1")
        .file("cache/two", "2")
        .dir("cache/deep")
        .file("cache/deep/x", "x");
    tar.file("was-file", "file")
        .dir("was-dir")
        .file("was-dir/inner", "inner")
        .dir("tree")
        .file("tree/leaf", "leaf");
    tar
}

fn second() -> Tar<Vec<u8>> {
    let mut tar = Tar::in_memory();
    tar.file("etc/hosts", "second").file("etc/.wh.gone", "").file(".wh.tree", "");
    // The marker comes last, but this layer's additions remain.
    tar.file("cache/three", "3").file("cache/.wh..wh..opq", "");
    tar.dir("was-file").file("was-file/inner", "now a directory").file("was-dir", "now a file");
    tar.file("bin/tool", "through the symlink").link("bin/tool-too", "usr/bin/tool").link("sh", "bin/sh");
    tar
}

fn third() -> Tar<Vec<u8>> {
    let mut tar = Tar::in_memory();
    tar.file("etc/gone", "back again").file(".wh.never-there", "").file("etc/.wh.kept", "");
    tar
}

fn check(image: &Path) {
    e2fsck_clean(image);
    for (path, content) in [
        ("/etc/hosts", "second"),
        ("/etc/gone", "back again"),
        ("/usr/bin/sh", "shell"),
        ("/sh", "shell"),
        ("/usr/bin/tool", "through the symlink"),
        ("/usr/bin/tool-too", "through the symlink"),
        ("/cache/three", "3"),
        ("/was-file/inner", "now a directory"),
        ("/was-dir", "now a file"),
    ] {
        assert_eq!(debugfs_cat(image, path), content, "{path}");
    }
    let root = ["bin", "cache", "etc", "lost+found", "sh", "usr", "was-dir", "was-file"];
    assert_eq!(debugfs_names(image, "/"), root);
    assert_eq!(debugfs_names(image, "/etc"), ["gone", "hosts"]);
    assert_eq!(debugfs_names(image, "/cache"), ["three"]);
    assert_has(&debugfs_stat(image, "/bin"), "Fast link dest: \"usr/bin\"");
    assert_has(&debugfs_stat(image, "/usr/bin/tool"), "Links: 2");
    assert_has(&debugfs_stat(image, "/sh"), "Links: 2");
}

#[test]
fn layers_merge_by_the_rules_of_oci_however_they_are_packed() {
    let mut bytes = None;
    for packing in [["", "", ""], ["gz", "gz", "gz"], ["zst", "zst", "zst"], ["", "gz", "zst"]] {
        let mut layout = Layout::new();
        let layers = [
            layout.layer(packing[0], base()),
            layout.layer(packing[1], second()),
            layout.layer(packing[2], third()),
        ];
        layout.add(None, &layers);
        build(&layout.image(), args!["--oci", layout.dir()]);
        check(&layout.image());
        let found = std::fs::read(layout.image()).unwrap();
        assert!(*bytes.get_or_insert_with(|| found.clone()) == found, "packing changes no byte");
    }
}

#[test]
fn layers_lie_on_a_directory_and_under_a_tar() {
    let mut layout = Layout::new();
    let layers = [layout.layer("gz", base()), layout.layer("zst", second())];
    layout.add(None, &layers);
    let below = layout.scratch.path().join("below");
    std::fs::create_dir_all(below.join("cache/old")).unwrap();
    std::fs::write(below.join("lonely"), "from below").unwrap();
    let mut above = Tar::in_memory();
    above.file("etc/gone", "back again").file("etc/hosts", "above");
    let above = above.save(layout.scratch.path().join("above.tar"));
    build(&layout.image(), args!["--from", &below, "--oci", layout.dir(), "--tar", &above]);
    e2fsck_clean(&layout.image());
    assert_eq!(debugfs_cat(&layout.image(), "/lonely"), "from below");
    assert_eq!(debugfs_cat(&layout.image(), "/etc/hosts"), "above");
    assert_eq!(debugfs_names(&layout.image(), "/cache"), ["three"]);
}

#[test]
fn tags_and_digests_choose_an_image() {
    let mut layout = Layout::new();
    let (one, two) = (layout.layer("gz", base()), layout.layer("", third()));
    layout.add(Some("v1"), &[one]);
    layout.add(Some("latest"), &[two]);
    build(&layout.image(), args!["--oci", layout.with("v1")]);
    e2fsck_clean(&layout.image());
    assert_eq!(debugfs_cat(&layout.image(), "/etc/hosts"), "base");
    common::remove(&layout.image());
    build(&layout.image(), args!["--oci", layout.with("latest")]);
    e2fsck_clean(&layout.image());
    assert_eq!(debugfs_cat(&layout.image(), "/etc/gone"), "back again");
    common::remove(&layout.image());
    let digest = layout.manifests[0]["digest"].as_str().unwrap().to_owned();
    build(&layout.image(), args!["--oci", layout.with(&digest)]);
    assert_eq!(debugfs_cat(&layout.image(), "/etc/hosts"), "base");
    common::remove(&layout.image());

    for reference in [layout.with("v2"), layout.dir().into_os_string()] {
        let refused = try_build(&layout.image(), args!["--oci", reference]);
        let said = refused.code(SOURCE);
        assert_has(said, "v1");
        assert_has(said, "latest");
        assert_names(layout.scratch.path(), &["layout"]);
    }
}

#[test]
fn a_blob_that_is_not_what_its_digest_says_is_refused() {
    for packing in ["", "gz", "zst"] {
        let mut layout = Layout::new();
        let layer = layout.layer(packing, base());
        layout.add(None, std::slice::from_ref(&layer));
        let path = layout.blob_path(&layer);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = if packing.is_empty() { 520 } else { 9 }; // Padding after a header; gzip's OS byte.
        bytes[at] ^= 0x40;
        std::fs::write(&path, bytes).unwrap();
        try_build(&layout.image(), args!["--oci", layout.dir()]).code(SOURCE);
        assert_names(layout.scratch.path(), &["layout"]);
        std::fs::remove_file(path).unwrap();
        let said = try_build(&layout.image(), args!["--oci", layout.dir()]);
        assert_has(said.code(SOURCE), &layer["digest"].as_str().unwrap()["sha256:".len()..]);
        assert_names(layout.scratch.path(), &["layout"]);
    }
    let layout = Layout::new();
    try_build(&layout.image(), args!["--oci", layout.dir()]).code(SOURCE); // No index.json.
    try_build(&layout.image(), args!["--oci", layout.scratch.path().join("nowhere")]).code(SOURCE);
    assert_names(layout.scratch.path(), &["layout"]);
}

/// A whiteout hides contents of lower layers only, regardless of its position in its own layer's archive.
#[test]
fn a_whiteout_spares_its_own_layer() {
    let mut layout = Layout::new();
    let lower = {
        let mut tar = Tar::in_memory();
        tar.file("a", "old").dir("d").file("d/x", "old");
        layout.layer("", tar)
    };
    let upper = {
        let mut tar = Tar::in_memory();
        tar.file("a", "new").file(".wh.a", "").dir("d").file("d/y", "new").file(".wh.d", "");
        layout.layer("", tar)
    };
    layout.add(None, &[lower, upper]);
    build(&layout.image(), [OsString::from("--oci"), layout.dir().into_os_string()]);
    e2fsck_clean(&layout.image());
    assert_eq!(debugfs_cat(&layout.image(), "/a"), "new");
    let names = debugfs_names(&layout.image(), "/d");
    assert!(names.iter().any(|name| name == "y") && !names.iter().any(|name| name == "x"), "{names:?}");
}

/// The nesting of a layer may be deeper than a thread's stack.
#[test]
fn an_opaque_marker_over_a_very_deep_directory_is_no_trouble() {
    let mut layout = Layout::new();
    let layer = {
        let mut tar = Tar::in_memory();
        let deep = vec!["d"; 30_000].join("/");
        tar.pax("path", &deep).dir("d").file(".wh..wh..opq", "");
        layout.layer("", tar)
    };
    layout.add(None, &[layer]);
    let image = layout.image();
    let args = [OsString::from("--oci"), layout.dir().into_os_string(), OsString::from("-n")];
    try_build(&image, args).code(0);
}
