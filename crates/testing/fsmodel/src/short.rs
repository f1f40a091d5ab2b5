//! Enumerates every sequence of a few operations over a small alphabet; random operations rarely reach all of
//! them.

use crate::op::{At, Op, RenameMode, SetTime, Time, XattrMode};

/// The start of each sequence: two directories, a file with two names and a file with one.
#[must_use]
pub fn short_setup() -> Vec<Op> {
    let at = At::new;
    vec![
        Op::Mkdir { at: at("A"), mode: 0o755 },
        Op::Mkdir { at: at("B"), mode: 0o755 },
        Op::Create { at: at("A/x"), mode: 0o644 },
        Op::Link { old: at("A/x"), new: at("B/x") },
        Op::Create { at: at("A/y"), mode: 0o600 },
        Op::Truncate { at: at("A/y"), size: 3 << 20 },
        Op::Mkdir { at: at("B/z"), mode: 0o700 },
    ]
}

/// The operations: each kind of change to names, inodes and attributes at least once, on the two directories
/// and three names of [`short_setup`].
#[must_use]
pub fn short_alphabet() -> Vec<Op> {
    let at = At::new;
    let rename = |old, new, mode| Op::Rename { old: at(old), new: at(new), mode };
    let set_xattr = |len: usize| Op::SetXattr {
        at: at("A/x"),
        name: "user.a".into(),
        value: vec![b'v'; len].into(),
        mode: XattrMode::Any,
    };
    vec![
        Op::Create { at: at("A/z"), mode: 0o644 },
        Op::Create { at: at("B/y"), mode: 0o644 },
        Op::Mkdir { at: at("A/z"), mode: 0o755 },
        Op::Mkdir { at: at("B/y"), mode: 0o755 },
        Op::Symlink { at: at("A/z"), target: "short".into() },
        Op::Symlink { at: at("B/y"), target: vec![b'l'; 200].into() },
        Op::Tmpfile { at: at("B/y"), mode: 0o600, linked: true },
        Op::Link { old: at("A/y"), new: at("B/y") },
        Op::Unlink { at: at("A/x") },
        Op::Unlink { at: at("B/x") },
        Op::Unlink { at: at("A/y") },
        Op::Rmdir { at: at("B/z") },
        rename("A/y", "A/z", RenameMode::Replace),
        rename("A/y", "B/x", RenameMode::Replace),
        rename("A/x", "B/y", RenameMode::NoReplace),
        rename("A/x", "A/y", RenameMode::Whiteout),
        rename("B/z", "A/z", RenameMode::Replace),
        rename("A", "B/z", RenameMode::Exchange),
        rename("A/y", "B/z", RenameMode::Exchange),
        Op::Truncate { at: at("A/y"), size: 0 },
        Op::Truncate { at: at("A/x"), size: 5000 },
        Op::Chmod { at: at("A/x"), mode: 0o4755 },
        Op::Chown { at: at("A/y"), uid: Some(70_000), gid: Some(1) },
        Op::Utimens {
            at: at("B/x"),
            atime: SetTime::Keep,
            mtime: SetTime::To(Time { secs: 1 << 33, nanos: 5 }),
        },
        set_xattr(10),
        set_xattr(1000),
        Op::RemoveXattr { at: at("B/x"), name: "user.a".into() },
    ]
}

/// Every sequence of `n` operations of the alphabet, with repetitions: `alphabet.len()` to the power of `n`,
/// in the order of the alphabet.
pub fn short_sequences(alphabet: &[Op], n: u32) -> impl Iterator<Item = Vec<Op>> {
    let len = alphabet.len();
    // An overflow means more sequences than any run could finish.
    let count = len.checked_pow(n).unwrap_or(usize::MAX);
    (0..count).map(move |number| {
        let digit = |place: u32| number / len.pow(place) % len;
        (0..n).rev().map(|place| alphabet[digit(place)].clone()).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::{Model, Subject};

    #[test]
    fn every_pair_comes_once() {
        let alphabet = short_alphabet();
        let pairs: HashSet<Vec<Op>> = short_sequences(&alphabet, 2).collect();
        assert_eq!(pairs.len(), alphabet.len() * alphabet.len());
        assert!(pairs.iter().all(|pair| pair.len() == 2));
    }

    #[test]
    fn every_operation_succeeds_first_or_after_another() {
        let mut start = Model::default();
        for op in short_setup() {
            start.apply(&op).unwrap();
        }
        let alphabet = short_alphabet();
        for op in &alphabet {
            let succeeds = |model: &Model| model.clone().apply(op).is_ok();
            let after_another = alphabet.iter().any(|first| {
                let mut model = start.clone();
                model.apply(first).is_ok() && succeeds(&model)
            });
            assert!(succeeds(&start) || after_another, "{op:?}");
        }
    }
}
