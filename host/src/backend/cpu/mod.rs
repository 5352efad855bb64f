//! The CPU backend: the FlashAttention-2 loop in f32, tiled, vectorised and multi-threaded.
//!
//! | file | what it does |
//! |---|---|
//! | `memory` | buffers on the heap, time marks from the clock |
//! | `plan` | cuts a problem into tasks of at most `BLOCK_M` query rows, one per thread at a time |
//! | `tile` | one task: load Q, loop over K/V tiles {QKᵀ, mask, softmax, PV}, write o and lse |
//! | `softmax` | the running maximum and sum of each row |
//! | `math` | exp and tanh |
//! | `gemm` | the register-tiled matrix product both GEMMs use |
//! | `pack` | moves strided operands of any dtype to and from f32 tiles |

mod gemm;
mod math;
mod memory;
mod pack;
mod plan;
mod softmax;
mod tile;

pub use memory::{CpuBuffer, CpuMemory};

use crate::{Backend, Capabilities, Error, Operands, Problem};

/// Runs problems on the host's own cores.
///
/// Takes every valid problem in every dtype, computes in f32 and uses the widest vectors the
/// processor has. Work runs on rayon's current thread pool, before
/// [`forward_raw`](Backend::forward_raw) returns.
#[derive(Debug, Default)]
pub struct Cpu {
    memory: CpuMemory,
}

impl Cpu {
    /// A backend; any number of them may exist.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Backend for Cpu {
    type Memory = CpuMemory;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn device_name(&self) -> String {
        format!("CPU, {} threads", rayon::current_num_threads())
    }

    fn memory(&mut self) -> &mut CpuMemory {
        &mut self.memory
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::Cpu
    }

    fn kernel_name(&self, problem: &Problem) -> Result<String, Error> {
        let variant = crate::variant::select(problem, &self.capabilities())?;
        Ok(format!("fa_fwd_cpu_{}_{variant}", problem.q().dtype.name()))
    }

    fn heads_per_tile(&self, problem: &Problem) -> Result<u32, Error> {
        self.kernel_name(problem).map(|_| 1)
    }

    unsafe fn forward_raw(&mut self, problem: &Problem, operands: &Operands) -> Result<(), Error> {
        crate::variant::select(problem, &self.capabilities())?;
        // SAFETY: the caller's promise is the one `plan::run` asks for.
        unsafe { plan::run(problem, operands) };
        Ok(())
    }
}
