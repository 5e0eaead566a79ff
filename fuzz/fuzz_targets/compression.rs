//! See `weft_smb::compression::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weft_smb::compression::fuzz(data));
