//! The native half of the Python package `ferroflash`: attention on operands given by address, shape and strides.
//!
//! | file | what it does |
//! |---|---|
//! | `operands` | Python's descriptions of tensors and small arrays, as the library's |
//! | `options` | everything but the tensors |
//! | `cache` | caches of keys and values, and appending to them |
//! | `launch` | checks a call once; plans it, gets it a workspace, and launches it without holding Python's lock |
//! | `errors` | which exception an error becomes |
//! | `devices` | the names of GPUs |
//! | `xla` | handlers of XLA's custom calls, for JAX |
//!
//! Python allocates what is written and keeps everything alive; nothing here knows kernels or owns tensors.

mod cache;
mod devices;
mod errors;
mod launch;
mod operands;
mod options;
mod xla;

use pyo3::prelude::*;

/// Attention on operands given by address, for the Python half of ferroflash.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::{cache::append, devices::device_names, launch::Call};
    #[pymodule_export]
    use crate::{options::Options, xla::xla_targets};
    #[pymodule_export]
    use ferroflash_torch::signature;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
