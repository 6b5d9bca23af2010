//! The place of a bucket: a directory, or a prefix of an S3 bucket.

use std::io;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};

/// Number of times that a request to S3 is sent again.
const RETRIES_MAX: usize = 3;

/// Opens the store at `url`. Returns it with the path of the bucket in the store.
pub(super) fn open(url: &str) -> io::Result<(Arc<dyn ObjectStore>, Path)> {
    if let Some(directory) = url.strip_prefix("file://").filter(|path| path.starts_with('/')) {
        std::fs::create_dir_all(directory)?;
        let store = LocalFileSystem::new_with_prefix(directory)?.with_fsync(true).with_automatic_cleanup(true);
        return Ok((Arc::new(store), Path::default()));
    }
    if let Some((bucket, prefix)) = url.strip_prefix("s3://").map(|rest| rest.split_once('/').unwrap_or((rest, ""))) {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if !bucket.is_empty() && bucket.bytes().all(is_name) {
            return Ok((Arc::new(s3(bucket)?), Path::parse(prefix).map_err(invalid)?));
        }
    }
    Err(invalid("it must be file:///absolute/path or s3://bucket/prefix"))
}

/// Makes a client of an S3 bucket, from the usual variables: `AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT_URL` ...
fn s3(bucket: &str) -> io::Result<object_store::aws::AmazonS3> {
    // Another part of the process may have chosen the same provider already.
    let _is_first = rustls::crypto::ring::default_provider().install_default().is_ok();
    let option = |key| AmazonS3ConfigKey::Client(key);
    AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_config(option(ClientConfigKey::ConnectTimeout), "5 seconds")
        .with_config(option(ClientConfigKey::Timeout), "2 minutes")
        .with_retry(RetryConfig {
            max_retries: RETRIES_MAX,
            retry_timeout: super::REQUEST_TIME_MAX,
            ..RetryConfig::default()
        })
        .build()
        .map_err(invalid)
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_of_directories_and_s3_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("file://{}/new/folder", directory.path().display());
        assert_eq!(open(&url).unwrap().1, Path::default());
        assert!(directory.path().join("new/folder").is_dir());
        assert_eq!(open("s3://names/a/b").unwrap().1.to_string(), "a/b");
        assert_eq!(open("s3://names").unwrap().1, Path::default());
        for url in
            ["", "/var/lib", "file://host/path", "file:/x", "s3://", "s3:///a", "s3://a b", "http://a/b", "s3://a/../b"]
        {
            let refused = open(url).map(|(_, path)| path).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{url}");
        }
        std::fs::write(directory.path().join("file"), "").unwrap();
        assert!(open(&format!("file://{}/file", directory.path().display())).is_err());
    }
}
