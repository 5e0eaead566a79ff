//! See `weft_transport::fuzz::smbd_peer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weft_transport::fuzz::smbd_peer(data));
