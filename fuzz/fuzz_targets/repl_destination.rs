//! See `weft_replica::fuzz::repl_destination`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weft_replica::fuzz::repl_destination(data));
