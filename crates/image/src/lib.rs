//! Plan and write ext4 images: an empty file system, or one filled from directories, archives and OCI layers.
#![forbid(unsafe_code)]

pub mod build;
pub mod dirpack;
pub mod exclude;
pub mod idmap;
pub mod labels;
pub mod layout;
pub mod mapping;
pub mod mkfs;
pub mod options;
pub mod plan;
pub mod profile;
pub mod sizing;
pub mod solve;
pub mod source;
pub mod space;
pub mod tree;
pub mod write;
pub mod xattrs;
