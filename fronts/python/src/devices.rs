use ferroflash::{Cuda, CudaDevice};
use pyo3::prelude::*;

/// The GPUs that kernels run on, by name; none without a driver.
#[pyfunction]
pub fn device_names() -> Vec<String> {
    let count = CudaDevice::count().unwrap_or(0);
    let name = |ordinal| Some(Cuda::new(ordinal).ok()?.info().name.clone());
    (0..count).filter_map(name).collect()
}
