use ferroflash_xla::TARGETS;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// The handlers of XLA's custom calls: names, platforms and capsules, as `jax.ffi.register_ffi_target` takes them.
#[pyfunction]
pub fn xla_targets(py: Python<'_>) -> PyResult<Vec<(&str, &str, Bound<'_, PyCapsule>)>> {
    let capsule = |target: &ferroflash_xla::Target| {
        let name = c"xla._CUSTOM_CALL_TARGET";
        // SAFETY: a function is there as long as this module, which Python never unloads.
        let capsule = unsafe { PyCapsule::new_with_pointer(py, target.address(), name) };
        Ok((target.name, target.platform, capsule?))
    };
    TARGETS.iter().map(capsule).collect()
}
