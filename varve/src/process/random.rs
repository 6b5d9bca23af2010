//! Random tokens and identities.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;

use anyhow::Context as _;

/// Number of random bytes of a token. Nobody can guess them, or find them from their hash.
const TOKEN_BYTES: usize = 32;

/// Makes a token of 256 random bits. The prefix lets tools that search for secrets recognise it.
pub(crate) fn random_token() -> anyhow::Result<String> {
    let bytes: [u8; TOKEN_BYTES] = random_bytes()?;
    let mut token = String::from("varve_");
    for byte in bytes {
        // Writing to a String cannot fail.
        let _infallible = write!(token, "{byte:02x}");
    }
    Ok(token)
}

/// Returns random bytes.
pub(crate) fn random_bytes<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes)).context("/dev/urandom")?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_and_never_the_same() {
        let [a, b] = [random_token().unwrap(), random_token().unwrap()];
        assert!(a.len() == 6 + 2 * TOKEN_BYTES && a != b);
        assert!(proto::Tokens::parse(&a).is_ok());
    }
}
