//! See `weft_smb::server::smb_server`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weft_smb::server::smb_server(data));
