//! Compiles the protobuf files with protox, so that the build needs no protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for folder in ["otlp", "varve"] {
        println!("cargo:rerun-if-changed={folder}");
    }
    let otlp =
        protox::compile(["opentelemetry/proto/collector/profiles/v1development/profiles_service.proto"], ["otlp"])?;
    let described = std::path::Path::new(&std::env::var("OUT_DIR")?).join("otlp.fds");
    std::fs::write(described, prost::Message::encode_to_vec(&otlp))?;
    tonic_prost_build::configure().compile_fds(otlp)?;
    let files = ["v1/node.proto", "v1/meta.proto", "v1/peers.proto", "v1/cluster.proto", "v1/snapshots.proto"];
    let varve = protox::compile(files, ["varve"])?;
    tonic_prost_build::configure().bytes(".").compile_fds(varve)?;
    Ok(())
}
