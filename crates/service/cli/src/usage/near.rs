//! Suggestions for typing errors: in options, and in paths of this machine.
//!
//! Owns: the distance between two names, and the remedies for paths that do not exist. Does **not** own:
//! paths of images (see [`look::absent`](crate::look)).

use std::io;
use std::path::Path;

/// Names of a directory that are compared.
pub(crate) const NAMES_MAX: usize = 100_000;

/// The name that `wrong` was likely meant to be.
pub(crate) fn nearest<N: AsRef<str>>(wrong: &str, names: impl IntoIterator<Item = N>) -> Option<N> {
    let near = names.into_iter().filter(|name| is_near(wrong, name.as_ref()));
    near.min_by_key(|name| distance(wrong, name.as_ref()))
}

/// What is wrong with a path of this machine, and the remedy: `r.img: there is no such file; did you mean
/// r2.img?`. `error`: the error of the system call that was to open it.
pub(crate) fn not_opened(path: &Path, error: &io::Error) -> String {
    let name = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => format!("{name}: there is no such file; {}", absent(path)),
        io::ErrorKind::PermissionDenied => {
            format!("{name}: {error}; its owner and root may grant access, `ls -l` shows them")
        }
        io::ErrorKind::NotADirectory => format!("{name}: not a directory; `ls -ld {name}` shows what it is"),
        io::ErrorKind::IsADirectory => format!("{name}: is a directory; name a file"),
        _ => format!("{name}: {error}"),
    }
}

/// What is wrong with a new file of this machine, and the remedy.
pub(crate) fn not_made(path: &Path, error: &io::Error) -> String {
    match (error.kind(), missing_parent(path)) {
        (io::ErrorKind::NotFound, Some(parent)) => {
            format!("{}: there is no directory {parent}; `mkdir -p {parent}` makes it", path.display())
        }
        _ => not_opened(path, error),
    }
}

/// The remedy for a new file of this machine; empty if its directory exists.
fn missing_parent(path: &Path) -> Option<String> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.exists())?;
    Some(parent.display().to_string())
}

/// The remedy for a path of this machine that does not exist: a similar path that does, or the command that
/// lists the directory.
pub(crate) fn absent(path: &Path) -> String {
    suggested(path).unwrap_or_else(|| {
        let existing = path.ancestors().skip(1).find(|dir| dir.is_dir());
        match existing.filter(|dir| !dir.as_os_str().is_empty()) {
            Some(dir) => format!("`ls {}` lists what is there", dir.display()),
            None => "`ls` lists what is there".to_owned(),
        }
    })
}

/// `did you mean PATH?` for a path of this machine that does not exist.
pub(crate) fn suggested(path: &Path) -> Option<String> {
    let is_there = |path: &Path| path.as_os_str().is_empty() || path.symlink_metadata().is_ok();
    let missing = path.ancestors().take_while(|path| !is_there(path)).last()?;
    let parent = missing.parent().filter(|parent| !parent.as_os_str().is_empty());
    let names = std::fs::read_dir(parent.unwrap_or(Path::new("."))).ok()?.take(NAMES_MAX);
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let near = missing.with_file_name(nearest(missing.file_name()?.to_str()?, names)?);
    let rest = path.strip_prefix(missing).ok()?;
    let meant = if rest.as_os_str().is_empty() { near } else { near.join(rest) };
    is_there(&meant).then(|| format!("did you mean {}?", meant.display()))
}

/// Whether `wrong` is likely a typing error for `name`. More distant suggestions name something different.
pub(super) fn is_near(wrong: &str, name: &str) -> bool {
    let (wrong, name) = (wrong.trim_start_matches('-'), name.trim_start_matches('-'));
    distance(wrong, name) <= 1 + name.chars().count() / 6
}

/// The number of letters to change, add, remove or swap with the next one.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=to.len()).collect();
    for row in 1..=from.len() {
        let mut here = vec![row];
        for column in 1..=to.len() {
            let is_other = usize::from(from[row - 1] != to[column - 1]);
            let mut least = (above[column] + 1).min(here[column - 1] + 1).min(above[column - 1] + is_other);
            if row > 1 && column > 1 && from[row - 1] == to[column - 2] && from[row - 2] == to[column - 1] {
                least = least.min(before[column - 2] + 1);
            }
            here.push(least);
        }
        before = std::mem::replace(&mut above, here);
    }
    above.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_path_that_exists_is_suggested() {
        let dir = extant_testkit::scratch();
        std::fs::create_dir_all(dir.path().join("images/old")).unwrap();
        std::fs::write(dir.path().join("images/old/root.img"), "").unwrap();
        for (wrong, meant) in [
            ("images/old/rot.img", Some("images/old/root.img")),
            ("image/old/root.img", Some("images/old/root.img")),
            ("image/old/rot.img", None),
            ("other", None),
        ] {
            let meant = meant.map(|meant| format!("did you mean {}?", dir.path().join(meant).display()));
            assert_eq!(suggested(&dir.path().join(wrong)), meant, "{wrong}");
        }
    }

    #[test]
    fn errors_of_the_system_get_a_remedy() {
        let said = |number| not_opened(Path::new("a/b"), &io::Error::from_raw_os_error(number));
        assert_eq!(said(2), "a/b: there is no such file; `ls` lists what is there");
        assert_eq!(
            crate::voice::without_numbers(&said(13)),
            "a/b: Permission denied; its owner and root may grant access, `ls -l` shows them"
        );
        assert_eq!(said(20), "a/b: not a directory; `ls -ld a/b` shows what it is");
    }

    #[test]
    fn suggestions_are_slips_of_the_finger_only() {
        for (wrong, name) in [
            ("dirr", "dir"),
            ("chekc", "check"),
            ("--frm", "--from"),
            ("buld", "build"),
            ("exprot", "export"),
        ] {
            assert!(is_near(wrong, name), "{wrong} {name}");
        }
        for (wrong, name) in
            [("resize", "tree"), ("label", "lab"), ("tune", "truncate"), ("defrag", "df"), ("list", "ls")]
        {
            assert!(!is_near(wrong, name), "{wrong} {name}");
        }
    }
}
