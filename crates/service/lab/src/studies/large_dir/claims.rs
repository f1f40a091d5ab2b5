//! The claims of the posting about large directories, and the verdict of these figures on each.

use super::{
    BYTES_PER_NAME, HDD_LARGE, HDD_NORMAL, Kind, LARGE, Measured, NVME_LARGE, NVME_NORMAL, Share, Variant,
    map_bytes_per_block, strings,
};
use crate::drive::Drive;
use crate::report::{Change, Claim, Verdict};

impl Measured {
    /// All claims, as far as they were measured.
    pub(super) fn claims(&self) -> Vec<Claim> {
        let (low, high) = HDD_NORMAL;
        let claims = [
            self.normal_rate(Drive::Hdd, high, format!("{low:.0} to {high:.0} creates/s")),
            self.normal_rate(Drive::Nvme, NVME_NORMAL, format!("about {NVME_NORMAL:.0} creates/s")),
            self.collapse(Drive::Hdd, f64::midpoint(low, high), HDD_LARGE),
            self.collapse(Drive::Nvme, NVME_NORMAL, NVME_LARGE),
            self.leaves_in_memory(),
            self.leaf_bytes(),
            self.tea(),
            self.links(),
            self.block_mapped(),
            self.bigalloc(),
        ];
        claims.into_iter().flatten().collect()
    }

    fn kernel_text(&self) -> Option<String> {
        let (links, files) = self.kernel.as_ref()?;
        Some(format!(
            "{:.0} links/s with {} names, {:.0} files/s by mknod with {} names, on this machine's mount",
            links.per_s, links.done, files.per_s, files.done
        ))
    }

    fn normal_rate(&self, drive: Drive, best: f64, posting: String) -> Option<Claim> {
        let rate = self.rate(Kind::Normal, drive, Share::All)?.avg;
        let memory = self.rate(Kind::Normal, Drive::Memory, Share::All)?.avg;
        let ratio = rate / best;
        Some(Claim {
            claim: format!(
                "A directory of 20.68 million names takes creates at this rate on {}.",
                drive.name()
            ),
            posting,
            ours: format!("{rate:.0} names/s; {memory:.0} on a device without latency"),
            kernel: self.kernel_text(),
            verdict: match () {
                () if ratio > 1.0 => Verdict::Beaten,
                () if ratio > 0.5 => Verdict::Confirmed,
                () => Verdict::Refuted,
            },
            why: format!(
                "{ratio:.1} times the posting's best, with {} names, on a modelled drive, in process and on \
                 a later CPU.",
                self.scale.normal
            ),
            tables: strings(&["rates"]),
        })
    }

    fn collapse(&self, drive: Drive, normal: f64, large: f64) -> Option<Claim> {
        let before = self.rate(Kind::Normal, drive, Share::All)?;
        let after = self.rate(Kind::Large, drive, Share::QuarterReadFirst)?;
        let deferred = self.rate(Kind::Large, drive, Share::Quarter)?;
        let all = self.rate(Kind::Large, drive, Share::All)?;
        let reads = self.grown(Kind::Large, Share::QuarterReadFirst)?.reads(drive)?;
        let theirs = large / normal;
        let lost = |rate: f64| (1.0 - rate / before.avg) * 100.0;
        // At least half of the posting's loss.
        let is_lost = |rate: f64| rate / before.avg <= 1.0 - (1.0 - theirs) / 2.0;
        let verdict = match () {
            () if lost(after.avg).min(lost(deferred.avg)) <= 20.0 => Verdict::Beaten,
            () if is_lost(after.avg) || is_lost(all.avg) => Verdict::Confirmed,
            () => Verdict::Refuted,
        };
        Some(Claim {
            claim: format!("With ten times the names the rate on {} collapses.", drive.name()),
            posting: format!("{normal:.0} to {large:.0} creates/s ({:+.0} %)", (theirs - 1.0) * 100.0),
            ours: format!(
                "{:.0} to {:.0} names/s ({:+.0} %) with memory for all leaves; with memory for a quarter, to \
                 {:.0} ({:+.0} %) if leaves are read first, and to {:.0} ({:+.0} %) if not",
                before.avg,
                all.avg,
                -lost(all.avg),
                after.avg,
                -lost(after.avg),
                deferred.avg,
                -lost(deferred.avg)
            ),
            kernel: None,
            verdict,
            why: format!(
                "With memory for all leaves the loss is {} half of the posting's: names go to random leaves, \
                 so {:.2} blocks per name are logged and written, in the normal directory {:.2}. With memory \
                 for a quarter each name also reads {reads:.2} leaves if they are read first, and waits for \
                 them. Half of the posting's loss counts as the same effect, at most a fifth for a quarter \
                 as beaten.",
                if is_lost(all.avg) { "at least" } else { "less than" },
                self.logged_per_name(Kind::Large),
                self.logged_per_name(Kind::Normal)
            ),
            tables: strings(&["rates", "growth"]),
        })
    }

    fn leaves_in_memory(&self) -> Option<Claim> {
        let rate = |share| Some(self.rate(Kind::Large, Drive::Nvme, share)?.avg);
        let (all, quarter) = (rate(Share::All)?, rate(Share::QuarterReadFirst)?);
        let deferred = rate(Share::Quarter)?;
        let reads = |share| self.grown(Kind::Large, share)?.reads(Drive::Nvme);
        let (reads_all, reads_quarter) = (reads(Share::All)?, reads(Share::QuarterReadFirst)?);
        let is_so = quarter < all / 2.0 && reads_all < 0.05 && reads_quarter > 0.3;
        Some(Claim {
            claim:
                "All leaf blocks have to be in memory for a good rate, because each name goes to a random \
                    leaf."
                    .to_owned(),
            posting: "no figure".to_owned(),
            ours: format!(
                "nvme: {all:.0} names/s and {reads_all:.3} leaf reads per name with memory for all, \
                 {quarter:.0} and {reads_quarter:.2} for a quarter if leaves are read first; {deferred:.0} \
                 names/s if they are read later, many together"
            ),
            kernel: None,
            verdict: match () {
                () if is_so && deferred >= all / 2.0 => Verdict::Beaten,
                () if is_so => Verdict::Confirmed,
                () => Verdict::Refuted,
            },
            why: format!(
                "The rate with memory for a quarter is {:.3} of that with memory for all if leaves are read \
                 first, and {:.3} if not; below 0.5 for the former counts as confirmed, from 0.5 on for the \
                 latter as beaten.",
                quarter / all,
                deferred / all
            ),
            tables: strings(&["rates"]),
        })
    }

    fn leaf_bytes(&self) -> Option<Claim> {
        let grown = self.grown(Kind::Large, Share::All)?;
        let per_name = grown.engine().dir_bytes as f64 / grown.of.done.max(1) as f64;
        let (low, high) = (0.8 * BYTES_PER_NAME as f64, 1.2 * BYTES_PER_NAME as f64);
        Some(Claim {
            claim: "207 million names take about 6.6 GB of leaf blocks.".to_owned(),
            posting: "24 bytes of entry * 4/3 = 32 bytes per name".to_owned(),
            ours: format!(
                "{per_name:.1} bytes per name at {} names: {:.1} GB for {LARGE} names",
                grown.of.done,
                per_name * LARGE as f64 / 1e9
            ),
            kernel: None,
            verdict: if (low..=high).contains(&per_name) { Verdict::Confirmed } else { Verdict::Refuted },
            why: format!(
                "The difference is {:+.0} %; up to 20 % counts as the same. Leaves are {:.0} % full; shorter \
                 names take less.",
                (per_name / BYTES_PER_NAME as f64 - 1.0) * 100.0,
                grown.engine().fill * 100.0
            ),
            tables: strings(&["rates", "structure"]),
        })
    }

    fn tea(&self) -> Option<Claim> {
        let (md4, tea) = (self.variant("half_md4")?, self.variant("tea")?);
        let touched = |variant: &Variant| variant.of.engine.unwrap_or_default().leaves_touched as f64;
        let ratio = touched(tea) / touched(md4).max(1.0);
        // Leaves touched by names that choose their leaf at random.
        let leaves = md4.of.engine.unwrap_or_default().dir_bytes as f64 / 4096.0;
        let random = leaves * (1.0 - (-10_000.0 / leaves.max(1.0)).exp());
        Some(Claim {
            claim: "With the TEA hash, names in sequence go to leaves that are mostly in sequence."
                .to_owned(),
            posting: "supposed, not measured".to_owned(),
            ours: format!(
                "10,000 names touch {:.0} leaves with tea, {:.0} with half_md4, {random:.0} at random",
                touched(tea),
                touched(md4)
            ),
            kernel: None,
            verdict: match () {
                () if ratio < 0.5 => Verdict::Confirmed,
                () if ratio > 0.9 => Verdict::Refuted,
                () => Verdict::Open,
            },
            why: format!(
                "tea touches {ratio:.3} times as many leaves as half_md4, of {leaves:.0}; above 0.9 counts \
                 as refuted."
            ),
            tables: strings(&["structure"]),
        })
    }

    fn links(&self) -> Option<Claim> {
        let (link, mknod) = (self.variant("half_md4")?, self.variant("mknod")?);
        let change = Change::between(&link.rates(), &mknod.rates(), "mknod");
        Some(Claim {
            claim: "Links to few inodes exercise only the directory, files also load their inodes."
                .to_owned(),
            posting: "no figure".to_owned(),
            ours: format!("{:.0} links/s, {:.0} files/s by mknod", link.of.per_s, mknod.of.per_s),
            kernel: self.kernel_text(),
            verdict: match change.significant {
                Some(true) if change.percent > 0.0 => Verdict::Confirmed,
                Some(true) => Verdict::Refuted,
                _ => Verdict::Open,
            },
            why: format!(
                "The rate of links differs by {:+.0} +- {:.0} % from that of files, over the parts of a run.",
                change.percent,
                change.plus_minus_percent.unwrap_or(0.0)
            ),
            tables: strings(&["structure"]),
        })
    }

    fn block_mapped(&self) -> Option<Claim> {
        let (extents, blocks) = (self.variant("half_md4")?, self.variant("block-mapped")?);
        let (bytes, of_map) = (map_bytes_per_block(extents), map_bytes_per_block(blocks));
        Some(Claim {
            claim: "Extents are inefficient for directories: 12 bytes per block, where block maps need 4."
                .to_owned(),
            posting: "12 and 4 bytes per block".to_owned(),
            ours: format!(
                "{bytes:.4} and {of_map:.0} bytes per block; {:.0} and {:.0} names/s",
                extents.of.per_s, blocks.of.per_s
            ),
            kernel: None,
            verdict: if bytes < of_map { Verdict::Refuted } else { Verdict::Confirmed },
            why: format!(
                "Directories grow in runs of blocks, so one extent maps {:.0} blocks.",
                12.0 / bytes.max(f64::MIN_POSITIVE)
            ),
            tables: strings(&["structure"]),
        })
    }

    fn bigalloc(&self) -> Option<Claim> {
        let extents =
            |name| Some(self.variant(name)?.of.engine.unwrap_or_default().dir_extents.max(1) as f64);
        let (small, big) = (extents("half_md4")?, extents("bigalloc 64K")?);
        Some(Claim {
            claim: "With bigalloc and clusters of 64 KiB directories are less fragmented.".to_owned(),
            posting: "no figure".to_owned(),
            ours: format!("{small:.0} extents, {big:.0} with bigalloc"),
            kernel: None,
            verdict: match () {
                () if big < small => Verdict::Confirmed,
                () if small <= 16.0 => Verdict::Open,
                () => Verdict::Refuted,
            },
            why: format!(
                "{:.2} times as many extents with bigalloc. The directory grows in runs of blocks, and \
                 nothing else is allocated near it; with 16 extents or fewer there is nothing to reduce.",
                big / small
            ),
            tables: strings(&["structure"]),
        })
    }
}
