//! Results against the oracle.

use ferroflash::plan::eligible;
use ferroflash::{Backend, HostTensor, Variant};
use ferroflash_testing::cases::Case;
use ferroflash_testing::oracle::Rows;

use crate::replaced::is_plan_untouched;

/// Runs `case` by every variant that can run it on `backend`, and compares all rows with the oracle's.
///
/// # Panics
/// Naming the variant and `what`, if one is wrong.
#[track_caller]
pub fn every_variant_is_right<B: Backend>(backend: &mut B, case: &mut Case, what: &str) {
    let problem = case.problem().expect("valid");
    for variant in eligible(&problem, &backend.capabilities()) {
        variant_is_right(backend, variant, case, what);
    }
}

/// Runs `case` by `variant`, unless a replaced kernel is tested that it does not run, and compares all rows with the oracle's.
///
/// # Panics
/// Naming the kernel and `what`, if it is wrong or cannot be run.
#[track_caller]
pub fn variant_is_right<B: Backend>(
    backend: &mut B,
    variant: Variant,
    case: &mut Case,
    what: &str,
) {
    case.options.force = Some(variant);
    let plan = backend.plan(&case.problem().expect(what)).expect(what);
    if is_plan_untouched(&plan) {
        return;
    }
    let (o, lse) = case.run(backend).expect(what);
    let verdict = case.check(&o, &lse, Rows::All).expect("checked");
    assert!(
        verdict.passed(),
        "{}: {what}: {verdict}",
        plan.kernel_name()
    );
}

/// Runs `case` by every variant that can run it on `backend`, and passes each result, o and lse, to `look`.
///
/// # Panics
/// If one cannot be run.
#[track_caller]
pub fn with_every_variant<B: Backend>(
    backend: &mut B,
    case: &mut Case,
    mut look: impl FnMut(Variant, &Case, &(HostTensor, HostTensor)),
) {
    let problem = case.problem().expect("valid");
    for variant in eligible(&problem, &backend.capabilities()) {
        case.options.force = Some(variant);
        let result = case.run(backend).expect("it runs");
        look(variant, case, &result);
    }
}
