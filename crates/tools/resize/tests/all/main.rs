//! The tests of the crate, in one program.

mod claim;
mod cuts;
mod faults;
mod grow;
mod inodes;
mod order;
mod shrink;
mod tree;
