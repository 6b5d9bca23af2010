//! The description of a process: the resource attributes of its profiles.
//!
//! The description is read on the first sample, while the process still runs. Attributes that the process publishes are
//! found later. They take precedence over those in its environment. A process cannot set what the agent observes.

use crate::process::environment::{self, ATTRIBUTES_MAX};
use crate::process::{cgroup, procfs};

/// Name of the executable that is reported for all kernel threads, which run no file. Each of them has its own pid.
const KERNEL: &str = "[kernel]";
/// Largest number of bytes that are read from the file with a thread's name, which has up to 15 bytes and a newline.
const COMM_BYTES_MAX: u64 = 64;

const EXECUTABLE_NAME: &str = "process.executable.name";
const EXECUTABLE_PATH: &str = "process.executable.path";
/// Attributes that only the agent sets.
const OBSERVED: [&str; 7] =
    ["process.pid", EXECUTABLE_NAME, EXECUTABLE_PATH, "host.name", "container.id", "k8s.pod.uid", "systemd.unit"];

/// Largest length of a path, in bytes. A longer path is cut at its front. A path can have 4 kB, and a receiver refuses
/// values that are too long.
const PATH_BYTES_MAX: usize = proto::limits::LABEL_VALUE_BYTES_MAX;

/// The attributes of one process, in the order in which they are sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Resource {
    pub(crate) pid: u32,
    /// All attributes but the pid, which is a number. Keys are unique.
    pub(crate) attributes: Vec<(String, String)>,
}

impl Resource {
    /// Approximate memory that the description takes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        bytes(&self.attributes)
    }

    /// Returns the path of the executable file, if it is known.
    pub(crate) fn executable_path(&self) -> Option<&str> {
        let path = self.attributes.iter().find(|(key, _)| key == EXECUTABLE_PATH);
        path.map(|(_, path)| &**path)
    }

    /// Describes a thread of the kernel.
    pub(crate) fn kernel_thread(pid: u32) -> Self {
        Self { pid, attributes: vec![(EXECUTABLE_NAME.into(), KERNEL.into())] }
    }

    /// Describes a process that ended before it could be read. BPF has reported the path of its executable, if it is
    /// known, and the name of the thread that was sampled.
    pub(crate) fn exited(pid: u32, comm: &[u8], executable: Option<&str>) -> Self {
        Self { pid, attributes: executable_attributes(executable.map(str::to_owned), || text(comm)) }
    }

    /// Reads the description of a running process, with the environment variables that are `allowed`. `executable`,
    /// which BPF reported, and `comm` are used if the path and the name cannot be read.
    ///
    /// The second result is true if the process is set up. Inside execve, a process has no environment yet.
    pub(crate) fn of_process(pid: u32, comm: &[u8], executable: Option<&str>, allowed: &[String]) -> (Self, bool) {
        let path = executable_path(pid).or_else(|| executable.map(str::to_owned));
        let mut observed = executable_attributes(path, || process_name(pid).unwrap_or_else(|| text(comm)));
        let cgroup = procfs::read_at_most(format!("/proc/{pid}/cgroup"), cgroup::CGROUP_BYTES_MAX);
        let cgroup = cgroup.unwrap_or_default();
        observed.extend(cgroup::container_id(&cgroup).map(|id| ("container.id".to_owned(), id.to_owned())));
        observed.extend(cgroup::pod_uid(&cgroup).map(|uid| ("k8s.pod.uid".to_owned(), uid)));
        observed.extend(cgroup::systemd_unit(&cgroup).map(|unit| ("systemd.unit".to_owned(), unit.to_owned())));
        let environ = procfs::read_at_most(format!("/proc/{pid}/environ"), environment::ENVIRON_BYTES_MAX);
        let environ = environ.unwrap_or_default();
        let own = environment::resource_attributes(&environ, allowed);
        (Self { pid, attributes: with_own(observed, own) }, !environ.is_empty())
    }

    /// Returns the description with attributes that the process has published, which take precedence over those in its
    /// environment.
    pub(crate) fn with_published(&self, published: &[(String, String)]) -> Self {
        let (observed, of_environment): (Vec<_>, Vec<_>) =
            self.attributes.iter().cloned().partition(|(key, _)| is_observed(key));
        let own = published.iter().cloned().chain(of_environment);
        Self { pid: self.pid, attributes: with_own(observed, own) }
    }
}

/// Adds attributes of a process itself to those that were observed: those of its service first, each key once, and no
/// more than fit.
fn with_own(
    mut attributes: Vec<(String, String)>,
    own: impl IntoIterator<Item = (String, String)>,
) -> Vec<(String, String)> {
    let attributes_max = attributes.len() + ATTRIBUTES_MAX;
    let (of_service, others): (Vec<_>, Vec<_>) = own.into_iter().partition(|(key, _)| key.starts_with("service."));
    for (key, value) in of_service.into_iter().chain(others) {
        let is_new = !is_observed(&key) && attributes.iter().all(|(known, _)| *known != key);
        if is_new && attributes.len() < attributes_max {
            attributes.push((key, value));
        }
    }
    attributes
}

/// Approximate memory that attributes take, in bytes.
pub(crate) fn bytes(attributes: &[(String, String)]) -> usize {
    attributes.iter().map(|(key, value)| key.len() + value.len() + 2 * size_of::<String>()).sum()
}

/// True if only the agent may set the attribute `key`, and not the process. As in label names, any other character may
/// stand for a dot.
fn is_observed(key: &str) -> bool {
    let label = |key: &str| key.replace(|character: char| !character.is_ascii_alphanumeric(), "_");
    OBSERVED.iter().any(|observed| *observed == key || label(observed) == label(key))
}

/// Returns the attributes for the name and the path of an executable. `name` returns the name if the path is not known,
/// or has no file name.
fn executable_attributes(path: Option<String>, name: impl FnOnce() -> String) -> Vec<(String, String)> {
    // The end of a path is more useful than its beginning.
    let path = path.map(|path| path[path.ceil_char_boundary(path.len().saturating_sub(PATH_BYTES_MAX))..].to_owned());
    let file_name = path.as_deref().and_then(|path| path.rsplit('/').next()).filter(|name| !name.is_empty());
    let name = file_name.map_or_else(name, str::to_owned);
    let mut attributes = vec![(EXECUTABLE_NAME.to_owned(), name)];
    attributes.extend(path.map(|path| (EXECUTABLE_PATH.to_owned(), path)));
    attributes
}

fn executable_path(pid: u32) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let path = path.to_string_lossy();
    Some(path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned())
}

fn process_name(pid: u32) -> Option<String> {
    let comm = procfs::read_at_most(format!("/proc/{pid}/comm"), COMM_BYTES_MAX).ok()?;
    Some(text(comm.trim_ascii_end()))
}

/// Decodes a thread's name, which ends at the first NUL and need not be text.
pub(crate) fn text(comm: &[u8]) -> String {
    let end = comm.iter().position(|&byte| byte == 0).unwrap_or(comm.len());
    String::from_utf8_lossy(&comm[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_described_by_its_file_and_its_environment() {
        let mut child = Command::new("/bin/sleep")
            .arg("60")
            .env("OTEL_SERVICE_NAME", "checkout")
            .env("VARVE_TEST_REGION", "eu")
            .env("OTEL_RESOURCE_ATTRIBUTES", "process.executable.name=liar,host.name=liar,team=blue")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        // The child runs this test until it has called execve.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let resource = loop {
            let (resource, is_set_up) = Resource::of_process(child.id(), b"x", None, &["VARVE_TEST_REGION".to_owned()]);
            if is_set_up && resource.attributes[0].1 == "sleep" || deadline < std::time::Instant::now() {
                break resource;
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        let find = |key: &str| resource.attributes.iter().find(|(known, _)| known == key).map(|(_, value)| &**value);
        assert_eq!(find("process.executable.name"), Some("sleep"));
        assert!(find("process.executable.path").unwrap().ends_with("/bin/sleep"));
        assert_eq!((find("service.name"), find("team"), find("host.name")), (Some("checkout"), Some("blue"), None));
        assert_eq!(find("process.environment_variable.VARVE_TEST_REGION"), Some("eu"));
        let mut keys: Vec<_> = resource.attributes.iter().map(|(key, _)| key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), resource.attributes.len());
    }

    fn owned(attributes: &[(&str, &str)]) -> Vec<(String, String)> {
        attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn published_attributes_take_precedence_over_the_environment_only() {
        let base = owned(&[
            ("process.executable.name", "cat"),
            ("k8s.pod.uid", "seen"),
            ("service.name", "variable"),
            ("team", "blue"),
        ]);
        let published = owned(&[
            ("zone", "north"),
            ("service.version", "7"),
            ("service.name", "cart"),
            ("service.name", "again"),
            ("process.executable.path", "/liar"),
            ("process_executable_name", "liar"),
            ("container-id", "liar"),
            ("systemd·unit", "liar"),
            ("host.name", "liar"),
        ]);
        let described = Resource { pid: 5, attributes: base }.with_published(&published);
        let wanted = [
            ("process.executable.name", "cat"),
            ("k8s.pod.uid", "seen"),
            ("service.version", "7"),
            ("service.name", "cart"),
            ("zone", "north"),
            ("team", "blue"),
        ];
        assert_eq!(described, Resource { pid: 5, attributes: owned(&wanted) });
    }

    #[test]
    fn a_process_has_a_limited_number_of_attributes_of_its_own() {
        let base = owned(&[("process.executable.name", "cat"), ("service.name", "variable"), ("team", "blue")]);
        let base = Resource { pid: 5, attributes: base };
        let published: Vec<_> = (0..1000).map(|index| (format!("k{index}"), "v".to_owned())).collect();
        let described = base.with_published(&published);
        let keys: Vec<_> = described.attributes.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys.len(), 1 + ATTRIBUTES_MAX);
        assert_eq!(keys[..3], ["process.executable.name", "service.name", "k0"]);
        assert_eq!(base.with_published(&[]), base);
    }

    #[test]
    fn an_ended_process_is_described_by_the_report_of_bpf() {
        let attribute = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let (resource, is_set_up) = Resource::of_process(u32::MAX, b"short\0garbage", None, &[]);
        assert!(!is_set_up);
        assert_eq!(resource.attributes, [attribute("process.executable.name", "short")]);
        assert_eq!(resource, Resource::exited(u32::MAX, b"short\0", None));
        let path = Some("/usr/lib/cc1plus");
        let (resource, _) = Resource::of_process(u32::MAX, b"short\0", path, &[]);
        let wanted =
            [attribute("process.executable.name", "cc1plus"), attribute("process.executable.path", "/usr/lib/cc1plus")];
        assert_eq!(resource.attributes, wanted);
        assert_eq!(resource, Resource::exited(u32::MAX, b"short\0", path));
    }
}
