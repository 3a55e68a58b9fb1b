//! Generates the client of the kubelet's pod-resources API; and its server, with which the tests
//! stand in for a kubelet.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    for (folder, server) in [("client", false), ("server", true)] {
        let descriptors = protox::compile(["podresources.proto"], ["proto"]).expect("proto/*.proto compile");
        let out = out.join(folder);
        std::fs::create_dir_all(&out).expect("create a folder for generated code");
        tonic_prost_build::configure()
            .build_client(!server)
            .build_server(server)
            .build_transport(false)
            .out_dir(out)
            .compile_fds(descriptors)
            .expect("generate Rust code from proto/*.proto");
    }
}
