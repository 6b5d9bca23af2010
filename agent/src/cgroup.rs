//! The container that a process runs in, from /proc/<pid>/cgroup: one `hierarchy:controllers:path` a line.
//!
//! Container runtimes put the container's id, 64 hexadecimal digits, into the last part of the path that is theirs:
//! `/docker/<id>`, `/system.slice/docker-<id>.scope`, `/kubepods.slice/.../cri-containerd-<id>.scope`,
//! `/kubepods/burstable/pod<uid>/<id>`, `...slice:cri-containerd:<id>`, `/machine.slice/libpod-<id>.scope/container`.
//! Amazon ECS has 32 digits, `-`, and a number.

/// Bytes read of one file: a dozen hierarchies with paths of up to 4 kB.
pub(crate) const CGROUP_BYTES_MAX: u64 = 64 << 10;

/// The id of the container, or `None` for a process that is in none.
pub(crate) fn container_id(cgroup: &[u8]) -> Option<&str> {
    cgroup.split(|&byte| byte == b'\n').find_map(|line| {
        let path = std::str::from_utf8(line.splitn(3, |&byte| byte == b':').nth(2)?).ok()?;
        // The innermost container: a path may lead through the outer one of a container in a container.
        path.rsplit('/').find_map(id_in)
    })
}

/// The id in one part of a path: what is left without the runtime's prefix and the service manager's suffix.
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

    #[test]
    fn the_innermost_of_nested_containers_counts() {
        let inner = ID.replace('3', "5");
        assert_eq!(container_id(format!("0::/docker/{ID}/docker/{inner}\n").as_bytes()), Some(&*inner));
    }

    #[test]
    fn a_task_of_ecs_has_its_own_form() {
        let id = "0123456789abcdef0123456789abcdef-1234567890";
        assert_eq!(container_id(format!("9:cpu:/ecs/task/{id}").as_bytes()), Some(id));
    }

    #[test]
    fn what_only_looks_like_an_id_is_none() {
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
