//! What cases have executed.

use std::collections::BTreeMap;
use std::time::Duration;

use ferroflash::backend::sim::KernelStatistics;
use ferroflash_testing::cases::CorpusCase;
use ptx_sim::Coverage;

/// What all cases have executed, by kernel.
#[derive(Default)]
pub struct Seen {
    kernels: BTreeMap<&'static str, Coverage>,
    /// The same of cases whose inputs are finite: where a NaN is all that may come out, nothing shows what an instruction computes.
    by_finite: BTreeMap<&'static str, Coverage>,
}

/// What one case executes.
#[derive(Default)]
pub struct Mine {
    kernels: BTreeMap<&'static str, Coverage>,
    /// How long it ran.
    time: Duration,
}

/// A case of the corpus.
pub struct Kept {
    pub case: CorpusCase,
    mine: Mine,
}

impl Kept {
    /// How long it runs, without checks.
    pub fn time(&self) -> Duration {
        self.mine.time
    }

    /// Of each kernel, whether each instruction ran and whether a guard of it did not hold; and the same once more if the inputs are
    /// finite.
    pub fn ways(&self) -> impl Iterator<Item = (&'static str, usize, [bool; 4])> + '_ {
        let is_finite = self.case.is_finite();
        let kernels = self.mine.kernels.iter();
        kernels.flat_map(move |(kernel, coverage)| {
            let indices = 0..coverage.len();
            indices.map(move |index| (*kernel, index, both_bits(coverage, index, is_finite)))
        })
    }
}

impl Mine {
    pub fn of(self, case: CorpusCase) -> Kept {
        Kept { case, mine: self }
    }
}

/// Whether instruction `index` ran, and whether a guard of it did not hold.
fn bits(coverage: &Coverage, index: usize) -> [bool; 2] {
    [coverage.is_executed(index), coverage.is_skipped(index)]
}

/// How many instructions ran, none of a kernel that did not.
fn executed(coverage: Option<&Coverage>) -> usize {
    let count = |coverage: &Coverage| {
        let indices = 0..coverage.len();
        indices.filter(|index| coverage.is_executed(*index)).count()
    };
    coverage.map_or(0, count)
}

/// The same of any inputs, and of finite ones.
fn both_bits(coverage: &Coverage, index: usize, is_finite: bool) -> [bool; 4] {
    let [executed, skipped] = bits(coverage, index);
    [
        executed,
        skipped,
        is_finite && executed,
        is_finite && skipped,
    ]
}

impl Seen {
    /// How many instructions were executed for the first time, and guards seen to hold or to fail, by `launches`; those that
    /// cases of finite inputs have in addition count too.
    pub fn gain(&self, launches: &[KernelStatistics], is_finite: bool) -> usize {
        let seen = if is_finite {
            &self.by_finite
        } else {
            &self.kernels
        };
        let mut gain = 0;
        for launch in launches {
            let before = seen.get(launch.kernel);
            for index in 0..launch.coverage.len() {
                let now = bits(&launch.coverage, index);
                let before = before.map_or([false; 2], |before| bits(before, index));
                gain += usize::from(now[0] && !before[0]) + usize::from(now[1] && !before[1]);
            }
        }
        gain
    }

    /// Adds `launches`; also gives what they executed alone, in `time`.
    pub fn take(&mut self, launches: &[KernelStatistics], time: Duration, is_finite: bool) -> Mine {
        let mut mine = Mine {
            time,
            ..Mine::default()
        };
        for launch in launches {
            let mut maps = vec![&mut self.kernels, &mut mine.kernels];
            if is_finite {
                maps.push(&mut self.by_finite);
            }
            for map in maps {
                map.entry(launch.kernel).or_default().add(&launch.coverage);
            }
        }
        mine
    }

    /// Instructions of a kernel that were not executed, and all of them; none are known of one that never ran.
    pub fn missing(&self, kernel: &str) -> Option<(usize, usize)> {
        let all = self.kernels.get(kernel)?.len();
        Some((all - executed(self.kernels.get(kernel)), all))
    }

    /// Instructions of a kernel that ran which no case of finite inputs has executed; 0 of one that never ran.
    pub fn missing_by_finite(&self, kernel: &str) -> usize {
        let all = self.kernels.get(kernel).map_or(0, Coverage::len);
        all - executed(self.by_finite.get(kernel))
    }

    /// Figures of all kernels that ran.
    pub fn summary(&self) -> String {
        let (mut missing, mut all) = (0, 0);
        for kernel in self.kernels.keys() {
            let (of_kernel, instructions) = self.missing(kernel).unwrap_or_default();
            missing += of_kernel;
            all += instructions;
        }
        let by_finite: usize = self
            .kernels
            .keys()
            .map(|kernel| self.missing_by_finite(kernel))
            .sum();
        let percent = |missing| 100.0 * (all - missing) as f64 / all.max(1) as f64;
        format!(
            "{} kernels, {:.2} % of {all} instructions, {:.2} % of finite inputs",
            self.kernels.len(),
            percent(missing),
            percent(by_finite),
        )
    }

    /// Prints the kernels of which least was executed.
    pub fn print_least(&self, is_wanted: impl Fn(&str) -> bool) {
        let of_kernel = |kernel: &&'static str| {
            let (missing, all) = self.missing(kernel).unwrap_or_default();
            (100.0 * (all - missing) as f64 / all.max(1) as f64, *kernel)
        };
        let wanted = self.kernels.keys().filter(|kernel| is_wanted(kernel));
        let mut kernels: Vec<_> = wanted.map(of_kernel).collect();
        kernels.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (percent, kernel) in kernels {
            println!("{percent:6.2} % {kernel}");
        }
    }
}
