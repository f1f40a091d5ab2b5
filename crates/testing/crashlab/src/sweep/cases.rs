//! The table of operations: every operation on files of every kind, on a cold cache and after steps that
//! leave something in memory.

use extant_volume::{Allocate, Rename, Seek};

use super::World;
use super::step::Step;

/// An operation, and the steps before it.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// The steps before the operation; none of them fails.
    pub before: Vec<Step>,
    /// The operation; one of its reads, writes or flushes fails.
    pub step: Step,
}

impl Case {
    /// The file that the case concerns, or one that every world has.
    pub(super) fn own(&self) -> &'static str {
        let steps = [self.step].into_iter().chain(self.before.iter().copied());
        steps.filter_map(|step| step.file()).next().unwrap_or("even")
    }
}

/// Files whose bytes are changed.
const FILES: [&str; 7] = ["even", "pieces", "many", "unwritten", "empty", "tiny", "small"];

/// All cases of a world, in a fixed order.
#[must_use]
pub fn cases(world: World) -> Vec<Case> {
    let mut all = Vec::new();
    for file in FILES {
        for before in preludes(world, file) {
            for step in on_bytes(world, file) {
                all.push(Case { before: before.clone(), step });
            }
        }
    }
    for (before, step) in on_names(world) {
        all.push(Case { before, step });
    }
    all
}

/// Steps that leave something of a file in memory before the operation: none; dirty bytes in the middle, at
/// the end and after the end of the file; a changed map.
fn preludes(world: World, file: &'static str) -> Vec<Vec<Step>> {
    let bs = world.block_bytes();
    let mut all = vec![
        vec![],
        vec![Step::Write(file, bs + 100, 200)],
        vec![Step::Append(file, bs + 30)],
        vec![Step::Write(file, 260 * bs + 5, 2 * bs)],
        vec![Step::Append(file, 50), Step::WriteBack(u64::MAX)],
    ];
    if world.has_extents() {
        all.push(vec![Step::Fallocate(file, Allocate::Keep, 300 * bs, 5 * bs)]);
    }
    all
}

fn on_bytes(world: World, file: &'static str) -> Vec<Step> {
    let (bs, cluster) = (world.block_bytes(), world.cluster_bytes());
    let mut all = vec![
        // Into a block, to the end of a block, to zero; inside the last block of `even`; longer by a little
        // and by much; the same size.
        Step::Truncate(file, 4 * bs + 17),
        Step::Truncate(file, 2 * bs),
        Step::Truncate(file, 0),
        Step::Truncate(file, 20),
        Step::Truncate(file, 5 * bs + 100),
        Step::Truncate(file, 5 * bs + bs / 2 + 40),
        Step::Truncate(file, 30 * bs + 9),
        Step::Truncate(file, 5 * bs + bs / 2 + 4),
        Step::SizeAndMode(file, 3 * bs + 5, 0o600),
        Step::Write(file, 10, 50),
        Step::Write(file, bs / 2, 3 * bs),
        Step::Write(file, 5 * bs + bs / 2 + 4, 2 * bs),
        Step::Write(file, 40 * bs + 300, 100),
        Step::Append(file, 70),
        Step::WriteDirect(file, 2 * bs, 2 * bs),
        Step::WriteDirect(file, 4 * bs, 4 * bs),
        Step::WriteDirect(file, 10, 100),
        Step::Read(file, 0, 40 * bs),
        Step::ReadDirect(file, 0, 40 * bs),
        Step::Seek(file, Seek::Hole, 0),
        Step::Extents(file),
        Step::Copy(file, bs, "even", 3 * bs + 7, 3 * bs),
        Step::Copy("pieces", bs + 9, file, 2 * bs + 3, 6 * bs),
        Step::Copy("pieces", 0, file, 8 * bs, 9 * bs),
        Step::Fallocate(file, Allocate::Punch, bs + 8, 3 * bs),
        Step::Fallocate(file, Allocate::Punch, 0, 4 * bs),
        Step::Unlink(file),
        Step::UnlinkOpen(file),
        Step::Rename("hard", file, Rename::Replace),
        Step::Rename(file, "d/moved", Rename::Replace),
        Step::Link(file, "d/linked"),
        Step::Chmod(file, 0o4711),
        Step::SetXattr(file, "user.new", 600),
        Step::Fsync(file),
        Step::Fdatasync(file),
        Step::Closing(file),
        Step::WriteBack(bs),
        Step::WriteBack(u64::MAX),
        Step::Commit,
        Step::Sync,
    ];
    if world.has_extents() {
        use Allocate::{Collapse, Insert, Keep, Reserve, WriteZeroes, Zero, ZeroKeep};
        let allocate = |mode, pos, len| Step::Fallocate(file, mode, pos, len);
        all.extend([
            allocate(Reserve, 3 * bs, 6 * bs),
            allocate(Reserve, 50 * bs, 3 * bs + 7),
            allocate(Keep, 4 * bs, 8 * bs),
            allocate(Zero, bs + 8, 2 * bs),
            allocate(Zero, 4 * bs + 9, 20 * bs),
            allocate(ZeroKeep, 2 * bs, 6 * bs),
            allocate(WriteZeroes, bs / 2, 4 * bs),
            allocate(Collapse, cluster, cluster),
            allocate(Collapse, 0, cluster),
            allocate(Insert, cluster, 2 * cluster),
            allocate(Insert, 0, cluster),
        ]);
    }
    all
}

fn on_names(world: World) -> Vec<(Vec<Step>, Step)> {
    let large = "large/000-a-name-that-takes-some-room-in-its-leaf";
    let mut steps = vec![
        Step::Create("d/new"),
        Step::Create("large/new"),
        Step::Create("acl-dir/new"),
        Step::Create("even"),
        Step::Mkdir("new"),
        Step::Mkdir("acl-dir/new"),
        Step::Symlink("d/short", 30),
        Step::Symlink("d/long", 300),
        Step::Mknod("d/device"),
        Step::Tmpfile("d/tmpfile"),
        Step::TmpfileDropped,
        Step::Link("hard", "d/hardest"),
        Step::Link("acl", "large/acl"),
        Step::Unlink("hard"),
        Step::Unlink(large),
        Step::Unlink("attr"),
        Step::Unlink("acl"),
        Step::Unlink("long-link"),
        Step::Unlink("fifo"),
        Step::Unlink("d/a"),
        Step::UnlinkOpen("attr"),
        Step::Rmdir("d/sub"),
        Step::Rmdir("d"),
        Step::Rmdir("large"),
        Step::Rename("d/a", "d/renamed", Rename::Replace),
        Step::Rename("d/a", "e/c", Rename::Replace),
        Step::Rename("d/a", "d/renamed", Rename::NoReplace),
        Step::Rename("d/a", "e/c", Rename::NoReplace),
        Step::Rename("d/a", "e/c", Rename::Exchange),
        Step::Rename("d/a", "e/moved", Rename::Whiteout),
        Step::Rename("d/sub", "e/sub", Rename::Replace),
        Step::Rename("d/sub", "e/c", Rename::Exchange),
        Step::Rename("d", "e", Rename::Exchange),
        Step::Rename("hard", "large/hard", Rename::Replace),
        Step::Rename(large, "d/small", Rename::Replace),
        Step::Chmod("acl", 0o640),
        Step::Chmod("d", 0o700),
        Step::Chown("even", 70_000, 5),
        Step::Chown("value", 70_001, 6),
        Step::Chown("long-link", 1, 1),
        Step::Times("d"),
        Step::Flags("even", extant_ondisk::inode::flags::NODUMP),
        Step::Flags("empty", extant_ondisk::inode::flags::SYNC),
        Step::SetXattr("attr", "user.shared", 500),
        Step::SetXattr("attr", "user.more", 100),
        Step::SetXattr("attr-inside", "user.short", 7),
        Step::SetXattr("attr-inside", "user.long", 700),
        Step::SetXattr("d", "user.on-directory", 300),
        Step::SetXattr("tiny", "user.inline", 30),
        Step::RemoveXattr("attr", "user.shared"),
        Step::RemoveXattr("attr-inside", "user.short"),
        Step::GetXattrs("attr"),
        Step::SetAcl("even", "system.posix_acl_access"),
        Step::SetAcl("acl", "system.posix_acl_access"),
        Step::SetAcl("d", "system.posix_acl_default"),
        Step::ReadLink("long-link"),
        Step::ReadDir("d"),
        Step::ReadDir("large"),
        Step::Stat("d/a"),
        Step::Stat(large),
        Step::Statfs,
        Step::Sync,
        Step::Checkpoint,
        Step::Trim,
    ];
    if matches!(world, World::Blocks1K | World::Quotas) {
        steps.extend([
            Step::SetXattr("value", "user.large", 4000),
            Step::SetXattr("attr", "user.large", 2500),
            Step::RemoveXattr("value", "user.large"),
            Step::GetXattrs("value"),
            Step::Unlink("value"),
            Step::UnlinkOpen("value-too"),
        ]);
    }
    if world == World::Quotas {
        steps.push(Step::Project("even", 77));
    }
    // On a cold cache, and after changes that are not committed yet.
    let change = vec![Step::Create("d/before"), Step::Unlink("e/c"), Step::Append("hard", 40)];
    let plain = steps.iter().map(|step| (Vec::new(), *step));
    let busy = steps.iter().map(|step| (change.clone(), *step));
    plain.chain(busy).collect()
}
