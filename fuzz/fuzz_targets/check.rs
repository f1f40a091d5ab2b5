//! Checks a damaged image.

#![no_main]

mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = extant_hostile::verify(&*common::damaged(data));
});
