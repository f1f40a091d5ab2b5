//! Messages while a command waits to find out whether another machine writes the image (feature `mmp`).

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_volume::Waiting;

use crate::voice::{note, say_raw};

/// Seconds between messages, if standard error is no terminal.
const SAY_EVERY: u64 = 30;
/// No message was printed yet.
const NEVER: u64 = u64::MAX;

/// Reports on standard error what the command waits for, and for how long. On a terminal it updates the
/// seconds left each second, otherwise every `SAY_EVERY` seconds.
pub(crate) fn say(image: String) -> impl Fn(&Waiting) + Send + Sync {
    let said = AtomicU64::new(NEVER);
    let is_terminal = std::io::stderr().is_terminal();
    move |waiting| {
        let left = waiting.left.as_millis().div_ceil(1000) as u64;
        let before = said.load(Ordering::Relaxed);
        if before != NEVER && !is_terminal && before.saturating_sub(left) < SAY_EVERY {
            return;
        }
        said.store(left, Ordering::Relaxed);
        match (before, is_terminal) {
            (NEVER, _) => note!("{}", begun(&image, left, &waiting.by)),
            (_, true) => say_raw(format_args!("\r  {left} s left \r")),
            (_, false) => note!("{image}: {left} s left"),
        }
    }
}

fn begun(image: &str, left: u64, by: &str) -> String {
    format!("{image} is in use by {by}, or was not closed there: waiting {left} s to find out (feature mmp)")
}
