//! Sources of trees: each reader walks its source once and hands over entries.

pub(crate) mod acltext;
pub mod dir;
pub mod entry;
pub mod fault;
pub mod oci;
pub(crate) mod pax;
pub mod pretend;
pub mod spool;
pub mod tar;
