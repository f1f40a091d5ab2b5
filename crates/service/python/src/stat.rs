//! The result of stat(2), with the names of `os.stat_result`.

use extant::Timestamp;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;

/// The attributes of an inode, like `os.stat_result`.
#[pyclass(frozen, module = "extant_ext4", name = "Stat")]
pub(crate) struct Stat(pub(crate) extant::Stat);

fn seconds(time: Timestamp) -> f64 {
    time.seconds as f64 + f64::from(time.nanos) * 1e-9
}

fn nanos(time: Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos)
}

#[pymethods]
impl Stat {
    /// Type and permissions.
    #[getter]
    fn st_mode(&self) -> u16 {
        self.0.mode
    }

    /// Inode number.
    #[getter]
    fn st_ino(&self) -> u32 {
        self.0.ino.0
    }

    /// Always 0.
    #[getter]
    fn st_dev(&self) -> u32 {
        0
    }

    /// Number of names.
    #[getter]
    fn st_nlink(&self) -> u32 {
        self.0.links
    }

    /// Owner.
    #[getter]
    fn st_uid(&self) -> u32 {
        self.0.uid
    }

    /// Group.
    #[getter]
    fn st_gid(&self) -> u32 {
        self.0.gid
    }

    /// Size in bytes.
    #[getter]
    fn st_size(&self) -> u64 {
        self.0.size
    }

    /// Last access, in seconds.
    #[getter]
    fn st_atime(&self) -> f64 {
        seconds(self.0.atime)
    }

    /// Last change of the data, in seconds.
    #[getter]
    fn st_mtime(&self) -> f64 {
        seconds(self.0.mtime)
    }

    /// Last change of the inode, in seconds.
    #[getter]
    fn st_ctime(&self) -> f64 {
        seconds(self.0.ctime)
    }

    /// Birth, in seconds; None if the inode has no room for it.
    #[getter]
    fn st_birthtime(&self) -> Option<f64> {
        self.0.crtime.map(seconds)
    }

    /// Last access, in nanoseconds.
    #[getter]
    fn st_atime_ns(&self) -> i128 {
        nanos(self.0.atime)
    }

    /// Last change of the data, in nanoseconds.
    #[getter]
    fn st_mtime_ns(&self) -> i128 {
        nanos(self.0.mtime)
    }

    /// Last change of the inode, in nanoseconds.
    #[getter]
    fn st_ctime_ns(&self) -> i128 {
        nanos(self.0.ctime)
    }

    /// Birth, in nanoseconds; None if the inode has no room for it.
    #[getter]
    fn st_birthtime_ns(&self) -> Option<i128> {
        self.0.crtime.map(nanos)
    }

    /// Space in units of 512 bytes.
    #[getter]
    fn st_blocks(&self) -> u64 {
        self.0.blocks_512
    }

    /// Block size of the file system.
    #[getter]
    fn st_blksize(&self) -> u32 {
        self.0.block_size
    }

    /// Number of a device, as `os.makedev` makes it.
    #[getter]
    fn st_rdev(&self) -> u64 {
        let (major, minor) = (u64::from(self.0.device.0), u64::from(self.0.device.1));
        (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32
    }

    /// Flags of the inode, as lsattr shows them.
    #[getter]
    fn st_flags(&self) -> u32 {
        self.0.flags
    }

    /// Generation of the inode number.
    #[getter]
    fn st_gen(&self) -> u32 {
        self.0.generation
    }

    /// Project ID.
    #[getter]
    fn st_project(&self) -> u32 {
        self.0.project
    }

    fn __len__(&self) -> usize {
        10
    }

    /// The ten items of `os.stat_result`, with whole seconds.
    fn __getitem__(&self, index: usize) -> PyResult<i64> {
        Ok(match index {
            0 => self.0.mode.into(),
            1 => self.0.ino.0.into(),
            2 => 0,
            3 => self.0.links.into(),
            4 => self.0.uid.into(),
            5 => self.0.gid.into(),
            6 => i64::try_from(self.0.size).unwrap_or(i64::MAX),
            7 => self.0.atime.seconds,
            8 => self.0.mtime.seconds,
            9 => self.0.ctime.seconds,
            _ => return Err(PyIndexError::new_err("a stat result has 10 items")),
        })
    }

    fn __repr__(&self) -> String {
        let stat = &self.0;
        format!(
            "Stat(st_mode=0o{:o}, st_ino={}, st_nlink={}, st_uid={}, st_gid={}, st_size={}, st_mtime={})",
            stat.mode,
            stat.ino.0,
            stat.links,
            stat.uid,
            stat.gid,
            stat.size,
            seconds(stat.mtime)
        )
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| other.get().0 == self.0)
    }
}
