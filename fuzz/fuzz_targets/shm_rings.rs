//! See `weft_rdma::fuzz::shm_rings`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weft_rdma::fuzz::shm_rings(data));
