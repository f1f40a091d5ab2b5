//! What a failed operation may leave.

use super::picture::{Picture, Shown};
use super::step::Step;

/// Whether the attributes, the size and each byte of a file match one of these states. Bytes may also be zero
/// where they may not be on the device yet.
pub(super) fn is_one_of(found: &Shown, states: &[&Shown]) -> bool {
    let sizes = || states.iter().map(|state| state.size);
    let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    if !(least..=most).contains(&found.size) {
        return false;
    }
    if !states.iter().any(|state| state.attributes == found.attributes) {
        return false;
    }
    let is_any = |(at, byte): (usize, &u8)| {
        *byte == 0 || states.iter().any(|state| state.content.get(at) == Some(byte))
    };
    found.content.iter().enumerate().all(is_any)
}

/// The states of a path at these stages, and those of its inode under other paths.
pub(super) fn states_of<'s>(stages: &[&'s Picture], path: &[u8], shown: &Shown) -> Vec<&'s Shown> {
    let of = |stage: &&'s Picture| {
        let others = stage.paths.values().filter(|other| other.ino == shown.ino);
        stage.paths.get(path).into_iter().chain(others).collect::<Vec<_>>()
    };
    stages.iter().flat_map(of).collect()
}

/// Whether the file that `step` changes may be in this state, between the old and the new one.
pub(super) fn may_be_left(step: &Step, path: &[u8], found: &Shown, states: [&Picture; 2]) -> bool {
    let Some(own) = step.file().filter(|own| own.as_bytes() == path) else { return false };
    let states: Vec<&Shown> = states.iter().filter_map(|picture| picture.get(own)).collect();
    if let Step::Fallocate(_, extant_volume::Allocate::Collapse | extant_volume::Allocate::Insert, ..) = step
    {
        // The bytes may be on their way to another offset.
        return states.iter().any(|state| state.attributes == found.attributes);
    }
    is_one_of(found, &states)
}

/// Judges a disk whose journal was aborted: each path must have its state at one of the stages. Returns the
/// violations.
pub(super) fn after_abort(found: &Picture, stages: &[&Picture]) -> Vec<String> {
    let mut lines = Vec::new();
    let is_always = |path: &[u8]| stages.iter().all(|stage| stage.paths.contains_key(path));
    let all = stages.iter().flat_map(|stage| stage.paths.keys());
    for path in all.filter(|path| !found.paths.contains_key(*path) && is_always(path)) {
        lines.push(format!("/{} is missing", path.escape_ascii()));
    }
    for (path, shown) in &found.paths {
        let states = states_of(stages, path, shown);
        if states.is_empty() {
            lines.push(format!("/{} was never there", path.escape_ascii()));
        } else if !is_one_of(shown, &states) {
            lines.push(format!("/{} is as it never was: {} bytes", path.escape_ascii(), shown.size));
        }
    }
    lines.sort();
    lines.dedup();
    lines
}
