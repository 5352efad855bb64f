//! The GPU of this machine, if it has one.

use ferroflash::Error;
use ferroflash::backend::cuda::{Cuda, CudaDevice};

use crate::not_run::not_run;

/// The first GPU; if there is none, prints that `what` was not run on it.
///
/// # Panics
/// If there is one that does not work.
pub fn gpu_or_not_run(what: &str) -> Option<Cuda> {
    match CudaDevice::new(0) {
        Ok(device) => Some(Cuda::on(device)),
        Err(Error::NoDevice { wrong, .. }) => {
            not_run(&format!("{what} on cuda: {wrong}"));
            None
        }
        Err(error) => panic!("{what} on cuda: {error}"),
    }
}
