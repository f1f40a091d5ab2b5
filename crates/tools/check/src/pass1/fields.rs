//! Fields of an inode that can be checked in isolation.

use extant_base::Pblk;
use extant_ondisk::Features;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;

use crate::FindingPlace;
use crate::pass1::special::Role;
use crate::pass1::subject::Subject;
use crate::rules::inode as rules;
use crate::xattrs::{self, InodeAttrs};

impl Subject<'_, '_> {
    /// Reports the rule only for an inode that entries may name; no reader uses these fields of other inodes.
    fn broken_if_seen(&self, role: Role, rule: &'static crate::Rule, says: impl Into<String>) {
        self.broken(if role.hides() { &rules::HIDDEN_FIELDS } else { rule }, says);
    }

    fn features(&self) -> &Features {
        &self.state.image.sb.features
    }

    pub(super) fn is_inline(&self) -> bool {
        self.inode.has_flag(flags::INLINE_DATA) && self.features().has_incompat(Features::INLINE_DATA)
    }

    /// Is the target of this symbolic link in `i_block`? Short targets always are.
    pub(super) fn is_fast_symlink(&self) -> bool {
        self.inode.size < 60
    }

    /// Checks flags and small fields.
    pub(super) fn fields(&self, role: Role) {
        let inode = self.inode;
        let f = self.features();
        let kind = FileType::from_mode(inode.mode);
        let is_dir = kind == FileType::Directory;
        if inode.obso_faddr != 0 {
            self.broken_if_seen(role, &rules::FADDR, format!("it is {}", inode.obso_faddr));
        }
        let room = self.bytes.len().saturating_sub(128);
        let extra = usize::from(inode.extra_isize);
        if extra != 0 && (extra < 4 || !extra.is_multiple_of(4) || extra > room) {
            self.broken_if_seen(
                role,
                &rules::EXTRA_ISIZE,
                format!("extra_isize is {extra}, there is room for {room}"),
            );
        }
        if inode.has_flag(flags::EXTENTS) && !role.is_unread() && !f.has_incompat(Features::EXTENTS) {
            self.broken(&rules::EXTENTS_FLAG, "the flag is set, the feature is not");
        }
        let misplaced = |flag: &str| self.broken(&rules::FLAG, format!("the flag {flag} is set"));
        let unseen = |flag: &str| self.broken_if_seen(role, &rules::FLAG, format!("the flag {flag} is set"));
        if inode.has_flag(flags::IMAGIC) && !f.has_compat(Features::IMAGIC) {
            unseen("imagic, without the feature");
        }
        if inode.has_flag(flags::INDEX) && !role.is_unread() && !(is_dir && f.has_compat(Features::DIR_INDEX))
        {
            misplaced("index, but not on a directory of a file system with the feature");
        }
        if inode.has_flag(flags::CASEFOLD) && !(is_dir && f.has_incompat(Features::CASEFOLD)) {
            misplaced("casefold, but not on a directory of a file system with the feature");
        }
        if inode.has_flag(flags::INLINE_DATA) && !f.has_incompat(Features::INLINE_DATA) {
            let says = "inline_data, without the feature";
            let idle = matches!(role, Role::Boot | Role::Idle | Role::Reserved);
            if idle { unseen(says) } else { misplaced(says) }
        }
        let special = !matches!(kind, FileType::Regular | FileType::Directory | FileType::Unknown);
        if special && inode.flags & (flags::IMMUTABLE | flags::APPEND) != 0 {
            self.broken(&rules::IMMUTABLE, format!("flags are {:#x}", inode.flags));
        }
        let times = [inode.atime, inode.ctime, inode.mtime, inode.crtime];
        if times.iter().any(|time| time.nanos >= 1_000_000_000) && !inode.has_flag(flags::EA_INODE) {
            self.broken(&rules::TIME, "nanoseconds are a second or more");
        }
    }

    /// Returns the file type, after checking the rules of types that have no map.
    pub(super) fn kind(&self, role: Role) -> FileType {
        let inode = self.inode;
        if role.is_unread() {
            return FileType::Unknown;
        }
        let kind = FileType::from_mode(inode.mode);
        match kind {
            FileType::Unknown if matches!(role, Role::File) => {
                self.broken(&rules::MODE, format!("the mode is {:#o}", inode.mode));
            }
            FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket => {
                if inode.size != 0 {
                    self.broken(&rules::SPECIAL_SIZE, format!("the size is {}", inode.size));
                }
                let locked = inode.flags & (flags::IMMUTABLE | flags::APPEND) != 0;
                let more = inode.block[8..].iter().any(|byte| *byte != 0);
                if inode.flags & (flags::EXTENTS | flags::INDEX) != 0 || (locked && more) {
                    self.broken(&rules::SPECIAL, format!("flags are {:#x}", inode.flags));
                }
            }
            _ => {}
        }
        kind
    }

    /// Checks the attributes in the inode and in its attribute block.
    pub(super) fn attributes(&self, role: Role) -> InodeAttrs {
        let inode = self.inode;
        let image = &self.state.image;
        let mut attrs = InodeAttrs::default();
        let f = self.features();
        let at = inode.xattr_offset();
        if self.bytes.len() > 128 && inode.extra_isize >= 4 && at < self.bytes.len() {
            xattrs::in_inode(self.state, self.ino, &self.bytes[at..], &mut attrs);
        }
        let wide = f.has_incompat(Features::BIT64);
        let block = Pblk(if wide { inode.file_acl } else { inode.file_acl & 0xFFFF_FFFF });
        if !wide && inode.file_acl > 0xFFFF_FFFF {
            self.broken_if_seen(
                role,
                &rules::HIGH,
                format!("the attribute block's number is {}", inode.file_acl),
            );
        }
        if block.0 != 0 && role.is_unread() {
            self.broken(&rules::HIDDEN_FIELDS, format!("the attribute block is said to be block {block}"));
        } else if block.0 != 0 {
            if image.is_data_block(block) && f.has_compat(Features::EXT_ATTR) {
                attrs.block = true;
                xattrs::block(self.state, block, &mut attrs);
            } else {
                let inside = image.is_inside(block, 1);
                let rule = if role.hides() && !inside {
                    &rules::HIDDEN_FIELDS
                } else {
                    &crate::rules::xattr::BLOCK_PLACE
                };
                let says = format!("the attribute block is said to be block {block}");
                self.state.findings.broken(rule, FindingPlace::ino(self.ino).in_block(block), says);
            }
        }
        if inode.has_flag(flags::ENCRYPT) && !attrs.encryption {
            self.broken_if_seen(
                role,
                &rules::FLAG,
                "the flag encrypt is set, but there is no encryption context",
            );
        }
        if self.is_inline() {
            self.inline(&attrs);
        }
        attrs
    }

    fn inline(&self, attrs: &InodeAttrs) {
        let inode = self.inode;
        let whole = 60 + attrs.inline_tail.len() as u64;
        if inode.has_flag(flags::EXTENTS) {
            self.broken(&rules::INLINE, "the flags inline_data and extents are both set");
        }
        if !attrs.inline {
            self.broken(&rules::INLINE, "there is no attribute system.data");
        } else if FileType::from_mode(inode.mode) == FileType::Directory && inode.size != whole {
            // The size may be larger: mke2fs stores a file that is one hole inline.
            self.state.findings.differs(
                &rules::INLINE,
                FindingPlace::ino(self.ino),
                "the size",
                inode.size,
                whole,
            );
        }
    }
}
