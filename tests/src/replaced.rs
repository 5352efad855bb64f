//! Leaving out what a replaced kernel has no part in: `cargo xtask mutants --ptx` runs tests with one kernel's PTX broken.

use ferroflash::backend::sim::replaced_kernel;
use ferroflash::{Backend, Error, Plan};
use ferroflash_testing::cases::{BackwardCase, Case};

/// Whether the PTX of a kernel is replaced in this process, and `kernel` is another.
pub fn is_untouched(kernel: &str) -> bool {
    replaced_kernel().is_some_and(|replaced| replaced != kernel)
}

/// Whether the PTX of a kernel is replaced in this process, and `plan` does not launch it.
pub fn is_plan_untouched(plan: &Plan) -> bool {
    replaced_kernel().is_some_and(|replaced| plan.kernel_names().all(|name| name != replaced))
}

/// Whether the PTX of a kernel is replaced in this process, and `case` does not launch it on `backend`.
pub fn is_case_untouched<B: Backend>(backend: &B, case: &Case) -> bool {
    let is_untouched = || Ok::<_, Error>(is_plan_untouched(&backend.plan(&case.problem()?)?));
    replaced_kernel().is_some() && is_untouched().unwrap_or(false)
}

/// The same of a case's backward pass and of the forward pass before it.
pub fn is_backward_untouched<B: Backend>(backend: &B, case: &BackwardCase) -> bool {
    let are_untouched = || {
        let forward = case.forward_problem(&backend.capabilities())?;
        let plans = [backend.plan(&forward)?, backend.plan(&case.problem()?)?];
        Ok::<_, Error>(plans.iter().all(is_plan_untouched))
    };
    replaced_kernel().is_some() && are_untouched().unwrap_or(false)
}
