//! See `weft_rdma::fuzz::fpdu_stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weft_rdma::fuzz::fpdu_stream(data));
