//! The rows of the posting, in its order.
//!
//! Source: the linux-ext4 series "ext4: use iomap for regular file's buffered I/O path and enable large
//! folio", 2024, its tables "buffer read" and "buffer write".

/// A row of the posting. Bandwidths are in MiB per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    /// What the bytes come from or go to: `hole`, `cache`, `ramdisk` or `nvme`.
    pub(super) kind: &'static str,
    /// The columns Overwrite, Sync and Writeback; `None` in the table of reads.
    pub(super) flags: Option<[bool; 3]>,
    /// Bytes of a read or write.
    pub(super) bs: u64,
    /// The buffer_head path: operations per second and bandwidth.
    pub(super) old: (f64, f64),
    /// iomap with large folios.
    pub(super) new: (f64, f64),
    /// The last column.
    pub(super) percent: f64,
}

const fn read(kind: &'static str, bs: u64, old: (f64, f64), new: (f64, f64), percent: f64) -> Line {
    Line { kind, flags: None, bs, old, new, percent }
}

const fn write(
    kind: &'static str,
    flags: [bool; 3],
    bs: u64,
    (old, new): ((f64, f64), (f64, f64)),
    percent: f64,
) -> Line {
    Line { kind, flags: Some(flags), bs, old, new, percent }
}

const K4: u64 = 4 << 10;
const K64: u64 = 64 << 10;
const M1: u64 = 1 << 20;
const N: bool = false;
const Y: bool = true;

/// All rows of the posting.
pub(super) const LINES: [Line; 39] = [
    read("hole", K4, (576_000.0, 2253.0), (762_000.0, 2975.0), 32.0),
    read("hole", K64, (48_700.0, 3043.0), (77_800.0, 4860.0), 60.0),
    read("hole", M1, (2960.0, 2960.0), (4942.0, 4942.0), 67.0),
    read("ramdisk", K4, (443_000.0, 1732.0), (530_000.0, 2069.0), 19.0),
    read("ramdisk", K64, (34_500.0, 2156.0), (45_600.0, 2850.0), 32.0),
    read("ramdisk", M1, (2093.0, 2093.0), (2841.0, 2841.0), 36.0),
    read("nvme", K4, (339_000.0, 1323.0), (364_000.0, 1425.0), 8.0),
    read("nvme", K64, (23_600.0, 1471.0), (25_200.0, 1574.0), 7.0),
    read("nvme", M1, (2012.0, 2012.0), (2153.0, 2153.0), 7.0),
    write("cache", [N, N, N], K4, ((417_000.0, 1631.0), (440_000.0, 1719.0)), 5.0),
    write("cache", [N, N, N], K64, ((33_400.0, 2088.0), (81_500.0, 5092.0)), 144.0),
    write("cache", [N, N, N], M1, ((2143.0, 2143.0), (5716.0, 5716.0)), 167.0),
    write("cache", [Y, N, N], K4, ((449_000.0, 1755.0), (469_000.0, 1834.0)), 5.0),
    write("cache", [Y, N, N], K64, ((36_600.0, 2290.0), (82_300.0, 5142.0)), 125.0),
    write("cache", [Y, N, N], M1, ((2352.0, 2352.0), (5577.0, 5577.0)), 137.0),
    write("ramdisk", [N, N, Y], K4, ((365_000.0, 1424.0), (354_000.0, 1384.0)), -3.0),
    write("ramdisk", [N, N, Y], K64, ((31_200.0, 1950.0), (74_200.0, 4640.0)), 138.0),
    write("ramdisk", [N, N, Y], M1, ((1968.0, 1968.0), (5201.0, 5201.0)), 164.0),
    write("ramdisk", [N, Y, N], K4, ((9984.0, 39.0), (12_900.0, 51.0)), 29.0),
    write("ramdisk", [N, Y, N], K64, ((5936.0, 371.0), (8960.0, 560.0)), 51.0),
    write("ramdisk", [N, Y, N], M1, ((1050.0, 1050.0), (1835.0, 1835.0)), 75.0),
    write("ramdisk", [Y, N, Y], K4, ((411_000.0, 1609.0), (443_000.0, 1731.0)), 8.0),
    write("ramdisk", [Y, N, Y], K64, ((34_100.0, 2134.0), (77_500.0, 4844.0)), 127.0),
    write("ramdisk", [Y, N, Y], M1, ((2248.0, 2248.0), (5372.0, 5372.0)), 139.0),
    write("ramdisk", [Y, Y, N], K4, ((182_000.0, 711.0), (186_000.0, 730.0)), 3.0),
    write("ramdisk", [Y, Y, N], K64, ((18_700.0, 1170.0), (34_700.0, 2171.0)), 86.0),
    write("ramdisk", [Y, Y, N], M1, ((1229.0, 1229.0), (2269.0, 2269.0)), 85.0),
    write("nvme", [N, N, Y], K4, ((373_000.0, 1458.0), (387_000.0, 1512.0)), 4.0),
    write("nvme", [N, N, Y], K64, ((29_200.0, 1827.0), (70_900.0, 4431.0)), 143.0),
    write("nvme", [N, N, Y], M1, ((1835.0, 1835.0), (4919.0, 4919.0)), 168.0),
    write("nvme", [N, Y, N], K4, ((11_700.0, 46.0), (11_700.0, 46.0)), 0.0),
    write("nvme", [N, Y, N], K64, ((6453.0, 403.0), (8661.0, 541.0)), 34.0),
    write("nvme", [N, Y, N], M1, ((649.0, 649.0), (1351.0, 1351.0)), 108.0),
    write("nvme", [Y, N, Y], K4, ((372_000.0, 1456.0), (433_000.0, 1693.0)), 16.0),
    write("nvme", [Y, N, Y], K64, ((33_000.0, 2064.0), (74_700.0, 4669.0)), 126.0),
    write("nvme", [Y, N, Y], M1, ((2131.0, 2131.0), (5273.0, 5273.0)), 147.0),
    write("nvme", [Y, Y, N], K4, ((56_700.0, 222.0), (56_400.0, 220.0)), -1.0),
    write("nvme", [Y, Y, N], K64, ((13_400.0, 840.0), (19_400.0, 1214.0)), 45.0),
    write("nvme", [Y, Y, N], M1, ((714.0, 714.0), (1504.0, 1504.0)), 111.0),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A copying mistake would most likely break the relation of IOPS, bandwidth and per cent.
    #[test]
    fn each_line_is_consistent() {
        let near = |a: f64, b: f64, by: f64| (a / b - 1.0).abs() < by;
        for line in LINES {
            for (per_s, mib_s) in [line.old, line.new] {
                let of_per_s = per_s * line.bs as f64 / f64::from(1 << 20);
                assert!(near(of_per_s, mib_s, 0.015), "{line:?}");
            }
            let percent = (line.new.1 / line.old.1 - 1.0) * 100.0;
            assert!((percent - line.percent).abs() < 2.0, "{line:?}: {percent}");
        }
        assert_eq!(LINES.iter().filter(|line| line.flags.is_none()).count(), 9);
    }
}
