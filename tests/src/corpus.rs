//! The corpus of cases in `tests/corpus.jsonl`: chosen for what they make the kernels execute, and run with every test of
//! the workspace, so that `cargo xtask coverage` finds the same figures each time. `cargo run -p ferroflash-tests --example
//! grow_corpus` chooses them.

use std::path::PathBuf;

use ferroflash::Backend;
use ferroflash::backend::{Device, Gpu};
use ferroflash_testing::cases::{BackwardCase, BackwardRun, CorpusCase, Pass};
use ferroflash_testing::oracle::Rows;

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

/// Runs `case` on `gpu`, and compares with the oracle.
///
/// # Errors
/// What went wrong, or is out of bounds.
pub fn check<D: Device>(gpu: &mut Gpu<D>, case: &CorpusCase) -> Result<(), String> {
    let failed = |error: ferroflash::Error| error.to_string();
    let wrong = match case {
        CorpusCase::Decode(spec) => {
            let built = spec.build().map_err(failed)?;
            let (o, lse) = built.run(gpu).map_err(failed)?;
            built.check_all(&o, &lse).map_err(failed)?
        }
        CorpusCase::Attention(case) => {
            gpu.limit_shared_bytes(case.shared_bytes);
            let verdict = match case.pass {
                Pass::Forward => {
                    let built = case.forward().map_err(failed)?;
                    let (o, lse) = built.run(gpu).map_err(failed)?;
                    let verdict = built.check(&o, &lse, Rows::All).map_err(failed)?;
                    (!verdict.passed()).then(|| verdict.to_string())
                }
                Pass::Backward { .. } => {
                    let built = case.backward().map_err(failed)?;
                    let run = built.run(gpu).map_err(failed)?;
                    wrong_in(&built, &run).map_err(failed)?
                }
            };
            gpu.limit_shared_bytes(u32::MAX);
            verdict
        }
    };
    wrong.map_or(Ok(()), Err)
}

/// What is wrong in a run of both passes.
fn wrong_in(case: &BackwardCase, run: &BackwardRun) -> Result<Option<String>, ferroflash::Error> {
    let of_forward = case.forward.check(&run.o, &run.lse, Rows::All)?;
    if !of_forward.passed() {
        return Ok(Some(format!("forward: {of_forward}")));
    }
    if !case.is_kept_between(run)? {
        let wrong = "something is written between the gradients' elements";
        return Ok(Some(wrong.to_owned()));
    }
    let verdict = case.check(run, Rows::All)?;
    Ok((!verdict.passed()).then(|| verdict.to_string()))
}

/// Runs `case` on `gpu` without asking whether it is right.
///
/// # Errors
/// What went wrong.
pub fn run<D: Device>(gpu: &mut Gpu<D>, case: &CorpusCase) -> Result<(), ferroflash::Error> {
    let case = match case {
        CorpusCase::Decode(spec) => return spec.build()?.run(gpu).map(|_| ()),
        CorpusCase::Attention(case) => case,
    };
    gpu.limit_shared_bytes(case.shared_bytes);
    let outcome = match case.pass {
        Pass::Forward => case.forward()?.run(gpu).map(|_| ()),
        Pass::Backward { .. } => case.backward()?.run(gpu).map(|_| ()),
    };
    gpu.limit_shared_bytes(u32::MAX);
    outcome
}

/// The kernels that would run `case` on `gpu`, if it can: of a backward pass, those of the forward pass before it too.
pub fn kernels<D: Device>(gpu: &mut Gpu<D>, case: &CorpusCase) -> Option<Vec<&'static str>> {
    if let CorpusCase::Attention(case) = case {
        gpu.limit_shared_bytes(case.shared_bytes);
    }
    let plans = case.problems().map(|problems| {
        let plans = problems.iter().map(|problem| gpu.plan(problem));
        plans.collect::<Result<Vec<_>, _>>()
    });
    gpu.limit_shared_bytes(u32::MAX);
    let plans = plans.ok()?.ok()?;
    Some(plans.iter().flat_map(|plan| plan.kernel_names()).collect())
}
