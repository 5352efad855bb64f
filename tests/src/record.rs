//! What tests find in the simulator, held to what is recorded.
//!
//! Results by their bits: a bound lets through what changes a result by less, such as the last coefficient of a polynomial or the number
//! from which another form of it stands. Kernels by how many instructions they execute: blocks that nobody sees, tiles that are computed
//! again and shortcuts that are not taken change no result, and would be noticed on a GPU alone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{env, fs};

use crc32fast::Hasher;
use ferroflash::backend::sim::{Sim, replaced_kernel};
use ferroflash::{Backend, HostTensor};
use kernels_gpu::instances::{self, Family, Instance, Operation};
use serde::{Deserialize, Serialize};

use crate::replaced::is_untouched;

/// Asks for everything to be recorded anew, whatever its value.
pub const RECORD_VAR: &str = "FERROFLASH_RECORD";

/// What counts of instructions may differ by where they depend on which block comes first ([`is_exact`]): in few of them they differ,
/// and by less than a third of this. On a pool of one thread, on which they are recorded and mutants are run, blocks come in one order.
const MARGIN: f64 = 0.0002;

/// A checksum of what tensors hold, what lies between their elements included.
pub fn checksum<'a>(tensors: impl IntoIterator<Item = &'a HostTensor>) -> u32 {
    let mut hasher = Hasher::new();
    for tensor in tensors {
        hasher.update(tensor.bytes());
    }
    hasher.finalize()
}

/// Whether kernel `name` executes as many instructions each time. Blocks of Hopper's kernels draw their tiles, and the last block of a
/// cache's has work of its own.
fn is_exact(name: &str) -> bool {
    let draws_tiles =
        |row: &Instance| row.family == Family::Wgmma && row.operation != Operation::TileList;
    instances::find(name).is_some_and(|row| !draws_tiles(row) && row.decode().is_none())
}

/// What is wrong with `now`, a number of instructions that kernel `name` executes, if `recorded` is recorded.
pub fn fault(name: &str, now: u64, recorded: Option<u64>) -> Option<String> {
    let Some(recorded) = recorded else {
        return Some(format!("{name}: nothing is recorded"));
    };
    let change = now as f64 / recorded as f64 - 1.0;
    let comes_in_order = rayon::current_num_threads() == 1;
    let margin = if comes_in_order || is_exact(name) {
        0.0
    } else {
        MARGIN
    };
    (now != recorded && change.abs() > margin).then(|| {
        let percent = 100.0 * change;
        format!("{name}: {now} warp instructions, recorded are {recorded}: {percent:+.3} %")
    })
}

/// What is in a file.
#[derive(Default, Serialize, Deserialize)]
struct Found {
    /// Checksums of results, in hexadecimal, by the names of cases.
    bits: BTreeMap<String, String>,
    /// Warp instructions of all launches, by the names of kernels.
    instructions: BTreeMap<String, u64>,
}

/// What a test finds.
#[derive(Default)]
pub struct Record {
    test: &'static str,
    /// What is recorded: in the test itself, which also runs where there is no source tree.
    recorded: &'static str,
    found: Found,
}

/// The [`Record`] of a test, an expression that `concat!` takes, that is kept in `tests/records/<test>.json`: an empty file, before
/// there is one.
#[macro_export]
macro_rules! record {
    ($test:expr) => {
        $crate::record::Record::of(
            $test,
            include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/records/",
                $test,
                ".json"
            )),
        )
    };
}

impl Record {
    /// Of a test for which `recorded` is recorded.
    pub fn of(test: &'static str, recorded: &'static str) -> Self {
        Self {
            test,
            recorded,
            found: Found::default(),
        }
    }

    /// Takes the checksum of `case`, once.
    pub fn take(&mut self, case: String, checksum: u32) {
        let before = self.found.bits.insert(case, format!("{checksum:08x}"));
        assert!(before.is_none(), "two cases of a name");
    }

    /// Takes what `sim` has executed.
    fn count(&mut self, sim: &mut Sim) {
        for (kernel, instructions) in sim.memory().executed() {
            let of_kernel = self.found.instructions.entry((*kernel).to_owned());
            *of_kernel.or_default() += instructions;
        }
    }

    /// Where it is recorded.
    fn path(&self) -> PathBuf {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("records");
        folder.join(format!("{}.json", self.test))
    }

    /// Compares everything, and what `sims` have executed, with what is recorded, or records it.
    ///
    /// # Panics
    /// If something is other than recorded, or nothing is recorded of it.
    pub fn finish(mut self, sims: &mut [Sim]) {
        let test = self.test;
        for sim in sims {
            self.count(sim);
        }
        if env::var_os(RECORD_VAR).is_some() {
            let text =
                serde_json::to_string_pretty(&self.found).expect("texts and numbers by names");
            fs::write(self.path(), text + "\n").expect("the folder is there");
            return;
        }
        let recorded: Found = serde_json::from_str(self.recorded).expect("it was written here");
        let faults = self.faults(&recorded);
        assert!(
            faults.is_empty(),
            "{test}: {faults:#?}\nif that is meant, record it: {RECORD_VAR}=1 RAYON_NUM_THREADS=1 cargo test -p ferroflash-tests"
        );
        let are_all_found = self.found.bits.len() == recorded.bits.len()
            && self.found.instructions.len() == recorded.instructions.len();
        let is_whole = replaced_kernel().is_some() || are_all_found;
        assert!(is_whole, "{test}: something is recorded that is not found");
    }

    /// What is other than recorded.
    fn faults(&self, recorded: &Found) -> Vec<String> {
        let differs = |(case, bits): &(&String, &String)| recorded.bits.get(*case) != Some(*bits);
        let other = self.found.bits.iter().filter(differs);
        let bits = other.map(|(case, bits)| format!("{case}: the result's checksum is {bits}"));
        let counted = self.found.instructions.iter();
        // Of kernels that are whole, not every case has run.
        let counted = counted.filter(|(kernel, _)| !is_untouched(kernel));
        let counts = counted.filter_map(|(kernel, &now)| {
            fault(kernel, now, recorded.instructions.get(kernel).copied())
        });
        bits.chain(counts).collect()
    }
}
