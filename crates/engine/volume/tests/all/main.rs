//! The tests of volumes, as one program: each separate program would be linked with all crates again.

mod common;

mod copy;
mod creators;
mod damaged;
mod data;
mod data_threads;
mod dirty;
mod discard;
mod durable;
mod errors;
mod external_journal;
mod fast_commits;
mod fast_writes;
mod faults;
mod features;
mod flags;
mod full;
mod grown;
mod guard;
mod known;
mod lost;
mod meanwhile;
mod old_inodes;
mod panics;
mod quota;
mod recovery;
mod reserve;
mod shutdown;
mod space;
mod threads;
mod truncate;
mod tune;
mod values;
mod walk;
mod write;
