//! All tests of the command and of mounts in one program: separate programs would each be linked with all
//! crates.

#[macro_use]
mod common;

mod build_bad_input;
mod build_equal;
mod build_oci;
mod build_options;
mod build_pretend;
mod build_shapes;
mod build_target;
mod damaged;
mod diff;
mod doctor;
mod dump;
mod edit;
mod export;
mod imagearg;
mod in_use;
mod inspect;
mod json;
mod lab;
mod look;
mod manners;
mod mkfs;
mod mount;
mod mount_admin;
mod mount_data;
mod mount_flags;
mod mount_idmap;
mod mount_killed;
mod mount_namespace;
mod mount_options;
mod mount_programs;
mod mount_rw;
mod mount_writeback;
mod optimize;
mod pages;
mod put;
mod repair;
mod resize;
mod sandbox;
mod status;
mod trim;
mod tune;
mod update;
