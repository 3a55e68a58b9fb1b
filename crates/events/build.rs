//! Generates Rust types from the public contract in `schemas/`, without a protoc on the machine.

use std::path::PathBuf;

const SCHEMAS: [&str; 7] = [
    "envelope.proto",
    "job_event.proto",
    "capacity_event.proto",
    "pool_sample.proto",
    "node_event.proto",
    "dead_letter.proto",
    "gpu_sample_batch.proto",
];

fn main() {
    let schemas =
        PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../schemas");
    println!("cargo::rerun-if-changed={}", schemas.display());
    let descriptors = protox::compile(SCHEMAS, [&schemas]).expect("schemas/*.proto compile");
    prost_build::Config::new().compile_fds(descriptors).expect("generate Rust types from schemas/*.proto");
}
