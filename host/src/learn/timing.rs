//! Times of what a device does.

use crate::backend::Device;
use crate::{Backend, Error, Gpu};

/// Milliseconds of each of `runs` of `run`, sorted. They follow each other without a pause: all are queued, with a mark
/// between each two, before any is waited for.
pub(super) fn sorted_ms<D: Device>(
    gpu: &mut Gpu<D>,
    runs: usize,
    mut run: impl FnMut(&mut Gpu<D>) -> Result<(), Error>,
) -> Result<Vec<f64>, Error> {
    let mut marks = vec![gpu.memory().mark()?];
    for _ in 0..runs {
        run(gpu)?;
        marks.push(gpu.memory().mark()?);
    }
    let mut times = Vec::with_capacity(runs);
    for pair in marks.windows(2) {
        times.push(gpu.memory().elapsed_ms(&pair[0], &pair[1])?);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}
