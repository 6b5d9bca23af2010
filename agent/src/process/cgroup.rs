//! The container, pod and systemd unit of a process, from /proc/<pid>/cgroup. Each line is
//! `hierarchy:controllers:path`.
//!
//! Container runtimes put the container's id, 64 hexadecimal digits, into the last part of the path that they create:
//! `/docker/<id>`, `/system.slice/docker-<id>.scope`, `/kubepods.slice/.../cri-containerd-<id>.scope`,
//! `/kubepods/burstable/pod<uid>/<id>`, `...slice:cri-containerd:<id>`, `/machine.slice/libpod-<id>.scope/container`.
//! Amazon ECS uses 32 digits, `-`, and a number.
//!
//! Kubernetes puts the UID of a pod into a part of its own, after `pod`. If systemd creates the part, each `-` is `_`,
//! because `-` has another meaning there.

/// Largest number of bytes that are read from one cgroup file: enough for a dozen hierarchies with paths of up to 4 kB.
pub(crate) const CGROUP_BYTES_MAX: u64 = 64 << 10;

/// Returns the id of the container; `None` for a process outside of containers.
pub(crate) fn container_id(cgroup: &[u8]) -> Option<&str> {
    innermost(cgroup, id_in)
}

/// Returns the UID of the Kubernetes pod; `None` for a process outside of pods.
pub(crate) fn pod_uid(cgroup: &[u8]) -> Option<String> {
    innermost(cgroup, |part| {
        // `kubepods-burstable-pod<uid>.slice:cri-containerd:<id>` is one part, too.
        let part = part.split(':').next()?;
        let (before, uid) = part.strip_suffix(".slice").unwrap_or(part).rsplit_once("pod")?;
        let uid = uid.replace('_', "-");
        (before.is_empty() || before.ends_with('-')).then_some(uid).filter(|uid| is_uid(uid))
    })
}

/// Returns the systemd unit, a service or a scope. In a container, only a unit inside the container counts, because the
/// units around it belong to the container runtime.
pub(crate) fn systemd_unit(cgroup: &[u8]) -> Option<&str> {
    let is_unit = |part: &str| part.ends_with(".service") || part.ends_with(".scope");
    let is_contained = container_id(cgroup).is_some();
    paths(cgroup).filter(|path| !is_contained || path.split('/').any(|part| id_in(part).is_some())).find_map(|path| {
        let inside = path.rsplit('/').take_while(|part| id_in(part).is_none());
        inside.filter(|part| is_unit(part)).find(|part| !part.contains(':'))
    })
}

/// Calls `find` with the parts of each path, innermost first because containers may be nested. Returns the first
/// result.
fn innermost<'a, T>(cgroup: &'a [u8], find: impl Fn(&'a str) -> Option<T>) -> Option<T> {
    paths(cgroup).find_map(|path| path.rsplit('/').find_map(&find))
}

fn paths(cgroup: &[u8]) -> impl Iterator<Item = &str> {
    fn path(line: &[u8]) -> Option<&str> {
        std::str::from_utf8(line.splitn(3, |&byte| byte == b':').nth(2)?).ok()
    }
    cgroup.split(|&byte| byte == b'\n').filter_map(path)
}

/// True if the text is a UUID or a hash of 32 digits. Kubernetes uses such a hash as the UID of a pod that a file
/// defines.
fn is_uid(text: &str) -> bool {
    let groups: Vec<_> = text.split('-').collect();
    let has_lengths = |lengths: &[usize]| groups.iter().map(|group| group.len()).eq(lengths.iter().copied());
    groups.iter().all(|group| is_hex(group)) && (has_lengths(&[8, 4, 4, 4, 12]) || has_lengths(&[32]))
}

/// Returns the container id in one part of a path, without the runtime's prefix and systemd's suffix.
fn id_in(part: &str) -> Option<&str> {
    let part = part.strip_suffix(".scope").or_else(|| part.strip_suffix(".service")).unwrap_or(part);
    if is_ecs_id(part) {
        return Some(part);
    }
    let id = part.rsplit(['-', ':']).next()?;
    (id.len() == 64 && is_hex(id)).then_some(id)
}

fn is_ecs_id(part: &str) -> bool {
    part.split_once('-').is_some_and(|(task, number)| {
        task.len() == 32 && is_hex(task) && 8 <= number.len() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f4ab6c8d0e1f2030405060708090a0b0c0d0e0f101112131415161718191a1b";

    #[test]
    fn the_id_is_found_in_the_path_of_every_runtime() {
        for path in [
            format!("/docker/{ID}"),
            format!("/system.slice/docker-{ID}.scope"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b2c.slice/cri-containerd-{ID}.scope"
            ),
            format!("/kubepods/besteffort/pod9a5c3f2e-7d1b-4b59-9d3f-0123456789ab/{ID}"),
            format!("/system.slice/containerd.service/kubepods-burstable-pod77.slice:cri-containerd:{ID}"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/kubepods.slice/crio-{ID}.scope"),
            format!("/docker/{ID}/system.slice/ssh.service"),
        ] {
            let cgroup = format!("12:cpu,cpuacct:/\n1:name=systemd:/init.scope\n0::{path}\n");
            assert_eq!(container_id(cgroup.as_bytes()), Some(ID), "{path}");
        }
    }

    const UID: &str = "9a5c3f2e-7d1b-4b59-9d3f-0123456789ab";

    #[test]
    fn the_pod_is_found_in_the_path_of_every_runtime() {
        let with_underscores = UID.replace('-', "_");
        for path in [
            format!("/kubepods/besteffort/pod{UID}/{ID}"),
            format!("/kubepods.slice/kubepods-pod{with_underscores}.slice/cri-containerd-{ID}.scope"),
            format!("/kubepods.slice/a.slice/kubepods-burstable-pod{with_underscores}.slice/crio-{ID}.scope/init"),
            format!(
                "/system.slice/containerd.service/kubepods-burstable-pod{with_underscores}.slice:cri-containerd:{ID}"
            ),
        ] {
            assert_eq!(pod_uid(format!("0::{path}\n").as_bytes()).as_deref(), Some(UID), "{path}");
            assert!(container_id(format!("0::{path}\n").as_bytes()).is_some());
        }
        let of_file = "0123456789abcdef0123456789abcdef";
        assert_eq!(pod_uid(format!("0::/kubepods/pod{of_file}/{ID}").as_bytes()).as_deref(), Some(of_file));
        for path in ["/", "/pod", "/tripod9a", "/kubepods/podman", &format!("/kubepods/pod{}", &UID[1..])] {
            assert_eq!(pod_uid(format!("0::{path}").as_bytes()), None, "{path}");
        }
    }

    #[test]
    fn the_unit_is_the_innermost_one_that_is_not_a_container() {
        for (path, unit) in [
            ("/system.slice/nginx.service", Some("nginx.service")),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.service", Some("app-x.service")),
            ("/user.slice/user-1000.slice/session-2.scope", Some("session-2.scope")),
            (&format!("/system.slice/docker-{ID}.scope"), None),
            (&format!("/docker/{ID}/system.slice/ssh.service"), Some("ssh.service")),
            (&format!("/kubepods.slice/kubepods-podx.slice:cri-containerd:{ID}.scope"), None),
            (&format!("/user.slice/user@1000.service/user.slice/libpod-{ID}.scope/container"), None),
            (&format!("/system.slice/containerd.service/kubepods-pod7.slice:cri-containerd:{ID}"), None),
            (&format!("/docker/{ID}\n1:name=systemd:/system.slice/containerd.service"), None),
            ("/system.slice", None),
            ("/", None),
        ] {
            assert_eq!(systemd_unit(format!("0::{path}\n").as_bytes()), unit, "{path}");
        }
    }

    #[test]
    fn the_innermost_of_nested_containers_counts() {
        let inner = ID.replace('3', "5");
        assert_eq!(container_id(format!("0::/docker/{ID}/docker/{inner}\n").as_bytes()), Some(&*inner));
    }

    #[test]
    fn the_id_of_an_ecs_task_has_its_own_form() {
        let id = "0123456789abcdef0123456789abcdef-1234567890";
        assert_eq!(container_id(format!("9:cpu:/ecs/task/{id}").as_bytes()), Some(id));
    }

    #[test]
    fn a_part_that_only_resembles_an_id_is_not_one() {
        for path in [
            "/",
            "/user.slice/user-1000.slice/session-2.scope",
            "/process_api/be062a331046100b092070fa2d67fb41",
            &format!("/docker/{}", &ID[1..]),
            &format!("/docker/{}", ID.to_uppercase()),
            &format!("/docker/{ID}0"),
        ] {
            assert_eq!(container_id(format!("0::{path}").as_bytes()), None, "{path}");
        }
        for cgroup in [&b""[..], b"\n\n", b"0:", b"::", b"0::/\xff\xfe"] {
            assert_eq!(container_id(cgroup), None);
        }
    }
}
