//! What an export omits: devices, set-id bits, attributes by name.
//!
//! An untrusted image may contain set-uid programs, device nodes that open any disk, and capabilities;
//! written by root, they take effect. Owns: the options, and which parts they remove. Does **not** own:
//! copying.

use clap::Args;
use extant::walk::Loaded;
use extant::{Attribute, FileType};

use super::glob::NamePattern;
use super::print::is_device;

/// Options of commands that write what an image holds.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LeaveOut {
    /// Leave device nodes out.
    #[arg(long)]
    no_devices: bool,
    /// Leave set-uid and set-gid bits of files out, and capabilities (security.capability).
    #[arg(long)]
    no_setid: bool,
    /// Leave attributes out: all, or those whose names match, like --no-xattrs='security.*'.
    #[arg(
        long,
        value_name = "PATTERN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "*",
        value_parser = NamePattern::parse,
    )]
    no_xattrs: Vec<NamePattern>,
}

impl LeaveOut {
    /// Removes the omitted parts of an entry. `false`: the whole entry is omitted.
    pub(crate) fn apply(&self, loaded: &mut Loaded) -> bool {
        if self.no_setid && loaded.stat.kind != FileType::Directory {
            loaded.stat.mode &= !0o6000;
        }
        if let Ok(attributes) = &mut loaded.xattrs {
            self.retain(attributes);
        }
        !(self.no_devices && is_device(loaded.stat.kind))
    }

    /// Removes the omitted attributes.
    pub(crate) fn retain(&self, attributes: &mut Vec<Attribute>) {
        attributes.retain(|attribute| {
            let is_capability = attribute.name == b"security.capability";
            let is_excluded = self.no_xattrs.iter().any(|pattern| pattern.matches(&attribute.name));
            !(is_excluded || self.no_setid && is_capability)
        });
    }
}
