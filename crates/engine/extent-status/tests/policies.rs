//! What each policy keeps and reclaims, and how much it examines.

use extant_base::{Ino, Lblk};
use extant_extent_status::{Allocation, Cache, Entry, Inode, Options, Policy, Status};

/// The policies that keep the holes of delayed writes.
const KEEPERS: [Policy; 6] =
    [Policy::EsCache, Policy::EsSlist, Policy::EsIlist, Policy::EsGc, Policy::Upstream, Policy::EsChunk];

fn cache(policy: Policy) -> Cache {
    Cache::new(Options { policy, no_merge: true, ..Options::default() })
}

fn written(inode: &Inode, from: u32, count: u32) {
    for lblk in from..from + count {
        inode.cache(Entry::mapped(lblk, 1, (1 << 20) + u64::from(lblk) * 2, Status::Written));
    }
}

fn delayed(inode: &Inode, from: u32, count: u32) {
    (from..from + count).for_each(|lblk| inode.insert_delayed(Lblk(lblk), 1, (false, false)));
}

/// An inode with many delayed entries and one hole after them: policies that walk the tree examine all of it.
#[test]
fn policies_that_know_delayed_entries_do_not_walk_them() {
    for policy in Policy::ALL {
        let cache = cache(policy);
        let inode = cache.inode(Ino(12));
        delayed(&inode, 0, 20_000);
        assert_eq!(inode.insert(Entry::hole(20_000, 9), Allocation::Other).clusters(), 0);
        let scan = cache.scan(128);
        let looked_at_all = matches!(policy, Policy::Baseline | Policy::EsCache | Policy::EsSlist);
        assert_eq!(scan.scanned > 19_000, looked_at_all, "{policy:?}: {scan:?}");
        if policy != Policy::Upstream {
            // es-chunk gives new entries another round.
            let reclaimed = scan.reclaimed + cache.scan(128).reclaimed;
            assert_eq!(reclaimed, 1, "{policy:?}: {scan:?}");
        } else {
            assert_eq!((scan.reclaimed, scan.scanned), (0, 128), "{scan:?}");
        }
    }
}

/// Many inodes with delayed entries only, and a few with reclaimable entries after them.
#[test]
fn policies_that_list_reclaimable_inodes_do_not_walk_others() {
    for policy in Policy::ALL {
        let cache = cache(policy);
        let inodes: Vec<_> = (0..5000).map(|ino| cache.inode(Ino(ino + 12))).collect();
        inodes.iter().for_each(|inode| delayed(inode, 0, 2));
        inodes[4990..].iter().for_each(|inode| written(inode, 10, 20));
        cache.scan(0);
        let scan = cache.scan(64);
        assert_eq!(
            scan.inodes > 4900,
            !matches!(policy, Policy::Upstream | Policy::EsChunk),
            "{policy:?}: {scan:?}"
        );
    }
}

/// A scan of es-chunk examines entries in proportion to its request, whatever is cached.
#[test]
fn a_scan_of_es_chunk_is_bounded() {
    let cache = cache(Policy::EsChunk);
    let inodes: Vec<_> = (0..2000).map(|ino| cache.inode(Ino(ino + 12))).collect();
    for inode in &inodes {
        delayed(inode, 0, 30);
        written(inode, 100, 30);
        // Every entry was found: none is cold.
        (100..130).for_each(|lblk| assert!(inode.lookup(Lblk(lblk)).is_some()));
    }
    let mut scans = 0;
    while cache.count() > 0 {
        let scan = cache.scan(128);
        // One of them has its turn.
        assert!(scan.inodes == 1 && scan.scanned <= 60 + 1 && scan.reclaimed <= 30, "{scan:?}");
        scans += 1;
        assert!(scans < 10_000, "{} are left", cache.count());
    }
    inodes.iter().for_each(Inode::check);
}

/// Entries that were found stay while a stream that is read once goes by.
#[test]
fn a_stream_does_not_push_out_what_is_read_again() {
    for policy in KEEPERS {
        let cache = Cache::new(Options { policy, no_merge: true, limit: Some(1000), ..Options::default() });
        let reader = cache.inode(Ino(12));
        let streams: Vec<_> = (0..4).map(|at| cache.inode(Ino(13 + at))).collect();
        written(&reader, 0, 300);
        for round in 0..200_u32 {
            (0..300).for_each(|lblk| {
                if reader.lookup(Lblk(lblk)).is_none() {
                    written(&reader, lblk, 1);
                }
            });
            written(&streams[(round % 4) as usize], round * 100, 100);
        }
        let stats = cache.stats();
        let ages = matches!(policy, Policy::EsGc | Policy::Upstream | Policy::EsChunk);
        assert!(stats.hit_ratio() > if ages { 0.999 } else { 0.5 }, "{policy:?}: {}", stats.hit_ratio());
        assert!(ages || stats.misses > 100, "{policy:?} is not known to age: {} misses", stats.misses);
        assert!(stats.reclaimable <= 1000 + 128, "{policy:?}: {}", stats.reclaimable);
    }
}

/// An entry that was found once and never again does not stay forever.
#[test]
fn what_was_read_yesterday_goes() {
    let cache = Cache::new(Options {
        policy: Policy::EsChunk,
        no_merge: true,
        limit: Some(1000),
        ..Options::default()
    });
    let (old, new) = (cache.inode(Ino(12)), cache.inode(Ino(13)));
    written(&old, 0, 990);
    (0..990).for_each(|lblk| assert!(old.lookup(Lblk(lblk)).is_some()));
    for round in 0..200 {
        (0..800).for_each(|lblk| {
            if new.lookup(Lblk(lblk)).is_none() {
                written(&new, lblk, 1);
            }
        });
        if round == 150 {
            cache.reset_stats();
        }
    }
    let stats = cache.stats();
    assert!(stats.hit_ratio() > 0.99, "{} hits, {} misses", stats.hits, stats.misses);
}

/// A precached inode is reclaimed last, and only if nothing else can be.
#[test]
fn precached_inodes_give_last() {
    for policy in Policy::ALL {
        let cache = cache(policy);
        let (kept, other) = (cache.inode(Ino(12)), cache.inode(Ino(13)));
        kept.precache((0..200).map(|at| Entry::mapped(at * 2, 1, u64::from(at), Status::Written)));
        assert_eq!(kept.entries().len(), 399, "extents and what is between");
        written(&other, 0, 200);
        for _ in 0..40 {
            cache.scan(32);
            if other.entries().is_empty() {
                break;
            }
            assert_eq!(kept.entries().len(), 399, "{policy:?}");
        }
        assert!(other.entries().is_empty(), "{policy:?}");
        (0..200).for_each(|_| {
            cache.scan(128);
        });
        assert!(kept.entries().is_empty(), "{policy:?}: {} are left", kept.entries().len());
    }
}

/// An entry takes at most 24 bytes: written in order, in random order, and after most entries were removed.
#[test]
fn an_entry_takes_24_bytes_all_included() {
    for policy in [Policy::Baseline, Policy::Upstream, Policy::EsChunk] {
        for stride in [1, 7919] {
            let cache = cache(policy);
            let inode = cache.inode(Ino(12));
            // A stride coprime to the length visits every block.
            (0..20_000_u32).for_each(|at| written(&inode, at * stride % 20_000, 1));
            let check = |what: &str| {
                let stats = cache.stats();
                let each = stats.bytes as f64 / stats.entries as f64;
                assert!(each <= 24.0, "{policy:?}, stride {stride}, {what}: {each:.1} bytes");
                stats.entries
            };
            assert_eq!(check("full"), 20_000);
            (0..20_000).filter(|at| at % 3 != 0).for_each(|at| {
                let _ = inode.remove(Lblk(at), 1);
            });
            assert!(check("thinned out") > 6000);
            inode.check();
        }
    }
}

/// The text of the kernel's file.
#[test]
fn es_shrinker_info_has_the_kernels_lines() {
    let cache = cache(Policy::EsGc);
    let inode = cache.inode(Ino(12));
    written(&inode, 0, 300);
    delayed(&inode, 1000, 5);
    assert!(inode.lookup(Lblk(7)).is_some() && inode.lookup(Lblk(5000)).is_none());
    cache.scan(128);
    let info = cache.stats().es_shrinker_info();
    let lines: Vec<&str> = info.lines().map(str::trim).collect();
    assert_eq!(
        lines[..5],
        ["stats:", "177 objects", "172 reclaimable objects", "1/1 cache hits/misses", "1 inodes on list"]
    );
    assert!(
        lines[5] == "average:" && lines[6].ends_with(" us scan time") && lines[7] == "128 shrunk objects"
    );
    assert!(lines[8] == "maximum:" && lines[9] == "12 inode (177 objects, 172 reclaimable)", "{info}");
}
