//! Attributes that a program publishes in OpenTelemetry's process context.

use crate::support::agent::RunningAgent;
use crate::support::program::Program;
use crate::support::view::Sample;

const FREQUENCY_HZ: u32 = 99;

/// Publishes its name and works for eight seconds, so that its last samples are of a later request than its first ones.
/// The payload is a resource with the attribute `service.name`, which is `cart`.
const PUBLISHER: &str = r#"
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
struct context { char signature[8]; uint32_t version, bytes; uint64_t published_ns; const char *payload; };
static volatile uint64_t sink;
int main(void) {
    static const char payload[] = "\n\x18\n\x16\n\x0cservice.name\x12\x06\n\x04""cart";
    int file = memfd_create("OTEL_CTX", MFD_CLOEXEC);
    if (ftruncate(file, 4096)) return 1;
    struct context *context = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    close(file);
    *context = (struct context){ .version = 2, .bytes = sizeof(payload) - 1, .published_ns = 1, .payload = payload };
    memcpy(context->signature, "OTEL_CTX", 8);
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    for (time_t end = t.tv_sec + 8; t.tv_sec < end; clock_gettime(CLOCK_MONOTONIC, &t))
        for (int i = 0; i < 100000; i++) sink += i;
    return 0;
}
"#;

#[test]
fn samples_have_the_attributes_that_their_program_publishes() {
    let test = "samples_have_the_attributes_that_their_program_publishes";
    let program = Program::compile(PUBLISHER);
    let Some(agent) = RunningAgent::start(test, FREQUENCY_HZ) else { return };
    let mut child =
        program.start(&[("OTEL_SERVICE_NAME", "variable"), ("OTEL_RESOURCE_ATTRIBUTES", "team=blue,service.name=x")]);
    let pid = child.id();
    assert!(child.wait().unwrap().success());
    let (mut samples, _) = agent.stop(test);
    // Before it runs the program, the process is one of this test.
    let path = program.path.to_str().unwrap();
    let is_of_program = |sample: &Sample| sample.resource.get("process.executable.path").is_some_and(|it| it == path);
    samples.retain(|sample| sample.is_of(pid) && is_of_program(sample));
    samples.sort_by_key(|sample| sample.times.iter().max().copied());
    let names: Vec<_> = samples.iter().filter_map(|sample| sample.resource.get("service.name")).collect();
    // Inside execve, the process has no environment.
    assert!(samples.len() <= names.len() + 2);
    assert!(names.iter().all(|name| ["variable", "cart"].contains(&name.as_str())), "{names:?}");
    let last = samples.last().map(|sample| ["service.name", "team"].map(|key| sample.resource[key].as_str()));
    assert_eq!(last, Some(["cart", "blue"]), "{names:?}");
}
