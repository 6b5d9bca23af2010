//! Has the page embedded again when it was built since: the files are read by a macro, of which cargo knows nothing.

fn main() -> std::io::Result<()> {
    // A folder that is not there would make every build a new one.
    std::fs::create_dir_all("ui/dist")?;
    println!("cargo:rerun-if-changed=ui/dist");
    Ok(())
}
