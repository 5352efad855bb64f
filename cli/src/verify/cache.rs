//! `ferroflash verify --cache`: attention to caches against the oracle.

use ferroflash::Backend;
use ferroflash::plan::eligible;
use ferroflash_testing::cases::DecodeSpec;

use super::checked::Checked;
use crate::backends;
use crate::failure::Failure;

/// Most keys of a sequence: in the simulator, and where kernels run at full speed.
pub const SIMULATED_KEYS: usize = 700;
pub const FAST_KEYS: usize = 5000;

/// Runs `spec` with every variant that can run it, and compares every sequence.
pub fn check<B: Backend>(backend: &mut B, spec: &DecodeSpec) -> Result<Vec<Checked>, Failure> {
    let mut case = spec.build()?;
    let mut checked = Vec::new();
    for variant in eligible(&case.problem()?, &backend.capabilities()) {
        case.options.force = Some(variant);
        let plan = backend.plan(&case.problem()?)?;
        let (o, lse) = case.run(backend)?;
        let (mut worst_o, mut worst_lse, mut failed) = (0.0f64, 0.0f64, Vec::new());
        for sequence in 0..case.kv_lens.len() {
            let verdict = case.check(sequence, &o, &lse)?;
            worst_o = worst_o.max(verdict.o.ratio);
            worst_lse = worst_lse.max(verdict.lse.ratio);
            if !verdict.passed() {
                failed.push(format!("sequence {sequence}: {verdict}"));
            }
        }
        checked.push(Checked {
            kernel: backends::in_words(&plan.kernel_name(), plan.heads_per_tile()),
            ratios: vec![Some(worst_o), Some(worst_lse)],
            quality: None,
            passed: failed.is_empty(),
            detail: failed.join("; "),
        });
    }
    Ok(checked)
}
