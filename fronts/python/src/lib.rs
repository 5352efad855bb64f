//! The native half of the Python package `ferroflash`: attention on operands given by address, shape and strides.
//!
//! | file | what it does |
//! |---|---|
//! | `operands` | Python's descriptions of tensors and small arrays, as the library's |
//! | `options` | everything but the tensors |
//! | `backends` | a backend for each device and stream |
//! | `launch` | checks a call once; plans it, gets it a workspace, and launches it without holding Python's lock |
//! | `errors` | which exception an error becomes |
//!
//! Python allocates what is written and keeps everything alive; nothing here knows kernels or owns tensors.

mod backends;
mod errors;
mod launch;
mod operands;
mod options;

use pyo3::prelude::*;

/// Attention on operands given by address, for the Python half of ferroflash.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::{backends::device_names, launch::Call, options::Options};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
