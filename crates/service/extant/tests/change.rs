//! Changes by paths: what each operation refuses, removing whole trees, open files without names, closing.

#[allow(dead_code, unreachable_pub)]
mod example {
    include!("example/image.rs");
    include!("example/memory.rs");
}

use std::io::{Read, Write};
use std::sync::Arc;

use extant::{
    Durable, Error, FileSystem, FileType, Follow, MemDevice, New, OpenOptions, Refusal, Rename, SetAttr,
    SetXattr, Shutdown,
};

fn memory() -> (Arc<MemDevice>, FileSystem) {
    let memory = example::empty_memory(64 << 20);
    let fs = FileSystem::from_device_writable(Arc::<MemDevice>::clone(&memory), &OpenOptions::default());
    (memory, fs.unwrap())
}

#[track_caller]
fn refused<T>(done: Result<T, Error>, refusal: Refusal) {
    match done {
        Err(error) => assert!(error.is(refusal), "{error}, not {refusal}"),
        Ok(_) => panic!("done, not {refusal}"),
    }
}

fn names(fs: &FileSystem, path: &str) -> Vec<String> {
    let names = fs.read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn paths_are_taken_as_system_calls_take_them() {
    let (_, fs) = memory();
    fs.create_dir("a/", 0o755).unwrap();
    fs.create("//a//f", 0o644).unwrap();
    fs.symlink("a", "to-a").unwrap();
    fs.create("/to-a/../to-a/g", 0o600).unwrap();
    assert_eq!(names(&fs, "/a"), ["f", "g"]);
    refused(fs.create("/a/h/", 0o644), Refusal::NotDirectory);
    refused(fs.create("/a/f/x", 0o644), Refusal::NotDirectory);
    refused(fs.create("/none/x", 0o644), Refusal::NotFound);
    refused(fs.create("/", 0o644), Refusal::Exists);
    refused(fs.create("", 0o644), Refusal::Exists);
    refused(fs.create_dir("/a", 0o755), Refusal::Exists);
    refused(fs.create_dir("/a/..", 0o755), Refusal::Exists);
    refused(fs.create("x".repeat(256), 0o644), Refusal::NameTooLong);
    refused(fs.symlink("", "/empty"), Refusal::NotFound);
    refused(fs.remove_file("/a"), Refusal::IsDirectory);
    refused(fs.remove_file("/a/f/"), Refusal::NotDirectory);
    refused(fs.remove_file("/"), Refusal::IsDirectory);
    refused(fs.remove_dir("/a/f"), Refusal::NotDirectory);
    refused(fs.remove_dir("/a"), Refusal::NotEmpty);
    refused(fs.remove_dir("/"), Refusal::Busy);
    refused(fs.remove_dir("/to-a"), Refusal::NotDirectory);
    refused(fs.hard_link("/a", "/b"), Refusal::NotPermitted);
    refused(fs.hard_link("/a/f", "/a/g"), Refusal::Exists);
    refused(fs.rename("/", "/b"), Refusal::Busy);
    refused(fs.rename("/a/f/", "/b"), Refusal::NotDirectory);
    refused(fs.rename("/a", "/a/b"), Refusal::Invalid);
    refused(fs.rename_with("/a/f", "/none", Rename::Exchange), Refusal::NotFound);
    refused(fs.set_len("/a", 1), Refusal::IsDirectory);
    refused(fs.remove_xattr("/a/f", "user.none"), Refusal::NoAttribute);
    refused(fs.set_xattr_with("/a/f", "user.none", b"", SetXattr::Replace), Refusal::NoAttribute);
    // A link to a link is one to the link itself.
    fs.hard_link("/to-a", "/also-to-a").unwrap();
    assert_eq!(fs.symlink_metadata("/also-to-a").unwrap().kind, FileType::Symlink);
    let error = fs.hard_link("/a/f", "/none/x").unwrap_err();
    assert_eq!(error.to_string(), "/a/f -> /none/x: no such file or directory");
    assert_eq!(error.fault().unwrap().errno(), 2);
    fs.close().unwrap();
}

#[test]
fn directories_are_made_and_removed_whole() {
    let (memory, fs) = memory();
    fs.create_dir_all("/a/b/c/d", 0o750).unwrap();
    fs.create_dir_all("/a/b/c/d/", 0o700).unwrap();
    assert_eq!(fs.metadata("/a/b").unwrap().mode & 0o7777, 0o750);
    fs.create("/a/file", 0o644).unwrap();
    refused(fs.create_dir_all("/a/file/x", 0o755), Refusal::NotDirectory);
    refused(fs.create_dir_all("/a/file", 0o755), Refusal::NotDirectory);
    for number in 0..3000 {
        fs.create(format!("/a/b/{number}"), 0o644).unwrap();
        if number % 100 == 0 {
            fs.create_dir(format!("/a/b/c/{number}"), 0o755).unwrap();
        }
    }
    fs.create_dir("/kept", 0o755).unwrap();
    fs.create("/kept/file", 0o644).unwrap();
    fs.symlink("/kept", "/a/b/c/d/link").unwrap();
    let before = fs.statfs().unwrap();
    refused(fs.remove_dir_all("/a/file"), Refusal::NotDirectory);
    refused(fs.remove_dir_all("/a/b/."), Refusal::Invalid);
    refused(fs.remove_dir_all("/a/.."), Refusal::Invalid);
    refused(fs.remove_dir_all("/"), Refusal::Busy);
    fs.remove_dir_all("/a/").unwrap();
    assert!(fs.statfs().unwrap().inodes_free > before.inodes_free + 3000);
    assert_eq!(names(&fs, "/"), ["kept", "lost+found"]);
    assert!(fs.exists("/kept/file").unwrap());
    fs.close().unwrap();
    let again = FileSystem::from_device(memory, &OpenOptions::default()).unwrap();
    assert!(!again.volume().recovery().needed);
    assert_eq!(names(&again, "/"), ["kept", "lost+found"]);
    assert!(!again.is_writable());
    refused(again.create("/x", 0o644), Refusal::ReadOnly);
    again.close().unwrap();
}

#[test]
fn an_open_file_outlives_its_name_and_is_seen_as_it_is() {
    let (_kept, image) = example::example_image();
    let fs = extant::open_writable(&image).unwrap();
    let free_bytes = || {
        let space = fs.statfs().unwrap();
        space.blocks_free * u64::from(space.block_size)
    };
    let before = free_bytes();
    let mut file = fs.file("/lib/large").unwrap();
    let second = file.clone();
    fs.set_len("/lib/large", 2 << 20).unwrap();
    assert_eq!(file.len(), 2 << 20);
    fs.remove_file("/lib/large").unwrap();
    assert!(!fs.exists("/lib/large").unwrap());
    let mut content = Vec::new();
    file.read_to_end(&mut content).unwrap();
    assert_eq!(content, vec![b'x'; 2 << 20]);
    drop(file);
    assert_eq!(second.metadata().links, 0);
    drop(second);
    fs.sync().unwrap();
    assert_eq!(free_bytes(), before + (3 << 20));
    fs.close().unwrap();
    extant_testkit::e2fsck_clean(&image);
}

#[test]
fn the_last_one_that_closes_leaves_it_clean() {
    let (memory, fs) = memory();
    let state = || {
        let options = OpenOptions::default();
        let fs = FileSystem::from_device(Arc::<MemDevice>::clone(&memory), &options).unwrap();
        (fs.volume().recovery().needed, names(&fs, "/"))
    };
    let clone = fs.clone();
    fs.create_dir("/one", 0o755).unwrap();
    fs.close().unwrap();
    // The change is durable, in the journal.
    assert_eq!(state(), (true, vec!["lost+found".to_owned(), "one".to_owned()]));
    clone.create_dir("/two", 0o755).unwrap();
    clone.close().unwrap();
    assert!(!state().0);
    assert_eq!(state().1, ["lost+found", "one", "two"]);
}

#[test]
fn everything_of_an_inode_at_once() {
    let (_, fs) = memory();
    let new = New { kind: FileType::CharDevice, uid: 3, gid: 4, device: (1, 3), ..New::file(0o666) };
    fs.create_node("/null", &new).unwrap();
    let stat = fs.metadata("/null").unwrap();
    assert_eq!((stat.device, stat.uid, stat.gid, stat.mode), ((1, 3), 3, 4, 0o020_666));
    fs.create("/f", 0o644).unwrap();
    let set = SetAttr { mode: Some(0o600), size: Some(5000), uid: Some(9), ..SetAttr::default() };
    let inode = fs.set_attr("/f", Follow::Links, &set).unwrap();
    assert_eq!((inode.size(), inode.fields().uid, inode.fields().mode & 0o7777), (5000, 9, 0o600));
    fs.set_xattr("/f", b"user.\xff", b"any bytes").unwrap();
    assert_eq!(fs.xattrs("/f").unwrap()[0].name, b"user.\xff");
    fs.close().unwrap();
}

#[test]
fn threads_work_in_one_directory_together() {
    let (memory, fs) = memory();
    fs.create_dir("/d", 0o755).unwrap();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let fs = fs.clone();
            scope.spawn(move || {
                for number in 0..300 {
                    let (name, other) = (format!("/d/{worker}-{number}"), format!("/d/{number}"));
                    fs.create(&name, 0o644).unwrap();
                    // Only one of the threads gets this name.
                    match fs.rename_with(&name, &other, Rename::NoReplace) {
                        Ok(()) => {}
                        Err(error) => {
                            assert!(error.is(Refusal::Exists), "{error}");
                            fs.remove_file(&name).unwrap();
                        }
                    }
                }
            });
        }
    });
    let mut expected: Vec<String> = (0..300).map(|number: u32| number.to_string()).collect();
    expected.sort();
    assert_eq!(names(&fs, "/d"), expected);
    fs.close().unwrap();
    let again = FileSystem::from_device(memory, &OpenOptions::default()).unwrap();
    assert_eq!(names(&again, "/d"), expected);
}

#[test]
fn writes_are_durable_when_they_return_where_that_is_asked_for() {
    for durable in [Durable::Data, Durable::All] {
        let (memory, fs) = memory();
        fs.create("/f", 0o644).unwrap();
        let mut file = fs.file("/f").unwrap();
        file.set_durable(durable);
        file.write_at(&[1; 70_000], 3).unwrap();
        file.clone().write_all(b"end").unwrap();
        fs.create("/later", 0o644).unwrap();
        drop(file);
        // The state after a crash.
        fs.volume().admin().shut_down(Shutdown::Nothing).unwrap();
        drop(fs);
        let fs = FileSystem::from_device_writable(memory, &OpenOptions::default()).unwrap();
        let bytes = fs.read("/f").unwrap();
        assert!(bytes[..3] == *b"end" && bytes[3..] == [1; 70_000]);
        fs.close().unwrap();
    }
}

#[test]
fn a_file_is_replaced_in_one_step() {
    let (memory, fs) = memory();
    fs.create_dir("/d", 0o755).unwrap();
    fs.write("/d/f", b"old").unwrap();
    fs.set_owner("/d/f", Some(7), Some(8)).unwrap();
    fs.set_xattr("/d/f", "user.kept", b"value").unwrap();
    fs.set_mode("/d/f", 0o4710).unwrap();
    fs.hard_link("/d/f", "/other").unwrap();
    fs.symlink("d/f", "/to-f").unwrap();
    fs.replace("/to-f", vec![b'n'; 100_000]).unwrap();
    let stat = fs.symlink_metadata("/d/f").unwrap();
    assert_eq!((stat.uid, stat.gid, stat.mode & 0o7777, stat.size), (7, 8, 0o4710, 100_000));
    assert_eq!(fs.xattr("/d/f", "user.kept").unwrap(), b"value");
    assert_eq!(fs.read("/other").unwrap(), b"old");
    assert_eq!(fs.symlink_metadata("/to-f").unwrap().kind, FileType::Symlink);
    fs.replace("/d/new", b"made").unwrap();
    assert_eq!(fs.metadata("/d/new").unwrap().mode & 0o7777, 0o644);
    refused(fs.replace("/d", b""), Refusal::IsDirectory);
    refused(fs.replace("/none/f", b""), Refusal::NotFound);
    // What does not fit leaves the old content, and no other file.
    refused(fs.replace("/d/new", vec![1; 80 << 20]), Refusal::NoSpace);
    assert_eq!(names(&fs, "/d"), ["f", "new"]);
    assert_eq!(fs.read("/d/new").unwrap(), b"made");

    fs.sync().unwrap();
    fs.replace("/d/f", b"newer").unwrap();
    fs.volume().admin().shut_down(Shutdown::Nothing).unwrap();
    drop(fs);
    let fs = FileSystem::from_device_writable(memory, &OpenOptions::default()).unwrap();
    let bytes = fs.read("/d/f").unwrap();
    assert!(bytes == b"newer" || bytes == vec![b'n'; 100_000], "{} bytes", bytes.len());
    fs.close().unwrap();
}
