// Included by the examples of the documentation and by tests: a small image, created by the library of
// `extant build`.

/// Creates the image in a temporary directory; keep the directory as long as the image is needed.
pub fn example_image() -> (tempfile::TempDir, std::path::PathBuf) {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("etc/network")).unwrap();
    std::fs::write(tree.join("etc/motd"), "hello\n").unwrap();
    std::fs::write(tree.join("etc/network/interfaces"), "auto lo\n").unwrap();
    std::fs::create_dir_all(tree.join("usr/lib")).unwrap();
    std::fs::write(tree.join("usr/lib/large"), vec![b'x'; 3 << 20]).unwrap();
    symlink("usr/lib", tree.join("lib")).unwrap();
    let image = dir.path().join("disk.img");
    build_image(&tree, &image);
    (dir, image)
}

/// Builds an image of a directory.
pub fn build_image(tree: &std::path::Path, target: &std::path::Path) {
    let options = extant_image::build::BuildOptions {
        size: extant_image::solve::SizeChoice::Smallest { headroom_percent: 20.0, more_bytes: 0 },
        time: Some(1_700_000_000),
        replace: true,
        sync: false,
        ..Default::default()
    };
    let sources = vec![extant_image::build::Source::Dir(tree.to_owned())];
    let cancel = std::sync::atomic::AtomicBool::new(false);
    let target = extant_image::build::BuildTarget::File(target);
    extant_image::build::build(&options, sources, target, &(), &cancel).unwrap();
}
