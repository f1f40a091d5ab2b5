//! Random operations on the same few objects, so that they often interact.
//!
//! The generator keeps its own model to choose useful operations: most names that should exist do exist, most
//! that should be free are free, and the rest cause errors. The same seed and options always give the same
//! operations.

use crate::Subject;
use crate::acl::{Acl, AclEntry, tag};
use crate::model::{Limits, Model};
use crate::op::{AclType, At, Bytes, Op, Rdev, RenameMode, SetTime, Special, Time, XattrMode};
use crate::rng::Rng;

/// Names of the small alphabet; three of them have the maximum length.
const N_SHORT: usize = 8;
const N_LONG: usize = 3;
/// Maximum height of the tree after a directory was moved.
const MAX_HEIGHT: usize = 12;
/// Attempts to find a suitable place.
const N_TRIES: u32 = 6;

/// Options of a [`Generator`].
#[derive(Debug, Clone)]
pub struct Options {
    /// What the subjects' answers depend on. The lengths of values follow them, so that only few attributes
    /// do not fit.
    pub limits: Limits,
    /// Names in addition to the small alphabet: 0, or thousands for directories with an index.
    pub many_names: u32,
    /// Minimum length of these names in bytes: with long names, few fill a block.
    pub many_names_len_min: usize,
    /// With more objects than this, more are removed than created.
    pub n_objects_max: usize,
    /// Operations on extended attributes.
    pub xattrs: bool,
    /// Mostly attributes and ACLs, with longer values on few objects, so that their room often runs out.
    pub mostly_attributes: bool,
    /// Operations on ACLs. ACLs are attributes, too, but `xattrs` does not turn them off.
    pub acls: bool,
    /// Includes `security.capability` in the attributes; chown and truncate drop it.
    pub capabilities: bool,
    /// With `ea_inode`: values in EA inodes also for short symlinks.
    ///
    /// e2fsck 1.47.0 reports such a symlink ("has illegal block(s)"), also in an image that the kernel's ext4
    /// made. The blocks of the value count in `i_blocks`, so e2fsck reads the target as block numbers.
    pub short_symlinks_with_ea_inodes: bool,
    /// Renames with whiteouts and exchanges, and files without a name.
    pub linux_only: bool,
}

impl Default for Options {
    /// All operations whose results e2fsck accepts, in a small tree.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            many_names: 0,
            many_names_len_min: 0,
            n_objects_max: 300,
            xattrs: true,
            mostly_attributes: false,
            acls: true,
            capabilities: true,
            short_symlinks_with_ea_inodes: false,
            linux_only: true,
        }
    }
}

/// An endless iterator of operations.
#[derive(Debug, Clone)]
pub struct Generator {
    seed: u64,
    rng: Rng,
    options: Options,
    model: Model,
    names: Vec<Box<[u8]>>,
}

impl Generator {
    /// The operations of a seed; it starts with an empty file system.
    #[must_use]
    pub fn new(seed: u64, options: Options) -> Self {
        let mut names: Vec<Box<[u8]>> = (0..N_SHORT).map(|n| Box::from([b'a' + n as u8])).collect();
        names.extend((0..N_LONG).map(|n| vec![b'x' + n as u8; 255].into_boxed_slice()));
        // The names are so long that a few thousand fill more leaves than one index block points to.
        names.extend((0..options.many_names).map(|n| {
            let mut name = format!("name-{n:06}").into_bytes();
            name.resize((name.len() + n as usize % 64).max(options.many_names_len_min), b'+');
            name.into_boxed_slice()
        }));
        Self { seed, rng: Rng::new(seed), model: Model::new(options.limits), options, names }
    }

    /// The seed, which repeats the operations.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The file system after all operations so far.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    fn random_name(&mut self) -> Box<[u8]> {
        self.rng.pick(&self.names).clone()
    }

    /// A directory that exists.
    fn dir(&mut self) -> Vec<u8> {
        let mut path = Vec::new();
        while !self.rng.one_in(3) {
            let here = join(&path, b".");
            let child = (0..3).find_map(|_| {
                let from = self.rng.pick(&self.names);
                let (name, is_dir) = self.model.inodes.next_name(&here, from)?;
                is_dir.then(|| name.to_vec())
            });
            let Some(child) = child else { break };
            path = join(&path, &child).path().to_vec();
        }
        path
    }

    /// A place in an existing directory; seldom one below a missing directory.
    fn place_in(&mut self, dir: &[u8]) -> At {
        match self.rng.below(100) {
            0 => join(dir, &[b'w'; 256]),
            1 => join(dir, b"."),
            // Paths above the root of the tree are out of scope.
            2 if !dir.is_empty() => join(dir, b".."),
            3 => {
                let (first, second) = (self.random_name(), self.random_name());
                join(join(dir, &first).path(), &second)
            }
            _ => join(dir, &self.random_name()),
        }
    }

    /// A place that is probably free, or at least random.
    fn new_place(&mut self) -> At {
        let dir = self.dir();
        self.place_in(&dir)
    }

    /// A place that probably exists. `wanted`: whether it should be a directory.
    fn place(&mut self, wanted: Option<bool>) -> At {
        let dir = self.dir();
        if self.rng.percent(20) {
            return self.place_in(&dir);
        }
        let mut found = None;
        for _ in 0..N_TRIES {
            let dir = self.dir();
            let from = self.rng.pick(&self.names);
            let Some((name, is_dir)) = self.model.inodes.next_name(&join(&dir, b"."), from) else { continue };
            found = Some(join(&dir, name));
            if wanted.is_none_or(|wanted| wanted == is_dir) {
                break;
            }
        }
        found.unwrap_or_else(|| self.place_in(&dir))
    }

    /// A directory that can probably be removed.
    fn empty_dir(&mut self) -> At {
        let mut at = self.place(Some(true));
        for _ in 0..N_TRIES {
            let is_dir = self.model.inodes.height(&at, 1) == 1;
            if is_dir && self.model.inodes.next_name(&join(at.path(), b"."), b"").is_none() {
                break;
            }
            at = self.place(Some(true));
        }
        at
    }

    fn mode(&mut self) -> u16 {
        let permissions =
            *self.rng.pick(&[0o644, 0o755, 0o700, 0o600, 0o777, 0o000, 0o751, 0o664, 0o070, 0o007]);
        if self.rng.percent(25) {
            permissions | *self.rng.pick(&[0o4000, 0o2000, 0o1000, 0o6000, 0o7000, 0o4010])
        } else {
            permissions
        }
    }

    fn special(&mut self) -> Special {
        // Both encodings of device numbers, their limits, and the device number of a whiteout.
        const NUMBERS: [(u32, u32); 7] =
            [(0, 0), (1, 3), (255, 255), (256, 1), (8, 256), (4095, (1 << 20) - 1), (0, 77)];
        let (major, minor) = *self.rng.pick(&NUMBERS);
        let rdev = Rdev { major, minor };
        *self.rng.pick(&[Special::Fifo, Special::Socket, Special::Char(rdev), Special::Block(rdev)])
    }

    fn target(&mut self) -> Bytes {
        // An inode holds 59 bytes at most, a block 4095.
        let len = match self.rng.below(20) {
            0 => *self.rng.pick(&[0, 4095, 4096]),
            1..5 => *self.rng.pick(&[58, 59, 60, 61]),
            5 => self.options.limits.block_size as usize - 2 + self.rng.index(3),
            6..8 => 60 + self.rng.index(1000),
            _ => 1 + self.rng.index(40),
        };
        pattern(len, b'a' + self.rng.index(26) as u8)
    }

    fn id(&mut self) -> Option<u32> {
        const IDS: [Option<u32>; 8] = [
            None,
            Some(0),
            Some(1),
            Some(1000),
            Some(65_534),
            Some(65_536),
            Some(100_000),
            Some(u32::MAX - 1),
        ];
        *self.rng.pick(&IDS)
    }

    fn time(&mut self) -> SetTime {
        let secs = match self.rng.below(20) {
            // The limits of 32 bits, of the epochs, of 34 bits, and beyond.
            0..4 => *self.rng.pick(&[
                -1,
                0,
                -(1 << 31),
                (1 << 31) - 1,
                1 << 31,
                (1 << 32) + 5,
                (1 << 34) - (1 << 31) - 1,
            ]),
            4 => *self.rng.pick(&[-(1 << 31) - 1, 1 << 34, i64::MAX, i64::MIN]),
            5..8 => return SetTime::Now,
            8..11 => return SetTime::Keep,
            _ => 1_000_000_000 + self.rng.below(1_000_000_000) as i64,
        };
        let nanos = *self.rng.pick(&[0, 1, 500_000_000, 999_999_999]);
        let nanos = if self.rng.one_in(200) { 1_000_000_000 } else { nanos };
        SetTime::To(Time { secs, nanos })
    }

    fn size(&mut self) -> u64 {
        let max = self.options.limits.max_size();
        match self.rng.below(20) {
            0 => *self.rng.pick(&[max, max + 1, max - 1, i64::MAX as u64, u64::MAX, 1 << 32, 1 << 40]),
            1..5 => *self.rng.pick(&[4095, 4096, 4097, 8192, 1]),
            5..8 => 0,
            _ => self.rng.below(1 << 24),
        }
    }

    fn xattr_name(&mut self) -> Bytes {
        if self.options.capabilities && self.rng.one_in(12) {
            return Bytes::from("security.capability");
        }
        match self.rng.below(100) {
            0 => {
                Bytes::from(*self.rng.pick(&["user.", "system.other", "nonsense", "other.a", "system.data"]))
            }
            1 => {
                let len = *self.rng.pick(&[255, 256]);
                let mut name = b"trusted.".to_vec();
                name.resize(len, b'l');
                Bytes(name)
            }
            _ => {
                let prefix = *self.rng.pick(&["user", "user", "trusted", "security"]);
                let name = *self.rng.pick(&["a", "b", "c", "comment", "a.rather.long.name.of.an.attribute"]);
                Bytes::from(format!("{prefix}.{name}"))
            }
        }
    }

    fn value(&mut self, name: &Bytes) -> Bytes {
        let fill = self.rng.bits() as u8;
        if name.0 == b"security.capability" && !self.rng.one_in(20) {
            let mut value = vec![0, 0, 0, 2];
            value.resize(20, fill);
            return Bytes(value);
        }
        let is_spacious = self.options.limits.ea_inode;
        let range = if self.options.mostly_attributes { 40 } else { 200 };
        // Lengths near the size of a block, for each block size; and lengths up to it.
        let block = self.options.limits.block_size as usize;
        let len = match self.rng.below(range) {
            0 => block - 60 + self.rng.index(10),
            1 => *self.rng.pick(&[block + 4, 65_537]),
            2..10 => block / 8 + self.rng.index(block - block / 8),
            10 if is_spacious => *self.rng.pick(&[5000, 65_535, 65_536, 12_288]),
            // Lengths around the limit that leaves an eighth of the block for entries.
            11..14 if is_spacious => block - block / 8 - 100 + self.rng.index(200),
            14..30 => 60 + self.rng.index(400),
            _ => self.rng.index(50),
        };
        // Never the length of a valid capability.
        let len = if name.0 == b"security.capability" { 7 } else { len };
        pattern(len, fill)
    }

    fn acl(&mut self) -> Acl {
        let mut entries = Vec::new();
        let (n_users, n_groups) = match self.rng.below(4) {
            0 => (0, 0),
            1 => (1, 0),
            2 => (self.rng.index(3), self.rng.index(3)),
            _ => (self.rng.index(2), self.rng.index(6)),
        };
        let mut add = |tag, rng: &mut Rng| {
            let id = *rng.pick(&[0, 1000, 1001, 65_536]);
            entries.push(AclEntry { tag, perm: rng.below(8) as u16, id });
        };
        let rng = &mut self.rng;
        add(tag::USER_OBJ, rng);
        (0..n_users).for_each(|_| add(tag::USER, rng));
        add(tag::GROUP_OBJ, rng);
        (0..n_groups).for_each(|_| add(tag::GROUP, rng));
        if n_users + n_groups > 0 || rng.one_in(4) {
            add(tag::MASK, rng);
        }
        add(tag::OTHER, rng);
        if rng.one_in(12) {
            // Usually an invalid ACL: an entry missing, duplicate, out of order, or with an extra bit.
            let at = rng.index(entries.len());
            match rng.below(5) {
                0 => drop(entries.remove(at)),
                1 => entries.push(entries[at]),
                2 => entries.swap(0, at),
                3 => entries[at].perm |= 8,
                _ => entries.clear(),
            }
        }
        Acl { entries }
    }

    fn acl_value(&mut self) -> Bytes {
        let mut value = self.acl().to_xattr();
        match self.rng.below(5) {
            0 => value[0] = 1,
            1 => value.truncate(3),
            2 => value.push(0),
            3 if value.len() > 4 => value[4] = 3,
            _ => {}
        }
        Bytes(value)
    }

    fn rename(&mut self) -> Op {
        let old = self.place(None);
        let new = if self.rng.percent(50) { self.place(None) } else { self.new_place() };
        let mode = match self.rng.below(10) {
            0..6 => RenameMode::Replace,
            6 => RenameMode::NoReplace,
            7 | 8 if self.options.linux_only => RenameMode::Exchange,
            _ if self.options.linux_only => RenameMode::Whiteout,
            _ => RenameMode::Replace,
        };
        let depth = |at: &At| at.dirs().count();
        let height = |at: &At| self.model.inodes.height(at, MAX_HEIGHT);
        let is_low = |from: &At, to: &At| depth(to) + height(from) < MAX_HEIGHT;
        if is_low(&old, &new) && (mode != RenameMode::Exchange || is_low(&new, &old)) {
            Op::Rename { old, new, mode }
        } else {
            Op::Stat { at: old }
        }
    }

    /// One of the first few objects in the root with this probability in percent, otherwise any.
    fn hot_place(&mut self, percent: u64) -> At {
        let percent = if self.options.mostly_attributes { 90 } else { percent };
        if self.rng.percent(percent) {
            let from = &self.names[self.rng.index(3)];
            if let Some((name, _)) = self.model.inodes.next_name(&At::new("."), from) {
                return At::new(name);
            }
        }
        self.place(None)
    }

    fn xattr_op(&mut self) -> Op {
        // Often the same few objects, so that the room of their attributes runs out.
        let at = self.hot_place(50);
        let name = self.xattr_name();
        match self.rng.below(10) {
            0..6 => {
                let value = self.value(&name);
                let mode = *self.rng.pick(&[
                    XattrMode::Any,
                    XattrMode::Any,
                    XattrMode::Any,
                    XattrMode::Create,
                    XattrMode::Replace,
                ]);
                Op::SetXattr { at, name, value, mode }
            }
            6..9 => Op::RemoveXattr { at, name },
            _ => Op::GetXattr { at, name },
        }
    }

    fn acl_op(&mut self) -> Op {
        let acl_type = if self.rng.percent(50) { AclType::Access } else { AclType::Default };
        let at = match acl_type {
            AclType::Default => self.place(Some(true)),
            AclType::Access => self.hot_place(10),
        };
        let name = Bytes::from(acl_type.xattr_name());
        match self.rng.below(20) {
            0..12 => Op::SetAcl { at, acl_type, acl: self.acl() },
            12..18 => Op::RemoveXattr { at, name },
            18 => Op::SetXattr { at, name, value: self.acl_value(), mode: XattrMode::Create },
            _ => Op::GetXattr { at, name },
        }
    }

    fn op(&mut self) -> Op {
        let is_full = self.model.n_inodes() > self.options.n_objects_max;
        if is_full && self.rng.percent(60) {
            return if self.rng.percent(70) {
                Op::Unlink { at: self.place(Some(false)) }
            } else {
                Op::Rmdir { at: self.empty_dir() }
            };
        }
        if self.options.mostly_attributes && self.rng.percent(80) {
            let is_acl = self.options.acls && self.rng.one_in(5);
            return if is_acl { self.acl_op() } else { self.xattr_op() };
        }
        // An index needs many names, so more are created than removed.
        if self.options.many_names > 0 && !is_full && self.rng.percent(50) {
            let (at, mode) = (self.new_place(), self.mode());
            return match self.rng.below(4) {
                0 => Op::Link { old: self.place(Some(false)), new: at },
                _ => Op::Create { at, mode },
            };
        }
        match self.rng.below(100) {
            0..12 => Op::Create { at: self.new_place(), mode: self.mode() },
            12..16 => Op::Mknod { at: self.new_place(), mode: self.mode(), special: self.special() },
            16..22 => Op::Mkdir { at: self.new_place(), mode: self.mode() },
            22..26 => Op::Symlink { at: self.new_place(), target: self.target() },
            26..32 => Op::Link { old: self.place(Some(false)), new: self.new_place() },
            32..41 => Op::Unlink { at: self.place(Some(false)) },
            41..44 => Op::Rmdir { at: self.place(Some(true)) },
            44..46 => Op::Rmdir { at: self.empty_dir() },
            46..58 => self.rename(),
            58..64 => Op::Chmod { at: self.place(None), mode: self.mode() },
            64..69 => Op::Chown { at: self.place(None), uid: self.id(), gid: self.id() },
            69..73 => Op::Utimens { at: self.place(None), atime: self.time(), mtime: self.time() },
            73..78 => Op::Truncate { at: self.place(Some(false)), size: self.size() },
            78..88 if self.options.xattrs => self.xattr_op(),
            88..93 if self.options.acls => self.acl_op(),
            93..95 if self.options.linux_only => {
                let at = self.new_place();
                Op::Tmpfile { at, mode: self.mode(), linked: self.rng.percent(70) }
            }
            95 => Op::Readdir { at: self.place(None) },
            96 => Op::Readlink { at: self.place(None) },
            97 => Op::GetXattr { at: self.place(None), name: self.xattr_name() },
            _ => Op::Stat { at: self.place(None) },
        }
    }
}

impl Iterator for Generator {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        let mut op = self.op();
        if let Op::SetXattr { at, .. } = &op
            && !self.options.short_symlinks_with_ea_inodes
            && self.model.adds_ea_inode_to_short_symlink(&op)
        {
            op = Op::Stat { at: at.clone() };
        }
        // The iterator returns operations that fail, too.
        let _ = self.model.apply(&op);
        Some(op)
    }
}

fn join(dir: &[u8], name: &[u8]) -> At {
    if dir.is_empty() { At::new(name) } else { At::new([dir, name].join(&b'/')) }
}

/// A value defined by its length and first byte: each byte is the one before plus 7; 0 and `/` are replaced.
fn pattern(len: usize, first: u8) -> Bytes {
    let byte = |n: usize| first.wrapping_add(((n % 256) as u8).wrapping_mul(7));
    Bytes((0..len).map(byte).map(|byte| if matches!(byte, 0 | b'/') { b'_' } else { byte }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_itself() {
        let ops = |seed| Generator::new(seed, Options::default()).take(1000).collect::<Vec<_>>();
        assert_eq!(ops(7), ops(7));
        assert_ne!(ops(7), ops(8));
    }

    #[test]
    fn the_tree_neither_dies_nor_bursts() {
        let mut generator = Generator::new(3, Options::default());
        let (mut least, mut most) = (usize::MAX, 0);
        for n in 0..50_000 {
            generator.next();
            if n > 5_000 {
                least = least.min(generator.model().n_inodes());
                most = most.max(generator.model().n_inodes());
            }
        }
        assert!(least >= 20 && most <= 1500, "{least} to {most} objects");
    }

    #[test]
    fn nothing_is_asked_above_the_root() {
        let asks = |op: &Op| format!("{op:?}").contains("at: ..,");
        assert!(!Generator::new(4, Options::default()).take(20_000).any(|op| asks(&op)));
    }
}
