//! Gives the shared library its name for the dynamic linker.
//!
//! The symbols have no versions: rustc passes the linker a version script of its own, and ld refuses a second
//! one ("anonymous version tag cannot be combined with other version tags"). The number in the name changes
//! with each incompatible change of the interface instead.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libextant.so.0");
}
