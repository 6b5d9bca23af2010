//! Names as long and as alike as those of real programs.

use super::random::Random;

/// What a service is written in: what its frames carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Go,
    Jvm,
    CPython,
    /// Addresses without names, as agents send C++ and Rust.
    Native,
}

impl Language {
    /// `profile.frame.type`.
    pub(crate) fn frame_type(self) -> &'static str {
        match self {
            Self::Go => "go",
            Self::Jvm => "jvm",
            Self::CPython => "cpython",
            Self::Native => "native",
        }
    }

    /// A function's name and file.
    pub(crate) fn function(self, service: &str, number: usize, random: &mut Random) -> (String, String) {
        let package = pick(&PACKAGES, random);
        let noun = pick(&NOUNS, random);
        let verb = pick(&VERBS, random);
        match self {
            Self::Go | Self::Native => (
                format!("github.com/acme/{service}/internal/{package}.(*{noun}).{verb}{number}"),
                format!("/src/{service}/internal/{package}/{}.go", noun.to_lowercase()),
            ),
            Self::Jvm => {
                (format!("com.acme.{service}.{package}.{noun}Service.{verb}{number}"), format!("{noun}Service.java"))
            }
            Self::CPython => (
                format!("{noun}.{}_{number}", verb.to_lowercase()),
                format!("/usr/lib/python3.12/site-packages/{service}/{package}/{}.py", noun.to_lowercase()),
            ),
        }
    }
}

/// Name and language of each service.
pub(crate) const SERVICE_KINDS: [(&str, Language); super::SERVICES] = [
    ("checkout", Language::Go),
    ("catalog", Language::Jvm),
    ("recommender", Language::CPython),
    ("ledger", Language::Native),
    ("gateway", Language::Go),
];

/// From the system call to the scheduler.
pub(crate) const KERNEL_FUNCTIONS: [&str; 24] = [
    "entry_SYSCALL_64_after_hwframe",
    "do_syscall_64",
    "x64_sys_call",
    "__x64_sys_futex",
    "do_futex",
    "futex_wait",
    "__x64_sys_epoll_wait",
    "do_epoll_wait",
    "__x64_sys_sendto",
    "__sys_sendto",
    "sock_sendmsg",
    "inet_sendmsg",
    "tcp_sendmsg_locked",
    "tcp_push",
    "tcp_write_xmit",
    "__tcp_transmit_skb",
    "ip_queue_xmit",
    "ip_finish_output2",
    "dev_hard_start_xmit",
    "copy_user_enhanced_fast_string",
    "schedule",
    "__schedule",
    "finish_task_switch",
    "raw_spin_rq_lock",
];

const PACKAGES: [&str; 12] = [
    "pricing",
    "transport",
    "codec",
    "storage",
    "cache",
    "session",
    "metrics",
    "router",
    "search",
    "billing",
    "scheduler",
    "auth",
];
const NOUNS: [&str; 16] = [
    "Engine",
    "Decoder",
    "RequestHandler",
    "Pipeline",
    "Iterator",
    "Connection",
    "Transaction",
    "Serializer",
    "Registry",
    "Dispatcher",
    "Snapshot",
    "Executor",
    "Validator",
    "Aggregator",
    "Interceptor",
    "Repository",
];
const VERBS: [&str; 14] = [
    "Apply", "Process", "Handle", "Encode", "Resolve", "Flush", "Visit", "Merge", "Execute", "Dispatch", "Validate",
    "Load", "Scan", "Compute",
];

fn pick(from: &[&'static str], random: &mut Random) -> &'static str {
    from[random.below(from.len())]
}
