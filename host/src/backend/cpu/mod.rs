//! The CPU backend: the FlashAttention-2 loop in f32, tiled, vectorised and multi-threaded.
//!
//! | file | what it does |
//! |---|---|
//! | `memory` | buffers on the heap, time marks from the clock |
//! | `arrays` | reads lengths and slopes that only the caller has |
//! | `pool` | the threads, also in a forked child |
//! | `tasks` | cuts a problem into tasks of at most `BLOCK_M` query rows, one per thread at a time |
//! | `tile` | one task: load Q, loop over K/V tiles {QKᵀ, mask, softmax, PV}, write o and lse |
//! | `score` | scale, softcap and bias |
//! | `softmax` | the running maximum and sum of each row |
//! | `math` | exp and tanh |
//! | `gemm` | the register-tiled matrix product both GEMMs use |
//! | `pack` | moves strided operands of any dtype to and from f32 tiles |

mod arrays;
mod gemm;
mod math;
mod memory;
mod pack;
mod pool;
mod score;
mod softmax;
mod tasks;
mod tile;

pub use memory::{CpuBuffer, CpuMemory};

use crate::{Backend, Capabilities, Error, Operands, Plan};

/// Runs problems on the host's own cores.
///
/// Takes every valid problem in every dtype, computes in f32 and uses the widest vectors the
/// processor has. Work is done before [`launch`](Backend::launch) returns, on the rayon pool that the calling thread
/// belongs to, else on a pool that all these backends share, which a forked child makes anew.
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
        format!("CPU, {} threads", pool::install(rayon::current_num_threads))
    }

    fn memory(&mut self) -> &mut CpuMemory {
        &mut self.memory
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::Cpu
    }

    unsafe fn launch(&mut self, plan: &Plan, operands: &Operands) -> Result<(), Error> {
        plan.check(&self.capabilities(), operands)?;
        // SAFETY: the caller's promise is the one `known` asks for.
        let problem = unsafe { arrays::known(plan.problem(), operands) };
        // SAFETY: the caller's promise is the one `tasks::run` asks for.
        pool::install(|| unsafe { tasks::run(&problem, operands) });
        Ok(())
    }
}
