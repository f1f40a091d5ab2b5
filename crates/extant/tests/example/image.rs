// Included by the examples of the documentation and by tests: a small image, made by `extant build`'s own
// library.

/// Makes the image in a temporary directory, which must be kept as long as the image is needed.
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

/// An image of a directory.
pub fn build_image(tree: &std::path::Path, target: &std::path::Path) {
    struct Quiet;
    impl image::write::Meter for Quiet {
        fn wrote(&self, _: u64, _: u64) {}
    }
    impl image::build::Observer for Quiet {
        fn step(&self, _: &'static str) {}
        fn read(&self, _: u64) {}
        fn writing(&self, _: u64, _: u64) {}
    }
    let options = image::build::BuildOptions {
        size: image::solve::SizeChoice::Smallest { headroom_percent: 20.0, more_bytes: 0 },
        time: Some(1_700_000_000),
        replace: true,
        sync: false,
        ..Default::default()
    };
    let sources = vec![image::build::Source::Dir(tree.to_owned())];
    let cancel = std::sync::atomic::AtomicBool::new(false);
    image::build::build(&options, sources, image::build::Target::File(target), &Quiet, &cancel).unwrap();
}
