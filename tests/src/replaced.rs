//! Leaving out what a replaced kernel has no part in: `cargo xtask mutants --ptx` runs tests with one kernel's PTX broken.

use ferroflash::Plan;
use ferroflash::backend::sim::replaced_kernel;

/// Whether the PTX of a kernel is replaced in this process, and `kernel` is another.
pub fn is_untouched(kernel: &str) -> bool {
    replaced_kernel().is_some_and(|replaced| replaced != kernel)
}

/// Whether the PTX of a kernel is replaced in this process, and `plan` does not launch it.
pub fn is_plan_untouched(plan: &Plan) -> bool {
    replaced_kernel().is_some_and(|replaced| plan.kernel_names().all(|name| name != replaced))
}
