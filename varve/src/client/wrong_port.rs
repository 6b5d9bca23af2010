//! Recognizes a gRPC port that the user mistook for an HTTP/1 port. Such a port responds, but not in HTTP/1.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// Longest time for a connection attempt, and for each read.
const PATIENCE: Duration = Duration::from_secs(2);

/// First bytes that an HTTP/2 client sends: the preface and an empty SETTINGS frame.
const HTTP2_START: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Length of the header of an HTTP/2 frame, in bytes.
const FRAME_HEAD_BYTES: usize = 9;
/// Offset of the frame's type in the header of the frame, in bytes.
const FRAME_TYPE: usize = 3;
const SETTINGS: u8 = 4;

/// Returns true if the server at `http://HOST:PORT` speaks HTTP/2 but not HTTP/1, as a gRPC server does.
pub(super) fn is_grpc(endpoint: &str) -> bool {
    let authority = endpoint.trim_start_matches("http://").split('/').next().unwrap_or_default();
    let http1 = first_bytes(authority, b"GET /healthz HTTP/1.0\r\n\r\n");
    if http1.is_none_or(|bytes| bytes.starts_with(b"HTTP/")) {
        return false;
    }
    first_bytes(authority, HTTP2_START).is_some_and(|bytes| bytes[FRAME_TYPE] == SETTINGS)
}

/// Sends bytes to a server, and returns the first bytes of the response. If the response is shorter, the other bytes
/// are 0. Returns `None` if the server cannot be reached.
fn first_bytes(authority: &str, sent: &[u8]) -> Option<[u8; FRAME_HEAD_BYTES]> {
    let address = authority.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(sent).ok()?;
    let mut bytes = [0; FRAME_HEAD_BYTES];
    let mut length = 0;
    while let Some(rest) = bytes.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match stream.read(rest) {
            Ok(0) | Err(_) => break,
            Ok(read) => length += read,
        }
    }
    Some(bytes)
}
