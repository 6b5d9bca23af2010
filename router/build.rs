//! Makes cargo rebuild this crate when the built web UI changes. A macro embeds the files of the UI, and cargo does not
//! track such files by itself.

fn main() -> std::io::Result<()> {
    // If the folder did not exist, cargo would run this script and build the crate again on every build.
    std::fs::create_dir_all("ui/dist")?;
    println!("cargo:rerun-if-changed=ui/dist");
    Ok(())
}
