//! Detection of libraries that fake owners and devices for a program (fakeroot, pseudo, fakechroot), and of
//! ids that a user namespace does not map.
//!
//! fakeroot and pseudo intercept calls to the C library (`LD_PRELOAD`). A program that calls the C library
//! sees the faked values. A static program does not, and would silently use the real owners. This module
//! detects that case, so that commands can refuse it.
//!
//! Owns: detection. Does **not** own: the refusal, which is up to each command.

use std::fmt;
use std::sync::OnceLock;

/// A library that fakes owners, devices or paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pretender {
    /// fakeroot: identifies files by device and inode number.
    Fakeroot,
    /// pseudo: identifies files by path, and open directories only if it intercepted the call that opened
    /// them.
    Pseudo,
    /// fakechroot: translates paths.
    Fakechroot,
}

impl Pretender {
    const ALL: [Self; 3] = [Self::Fakeroot, Self::Pseudo, Self::Fakechroot];

    fn name(self) -> &'static str {
        match self {
            Self::Fakeroot => "fakeroot",
            Self::Pseudo => "pseudo",
            Self::Fakechroot => "fakechroot",
        }
    }
}

impl fmt::Display for Pretender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The library in LD_PRELOAD has no effect on this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} is in LD_PRELOAD, but this program does not see what it pretends (it is linked statically, or the library could \
     not be loaded): owners and devices would be the real ones; use a program that is linked dynamically, or unset LD_PRELOAD"
)]
pub struct Unseen(pub Pretender);

/// The library that is active in this program, if any.
///
/// # Errors
/// [`Unseen`] if the environment requests a library that is not loaded.
pub fn pretender() -> Result<Option<Pretender>, Unseen> {
    let asked = std::env::var("LD_PRELOAD").unwrap_or_default();
    let Ok(maps) = std::fs::read("/proc/self/maps") else {
        // Without /proc the loaded libraries are unknown. A dynamic program is assumed to have loaded them.
        return named_in(&asked, cfg!(not(target_feature = "crt-static")).then_some(asked.as_bytes()));
    };
    named_in(&asked, Some(&maps))
}

/// Whether a directory may be opened by openat2(2). The C library has no such call, so preloaded libraries
/// cannot intercept it; and pseudo must see how a directory is opened to know its contents.
pub(crate) fn sees_openat2() -> bool {
    static SEES: OnceLock<bool> = OnceLock::new();
    *SEES.get_or_init(|| matches!(pretender(), Ok(None | Some(Pretender::Fakeroot))))
}

fn named_in(asked: &str, loaded: Option<&[u8]>) -> Result<Option<Pretender>, Unseen> {
    let libraries = || asked.split([':', ' ']).filter_map(|path| path.rsplit('/').next());
    for pretender in Pretender::ALL {
        let library = format!("lib{}", pretender.name());
        let is_loaded =
            loaded.is_some_and(|maps| maps.windows(library.len()).any(|window| window == library.as_bytes()));
        match (libraries().any(|name| name.starts_with(&library)), is_loaded) {
            (_, true) => return Ok(Some(pretender)),
            (true, false) => return Err(Unseen(pretender)),
            (false, false) => {}
        }
    }
    Ok(None)
}

/// The id that the kernel shows in place of every id that a user namespace does not map. `None` if `map` is
/// empty, covers every id, or covers `overflow` itself.
///
/// `map` is the text of `/proc/self/uid_map` or `gid_map`; `overflow` is the id that the system shows
/// instead.
fn stand_in(map: &str, overflow: u32) -> Option<u32> {
    let mut whole = false;
    let mut holds_overflow = false;
    for line in map.lines() {
        let mut words = line.split_whitespace().map(|word| word.parse::<u64>().unwrap_or(0));
        let (inside, _, count) = (words.next()?, words.next()?, words.next()?);
        whole |= inside == 0 && count >= u64::from(u32::MAX);
        holds_overflow |= (inside..inside.saturating_add(count)).contains(&overflow.into());
    }
    (!whole && !holds_overflow && !map.trim().is_empty()).then_some(overflow)
}

/// The user id and the group id that the kernel shows for files with unmapped owners.
#[must_use]
pub fn stand_ins() -> (Option<u32>, Option<u32>) {
    let read = |kind: &str| {
        let map = std::fs::read_to_string(format!("/proc/self/{kind}_map")).ok()?;
        let overflow = std::fs::read_to_string(format!("/proc/sys/kernel/overflow{kind}")).ok();
        stand_in(&map, overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(65_534))
    };
    (read("uid"), read("gid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_and_not_loaded_is_found_out() {
        let maps = b"7f00 r-xp /usr/lib/x86_64-linux-gnu/libfakeroot/libfakeroot-sysv.so\n";
        assert_eq!(named_in("libfakeroot-sysv.so", Some(maps)), Ok(Some(Pretender::Fakeroot)));
        assert_eq!(named_in("libfakeroot-sysv.so", Some(b"")), Err(Unseen(Pretender::Fakeroot)));
        assert_eq!(named_in("/x/libpseudo.so:libother.so", Some(b"")), Err(Unseen(Pretender::Pseudo)));
        assert_eq!(named_in("libeatmydata.so", Some(b"/lib/libeatmydata.so")), Ok(None));
        assert_eq!(named_in("/opt/libfakeroot/libother.so", Some(b"")), Ok(None));
        assert_eq!(named_in("libfakechroot.so", None), Err(Unseen(Pretender::Fakechroot)));
    }

    #[test]
    fn unmapped_ids_are_those_outside_of_the_namespace() {
        assert_eq!(stand_in("         0          0 4294967295\n", 65_534), None);
        assert_eq!(stand_in("0 1000 1\n", 65_534), Some(65_534));
        assert_eq!(stand_in("0 1000 1\n1 100000 65536\n", 65_534), None);
        assert_eq!(stand_in("", 65_534), None);
    }
}
