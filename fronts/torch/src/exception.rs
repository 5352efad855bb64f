use ferroflash::Error;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The exception that tells `error`, with its message as it is.
///
/// Memory that a device lacks is `torch.OutOfMemoryError` where torch is loaded, for those who catch it there to free some.
pub fn exception(py: Python<'_>, error: Error) -> PyErr {
    let of_torch = || -> PyResult<Bound<'_, PyType>> {
        let loaded = py.import("sys")?.getattr("modules")?;
        let class = loaded.get_item("torch")?.getattr("OutOfMemoryError")?;
        Ok(class.cast_into()?)
    };
    let message = error.to_string();
    match (error, of_torch()) {
        (Error::Argument { .. }, _) => PyValueError::new_err(message),
        (Error::OutOfMemory { .. }, Ok(class)) => PyErr::from_type(class, message),
        (Error::OutOfMemory { .. }, Err(_)) => PyMemoryError::new_err(message),
        _ => PyRuntimeError::new_err(message),
    }
}
