//! Judges the samples of all programs of a language.

use super::FREQUENCY_HZ;
use super::report::{Count, Counts, Report};
use testkit::report::note;

/// Shares that may be more than three standard deviations from those of the CPU time: 1 % of all, rounded up, because a
/// run compares many. None may be more than [`SIGMA_MAX`] away.
const OUTLIERS: f64 = 0.01;
const SIGMA_MAX: f64 = 4.5;

/// Number of samples of which at least one must have the names of all functions, also of those that are freed.
const NAMED_FROM: usize = 20;

/// Part of the samples that may miss functions, or have others. One sample of each case may, because a short run has
/// fewer than a hundred of a case.
const OTHER_MAX: f64 = 0.01;

/// Faults of the samples so far.
#[derive(Default)]
pub(crate) struct Verdict {
    shares: usize,
    outliers: Vec<String>,
    wrong: Vec<String>,
}

impl Verdict {
    /// Judges one program, and prints its figures.
    pub(crate) fn add(&mut self, program: &str, report: &Report, counts: &Counts) {
        let samples: usize = counts.cases.iter().map(|count| count.samples).sum();
        let cpu_ns: u64 = counts.cases.iter().map(|count| count.cpu_ns).sum();
        let mut worst: f64 = 0.0;
        for (case, count) in report.cases.iter().zip(&counts.cases) {
            let name = format!("{program} {}", case.name);
            let share = count.cpu_ns as f64 / cpu_ns.max(1) as f64;
            let mean = samples as f64 * share;
            let sigma = (count.samples as f64 - mean) / (mean * (1.0 - share)).sqrt().max(1.0);
            worst = if worst.abs() < sigma.abs() { sigma } else { worst };
            self.check_share(
                sigma,
                &format!(
                    "{name}: {} samples, {:.2} % of all, {:.2} % of the CPU time, {sigma:+.1} sigma, {} whole",
                    count.samples,
                    100.0 * count.samples as f64 / samples.max(1) as f64,
                    100.0 * share,
                    count.whole
                ),
            );
            self.check_whole(&name, count);
        }
        let parts = || counts.cases.iter().chain([&counts.between, &counts.lost]);
        let all = Count {
            cpu_ns,
            samples: parts().map(|count| count.samples).sum(),
            whole: parts().map(|count| count.whole).sum(),
            named: parts().map(|count| count.named).sum(),
            other: parts().flat_map(|count| &count.other).cloned().collect(),
            new: parts().map(|count| count.new).sum(),
            early: parts().map(|count| count.early).sum(),
        };
        let expected = cpu_ns as f64 / 1e9 * f64::from(FREQUENCY_HZ);
        let sigma = (samples as f64 - expected) / expected.sqrt().max(1.0);
        self.check_share(
            sigma,
            &format!("{program}: {samples} samples of all cases for {expected:.0}, {sigma:+.1} sigma"),
        );
        self.check_whole(&format!("{program}, with samples between and of no case"), &all);
        let (counted, rounds) = counts.rounds;
        if counted * 2 < rounds {
            self.wrong.push(format!("{program}: {counted} of {rounds} rounds began after all had a whole sample"));
        }
        note(&format!(
            "{program}: {} of {} samples are whole, {} are between, {} are of no case; worst share {worst:+.1} sigma; \
             {counted} of {rounds} rounds; not whole, too: {} with a new file, {} before these rounds",
            all.whole, all.samples, counts.between.samples, counts.lost.samples, all.new, all.early
        ));
        counts.lost.other.iter().for_each(|sample| note(&format!("{program}, of no case: {sample}")));
    }

    /// Checks and prints a number of samples that is so many standard deviations from its mean.
    fn check_share(&mut self, sigma: f64, figure: &str) {
        note(figure);
        self.shares += 1;
        if SIGMA_MAX < sigma.abs() {
            self.wrong.push(figure.to_owned());
        } else if 3.0 < sigma.abs() {
            self.outliers.push(figure.to_owned());
        }
    }

    fn check_whole(&mut self, name: &str, count: &Count) {
        let other = count.samples - count.whole - count.new;
        if NAMED_FROM < count.whole && count.named == 0 {
            self.wrong.push(format!("{name}: functions that are freed have no name in {} samples", count.whole));
        }
        if count.samples == 0 || (OTHER_MAX * count.samples as f64).max(1.0) < other as f64 {
            self.wrong.push(format!("{name}: {} of {} whole: {:#?}", count.whole, count.samples, count.other));
        }
    }

    /// Checks that nothing is wrong.
    pub(crate) fn check(self) {
        let Self { shares, outliers, wrong } = self;
        let allowed = (OUTLIERS * shares as f64).ceil() as usize;
        assert!(wrong.is_empty() && outliers.len() <= allowed, "{wrong:#?}, outliers of {shares}: {outliers:#?}");
    }
}
