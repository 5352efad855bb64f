//! Recorded figures: what share of every kernel tests must at least run. A figure may rise, but not fall unnoticed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use xtask::paths;

use super::figures::Figures;
use crate::json;

/// What is asked of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    /// Per cent of its instructions that some thread executes.
    pub executed: f64,
    /// Per cent of its guards that hold for some thread and fail for some.
    pub both_ways: f64,
}

/// What is asked of a kernel for which nothing is recorded yet.
const UNRECORDED: Floor = Floor {
    executed: 25.0,
    both_ways: 0.0,
};

/// What two runs may differ by, in per cent of a kernel: blocks run on several threads, and which is the last to arrive somewhere differs.
const MARGIN: f64 = 0.5;

/// What they may differ by where [`MARGIN`] is less than an instruction, in instructions or guards.
const LEAST_MARGIN: u32 = 2;

/// Floors by kernel.
pub type Floors = BTreeMap<String, Floor>;

fn path() -> PathBuf {
    paths::root().join("kernels-gpu/coverage.json")
}

/// Reads the recorded figures.
pub fn read() -> anyhow::Result<Floors> {
    json::read(&path())
}

/// Records figures in place of those before.
pub fn write(floors: &Floors) -> anyhow::Result<()> {
    let path = path();
    let text = serde_json::to_string_pretty(floors)? + "\n";
    fs::write(&path, text).with_context(|| path.display().to_string())
}

impl Floor {
    /// The floor under `figures`, in tenths of a per cent.
    pub fn under(figures: &Figures) -> Self {
        let tenths = |percent: f64| (percent * 10.0).floor() / 10.0;
        Self {
            executed: tenths(figures.executed_percent()),
            both_ways: tenths(figures.both_ways_percent()),
        }
    }
}

/// What is wrong with the figures of a kernel whose recorded ones are `floor`.
pub fn faults(figures: &Figures, floor: Option<&Floor>) -> Vec<String> {
    let floor = floor.unwrap_or(&UNRECORDED);
    let shares = [
        (
            "of its instructions are executed",
            figures.executed_percent(),
            floor.executed,
            figures.instructions,
        ),
        (
            "of its guards are seen both ways",
            figures.both_ways_percent(),
            floor.both_ways,
            figures.guarded,
        ),
    ];
    let below = shares
        .into_iter()
        .filter(|(_, now, floor, of)| now + margin(*of) < *floor);
    below
        .map(|(what, now, floor, _)| format!("{now:.1} % {what}, recorded are {floor:.1} %"))
        .collect()
}

/// What two runs may differ by, in per cent of `of` instructions or guards.
fn margin(of: u32) -> f64 {
    let least = f64::from(LEAST_MARGIN) * 100.0 / f64::from(of.max(1));
    least.max(MARGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURES: Figures = Figures {
        instructions: 1000,
        executed: 966,
        explained: 0,
        guarded: 100,
        both_ways: 80,
    };

    #[test]
    fn figures_may_rise_and_not_fall() {
        let floor = Floor::under(&FIGURES);
        assert_eq!((floor.executed, floor.both_ways), (96.6, 80.0));
        assert_eq!(faults(&FIGURES, Some(&floor)), [""; 0]);
        let with = |executed, both_ways| Figures {
            executed,
            both_ways,
            ..FIGURES
        };
        assert_eq!(faults(&with(1000, 100), Some(&floor)), [""; 0]);
        assert_eq!(faults(&with(962, 80), Some(&floor)), [""; 0]);
        assert_eq!(faults(&with(960, 80), Some(&floor)).len(), 1);
        // Two of a hundred guards are more than the margin, and may be another run's.
        assert_eq!(faults(&with(960, 78), Some(&floor)).len(), 1);
        assert_eq!(faults(&with(960, 77), Some(&floor)).len(), 2);
    }

    #[test]
    fn a_new_kernel_has_to_be_run() {
        assert_eq!(faults(&FIGURES, None), [""; 0]);
        let never = Figures {
            executed: 0,
            both_ways: 0,
            ..FIGURES
        };
        assert_eq!(
            faults(&never, None),
            ["0.0 % of its instructions are executed, recorded are 25.0 %"]
        );
    }
}
