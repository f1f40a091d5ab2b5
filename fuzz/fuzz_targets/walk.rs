//! Opens a damaged image and looks at everything in it.

#![no_main]

mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = extant_hostile::walk(common::damaged(data));
});
