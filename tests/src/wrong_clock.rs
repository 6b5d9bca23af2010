//! A system clock that is wrong for one program only, and may change while the program runs. The machine's clock is
//! unchanged.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use crate::program::Program;

const SOURCE: &str = include_str!("programs/wrong_clock.c");

/// A preloaded library, and the file from which it reads the offset of the clock.
#[derive(Debug)]
pub struct WrongClock {
    library: Program,
    file: PathBuf,
}

impl WrongClock {
    /// Returns a clock that is right until it is set.
    ///
    /// # Panics
    /// Gcc is missing.
    #[must_use]
    pub fn new() -> Self {
        let library = Program::compile("wrong_clock.so", SOURCE, &["-shared", "-fPIC"]);
        let file = library.folder().join("wrong_by");
        std::fs::write(&file, 0_i64.to_ne_bytes()).unwrap();
        Self { library, file }
    }

    /// Returns the environment variables with which a program uses this clock.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        let text = |path: &PathBuf| path.to_str().unwrap().to_owned();
        let library = ("LD_PRELOAD".to_owned(), text(&self.library.path));
        vec![library, ("WRONG_CLOCK".to_owned(), text(&self.file))]
    }

    /// Sets the clock `seconds` ahead of the right time; a negative number sets it back.
    pub fn set(&self, seconds: i64) {
        let file = std::fs::File::options().write(true).open(&self.file).unwrap();
        file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }
}

impl Default for WrongClock {
    fn default() -> Self {
        Self::new()
    }
}
