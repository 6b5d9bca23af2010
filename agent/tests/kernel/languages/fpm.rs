//! PHP-FPM with one worker, and requests to it by FastCGI:
//!
//! | version u8: 1 | kind u8 | request u16 | length u16 | padding u8 | 0 u8 | content | padding |
//!
//! Numbers are big-endian.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use testkit::interpreters::Interpreter;

const BEGIN: u8 = 1;
const END: u8 = 3;
const PARAMETERS: u8 = 4;
const INPUT: u8 = 5;
const OUTPUT: u8 = 6;
/// Longest time that the server may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time between two parts of a response. The script prints only at its end.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);

/// A server. It ends when this is dropped.
pub(crate) struct Server {
    child: Child,
    folder: TempDir,
}

impl Server {
    pub(crate) fn start(fpm: &Interpreter) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        // Without a user, the server refuses to run as root. If it does not run as root, it ignores the user.
        let configuration = format!(
            "[global]\nerror_log = {at}/log\n[pool]\nlisten = {at}/socket\nuser = root\ngroup = root\n\
             pm = static\npm.max_children = 1\nphp_admin_value[max_execution_time] = 0\n"
        );
        let file = folder.path().join("fpm.conf");
        std::fs::write(&file, configuration).unwrap();
        let mut command = fpm.command();
        command.args(["-F", "-R", "-y"]).arg(file);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, folder }
    }

    /// Begins to run a script. `query` has its parameters.
    pub(crate) fn request(&self, script: &Path, query: &str) -> Request {
        let mut stream = self.connect();
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT)).unwrap();
        let script = script.to_str().unwrap();
        let parameters = [("SCRIPT_FILENAME", script), ("REQUEST_METHOD", "GET"), ("QUERY_STRING", query)];
        let parameters = parameters.map(|(name, value)| {
            let lengths = [name, value].map(|text| (text.len() as u32 | 1 << 31).to_be_bytes());
            [&lengths.concat()[..], name.as_bytes(), value.as_bytes()].concat()
        });
        // The server is to respond, and to close the connection.
        let responder = [0, 1, 0, 0, 0, 0, 0, 0];
        let records = [(BEGIN, &responder[..]), (PARAMETERS, &parameters.concat()), (PARAMETERS, &[]), (INPUT, &[])];
        for (kind, content) in records {
            let [high, low] = (content.len() as u16).to_be_bytes();
            stream.write_all(&[&[1, kind, 0, 1, high, low, 0, 0], content].concat()).unwrap();
        }
        Request { stream }
    }

    fn connect(&self) -> UnixStream {
        let began = Instant::now();
        loop {
            match UnixStream::connect(self.folder.path().join("socket")) {
                Ok(stream) => return stream,
                Err(error) => assert!(began.elapsed() < START_TIMEOUT, "{error}: {}", self.log()),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Returns what PHP prints for an expression.
    pub(crate) fn value_of(&self, expression: &str) -> String {
        let script = self.folder.path().join("value.php");
        std::fs::write(&script, format!("<?php var_export({expression});")).unwrap();
        self.request(&script, "").response()
    }

    /// Returns the process that has run the scripts.
    pub(crate) fn worker(&self) -> u32 {
        let pid = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.trim().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server ends its worker when it gets this signal.
        let status = Command::new("kill").arg(self.child.id().to_string()).status();
        if !status.is_ok_and(|status| status.success()) {
            drop(self.child.kill());
        }
        drop(self.child.wait());
    }
}

/// A script that runs.
pub(crate) struct Request {
    stream: UnixStream,
}

impl Request {
    /// Waits until the script has ended. Returns what it printed.
    pub(crate) fn response(mut self) -> String {
        let mut output = Vec::new();
        loop {
            let mut header = [0; 8];
            self.stream.read_exact(&mut header).unwrap();
            let [_, kind, _, _, high, low, padding, _] = header;
            let length = usize::from(u16::from_be_bytes([high, low]));
            let mut content = vec![0; length + usize::from(padding)];
            self.stream.read_exact(&mut content).unwrap();
            match kind {
                OUTPUT => output.extend(&content[..length]),
                END => break,
                _ => panic!("{}", String::from_utf8_lossy(&content)),
            }
        }
        let output = String::from_utf8(output).unwrap();
        output.split_once("\r\n\r\n").unwrap().1.to_owned()
    }
}
