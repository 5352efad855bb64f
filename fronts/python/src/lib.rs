//! The native half of the Python package `ferroflash`: attention on operands given by address, shape and strides.
//!
//! | file | what it does |
//! |---|---|
//! | `operands` | Python's description of small arrays |
//! | `options` | everything but the tensors |
//! | `cache` | appending to caches of keys and values |
//! | `call` | checks a call, which `ferroflash-torch` then launches any number of times |
//! | `devices` | the names of GPUs |
//! | `xla` | handlers of XLA's custom calls, for JAX |
//!
//! Python allocates what is written and keeps everything alive; nothing here knows kernels or owns tensors.

mod cache;
mod call;
mod devices;
mod operands;
mod options;
mod xla;

use pyo3::prelude::*;

/// Attention on operands given by address, for the Python half of ferroflash.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::{cache::append, call::checked, devices::device_names};
    #[pymodule_export]
    use crate::{options::Options, xla::xla_targets};
    #[pymodule_export]
    use ferroflash_torch::{Call, Calls, signature};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
