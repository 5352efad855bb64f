//! The threads that work on the host runs on: the CPU backend's, and the simulator's.

use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

/// The pool of the process that made it. A forked child has its memory but none of its threads, so work given to it there
/// would wait for ever.
static POOL: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

/// Runs `work` on the pool that the calling thread belongs to, else on one that this process shares.
///
/// Rayon's own global pool is not used: it does not tell which process its threads are in.
pub(super) fn install<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if rayon::current_thread_index().is_some() {
        return work();
    }
    match shared() {
        Some(pool) => pool.install(work),
        // The system gives no threads: the calling one is a pool of its own.
        None => alone(work),
    }
}

/// The pool of this process, made at the first call.
fn shared() -> Option<Arc<ThreadPool>> {
    let mut shared = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let here = process::id();
    if let Some((made_by, pool)) = shared.take() {
        if made_by == here {
            *shared = Some((made_by, Arc::clone(&pool)));
            return Some(pool);
        }
        // Its threads are the parent's, and cannot be told to end.
        std::mem::forget(pool);
    }
    let pool = Arc::new(ThreadPoolBuilder::new().build().ok()?);
    *shared = Some((here, Arc::clone(&pool)));
    Some(pool)
}

/// Runs `work` on the calling thread as the only one of a pool.
fn alone<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let builder = ThreadPoolBuilder::new().num_threads(1);
    match builder.use_current_thread().build() {
        Ok(pool) => pool.install(work),
        Err(_) => work(),
    }
}
