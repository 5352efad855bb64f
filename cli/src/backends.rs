//! `--backend`.

use ferroflash::backend::cuda::{Cuda, CudaDevice};
use ferroflash::backend::sim::Sim;
use ferroflash::{Backend, Cpu, Error};

use crate::arguments::BackendName;
use crate::failure::Failure;
use crate::say::say;

/// What to do once a backend is there, whatever its type.
pub trait Work {
    fn run<B: Backend>(self, backend: &mut B) -> Result<(), Failure>;
}

/// Opens the backend called `name`, says which on standard error, and runs `work` on it.
pub fn run(name: BackendName, work: impl Work) -> Result<(), Failure> {
    match name {
        BackendName::Cpu => on(Cpu::new(), "", work),
        BackendName::Cuda => on(cuda()?, "", work),
        BackendName::Sim => on(Sim::new(), "", work),
        BackendName::Auto => match cuda() {
            Ok(cuda) => on(cuda, "", work),
            Err(Error::NoDevice { wrong, .. }) => on(Cpu::new(), &format!(" ({wrong})"), work),
            Err(error) => on(Cpu::new(), &format!(" ({error})"), work),
        },
    }
}

/// What runs a problem: the kernel, and how many query heads share its tiles where several do.
pub fn in_words(kernel: &str, heads_per_tile: u32) -> String {
    match heads_per_tile {
        1 => kernel.to_owned(),
        heads => format!("{kernel} ({heads} heads a tile)"),
    }
}

fn cuda() -> Result<Cuda, Error> {
    Ok(Cuda::on(CudaDevice::new(0)?))
}

fn on<B: Backend>(mut backend: B, note: &str, work: impl Work) -> Result<(), Failure> {
    let (name, device) = (backend.name(), backend.device_name());
    say!("backend {name}: {device}{note}");
    work.run(&mut backend)
}
