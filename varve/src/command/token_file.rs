//! The token file. It is read while the command line is parsed, before the process raises its capabilities. The token
//! of an agent may be replaced later: a thread that has no raised capabilities reads the file again.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent::Token;
use anyhow::Context as _;
use proto::Tokens;

/// Largest size of a token file, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// Interval at which the file of an agent is read again.
const INTERVAL: Duration = Duration::from_secs(1);

/// Reads a token file. Clap calls this function as the parser of the option.
pub(crate) fn read(path: &str) -> anyhow::Result<Tokens> {
    read_at(Path::new(path))
}

fn read_at(path: &Path) -> anyhow::Result<Tokens> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    // A part of the file could end with a part of a token.
    anyhow::ensure!(text.len() as u64 <= BYTES_MAX, "the token file has more than {BYTES_MAX} bytes");
    Ok(Tokens::parse(&text)?)
}

/// The token file of an agent.
#[derive(Clone, Debug)]
pub(crate) struct WatchedFile {
    path: PathBuf,
    /// First token of the file.
    pub(crate) token: Token,
}

impl WatchedFile {
    /// Reads the file. Clap calls this function as the parser of the option.
    pub(crate) fn read(path: &str) -> anyhow::Result<Self> {
        let path = PathBuf::from(path);
        let token = Token::new(read_at(&path)?.first());
        Ok(Self { path, token })
    }

    /// Starts a thread that reads the file again and again, and replaces the token. If the file cannot be read, the
    /// token stays. Must be called before the process raises its capabilities: the thread then reads with the user's
    /// own rights.
    pub(crate) fn watch(&self) -> anyhow::Result<()> {
        let Self { path, token } = self.clone();
        let watch = move || {
            let mut was_usable = true;
            loop {
                std::thread::sleep(INTERVAL);
                let replaced = read_at(&path).and_then(|tokens| Ok(token.replace(tokens.first())?));
                match &replaced {
                    Ok(true) => tracing::info!(path = %path.display(), "the token was replaced"),
                    Err(error) if was_usable => {
                        tracing::warn!(path = %path.display(), "no token is there, the old one stays: {error}");
                    }
                    _ => {}
                }
                was_usable = replaced.is_ok();
            }
        };
        let thread = std::thread::Builder::new().name("token-file".to_owned());
        thread.spawn(watch).map(drop).context("cannot start a thread that watches the token file")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_replaced_file_replaces_the_token_and_a_damaged_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        let text = path.to_str().unwrap();
        assert!(WatchedFile::read(text).is_err());
        write(&"a-token-of-20-bytes-0\n".repeat(50_000));
        assert!(WatchedFile::read(text).unwrap_err().to_string().contains("more than 1048576 bytes"));
        write("short\n");
        assert!(WatchedFile::read(text).unwrap_err().to_string().contains("line 1"));
        write("# of the agent\na-token-of-20-bytes-1\n");
        let file = WatchedFile::read(text).unwrap();
        file.watch().unwrap();
        let becomes = |wanted: &str| {
            let began = Instant::now();
            // A token that was replaced already is no change.
            while file.token.replace(wanted).unwrap() {
                assert!(began.elapsed() < Duration::from_secs(30), "the token does not become {wanted}");
                file.token.replace("another").unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        write("a-token-of-20-bytes-2\na-token-of-20-bytes-1\n");
        becomes("a-token-of-20-bytes-2");
        for damaged in ["", "an-ä-token-of-20-bytes"] {
            write(damaged);
            std::thread::sleep(INTERVAL * 2);
            assert!(!file.token.replace("a-token-of-20-bytes-2").unwrap(), "{damaged:?}");
        }
        std::fs::remove_file(&path).unwrap();
        std::thread::sleep(INTERVAL * 2);
        assert!(!file.token.replace("a-token-of-20-bytes-2").unwrap());
        write("a-token-of-20-bytes-3");
        becomes("a-token-of-20-bytes-3");
    }
}
