//! Gradients of every backend against the f64 oracle, and what must hold of gradients whatever computes them.

mod bad_input;
mod bias;
mod by_plan;
mod differences;
mod few_rows;
mod keep_masks;
mod not_finite;
pub mod planted;
mod random;
mod scattered;
mod slopes;
mod stored_ds;
mod stored_ds_f32;
mod used_keys;
mod without_pairs;

use std::collections::BTreeSet;

use ferroflash::{Backend, Variant};
use ferroflash_testing::cases::{BackwardCase, CaseSpec};
use ferroflash_tests::replaced::is_backward_untouched;

/// A way to compute gradients: whether they repeat bit for bit, and the bytes of workspace, of which any may be used if it is `None`.
type Way = (bool, Option<usize>);

/// The one that adds up dq, where there is one.
const ADDING_DQ: Way = (false, None);

/// Compares gradients of `case`, made of `spec`, with the oracle, in each way to compute them whose kernels are not in `ran` beside `what`.
#[track_caller]
fn agree_in_each_way<B: Backend, T: Copy + Ord>(
    backend: &mut B,
    case: (&CaseSpec, &mut BackwardCase),
    what: T,
    ran: &mut BTreeSet<(T, Vec<String>)>,
) {
    // Without a workspace other kernels compute dq.
    let ways = [ADDING_DQ, (true, None), (true, Some(0))];
    agree_in_ways(backend, case, what, ran, &ways);
}

/// As [`agree_in_each_way`], in each of `ways`.
#[track_caller]
fn agree_in_ways<B: Backend, T: Copy + Ord>(
    backend: &mut B,
    (spec, case): (&CaseSpec, &mut BackwardCase),
    what: T,
    ran: &mut BTreeSet<(T, Vec<String>)>,
    ways: &[Way],
) {
    for &(deterministic, limit) in ways {
        case.deterministic = deterministic;
        case.workspace_limit_bytes = limit;
        let Ok(plan) = backend.plan(&case.problem().unwrap()) else {
            // Not of every GPU.
            assert_eq!(case.forward.options.force, Some(Variant::Wgmma), "{spec}");
            continue;
        };
        let kernels = plan.kernel_names().map(str::to_owned).collect();
        if !ran.insert((what, kernels)) || is_backward_untouched(backend, case) {
            continue;
        }
        let run = case.run(backend).unwrap();
        let wrong = case.check_all(&run).unwrap();
        assert_eq!(wrong, None, "{}: {spec}", plan.kernel_name());
    }
}
