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

/// A case of the corpus, and what it executes.
pub struct Kept {
    pub case: CorpusCase,
    kernels: BTreeMap<&'static str, Coverage>,
    time: Duration,
}

impl Kept {
    /// `case`, which made these launches and took `time`.
    pub fn new(case: CorpusCase, launches: &[KernelStatistics], time: Duration) -> Self {
        let mut kernels: BTreeMap<_, Coverage> = BTreeMap::new();
        for launch in launches {
            let of_kernel = kernels.entry(launch.kernel).or_default();
            of_kernel.add(&launch.coverage);
        }
        Self {
            case,
            kernels,
            time,
        }
    }

    /// How long it runs, without checks.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Of each kernel, whether each instruction ran and whether a guard of it did not hold; and the same once more if the inputs are
    /// finite.
    pub fn ways(&self) -> impl Iterator<Item = (&'static str, usize, [bool; 4])> + '_ {
        let is_finite = self.case.is_finite();
        let kernels = self.kernels.iter();
        kernels.flat_map(move |(kernel, coverage)| {
            ways_of(coverage, is_finite).map(|(index, ways)| (*kernel, index, ways))
        })
    }
}

/// As [`Kept::ways`], of a kernel's coverage by inputs that are finite or not.
pub fn ways_of(
    coverage: &Coverage,
    is_finite: bool,
) -> impl Iterator<Item = (usize, [bool; 4])> + '_ {
    let indices = 0..coverage.len();
    indices.map(move |index| (index, both_bits(coverage, index, is_finite)))
}

/// Whether instruction `index` ran, and whether a guard of it did not hold.
fn bits(coverage: &Coverage, index: usize) -> [bool; 2] {
    [coverage.is_executed(index), coverage.is_skipped(index)]
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

/// How many instructions ran, none of a kernel that did not.
fn executed(coverage: Option<&Coverage>) -> usize {
    let count = |coverage: &Coverage| {
        let indices = 0..coverage.len();
        indices.filter(|index| coverage.is_executed(*index)).count()
    };
    coverage.map_or(0, count)
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

    /// What `kept` execute together.
    pub fn of(kept: &[Kept]) -> Self {
        let mut seen = Self::default();
        for one in kept {
            seen.add(one);
        }
        seen
    }

    pub fn add(&mut self, one: &Kept) {
        for (kernel, coverage) in &one.kernels {
            self.kernels.entry(kernel).or_default().add(coverage);
            if one.case.is_finite() {
                self.by_finite.entry(kernel).or_default().add(coverage);
            }
        }
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
