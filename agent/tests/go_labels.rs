//! What goroutines are labelled with stands at their samples. Needs root or CAP_BPF and CAP_PERFMON, and Go, and says so where it cannot run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests need the rest")]
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::report;
use support::sink::RunningAgent;

/// Two labelled goroutines, one of them with more labels than are recorded, and one without any.
const SOURCE: &str = r#"
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"
	"sync"
	"time"
)

var sink [3]uint64

//go:noinline
func spin(which int, until time.Time) {
	for time.Now().Before(until) {
		for i := 0; i < 1000000; i++ { sink[which] += uint64(i) }
	}
}

//go:noinline
func orders(until time.Time) { spin(0, until); sink[0]++ }
//go:noinline
func users(until time.Time) { spin(1, until); sink[1]++ }
//go:noinline
func unlabelled(until time.Time) { spin(2, until); sink[2]++ }

func main() {
	until := time.Now().Add(3 * time.Second)
	var all sync.WaitGroup
	all.Add(3)
	go func() {
		defer all.Done()
		pprof.Do(context.Background(), pprof.Labels("endpoint", "/orders", "tenant", "acme"), func(context.Context) { orders(until) })
	}()
	go func() {
		defer all.Done()
		labels := []string{"endpoint", "/users"}
		for i := 0; i < 20; i++ { labels = append(labels, fmt.Sprintf("more%02d", i), "x") }
		pprof.Do(context.Background(), pprof.Labels(labels...), func(context.Context) { users(until) })
	}()
	go func() { defer all.Done(); unlabelled(until) }()
	all.Wait()
	fmt.Println(os.Getpid(), sink[0]+sink[1]+sink[2] != 1)
}
"#;

fn build(go: &str, folder: &Path) -> Option<PathBuf> {
    std::fs::write(folder.join("main.go"), SOURCE).unwrap();
    std::fs::write(folder.join("go.mod"), "module labels\n\ngo 1.18\n").unwrap();
    let program = folder.join("program");
    let environment = [("CGO_ENABLED", "0"), ("GOTOOLCHAIN", "local"), ("GOFLAGS", "-mod=mod")];
    let built = Command::new(go)
        .args(["build", "-ldflags=-s -w", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(folder)
        .envs(environment)
        .output();
    let output = built.ok()?;
    assert!(output.status.success(), "{go}: {}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

#[test]
fn samples_of_a_labelled_goroutine_have_its_labels() {
    let test = "samples_of_a_labelled_goroutine_have_its_labels";
    if cfg!(not(target_arch = "x86_64")) {
        return report::skipped(test, &"where goroutines are is known on x86-64 alone");
    }
    let others = std::env::var("VARVE_TEST_GOS").unwrap_or_default();
    for go in std::iter::once("go").chain(others.split(':').filter(|go| !go.is_empty())) {
        let folder = tempfile::tempdir().unwrap();
        let Some(program) = build(go, folder.path()) else { return report::skipped(test, &format_args!("no {go}")) };
        let Some(agent) = RunningAgent::start(test, 199) else { return };
        let run = || {
            let output = Command::new(&program).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap()
        };
        // Samples of a file before its table is there have no labels.
        let _warm_up: u32 = run();
        std::thread::sleep(std::time::Duration::from_secs(1));
        let pid: u32 = run();
        let (mut samples, _) = agent.stop(test);
        samples.retain(|sample| sample.is_of(pid));
        let of = |function: &str| {
            let (mut labelled, mut all, mut most, mut other) = (0, 0, 0, String::new());
            for sample in samples.iter().filter(|sample| sample.frames.iter().any(|frame| frame.name == function)) {
                all += sample.times.len();
                let attribute = |name: &str| sample.attributes.get(name).map(String::as_str);
                let own = sample.attributes.len() - 3;
                let is_right = match function {
                    "main.orders" => {
                        (attribute("endpoint"), attribute("tenant"), own) == (Some("/orders"), Some("acme"), 2)
                    }
                    "main.users" => {
                        let more =
                            sample.attributes.iter().filter(|(name, value)| name.starts_with("more") && *value == "x");
                        more.count() + usize::from(attribute("endpoint") == Some("/users")) == own && 0 < own
                    }
                    _ => own == 0,
                };
                most = most.max(own);
                if !is_right {
                    other = format!("{sample:?}");
                }
                labelled += if is_right { sample.times.len() } else { 0 };
            }
            (labelled, all, most, other)
        };
        for function in ["main.orders", "main.users", "main.unlabelled"] {
            let (right, all, most, other) = of(function);
            assert!(
                40 < all && 0.97 < right as f64 / all as f64,
                "{go}: {function}: {right} of {all}; another: {other}"
            );
            assert_eq!(
                most,
                match function {
                    "main.orders" => 2,
                    "main.users" => 8,
                    _ => 0,
                },
                "{go}: {function}"
            );
        }
    }
}
