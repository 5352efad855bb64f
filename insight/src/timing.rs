//! Device times of calls.

use ferroflash::{Backend, Error, Memory};

/// Milliseconds of each of `calls` runs of `call`, in order. They follow each other without a pause: all are queued,
/// with a mark between consecutive ones, before any is waited for.
///
/// # Errors
/// Those of `call`, and [`Error::Device`].
pub fn queued_ms<B: Backend, E: From<Error>>(
    backend: &mut B,
    calls: usize,
    mut call: impl FnMut(&mut B) -> Result<(), E>,
) -> Result<Vec<f64>, E> {
    let mut marks = vec![backend.memory().mark()?];
    for _ in 0..calls {
        call(backend)?;
        marks.push(backend.memory().mark()?);
    }
    let mut times = Vec::with_capacity(calls);
    for pair in marks.windows(2) {
        times.push(backend.memory().elapsed_ms(&pair[0], &pair[1])?);
    }
    Ok(times)
}

/// [`queued_ms`], sorted.
pub(crate) fn sorted_ms<B: Backend>(
    backend: &mut B,
    runs: usize,
    run: impl FnMut(&mut B) -> Result<(), Error>,
) -> Result<Vec<f64>, Error> {
    let mut times = queued_ms(backend, runs, run)?;
    times.sort_by(f64::total_cmp);
    Ok(times)
}
