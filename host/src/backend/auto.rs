//! A GPU if there is one, else the CPU.

use super::cpu::{Cpu, CpuBuffer};
use super::cuda::{Cuda, CudaBuffer, CudaMark};
use crate::sealed::Sealed;
use crate::{
    AppendOperands, AppendProblem, Backend, Capabilities, Error, Memory, Merge, Operands, Plan,
};
use std::time::Instant;

/// The first GPU, where the process finds one that works, else the CPU: one type for both, chosen when the program runs.
///
/// ```
/// use ferroflash::{Auto, Backend, ForwardOptions, HostTensor, Layout, Shape, forward};
///
/// # fn main() -> Result<(), ferroflash::Error> {
/// let mut backend = Auto::new();
/// let shape = Shape { batch: 1, heads: 2, seq: 3, dim: 4 };
/// let x = HostTensor::from_f32(&[0.5; 24], shape, Layout::Bshd)?.upload(backend.memory())?;
/// let out = forward(&mut backend, &x, &x, &x, &ForwardOptions::new())?;
/// println!("computed on {}", backend.device_name());
/// # assert_eq!(out.o.download(backend.memory())?.get(0, 1, 2, 3), 0.5);
/// # Ok(())
/// # }
/// ```
pub struct Auto {
    chosen: Chosen,
    why_cpu: Option<Error>,
}

enum Chosen {
    Cuda(Box<Cuda>),
    Cpu(Cpu),
}

/// Runs `$body` with the chosen backend as `$backend`.
macro_rules! with_chosen {
    ($chosen:expr, $backend:ident => $body:expr) => {
        match $chosen {
            Chosen::Cuda($backend) => $body,
            Chosen::Cpu($backend) => $body,
        }
    };
}

impl Auto {
    /// GPU 0 if it answers, else the CPU, for the reason that [`why_cpu`](Self::why_cpu) tells.
    pub fn new() -> Self {
        match Cuda::new(0) {
            Ok(cuda) => Self {
                chosen: Chosen::Cuda(Box::new(cuda)),
                why_cpu: None,
            },
            Err(error) => Self {
                chosen: Chosen::Cpu(Cpu::new()),
                why_cpu: Some(error),
            },
        }
    }

    /// Why no GPU is used; `None` if one is.
    pub fn why_cpu(&self) -> Option<&Error> {
        self.why_cpu.as_ref()
    }
}

impl Default for Auto {
    fn default() -> Self {
        Self::new()
    }
}

impl Sealed for Auto {}

impl Backend for Auto {
    /// Itself: the memory is that of the backend that was chosen.
    type Memory = Self;

    fn name(&self) -> &'static str {
        with_chosen!(&self.chosen, backend => backend.name())
    }

    fn device_name(&self) -> String {
        with_chosen!(&self.chosen, backend => backend.device_name())
    }

    fn pci_bus_id(&self) -> Option<&str> {
        with_chosen!(&self.chosen, backend => backend.pci_bus_id())
    }

    fn memory(&mut self) -> &mut Self {
        self
    }

    fn capabilities(&self) -> Capabilities {
        with_chosen!(&self.chosen, backend => backend.capabilities())
    }

    unsafe fn launch(&mut self, plan: &Plan, operands: &Operands) -> Result<(), Error> {
        // SAFETY: the caller's contract is this function's.
        with_chosen!(&mut self.chosen, backend => unsafe { backend.launch(plan, operands) })
    }

    unsafe fn append_raw(
        &mut self,
        problem: &AppendProblem,
        operands: &AppendOperands,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise is that of the backend that was chosen.
        with_chosen!(&mut self.chosen, backend => unsafe { backend.append_raw(problem, operands) })
    }

    unsafe fn merge_raw(&mut self, merge: &Merge<'_>) -> Result<(), Error> {
        // SAFETY: the caller's promise is that of the backend that was chosen.
        with_chosen!(&mut self.chosen, backend => unsafe { backend.merge_raw(merge) })
    }
}

/// A buffer of an [`Auto`].
pub struct AutoBuffer(BufferOf);

enum BufferOf {
    Cuda(CudaBuffer),
    Cpu(CpuBuffer),
}

/// A time mark of an [`Auto`].
pub struct AutoMark(MarkOf);

enum MarkOf {
    Cuda(CudaMark),
    Cpu(Instant),
}

/// Runs `$body` with the chosen memory and the matching variant of a buffer or mark; with any other variant,
/// `$foreign`.
macro_rules! with_own {
    ($chosen:expr, $thing:expr, $kind:ident, ($backend:ident, $own:ident) => $body:expr, $foreign:expr) => {
        match ($chosen, $thing) {
            (Chosen::Cuda($backend), $kind::Cuda($own)) => $body,
            (Chosen::Cpu($backend), $kind::Cpu($own)) => $body,
            _ => $foreign,
        }
    };
}

impl Auto {
    fn foreign() -> Error {
        let allowed = "it must be one of the backend that it is used with";
        Error::argument("buffer", crate::memory::FOREIGN_BUFFER, allowed)
    }
}

// SAFETY: every call is that of the memory that was chosen, on a buffer of its own.
unsafe impl Memory for Auto {
    type Buffer = AutoBuffer;
    type Mark = AutoMark;

    fn is_queued(&self) -> bool {
        match &self.chosen {
            Chosen::Cuda(cuda) => cuda.device().is_queued(),
            Chosen::Cpu(_) => false,
        }
    }

    fn alloc(&mut self, bytes: usize) -> Result<AutoBuffer, Error> {
        let buffer = match &mut self.chosen {
            Chosen::Cuda(cuda) => BufferOf::Cuda(cuda.memory().alloc(bytes)?),
            Chosen::Cpu(cpu) => BufferOf::Cpu(cpu.memory().alloc(bytes)?),
        };
        Ok(AutoBuffer(buffer))
    }

    fn size_bytes(&self, buffer: &AutoBuffer) -> usize {
        match &buffer.0 {
            BufferOf::Cuda(buffer) => buffer.size_bytes(),
            BufferOf::Cpu(buffer) => buffer.size_bytes(),
        }
    }

    fn owns(&self, buffer: &AutoBuffer) -> bool {
        with_own!(&self.chosen, &buffer.0, BufferOf, (backend, own) => backend.device().owns(own), false)
    }

    fn address(&self, buffer: &AutoBuffer) -> u64 {
        with_own!(&self.chosen, &buffer.0, BufferOf, (backend, own) => backend.device().address(own),
            panic!("{}", crate::memory::FOREIGN_BUFFER))
    }

    fn write(&mut self, buffer: &mut AutoBuffer, bytes: &[u8]) -> Result<(), Error> {
        with_own!(&mut self.chosen, &mut buffer.0, BufferOf, (backend, own) => backend.memory().write(own, bytes),
            Err(Self::foreign()))
    }

    fn read_at(
        &mut self,
        buffer: &AutoBuffer,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        with_own!(&mut self.chosen, &buffer.0, BufferOf, (backend, own) => backend.memory().read_at(own, offset, bytes),
            Err(Self::foreign()))
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        with_chosen!(&mut self.chosen, backend => backend.memory().synchronize())
    }

    fn mark(&mut self) -> Result<AutoMark, Error> {
        Ok(AutoMark(match &mut self.chosen {
            Chosen::Cuda(cuda) => MarkOf::Cuda(cuda.memory().mark()?),
            Chosen::Cpu(cpu) => MarkOf::Cpu(cpu.memory().mark()?),
        }))
    }

    fn elapsed_ms(&mut self, start: &AutoMark, stop: &AutoMark) -> Result<f64, Error> {
        match (&mut self.chosen, &start.0, &stop.0) {
            (Chosen::Cuda(cuda), MarkOf::Cuda(start), MarkOf::Cuda(stop)) => {
                cuda.memory().elapsed_ms(start, stop)
            }
            (Chosen::Cpu(cpu), MarkOf::Cpu(start), MarkOf::Cpu(stop)) => {
                cpu.memory().elapsed_ms(start, stop)
            }
            _ => Err(Self::foreign()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ForwardOptions, HostTensor, Layout, Shape, forward};

    #[test]
    fn it_computes_wherever_it_runs() {
        let mut auto = Auto::new();
        assert_eq!(auto.why_cpu().is_some(), auto.name() == "cpu");
        let shape = Shape::packed(3, 1, 1);
        let x = HostTensor::from_f32(&[1.0, 2.0, 3.0], shape, Layout::Bshd).unwrap();
        let on_auto = x.upload(auto.memory()).unwrap();
        let options = ForwardOptions::new().softmax_scale(0.0);
        let output = forward(&mut auto, &on_auto, &on_auto, &on_auto, &options).unwrap();
        let o = output.o.download(auto.memory()).unwrap();
        assert!(
            o.to_f32(Layout::Bshd)
                .iter()
                .all(|o| (o - 2.0).abs() < 1e-6)
        );

        // The second is of the same type, but another value's.
        let mut other = Auto::new();
        assert!(on_auto.download(other.memory()).is_err());
        assert!(forward(&mut other, &on_auto, &on_auto, &on_auto, &options).is_err());
        let start = auto.mark().unwrap();
        let stop = auto.mark().unwrap();
        assert!(auto.elapsed_ms(&start, &stop).unwrap() >= 0.0);
    }
}
