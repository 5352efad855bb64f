//! The corpus of cases in `tests/corpus.jsonl`: chosen for what they make the kernels execute, and run with every test of
//! the workspace, so that `cargo xtask coverage` finds the same figures each time. `cargo run -p ferroflash-tests --example
//! grow_corpus` chooses them.

use std::path::PathBuf;

use ferroflash::backend::{Device, Gpu};
use ferroflash::{Backend, Error};
use ferroflash_testing::cases::{CorpusCase, Pass};
use kernels_gpu::config::limits::{SM80_SHARED_BYTES, SM86_SHARED_BYTES, SM90_SHARED_BYTES};

use crate::schedules;

/// Shared memory of a block of the GPUs that cases are for, bytes, the least first: a case for a kernel takes the first that it
/// fits, so that a tile for more is not chosen in its place.
pub const SHARED_BYTES: [u32; 3] = [SM86_SHARED_BYTES, SM80_SHARED_BYTES, SM90_SHARED_BYTES];

/// The file, a case a line.
pub fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus.jsonl")
}

/// The cases of a file's text.
///
/// # Errors
/// Which line is none.
pub fn parse(text: &str) -> Result<Vec<CorpusCase>, serde_json::Error> {
    text.lines().map(serde_json::from_str).collect()
}

/// The text of a file of `cases`.
///
/// # Errors
/// Never, of cases that were parsed or drawn.
pub fn text(cases: &[CorpusCase]) -> Result<String, serde_json::Error> {
    let mut text = String::new();
    for case in cases {
        text += &serde_json::to_string(case)?;
        text.push('\n');
    }
    Ok(text)
}

/// Which of [`SCHEDULES`](schedules::SCHEDULES) `case` is a test on, in the simulator.
///
/// # Errors
/// Never, of a case that was parsed or drawn.
pub fn schedule(case: &CorpusCase) -> Result<usize, serde_json::Error> {
    serde_json::to_string(case).map(|text| schedules::of_text(&text))
}

/// Runs `case` on `gpu`, and compares with the oracle.
///
/// # Errors
/// What went wrong, or is out of bounds.
pub fn check<D: Device>(gpu: &mut Gpu<D>, case: &CorpusCase) -> Result<(), String> {
    match wrong(gpu, case) {
        Ok(None) => Ok(()),
        Ok(Some(wrong)) => Err(wrong),
        Err(error) => Err(error.to_string()),
    }
}

/// What is out of bounds in a run of `case`.
fn wrong<D: Device>(gpu: &mut Gpu<D>, case: &CorpusCase) -> Result<Option<String>, Error> {
    gpu.limit_shared_bytes(case.shared_bytes());
    match case {
        CorpusCase::Decode(spec) => {
            let built = spec.build()?;
            let (o, lse) = built.run(gpu)?;
            built.check_all(&o, &lse)
        }
        CorpusCase::Attention(case) if case.pass == Pass::Forward => {
            let built = case.forward()?;
            let (o, lse) = built.run(gpu)?;
            built.check_all(&o, &lse)
        }
        CorpusCase::Attention(case) => {
            let built = case.backward()?;
            let run = built.run(gpu)?;
            built.check_all(&run)
        }
    }
}

/// Runs `case` on `gpu` without asking whether it is right.
///
/// # Errors
/// What went wrong.
pub fn run<D: Device>(gpu: &mut Gpu<D>, case: &CorpusCase) -> Result<(), Error> {
    gpu.limit_shared_bytes(case.shared_bytes());
    match case {
        CorpusCase::Decode(spec) => spec.build()?.run(gpu).map(|_| ()),
        CorpusCase::Attention(case) if case.pass == Pass::Forward => {
            case.forward()?.run(gpu).map(|_| ())
        }
        CorpusCase::Attention(case) => case.backward()?.run(gpu).map(|_| ()),
    }
}

/// The kernels that would run `case` on `gpu`, if it can: of a backward pass, those of the forward pass before it too.
pub fn kernels<D: Device>(gpu: &mut Gpu<D>, case: &CorpusCase) -> Option<Vec<&'static str>> {
    gpu.limit_shared_bytes(case.shared_bytes());
    let mut names = Vec::new();
    for problem in case.problems(&gpu.capabilities()).ok()? {
        names.extend(gpu.plan(&problem).ok()?.kernel_names());
    }
    Some(names)
}
