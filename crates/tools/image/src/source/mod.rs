//! Sources of trees. Each reader walks its source once and passes on its entries.

pub(crate) mod acltext;
pub(crate) mod beneath;
mod blob;
pub mod dir;
pub mod entry;
pub mod fault;
pub mod oci;
pub(crate) mod pax;
pub mod pretend;
pub mod spool;
pub mod tar;
