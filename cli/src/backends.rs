//! `--backend`.

use ferroflash::backend::cuda::{Cuda, CudaDevice};
use ferroflash::backend::sim::Sim;
use ferroflash::{Backend, Cpu, Error};

use crate::arguments::BackendName;
use crate::failure::Failure;
use crate::say::say;

/// Work to run on a backend of any type.
pub trait Work {
    fn run<B: Backend>(self, backend: &mut B) -> Result<(), Failure>;
}

/// Opens the backend called `name`, names it on standard error, and runs `work` on it.
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

/// Runs `work` on the first NVIDIA GPU, where `name` allows it; `argument` is what needs one.
pub fn on_cuda(
    name: BackendName,
    argument: &'static str,
    work: impl FnOnce(&mut Cuda) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if !matches!(name, BackendName::Auto | BackendName::Cuda) {
        let wrong = "only an NVIDIA GPU has it";
        return Err(Failure::refused(
            argument,
            wrong,
            "--backend cuda, or leave it out",
        ));
    }
    let mut cuda = cuda()?;
    say!("backend {}: {}", cuda.name(), cuda.device_name());
    work(&mut cuda)
}

/// Name of a kernel, with the number of query heads that share its tiles if it is more than one.
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
