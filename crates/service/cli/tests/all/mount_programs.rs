//! `extant mount -o rw` with demanding programs: databases with locks, shared mappings and syncs, version
//! control with thousands of small files.
//!
//! Needs /dev/fuse and the programs. Without them, tests print a note and pass.

use std::process::Child;

use crate::common::mounted::{Mount, empty_image, finish, has_fuse, runs, shell};
use extant_testkit::e2fsck_clean;

/// Whether the program is installed. Prints a note if not.
fn has(program: &str) -> bool {
    let is_there = extant_testkit::command(program).arg("--version").output().is_ok();
    if !is_there {
        println!("skipped: not installed: {program}");
    }
    is_there
}

#[test]
fn a_data_base_works_in_it() {
    if !has_fuse() || !has("sqlite3") {
        return;
    }
    let (_dir, image) = empty_image(&["-O", "orphan_file"]);
    let mount = Mount::new(&image, &[]);
    for mode in ["delete", "wal", "truncate"] {
        // WAL uses a shared mapping of a file, and a concurrent reader.
        let script = format!(
            r#"
set -e
sqlite3 {mode}.db 'PRAGMA journal_mode={mode}; CREATE TABLE t(id INTEGER PRIMARY KEY, text TEXT, more BLOB);' > /dev/null
fill='WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<3000) INSERT INTO t(text,more) SELECT hex(i*i), randomblob(i%900) FROM n;'
for round in 1 2 3; do
  sqlite3 {mode}.db "PRAGMA synchronous=FULL; BEGIN; $fill COMMIT; DELETE FROM t WHERE id % 3 = $round % 3; UPDATE t SET text='x' WHERE id % 7 = 0;"
  sqlite3 {mode}.db 'SELECT count(*) FROM t' > /dev/null
done
sqlite3 {mode}.db 'VACUUM; PRAGMA integrity_check; SELECT count(*), sum(length(more)) FROM t;' > {mode}.out
head -1 {mode}.out
"#
        );
        assert_eq!(runs(mount.path(), &script), "ok\n", "{mode}");
    }
    mount.unmount();
    e2fsck_clean(&image);
    mount.try_mount(&image, &[]).code(0);
    for mode in ["delete", "wal", "truncate"] {
        let script = format!(
            "sqlite3 {mode}.db 'PRAGMA integrity_check; SELECT count(*), sum(length(more)) FROM t;' | cmp - {mode}.out"
        );
        runs(mount.path(), &script);
    }
    mount.unmount();
}

#[test]
fn two_writers_of_a_data_base_take_turns() {
    if !has_fuse() || !has("sqlite3") {
        return;
    }
    // One transaction per row; a process waits while the other one writes.
    const WRITES: &str = r#"
set -e
for i in $(seq 60); do
  sqlite3 -cmd '.timeout 60000' $DB "BEGIN IMMEDIATE; INSERT INTO t VALUES($N, $i, randomblob(3000)); \
    UPDATE total SET rows = rows + 1; COMMIT;"
done
"#;
    let (_dir, image) = empty_image(&["-O", "orphan_file"]);
    let mount = Mount::new(&image, &["--threads", "4"]);
    for mode in ["delete", "wal"] {
        let database = format!("{mode}.db");
        runs(
            mount.path(),
            &format!(
                "sqlite3 {database} 'PRAGMA journal_mode={mode}; CREATE TABLE t(writer, number, more BLOB); \
                 CREATE TABLE total(rows); INSERT INTO total VALUES(0);'"
            ),
        );
        let writers: Vec<Child> =
            (1..=2).map(|n| shell(mount.path(), &format!("DB={database} N={n}\n{WRITES}"))).collect();
        for writer in writers {
            finish(writer);
        }
        let sql = "PRAGMA integrity_check; SELECT rows FROM total; SELECT count(DISTINCT writer * 1000 + number) FROM t;";
        let output = runs(mount.path(), &format!("sqlite3 {database} '{sql}'"));
        assert_eq!(output, "ok\n120\n120\n", "{mode}");
    }
    mount.unmount();
    e2fsck_clean(&image);
}

#[test]
fn a_repository_is_cloned_checked_and_packed() {
    if !has_fuse() || !has("git") {
        return;
    }
    // 300 commits: each changes some of 40 files, and every fifth adds one.
    const MAKE: &str = r#"
set -e
git init -q --bare source.git
for n in $(seq 300); do
  echo "commit refs/heads/main"
  echo "committer A <a@example.org> $((1600000000 + n)) +0000"
  echo "data <<END"; echo "change $n"; echo END
  for f in $((n % 40)) $((n * 7 % 40)); do
    echo "M 100644 inline dir-$((f % 5))/file-$f"; echo "data <<END"; seq $n $((n + f * 20)); echo END
  done
  if [ $((n % 5)) = 0 ]; then echo "M 100755 inline new/$n/script"; echo "data <<END"; echo "echo $n"; echo END; fi
done | git -C source.git fast-import --quiet
git -C source.git symbolic-ref HEAD refs/heads/main
"#;
    const CHECK: &str = r#"
git -C clone fsck --full --strict 2>&1
git -C clone status --porcelain
[ $(git -C clone rev-list --count HEAD) = 300 ]
git -C clone ls-tree -r HEAD | git hash-object --stdin
"#;
    let own = "set -e; export HOME=/nonexistent GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1\n";
    let (dir, image) = empty_image(&["-O", "orphan_file"]);
    let run = |at: &std::path::Path, script: &str| runs(at, &format!("{own}{script}"));
    run(dir.path(), MAKE);
    let mount = Mount::new(&image, &["--threads", "4"]);
    let source = dir.path().join("source.git");
    // Single objects, written through shared mappings where git uses them.
    run(mount.path(), &format!("git clone -q --no-local -c core.fsync=all {} clone", source.display()));
    let before = run(mount.path(), CHECK);
    let again = "cd clone; git checkout -q -b side HEAD~100; seq 3 > more; git add more; git -c user.name=a -c user.email=b commit -qm more; \
                 git checkout -q main; git gc -q --prune=now; git repack -qadf; git pack-refs --all; git branch -D -q side";
    run(mount.path(), again);
    assert_eq!(run(mount.path(), CHECK), before);
    mount.unmount();
    e2fsck_clean(&image);
    mount.try_mount(&image, &[]).code(0);
    assert_eq!(run(mount.path(), CHECK), before);
    mount.unmount();
}
