//! See `weft_rdma::fuzz::mpa_setup`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weft_rdma::fuzz::mpa_setup(data));
