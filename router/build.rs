//! Rebuilds this crate when the built web UI changes: a macro embeds the files, which cargo does not track.

fn main() -> std::io::Result<()> {
    // A folder that is not there would make every build a new one.
    std::fs::create_dir_all("ui/dist")?;
    println!("cargo:rerun-if-changed=ui/dist");
    Ok(())
}
