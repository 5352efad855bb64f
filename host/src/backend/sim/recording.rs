//! What a device's launches executed, for `cargo xtask coverage`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{env, fs, process, thread};

use ptx_sim::{Coverage, Report};

/// Environment variable that names an existing folder, into which every process writes a file for each of its threads that
/// had a simulated GPU: the path of the program, the name of the thread, which is that of the test, and a line
/// `KERNEL WARP_INSTRUCTIONS COVERAGE` a kernel, the coverage as [`Coverage`]'s text.
pub const FOLDER_VAR: &str = "FERROFLASH_SIM_COVERAGE";

/// What the devices of one thread have executed.
#[derive(Default)]
struct OfThread {
    /// The file's number among those of this process.
    number: usize,
    kernels: BTreeMap<&'static str, OfKernel>,
}

#[derive(Default)]
struct OfKernel {
    warp_instructions: u64,
    coverage: Coverage,
}

/// Everything recorded by this process, by the threads' names.
static THREADS: Mutex<BTreeMap<String, OfThread>> = Mutex::new(BTreeMap::new());

/// The folder to write to, if one is named.
fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| env::var_os(FOLDER_VAR).map(PathBuf::from));
    folder.as_deref()
}

/// The recording of one device, added to its thread's when the device is dropped.
pub(super) struct Recording {
    folder: Option<&'static Path>,
    kernels: BTreeMap<&'static str, OfKernel>,
}

impl Recording {
    /// An empty one; it stays so unless [`FOLDER_VAR`] names a folder.
    pub(super) fn new() -> Self {
        Self {
            folder: folder(),
            kernels: BTreeMap::new(),
        }
    }

    /// Whether something is recorded.
    pub(super) fn is_on(&self) -> bool {
        self.folder.is_some()
    }

    /// Adds a launch of `kernel`.
    pub(super) fn add(&mut self, kernel: &'static str, report: &Report) {
        if let (Some(_), Some(coverage)) = (self.folder, &report.coverage) {
            let of_kernel = self.kernels.entry(kernel).or_default();
            of_kernel.warp_instructions += report.warp_instructions;
            of_kernel.coverage.add(coverage);
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let Some(folder) = self.folder.filter(|_| !self.kernels.is_empty()) else {
            return;
        };
        let thread = thread::current().name().unwrap_or("unnamed").to_owned();
        let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        let number = threads.len();
        let of_thread = threads.entry(thread.clone()).or_insert(OfThread {
            number,
            ..OfThread::default()
        });
        for (kernel, mine) in std::mem::take(&mut self.kernels) {
            let of_kernel = of_thread.kernels.entry(kernel).or_default();
            of_kernel.warp_instructions += mine.warp_instructions;
            of_kernel.coverage.add(&mine.coverage);
        }
        let path = folder.join(format!("{}-{}.txt", process::id(), of_thread.number));
        if let Err(error) = fs::write(&path, text(&thread, of_thread)) {
            eprintln!("{FOLDER_VAR}: {}: {error}", path.display());
        }
    }
}

fn text(thread: &str, of_thread: &OfThread) -> String {
    let program = env::current_exe().unwrap_or_default();
    let mut text = format!("{}\n{thread}\n", program.display());
    for (kernel, seen) in &of_thread.kernels {
        let OfKernel {
            warp_instructions,
            coverage,
        } = seen;
        writeln!(text, "{kernel} {warp_instructions} {coverage}").expect("a string takes it");
    }
    text
}
