//! `extant update` and `extant build --like`: the tree becomes that of the sources, the file system stays
//! sound, and what did not change keeps its place.

use std::path::Path;

use extant_testkit::trees::Random;
use extant_testkit::{command, e2fsck_clean, scratch};

use crate::common::{EXISTS, SOURCE, USAGE, assert_has, extant, outcome, run};

const NO_SPACE: i32 = 7;
/// `extant build --like` may differ from the old image in this share of 64 KiB chunks, in tests that change
/// little.
const CHANGED_MAX: f64 = 0.1;

/// Runs a script in a directory.
#[track_caller]
fn shell(dir: &Path, script: &str) {
    let status = command("bash").args(["-euc", script]).current_dir(dir).status().unwrap();
    assert!(status.success(), "{script}");
}

/// Runs an extant command in a directory.
#[track_caller]
fn run_in(dir: &Path, args: &str, code: i32) -> (String, String) {
    let outcome = outcome(extant().current_dir(dir).args(args.split_whitespace()));
    outcome.code(code);
    (outcome.stdout, outcome.stderr)
}

/// A tree `t` with every kind of file, and its image `old.img`.
fn tree() -> tempfile::TempDir {
    let scratch = scratch();
    shell(
        scratch.path(),
        "mkdir -p t/d/e t/old t/empty t/many
         echo hello > t/file; echo hello > t/d/inner
         ln t/file t/d/link; ln t/file t/d/e/third; ln -s file t/to
         ln -s $(printf 'x%.0s' $(seq 200)) t/long
         head -c 3000000 /dev/urandom > t/large; truncate -s 5M t/sparse; echo end >> t/sparse
         for i in $(seq 400); do echo $i > t/many/name-$i; done
         echo 1 > t/old/one; echo 2 > t/old/two; mkdir t/old/dir; echo 3 > t/old/dir/three; mkfifo t/pipe
         setfattr -n user.k -v 1 t/d/inner; chmod 2750 t/d; chmod 4711 t/large
         find t -exec touch -h -d 2024-05-06T07:08:09Z {} +",
    );
    run_in(scratch.path(), "build -q -o old.img --headroom 200 --from t", 0);
    scratch
}

/// The share of 64 KiB chunks that differ.
fn changed_chunks(a: &Path, b: &Path) -> f64 {
    let (a, b) = (std::fs::read(a).unwrap(), std::fs::read(b).unwrap());
    let (a, b) = (a.chunks(65536), b.chunks(65536));
    let (len, differ) = (a.len(), a.zip(b).filter(|(one, other)| one != other).count());
    differ as f64 / len as f64
}

/// Makes the image of the changed tree in both ways, and compares each with the tree.
#[track_caller]
fn both_ways(dir: &Path) {
    for image in ["new.img", "again.img"] {
        run_in(dir, &format!("build -q -f -o {image} --like old.img --from t"), 0);
    }
    shell(dir, "cmp new.img again.img; rm again.img; cp old.img updated.img");
    run_in(dir, "update -q updated.img --from t", 0);
    for image in ["new.img", "updated.img"] {
        let (differences, _) = run_in(dir, &format!("diff --json {image} t"), 0);
        assert_has(&differences, "\"changes\": []");
        run_in(dir, &format!("check -q {image}"), 0);
        e2fsck_clean(&dir.join(image));
        let (nothing, _) = run_in(dir, &format!("update --dry-run --json {image} --from t"), 0);
        assert_has(&nothing, "\"modified\": 0");
    }
}

#[test]
fn every_kind_of_change_reaches_the_image() {
    let cases = [
        "true",
        "rm t/file",
        "rm -r t/old t/empty; rm t/sparse t/pipe",
        "mkdir -p t/new/deeper; echo new > t/new/deeper/file; mkfifo t/new/pipe; ln -s a t/new/link",
        "echo longer content >> t/d/inner; truncate -s 100 t/large; truncate -s 4M t/sparse",
        "printf X | dd of=t/large bs=1 seek=2000000 conv=notrunc status=none",
        "fallocate -p -o 65536 -l 131072 t/large",
        "echo in the hole | dd of=t/sparse bs=1M seek=2 conv=notrunc status=none",
        "rm t/to; mkdir t/to; echo inside > t/to/file",
        "rm -r t/old; echo a file > t/old; rm t/pipe; ln -s elsewhere t/pipe; rm t/file; mkfifo t/file",
        "ln -snf other t/to; ln -snf short t/long",
        // One link leaves the group, another one joins it.
        "rm t/d/link; echo alone > t/d/link; ln t/file t/joined; rm t/old/one; ln t/file t/old/one",
        // Two groups exchange a name.
        "ln t/d/inner t/pair; rm t/d/e/third; ln t/d/inner t/d/e/third; echo more >> t/file",
        "rm t/file t/d/link t/d/e/third; echo hello > t/file; echo hello > t/d/link; echo 3 > t/d/e/third",
        "setfattr -x user.k t/d/inner; setfattr -n user.other -v 2 t/large; setfattr -n user.dir -v d t/d",
        "chmod 0600 t/file; chmod 1777 t/empty; chmod u-s t/large",
        "touch -d 2001-02-03T04:05:06.789Z t/d/inner t",
        "for i in $(seq 401 900); do echo $i > t/many/name-$i; done; rm t/many/name-1*",
        "head -c 2M /dev/urandom > t/new; head -c 900000 /dev/urandom >> t/large",
    ];
    for script in cases {
        let scratch = tree();
        shell(scratch.path(), script);
        both_ways(scratch.path());
    }
}

#[test]
fn what_did_not_change_keeps_its_place() {
    let scratch = tree();
    let dir = scratch.path();
    let place = |image: &str, path: &str| {
        let (text, _) = run_in(dir, &format!("inspect {image} extents /{path}"), 0);
        let (stat, _) = run_in(dir, &format!("stat {image}:/{path}"), 0);
        (text, stat.lines().find(|line| line.contains("node")).map(str::to_owned))
    };
    let kept = ["many/name-7", "old/two", "sparse", "d/e/third"];
    let before = kept.map(|path| place("old.img", path));
    shell(dir, "touch t/large; rm t/many/name-30; echo x > t/a");
    both_ways(dir);
    assert_eq!(kept.map(|path| place("new.img", path)), before);
    let share = changed_chunks(&dir.join("old.img"), &dir.join("new.img"));
    assert!(share < CHANGED_MAX, "{share}");
}

#[test]
fn a_full_image_grows_if_it_is_made_anew() {
    let scratch = tree();
    let dir = scratch.path();
    run_in(dir, "build -q -f -o old.img --from t", 0);
    shell(dir, "head -c 40M /dev/urandom > t/more; for i in $(seq 3000); do mkdir t/empty/$i; done");
    let (text, _) = run_in(dir, "build -o new.img --like old.img --from t", 0);
    assert_has(&text, "its size grew from");
    run_in(dir, "build -q -o again.img --like old.img --from t", 0);
    shell(dir, "cmp new.img again.img");
    run_in(dir, "diff new.img t", 0);
    e2fsck_clean(&dir.join("new.img"));

    let (_, why) = run_in(dir, "update old.img --from t", NO_SPACE);
    assert_has(&why, "`extant resize` makes the image larger");
    run_in(dir, "check -q old.img", 0);
    run_in(dir, "resize -q old.img +200M", 0);
    run_in(dir, "update -q old.img --from t", 0);
    run_in(dir, "diff old.img t", 0);
    e2fsck_clean(&dir.join("old.img"));
}

#[test]
fn a_given_size_is_exact_and_the_same_sources_need_no_more() {
    let scratch = tree();
    let dir = scratch.path();
    run_in(dir, "build -q -f -o old.img --from t", 0);
    run_in(dir, "build -q -o new.img --like old.img --from t", 0);
    shell(dir, "cmp old.img new.img || test $(stat -c %s old.img) = $(stat -c %s new.img)");
    run_in(dir, "build -q -f -o new.img --like old.img --size 50M --from t", 0);
    assert_eq!(std::fs::metadata(dir.join("new.img")).unwrap().len(), 50 << 20);
    e2fsck_clean(&dir.join("new.img"));
}

/// Deletion times of 0 and 1 would mean something else.
#[test]
fn deletions_at_the_beginning_of_time_leave_a_sound_image() {
    let scratch = tree();
    let dir = scratch.path();
    shell(dir, "rm -r t/old t/large");
    for epoch in ["0", "1"] {
        let mut command = extant();
        command.current_dir(dir).env("SOURCE_DATE_EPOCH", epoch);
        outcome(command.args(["build", "-q", "-f", "-o", "new.img", "--like", "old.img", "--from", "t"]))
            .code(0);
        run_in(dir, "check -q new.img", 0);
        e2fsck_clean(&dir.join("new.img"));
    }
}

#[test]
fn the_image_is_no_part_of_its_sources() {
    let scratch = tree();
    let dir = scratch.path();
    let (_, warned) = run_in(dir, "update old.img --from .", 0);
    assert_has(&warned, "it is the image itself");
    run_in(dir, "stat old.img:/old.img", 9);
    run_in(dir, "stat old.img:/t/file", 0);
    e2fsck_clean(&dir.join("old.img"));
}

#[test]
fn owners_rules_and_excludes_count() {
    let scratch = tree();
    let dir = scratch.path();
    run_in(dir, "update -q old.img --from t --owner 7:8 --exclude many --mknod /fifo=p", 0);
    assert_has(&run_in(dir, "stat old.img:/file", 0).0, "7");
    run_in(dir, "stat old.img:/fifo", 0);
    run_in(dir, "stat old.img:/many", 9);
    e2fsck_clean(&dir.join("old.img"));
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let scratch = tree();
    let dir = scratch.path();
    let before = std::fs::read(dir.join("old.img")).unwrap();
    let refused = [
        ("update old.img", USAGE, "needs a source"),
        ("update old.img:/d --from t", USAGE, "leave :/d out"),
        ("update old.img --from none", SOURCE, "none"),
        ("build -o new.img --like old.img -O ^has_journal --from t", USAGE, "that of the old image"),
        ("build -o new.img --like old.img --size 1M --from t", 5, "cannot be smaller"),
        ("build -o old.img --like old.img --from t", EXISTS, "--force"),
        ("build -o new.img --like t/large --from t", 8, "t/large"),
    ];
    for (args, code, why) in refused {
        assert_has(&run_in(dir, args, code).1, why);
        assert!(!dir.join("new.img").exists(), "{args}");
    }
    assert!(std::fs::read(dir.join("old.img")).unwrap() == before);
    // An image may replace itself.
    shell(dir, "echo more > t/more");
    run_in(dir, "build -q -f -o old.img --like old.img --from t", 0);
    run_in(dir, "diff old.img t", 0);
    assert!(run(args!["update", "--help"]).stdout.contains("--from"));
}

/// A path below the root, of few names, so that changes meet each other.
fn random_path(random: &mut Random) -> String {
    let depth = 1 + random.below(3);
    let part = |random: &mut Random| format!("{}", (b'a' + random.below(6) as u8) as char);
    (0..depth).map(|_| part(random)).collect::<Vec<_>>().join("/")
}

/// Changes a tree at random. What a change needs may be missing; then it does nothing.
fn change_at_random(root: &Path, random: &mut Random) {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let path = root.join(random_path(random));
    let other = root.join(random_path(random));
    let size = [0, 1, 50, 4095, 4096, 70_000, 300_000][random.below(7) as usize];
    let is_dir = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    // Errors are a part of the choice: the path may lead through a file.
    let _ = match random.below(14) {
        0 | 1 => std::fs::create_dir_all(&path),
        2 | 3 => std::fs::write(&path, random.bytes(size)),
        4 => symlink("x".repeat(1 + random.below(90) as usize), &path),
        5 | 6 => std::fs::hard_link(&other, &path),
        7 if is_dir => std::fs::remove_dir_all(&path),
        7 => std::fs::remove_file(&path),
        8 => std::fs::rename(&other, &path),
        9 => std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(size as u64 * 3)),
        10 => std::fs::File::options()
            .append(true)
            .open(&path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, &random.bytes(size / 7))),
        11 => std::fs::File::options().write(true).open(&path).and_then(|file| {
            std::os::unix::fs::FileExt::write_all_at(&file, &random.bytes(900), random.below(200_000))
        }),
        12 if path.symlink_metadata().is_ok_and(|metadata| !metadata.is_symlink()) => {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o400 | random.below(0o1000) as u32))
        }
        12 => Ok(()),
        _ => {
            let value = "v".repeat(1 + random.below(300) as usize);
            let name = format!("user.{}", random.below(3));
            let mut command = command("setfattr");
            command.args(["-h", "-n", &name, "-v", &value]).arg(&path);
            command.stderr(std::process::Stdio::null()).status().map(|_| ())
        }
    };
}

#[test]
fn random_changes_reach_every_kind_of_file_system() {
    for (number, kind) in [
        "",
        "-t ext2",
        "-t ext3",
        "-O bigalloc -C 16384",
        "-O inline_data",
        "-I 128",
        "-b 1024 -O ^metadata_csum",
    ]
    .into_iter()
    .enumerate()
    {
        let scratch = scratch();
        let dir = scratch.path();
        let root = dir.join("t");
        std::fs::create_dir(&root).unwrap();
        let mut random = Random::for_item(0x07DA7E, number as u64);
        (0..60).for_each(|_| change_at_random(&root, &mut random));
        run_in(dir, &format!("build -q -o old.img --headroom 100 {kind} --from t"), 0);
        for _ in 0..4 {
            (0..25).for_each(|_| change_at_random(&root, &mut random));
            both_ways(dir);
            std::fs::rename(dir.join("new.img"), dir.join("old.img")).unwrap();
        }
    }
}
