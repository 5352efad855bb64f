//! How many instructions a kernel executes, held to what is recorded: blocks that nobody sees, tiles that are computed again and
//! shortcuts that are not taken change no result, and would be noticed on a GPU alone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{env, fs};

use ferroflash::Backend;
use ferroflash::backend::sim::{Sim, replaced_kernel};
use ferroflash_testing::cases::CorpusCase;
use ferroflash_tests::corpus;
use ferroflash_tests::replaced::is_untouched;
use ferroflash_tests::schedules::{SCHEDULES, counting};
use kernels_gpu::instances::{self, Family, Instance, KernelConfig};

use super::borders::{self, Scores};
use super::decode::{kernels, prefill};

/// Asks for the counts to be recorded anew, whatever its value.
const RECORD_VAR: &str = "FERROFLASH_RECORD_INSTRUCTIONS";

/// What counts may differ by where warps ask barriers, or the last block has work of its own: how often, and which, depends on how far
/// other blocks are. Elsewhere a count is always the same.
const MARGIN: f64 = 0.01;

/// Warp instructions by kernel.
type Counts = BTreeMap<String, u64>;

/// What is recorded: in the test itself, which also runs where there is no source tree.
const RECORDED: &str = include_str!("../../instruction-counts.json");

/// Where it is recorded.
fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("instruction-counts.json")
}

/// A problem that `instance` is for, of random numbers; a row sees a block whole and parts of two, or all keys of a cache.
fn case(sim: &mut Sim, instance: &Instance) -> Option<CorpusCase> {
    const LENGTHS: [usize; 2] = [700, 40];
    let of_cache = |spec| Some(CorpusCase::Decode(Box::new(spec)));
    match instance.config {
        KernelConfig::Decode(config) => of_cache(kernels::spec(instance, config, &LENGTHS)),
        KernelConfig::Wgmma(config) if config.cached => {
            of_cache(prefill::spec(instance, config, &LENGTHS))
        }
        _ if borders::is_wanted(instance) => {
            Some(borders::case(sim, instance, Scores::Plain, 0, 2)?.0)
        }
        _ => None,
    }
}

/// The counts of all kernels that a test of a single one is for.
fn counted() -> Counts {
    let mut sim = counting(SCHEDULES[0]);
    let mut counted = Counts::new();
    for instance in instances::all().filter(|row| !is_untouched(row.name)) {
        let Some(case) = case(&mut sim, instance) else {
            continue;
        };
        let outcome = corpus::run(&mut sim, &case);
        outcome.unwrap_or_else(|wrong| panic!("{}: {case}: {wrong}", instance.name));
        let launches = sim.memory().take_statistics();
        let of_kernel = launches.iter().filter(|l| l.kernel == instance.name);
        let instructions = of_kernel.map(|launch| launch.statistics.executed("")).sum();
        counted.insert(instance.name.to_owned(), instructions);
    }
    counted
}

/// What is wrong with the count of `kernel`.
fn fault(kernel: &str, now: u64, recorded: &Counts) -> Option<String> {
    let Some(&recorded) = recorded.get(kernel) else {
        return Some(format!("{kernel}: nothing is recorded"));
    };
    let is_exact = instances::find(kernel).is_some_and(|row| {
        matches!(row.family, Family::Simt | Family::Mma) && row.decode().is_none()
    });
    let margin = if is_exact { 0.0 } else { MARGIN };
    let change = now as f64 / recorded as f64 - 1.0;
    (change.abs() > margin).then(|| {
        let percent = 100.0 * change;
        format!("{kernel}: {now} warp instructions, recorded are {recorded}: {percent:+.3} %")
    })
}

#[test]
fn sim() {
    let counted = counted();
    // Of a kernel that is replaced alone there may be no such problem.
    assert!(!counted.is_empty() || replaced_kernel().is_some());
    if env::var_os(RECORD_VAR).is_some() {
        let text = serde_json::to_string_pretty(&counted).expect("numbers by names");
        fs::write(path(), text + "\n").expect("the folder is there");
        return;
    }
    let recorded: Counts = serde_json::from_str(RECORDED).expect("it was written here");
    let faults = counted
        .iter()
        .filter_map(|(kernel, &now)| fault(kernel, now, &recorded));
    let gone = recorded
        .keys()
        .filter(|kernel| instances::find(kernel).is_none())
        .map(|kernel| format!("{kernel}: it is recorded, and no kernel"));
    let faults: Vec<_> = faults.chain(gone).collect();
    assert!(
        faults.is_empty(),
        "{faults:#?}\nif they are meant, record them: {RECORD_VAR}=1 cargo test -p ferroflash-tests instruction_counts"
    );
}
