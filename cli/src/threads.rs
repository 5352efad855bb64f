//! `--threads`: the thread pool that everything on the CPU shares.

use rayon::ThreadPoolBuilder;

use crate::failure::Failure;
use crate::say::say;

/// Runs `work` on `threads` threads. `None`: on rayon's default number, or on the calling thread alone if the system
/// gives no others.
pub fn run<T: Send>(
    threads: Option<usize>,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let most = rayon::max_num_threads();
    if let Some(threads) = threads.filter(|threads| *threads > most) {
        let wrong = format!("it is {threads}");
        return Err(Failure::refused(
            "--threads",
            wrong,
            format!("it must be {most} or less"),
        ));
    }
    // 0 lets rayon choose, which reads RAYON_NUM_THREADS.
    let builder = ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0));
    match (builder.build(), threads) {
        (Ok(pool), _) => pool.install(work),
        (Err(error), Some(threads)) => {
            let wrong = format!("{threads} cannot be started: {error}");
            Err(Failure::refused(
                "--threads",
                wrong,
                "as many as the system allows",
            ))
        }
        (Err(error), None) => {
            say!("threads: {error}: the calling one does all the work");
            let alone = ThreadPoolBuilder::new().num_threads(1);
            // An error may be ignored: rayon then starts threads when it needs them, as without this line.
            let _ = alone.use_current_thread().build_global();
            work()
        }
    }
}
