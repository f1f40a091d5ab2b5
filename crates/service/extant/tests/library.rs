//! The public interface: paths, files, and walks that return the same results with any number of threads.

#[allow(dead_code, unreachable_pub)]
mod example {
    include!("example/image.rs");
}

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use extant::walk::{Data, Order, Problem};
use extant::{FileSystem, FileType, Refusal};

/// A tree with a directory of several pieces, files of sizes around every limit of readahead, and hard links.
fn tree() -> (tempfile::TempDir, FileSystem) {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    for (name, count) in [("many", 9000), ("few", 30), ("a/b/c/d", 3)] {
        let below = tree.join(name);
        std::fs::create_dir_all(&below).unwrap();
        for number in 0..count {
            std::fs::write(below.join(format!("file-{number}")), format!("content of {name} {number}"))
                .unwrap();
        }
    }
    for number in 0..200 {
        std::fs::create_dir(tree.join(format!("many/dir-{number}"))).unwrap();
        std::fs::write(tree.join(format!("many/dir-{number}/x")), "x").unwrap();
    }
    for len in [0, 1, 4095, 4096, 4097, 262_143, 262_144, 262_145, 1 << 20, 5 << 20] {
        let content: Vec<u8> = (0..len).map(|at: u32| (at % 251) as u8).collect();
        std::fs::write(tree.join(format!("few/len-{len}")), content).unwrap();
    }
    let sparse = std::fs::File::create(tree.join("few/sparse")).unwrap();
    sparse.set_len(100_000).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"data", 50_000).unwrap();
    std::fs::hard_link(tree.join("few/file-1"), tree.join("a/link")).unwrap();
    let image = dir.path().join("a.img");
    example::build_image(&tree, &image);
    let fs = extant::open(&image).unwrap();
    (dir, fs)
}

fn paths(fs: &FileSystem, order: Order, threads: usize) -> Vec<Vec<u8>> {
    let walk = fs.walk("/").unwrap().order(order).threads(threads);
    walk.into_iter().map(|entry| entry.unwrap().path().to_vec()).collect()
}

#[test]
fn a_walk_is_the_same_with_any_number_of_threads() {
    let (_dir, fs) = tree();
    for order in [Order::Stored, Order::Names] {
        let alone = paths(&fs, order, 1);
        for threads in [2, 3, 8] {
            assert!(paths(&fs, order, threads) == alone, "{order:?} {threads}");
        }
        let mut sorted = alone.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), alone.len(), "every name once");
        assert_eq!(alone.len(), 9000 + 30 + 3 + 400 + 10 + 1 + 1 + 6 + 1 + 1, "{order:?}");
        // Pre-order: a directory comes right before its entries.
        let mut open: Vec<&[u8]> = Vec::new();
        for path in &alone[1..] {
            let parent = path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |at| &path[..at]);
            while open.last().is_some_and(|last| *last != parent) {
                open.pop();
            }
            assert!(parent.is_empty() || open.last() == Some(&parent), "{}", String::from_utf8_lossy(path));
            open.push(path);
        }
        let mut listed: Vec<Vec<u8>> = vec![Vec::new()];
        for listing in fs.walk("/").unwrap().order(order).listings() {
            assert!(listing.faults.is_empty());
            listed.extend(listing.entries.iter().map(|entry| entry.path().to_vec()));
        }
        listed.sort();
        assert!(listed == sorted, "listings return the same names");
    }
    let by_name = paths(&fs, Order::Names, 4);
    let few: Vec<_> = by_name.iter().filter(|path| path.starts_with(b"few/")).collect();
    assert!(few.is_sorted());
}

#[test]
fn walks_end_where_the_callback_stops_them() {
    let (_dir, fs) = tree();
    let top: Vec<_> =
        fs.walk("/").unwrap().depth_max(1).order(Order::Names).into_iter().map(Result::unwrap).collect();
    let names: Vec<_> = top.iter().map(|entry| String::from_utf8_lossy(entry.name()).into_owned()).collect();
    assert_eq!(names, ["", "a", "few", "lost+found", "many"]);
    assert!(top[4].is_last() && !top[3].is_last());
    let pruned = fs.walk("/").unwrap().enter_if(|path| path != b"many").inodes(false);
    assert!(pruned.into_iter().all(|entry| !entry.unwrap().path().starts_with(b"many/")));
    // A walk that is dropped early ends its threads.
    for _ in 0..20 {
        let mut walk = fs.walk("/").unwrap().threads(4).into_iter();
        walk.next().unwrap().unwrap();
        let mut contents = fs.walk("/").unwrap().contents();
        contents.next().unwrap().unwrap();
    }
    let file: Vec<_> = fs.walk("/few/file-1").unwrap().into_iter().collect();
    assert_eq!(file.len(), 1);
}

#[test]
fn contents_are_those_of_the_files() {
    let (_dir, fs) = tree();
    let mut kinds = BTreeMap::new();
    let mut link = None;
    for loaded in fs.walk("/").unwrap().contents() {
        let loaded = loaded.unwrap();
        let path = String::from_utf8_lossy(loaded.entry.path()).into_owned();
        let kind = match &loaded.data {
            Data::None => "none",
            Data::Ready(bytes) => {
                assert!(bytes[..] == fs.read(&path).unwrap()[..], "{path}");
                "ready"
            }
            Data::Large => "large",
            Data::Target(_) => "target",
            Data::Failed(fault) => panic!("{path}: {fault}"),
        };
        *kinds.entry(kind).or_insert(0) += 1;
        if let Some(first) = loaded.link_of {
            link = Some((path, String::from_utf8_lossy(&first).into_owned()));
        }
    }
    assert_eq!(kinds["large"], 3);
    assert_eq!(kinds["ready"], 9000 + 30 + 3 + 200 + 6 + 1);
    let (second, first) = link.unwrap();
    let mut both = [first, second];
    both.sort();
    assert_eq!(both, ["a/link", "few/file-1"]);
}

#[test]
fn paths_work_as_in_the_standard_library() {
    let (_dir, fs) = tree();
    assert_eq!(fs.read("a/link").unwrap(), b"content of few 1");
    let mut names: Vec<_> = fs.read_dir("/many").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 9200);
    let entry = fs.read_dir("/a/b/c").unwrap().next().unwrap().unwrap();
    assert_eq!((entry.name(), entry.kind()), (&b"d"[..], Some(FileType::Directory)));
    assert_eq!(entry.metadata().unwrap().kind, FileType::Directory);
    let error = fs.read("/no/such").unwrap_err();
    assert!(error.is(Refusal::NotFound));
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
    assert!(fs.read("/a").unwrap_err().is(Refusal::IsDirectory));
    assert!(fs.read_dir("/a/link").map(drop).unwrap_err().is(Refusal::NotDirectory));
    assert!(fs.read_link("/a").unwrap_err().is(Refusal::WrongType));
    assert!(extant::open(Path::new("/no/such/image")).is_err());
    let mut file = fs.file("/few/len-4097").unwrap();
    let mut text = Vec::new();
    assert_eq!(file.seek(SeekFrom::End(-2)).unwrap(), 4095);
    file.read_to_end(&mut text).unwrap();
    assert_eq!(text, [(4095 % 251) as u8, (4096 % 251) as u8]);
    assert!(file.seek(SeekFrom::Current(-5000)).is_err());
    assert_eq!(file.seek(SeekFrom::Start(1 << 40)).unwrap(), 1 << 40);
    assert_eq!(file.read(&mut [0; 8]).unwrap(), 0);
}

/// An image whose root is also below itself, and with a directory that has two names. Only damage causes
/// that.
#[test]
fn a_walk_never_goes_round_in_circles() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("a/b")).unwrap();
    std::fs::write(tree.join("a/b/c"), "c").unwrap();
    let image = dir.path().join("a.img");
    example::build_image(&tree, &image);
    for request in ["link / /a/b/root", "link /a /a2"] {
        extant_testkit::run("debugfs", ["-w", "-R", request, image.to_str().unwrap()]);
    }
    let fs = extant::open(&image).unwrap();
    for threads in [1, 4] {
        let (mut names, mut circles) = (Vec::new(), Vec::new());
        for entry in fs.walk("/").unwrap().order(Order::Names).threads(threads) {
            match entry {
                Ok(entry) => names.push(String::from_utf8_lossy(entry.path()).into_owned()),
                Err(fault) => {
                    assert!(matches!(fault.problem, Problem::SecondWay(_)));
                    circles.push(String::from_utf8_lossy(&fault.path).into_owned());
                }
            }
        }
        assert_eq!(names, ["", "a", "a/b", "a/b/c", "lost+found"]);
        assert_eq!(circles, ["a/b/root", "a2"]);
        assert_eq!(fs.walk("/").unwrap().threads(threads).contents().filter(Result::is_ok).count(), 5);
        let faults = fs.walk("/").unwrap().threads(threads).listings().map(|listing| listing.faults.len());
        assert_eq!(faults.sum::<usize>(), 2);
    }
}
