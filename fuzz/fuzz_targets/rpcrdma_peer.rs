//! See `weft_transport::fuzz::rpcrdma_peer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weft_transport::fuzz::rpcrdma_peer(data));
