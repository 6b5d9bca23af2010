//! Samples of goroutines: their labels, and the functions that needed larger stacks. These tests need Go.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::agent::RunningAgent;
use crate::support::view::Sample;
use testkit::report;

/// Program with two labelled goroutines, one of them with more labels than are recorded, and one without labels.
const LABELLED: &str = r#"
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
		labels := pprof.Labels("endpoint", "/orders", "tenant", "acme")
		pprof.Do(context.Background(), labels, func(context.Context) { orders(until) })
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

/// Program with goroutines whose stacks grow sixfold, one after another.
const GROWING: &str = r#"
package main

import (
	"fmt"
	"os"
	"time"
)

//go:noinline
func descend(depth int, words [64]uint64) uint64 {
	if depth == 0 { return words[0] }
	words[depth % 64]++
	return descend(depth - 1, words) + words[depth % 64]
}

func main() {
	until := time.Now().Add(3 * time.Second)
	sum := uint64(0)
	for time.Now().Before(until) {
		done := make(chan uint64)
		go func() { done <- descend(200, [64]uint64{}) }()
		sum += <-done
	}
	fmt.Println(os.Getpid(), sum)
}
"#;

fn build(go: &str, source: &str, folder: &Path) -> Option<PathBuf> {
    std::fs::write(folder.join("main.go"), source).unwrap();
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

/// Builds and runs a program with each installed Go, and calls `check` with its samples.
fn with_each_go(test: &str, source: &str, check: impl Fn(&str, &[Sample])) {
    if cfg!(not(target_arch = "x86_64")) {
        return report::skipped(test, "the layout of goroutines is known on x86-64 only");
    }
    let others = std::env::var("VARVE_TEST_GOS").unwrap_or_default();
    for go in std::iter::once("go").chain(others.split(':').filter(|go| !go.is_empty())) {
        let folder = tempfile::tempdir().unwrap();
        let Some(program) = build(go, source, folder.path()) else {
            return report::skipped(test, format_args!("no {go}"));
        };
        let Some(agent) = RunningAgent::start(test, 199) else { return };
        let run = || {
            let output = Command::new(&program).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap()
        };
        // Samples that are taken before the file has its table have no goroutine.
        let _warm_up: u32 = run();
        std::thread::sleep(std::time::Duration::from_secs(1));
        let pid: u32 = run();
        let (mut samples, _) = agent.stop(test);
        samples.retain(|sample| sample.is_of(pid));
        check(go, &samples);
    }
}

#[test]
fn stacks_that_grow_have_the_functions_that_need_them() {
    let test = "stacks_that_grow_have_the_functions_that_need_them";
    with_each_go(test, GROWING, |go, samples| {
        let mut whole = 0;
        let mut all = 0;
        for sample in samples {
            let names: Vec<&str> = sample.frames.iter().map(|frame| &*frame.name).collect();
            // The garbage collector also shrinks stacks, by the same functions.
            let grows = ["runtime.copystack", "runtime.newstack", "runtime.morestack"];
            if !grows.iter().all(|name| names.contains(name)) {
                continue;
            }
            all += sample.times.len();
            let depth = names.iter().filter(|name| **name == "main.descend").count();
            let is_whole = 2 <= depth && names.ends_with(&["main.main.func1", "runtime.goexit"]);
            whole += if is_whole { sample.times.len() } else { 0 };
        }
        assert!(40 < all && 0.97 < whole as f64 / all as f64, "{go}: {whole} of {all}");
    });
}

#[test]
fn samples_of_a_labelled_goroutine_have_its_labels() {
    let test = "samples_of_a_labelled_goroutine_have_its_labels";
    with_each_go(test, LABELLED, |go, samples| {
        let of = |function: &str| {
            let mut labelled = 0;
            let mut all = 0;
            let mut most = 0;
            let mut other = String::new();
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
    });
}
