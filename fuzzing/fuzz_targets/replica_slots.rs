#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| dedupfs_fuzzing::replica_slots(data));
