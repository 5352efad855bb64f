//! `--backend`.

use ferroflash::{Backend, Cpu};

use crate::arguments::BackendName;
use crate::failure::Failure;

/// What to do once a backend is there, whatever its type.
pub trait Work {
    fn run<B: Backend>(self, backend: &mut B) -> Result<(), Failure>;
}

/// Opens the backend called `name`, says which on standard error, and runs `work` on it.
pub fn run(name: BackendName, work: impl Work) -> Result<(), Failure> {
    match name {
        BackendName::Cpu => on(Cpu::new(), "", work),
        BackendName::Auto => on(Cpu::new(), "", work),
        BackendName::Cuda | BackendName::Sim => {
            Err(Failure::refused("--backend", "not built in", "cpu"))
        }
    }
}

fn on<B: Backend>(mut backend: B, note: &str, work: impl Work) -> Result<(), Failure> {
    eprintln!(
        "backend {}: {}{note}",
        backend.name(),
        backend.device_name()
    );
    work.run(&mut backend)
}
