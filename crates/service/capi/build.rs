//! Gives the shared library its name for the dynamic linker, and its symbols a version, which is this name.
//!
//! rustc passes the linker a version script of its own, and no linker accepts a second one. The option
//! `--default-symver` makes the version without a script. GNU ld has it; LLD, which rustc uses by default,
//! lacks it.

const NAME: &str = "libextant.so.0";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in ["-fuse-ld=bfd", "-Wl,--default-symver", &format!("-Wl,-soname,{NAME}")] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
