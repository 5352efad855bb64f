//! Results against the oracle.

use ferroflash::Backend;
use ferroflash::cases::Case;
use ferroflash::oracle::Rows;
use ferroflash::variant::eligible;

/// Runs `case` by every variant that can on `backend`, and holds all rows to the oracle.
///
/// # Panics
/// Naming the variant and `what`, if one is wrong.
#[track_caller]
pub fn every_variant_is_right<B: Backend>(backend: &mut B, case: &mut Case, what: &str) {
    let problem = case.problem().expect("valid");
    for variant in eligible(&problem, &backend.capabilities()) {
        case.options.force = Some(variant);
        let (o, lse) = case.run(backend).expect("it runs");
        let verdict = case.check(&o, &lse, Rows::All).expect("checked");
        assert!(verdict.passed(), "{variant}: {what}: {verdict}");
    }
}
