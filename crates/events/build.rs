//! Generates Rust types from the public contract in `schemas/`, without a protoc on the machine.

use std::path::PathBuf;

use prost::Message;

const SCHEMAS: [&str; 17] = [
    "envelope.proto",
    "job_event.proto",
    "capacity_event.proto",
    "pool_sample.proto",
    "node_event.proto",
    "dead_letter.proto",
    "gpu_sample_batch.proto",
    "step_report.proto",
    "straggler_signal.proto",
    "node_signal.proto",
    "forecast.proto",
    "autopilot_event.proto",
    "coverage_signal.proto",
    "job_end_signal.proto",
    "scaling_curve.proto",
    "sizing_advice.proto",
    "audit_event.proto",
];

fn main() {
    let schemas =
        PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../schemas");
    println!("cargo::rerun-if-changed={}", schemas.display());
    let mut descriptors = protox::compile(SCHEMAS, [&schemas]).expect("schemas/*.proto compile");
    prost_build::Config::new()
        .compile_fds(descriptors.clone())
        .expect("generate Rust types from schemas/*.proto");
    // Comments and places are of no use to the program.
    descriptors.file.iter_mut().for_each(|file| file.source_code_info = None);
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    std::fs::write(out.join("contract.bin"), descriptors.encode_to_vec()).expect("write the contract");
}
