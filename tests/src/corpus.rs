//! The corpus of cases in `tests/corpus.jsonl`: chosen for what they make the kernels execute, and run with every test of
//! the workspace, so that `cargo xtask coverage` finds the same figures each time. `cargo run -p ferroflash-tests --example
//! grow_corpus` chooses them.

use std::path::PathBuf;

use ferroflash::backend::{Device, Gpu};
use ferroflash::{Backend, Error};
use ferroflash_testing::cases::{CorpusCase, Pass};
use kernels_gpu::config::limits::{SM80_SHARED_BYTES, SM86_SHARED_BYTES, SM90_SHARED_BYTES};
use kernels_gpu::instances::{self, Arch, Operation};

use crate::record::checksum;
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

/// A name of `case` that stays whatever stands beside it.
///
/// # Errors
/// Never, of a case that was parsed or drawn.
pub fn name(case: &CorpusCase) -> Result<String, serde_json::Error> {
    let text = serde_json::to_string(case)?;
    Ok(format!("{:08x}", crc32fast::hash(text.as_bytes())))
}

/// Runs `case` on `gpu`, and compares with the oracle. Gives the checksum of what does not depend on the order of blocks.
///
/// # Errors
/// What went wrong, or is out of bounds.
pub fn check<D: Device>(gpu: &mut Gpu<D>, case: &CorpusCase) -> Result<u32, String> {
    let (wrong, checksum) = compare(gpu, case).map_err(|error| error.to_string())?;
    wrong.map_or(Ok(checksum), Err)
}

/// What is out of bounds in a run of `case`, and the checksum.
fn compare<D: Device>(gpu: &mut Gpu<D>, case: &CorpusCase) -> Result<(Option<String>, u32), Error> {
    gpu.limit_shared_bytes(case.shared_bytes());
    match case {
        CorpusCase::Decode(spec) => {
            let built = spec.build()?;
            let on_ampere = as_on_ampere(gpu, case, |gpu| built.run(gpu))?;
            let (o, lse) = built.run(gpu)?;
            let of_ampere = on_ampere.map(|(o, lse)| built.check_all(&o, &lse));
            let wrong = match of_ampere.transpose()? {
                Some(Some(wrong)) => Some(format!("as on Ampere: {wrong}")),
                _ => built.check_all(&o, &lse)?,
            };
            Ok((wrong, checksum([&o, &lse])))
        }
        CorpusCase::Attention(case) if case.pass == Pass::Forward => {
            let built = case.forward()?;
            let (o, lse) = built.run(gpu)?;
            Ok((built.check_all(&o, &lse)?, checksum([&o, &lse])))
        }
        CorpusCase::Attention(case) => {
            let built = case.backward()?;
            let plan = gpu.plan(&built.problem()?)?;
            let run = built.run(gpu)?;
            // Blocks of a fused kernel add to dq when they come to it.
            let is_ordered = |name: &str| {
                instances::find(name).is_some_and(|row| row.operation != Operation::BackwardFused)
            };
            let dq = plan.kernel_names().all(is_ordered).then_some(&run.dq);
            let tensors = [&run.o, &run.lse, &run.dk, &run.dv].into_iter().chain(dq);
            let tensors = tensors.chain(&run.d_alibi_slopes).chain(&run.d_bias);
            Ok((built.check_all(&run)?, checksum(tensors)))
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
        CorpusCase::Decode(spec) => {
            let built = spec.build()?;
            as_on_ampere(gpu, case, |gpu| built.run(gpu))?;
            built.run(gpu).map(|_| ())
        }
        CorpusCase::Attention(case) if case.pass == Pass::Forward => {
            case.forward()?.run(gpu).map(|_| ())
        }
        CorpusCase::Attention(case) => case.backward()?.run(gpu).map(|_| ()),
    }
}

/// What `run` gives with kernels that every GPU has, where newer ones would run `case`: those for caches of e4m3.
fn as_on_ampere<D: Device, T>(
    gpu: &mut Gpu<D>,
    case: &CorpusCase,
    run: impl FnOnce(&mut Gpu<D>) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let CorpusCase::Decode(spec) = case else {
        return Ok(None);
    };
    if spec.e4m3.is_none() {
        return Ok(None);
    }
    gpu.limit_compute_capability(Arch::Sm80.oldest());
    let result = run(gpu);
    gpu.limit_compute_capability((u32::MAX, u32::MAX));
    result.map(Some)
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
