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

impl Mine {
    pub fn of(self, case: CorpusCase) -> Kept {
        Kept { case, mine: self }
    }
}

/// Whether instruction `index` ran, and whether a guard of it did not hold.
fn bits(coverage: &Coverage, index: usize) -> [bool; 2] {
    [coverage.is_executed(index), coverage.is_skipped(index)]
}

impl Seen {
    /// How many instructions were executed for the first time, and guards seen to hold or to fail, by `launches`.
    pub fn gain(&self, launches: &[KernelStatistics]) -> usize {
        let mut gain = 0;
        for launch in launches {
            let before = self.kernels.get(launch.kernel);
            for index in 0..launch.coverage.len() {
                let now = bits(&launch.coverage, index);
                let before = before.map_or([false; 2], |before| bits(before, index));
                gain += usize::from(now[0] && !before[0]) + usize::from(now[1] && !before[1]);
            }
        }
        gain
    }

    /// Adds `launches`; also gives what they executed alone, in `time`.
    pub fn take(&mut self, launches: &[KernelStatistics], time: Duration) -> Mine {
        let mut mine = Mine {
            time,
            ..Mine::default()
        };
        for launch in launches {
            self.kernels
                .entry(launch.kernel)
                .or_default()
                .add(&launch.coverage);
            mine.kernels
                .entry(launch.kernel)
                .or_default()
                .add(&launch.coverage);
        }
        mine
    }

    /// Instructions of a kernel that were not executed, and all of them; none are known of one that never ran.
    pub fn missing(&self, kernel: &str) -> Option<(usize, usize)> {
        let coverage = self.kernels.get(kernel)?;
        let executed = (0..coverage.len()).filter(|index| coverage.is_executed(*index));
        Some((coverage.len() - executed.count(), coverage.len()))
    }

    /// Figures of all kernels that ran.
    pub fn summary(&self) -> String {
        let (mut missing, mut all) = (0, 0);
        for kernel in self.kernels.keys() {
            let (of_kernel, instructions) = self.missing(kernel).unwrap_or_default();
            missing += of_kernel;
            all += instructions;
        }
        let percent = 100.0 * (all - missing) as f64 / all.max(1) as f64;
        format!(
            "{} kernels, {percent:.2} % of {all} instructions",
            self.kernels.len()
        )
    }

    /// Prints the kernels of which least was executed.
    pub fn print_least(&self, part: &str) {
        let of_kernel = |kernel: &&'static str| {
            let (missing, all) = self.missing(kernel).unwrap_or_default();
            (100.0 * (all - missing) as f64 / all.max(1) as f64, *kernel)
        };
        let wanted = self.kernels.keys().filter(|kernel| kernel.contains(part));
        let mut kernels: Vec<_> = wanted.map(of_kernel).collect();
        kernels.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (percent, kernel) in kernels {
            println!("{percent:6.2} % {kernel}");
        }
    }
}

/// Those of `kept` without which something would not be executed; the dearest are left out first.
pub fn without_superfluous(mut kept: Vec<Kept>) -> Vec<Kept> {
    let mut counts: BTreeMap<&'static str, Vec<[u32; 2]>> = BTreeMap::new();
    let each = |mine: &Mine, take: &mut dyn FnMut(&'static str, usize, usize)| {
        for (kernel, coverage) in &mine.kernels {
            for index in 0..coverage.len() {
                for (way, is_so) in bits(coverage, index).into_iter().enumerate() {
                    if is_so {
                        take(kernel, index, way);
                    }
                }
            }
        }
    };
    for one in &kept {
        for (kernel, coverage) in &one.mine.kernels {
            let of_kernel = counts.entry(kernel).or_default();
            of_kernel.resize(coverage.len(), [0; 2]);
        }
        each(&one.mine, &mut |kernel, index, way| {
            counts.get_mut(kernel).expect("counted")[index][way] += 1;
        });
    }
    kept.sort_by_key(|one| std::cmp::Reverse(one.mine.time));
    kept.retain(|one| {
        let mut own = 0;
        each(&one.mine, &mut |kernel, index, way| {
            own += usize::from(counts[kernel][index][way] == 1);
        });
        if own > 0 {
            return true;
        }
        each(&one.mine, &mut |kernel, index, way| {
            counts.get_mut(kernel).expect("counted")[index][way] -= 1;
        });
        false
    });
    kept
}
