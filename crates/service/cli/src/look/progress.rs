//! A progress line for long copies; only on a terminal.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::manners::draws_progress;

/// Files and bytes done so far. Several threads may report at the same time.
pub(crate) struct Progress {
    bar: ProgressBar,
    files: AtomicU64,
}

impl Progress {
    /// Shows the progress on standard error, if that is a terminal, after a moment.
    pub(crate) fn new(what: &'static str) -> Self {
        let bar = ProgressBar::no_length();
        if draws_progress() {
            let template = "{spinner} {prefix} {msg}{bytes}, {binary_bytes_per_sec}, {elapsed}";
            let style = ProgressStyle::with_template(template);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.set_prefix(what);
            bar.enable_steady_tick(Duration::from_millis(200));
        } else {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self { bar, files: AtomicU64::new(0) }
    }

    /// Counts one more file.
    pub(crate) fn file(&self) {
        self.files(1);
    }

    /// Counts `more` files.
    pub(crate) fn files(&self, more: u64) {
        let before = self.files.fetch_add(more, Ordering::Relaxed);
        let files = before + more;
        if before / 256 != files / 256 && !self.bar.is_hidden() {
            self.bar.set_message(format!("{files} files, "));
        }
    }

    /// Counts `len` more bytes.
    pub(crate) fn bytes(&self, len: u64) {
        if !self.bar.is_hidden() {
            self.bar.inc(len);
        }
    }

    /// Prints a line above the bar.
    pub(crate) fn line(&self, line: &str) {
        self.suspend(|| {
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{line}\n"));
        });
    }

    /// Calls `print` while the bar is not drawn.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
