//! What is checked, and what is found.

/// A text file of the repository.
pub(crate) struct File<'a> {
    /// Path relative to the root.
    pub(crate) path: &'a str,
    pub(crate) text: &'a str,
    pub(crate) is_executable: bool,
}

/// The findings, one line each: `path:line: what`.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) faults: Vec<String>,
    pub(crate) warnings: Vec<String>,
}
