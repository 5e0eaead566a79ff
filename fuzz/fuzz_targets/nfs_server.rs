//! See `weft_nfs::server::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weft_nfs::server::fuzz::nfs_server(data));
