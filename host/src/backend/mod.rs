//! Backends: the CPU, GPUs and the simulated GPU.

#[cfg(feature = "cuda")]
mod auto;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "gpu")]
mod device;
#[cfg(feature = "gpu")]
mod embedded;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(feature = "gpu")]
mod gpu_append;
#[cfg(feature = "gpu")]
mod gpu_merge;
mod pool;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "gpu")]
mod tensor_maps;
#[cfg(feature = "gpu")]
mod uploads;
#[cfg(feature = "gpu")]
mod workspace;

#[cfg(feature = "cuda")]
pub use auto::{Auto, AutoBuffer, AutoMark};
#[cfg(feature = "gpu")]
pub use device::{Counts, Device, DeviceInfo, Launch};
#[cfg(feature = "gpu")]
pub use gpu::Gpu;

use crate::sealed::Sealed;
use crate::{
    AppendOperands, AppendProblem, Capabilities, Error, Memory, Merge, Operands, Plan, Problem,
};

/// Something that runs attention problems: the CPU, a GPU or a simulated GPU.
///
/// Implemented by this crate's backends alone: the trait will gain methods.
pub trait Backend: Sealed {
    /// Where this backend's tensors live.
    type Memory: Memory;

    /// A short name: `cpu`, `cuda` or `sim`.
    fn name(&self) -> &'static str;

    /// The device in words, for reports.
    fn device_name(&self) -> String;

    /// Where the device is plugged in, as [`DeviceInfo::pci_bus_id`] of a GPU; `None` where no hardware but the host's
    /// computes.
    fn pci_bus_id(&self) -> Option<&str> {
        None
    }

    /// The memory this backend computes in.
    fn memory(&mut self) -> &mut Self::Memory;

    /// Capabilities of this backend, from which [`Plan`] chooses a variant.
    fn capabilities(&self) -> Capabilities;

    /// The plan that runs `problem` here on operands at addresses that are multiples of 16 bytes. For other addresses
    /// see [`Plan::for_operands`].
    ///
    /// # Errors
    /// [`Error::Argument`] if no variant, or not the forced one, can run it here.
    fn plan(&self, problem: &Problem) -> Result<Plan, Error> {
        Plan::new(problem, &self.capabilities())
    }

    /// Queues `plan` on operands given by address and returns; [`Cpu`](crate::Cpu) and `Sim` do the
    /// work first.
    ///
    /// On a GPU a call neither waits, copies nor allocates device memory, with these exceptions, each the first time
    /// only:
    ///
    /// * A kernel that nothing in the process has launched on this GPU yet is compiled, which takes the driver hundreds
    ///   of milliseconds and device memory for its code.
    /// * Where `operands` gives no workspace and the plan needs one, the first launch of a plan that needs more than those
    ///   before, and the first after one that failed, allocates it, writes zeros and waits for that. It grows in powers of
    ///   two. So is memory for an lse that `operands` does not ask for.
    /// * Slopes and cu_seqlens that the host knows, for which `operands` has no address, are copied
    ///   to the device: allocated, written, waited for. The copy is known by the value in the problem and its clones
    ///   ([`AlibiSlopes`](crate::AlibiSlopes), [`CuSeqlens`](crate::CuSeqlens)) and kept while one of them lives, at most
    ///   128 of slopes and 128 of cu_seqlens, of which the oldest are freed first. The next copy to be made also frees
    ///   those whose values have been dropped. On a GPU without memory pools, allocating and freeing wait for the
    ///   device.
    ///
    /// # Errors
    /// [`Error::Argument`] if the plan was made for another kind of device, or an address cannot be that of its operand;
    /// [`Error::Device`] if a launch fails. The caller's workspace has then to be zeroed again.
    ///
    /// ```
    /// use ferroflash::{Backend, Cpu, ForwardOptions, Layout, Operands, Problem, Shape, TensorSpec};
    /// use ferroflash::DType;
    ///
    /// # fn main() -> Result<(), ferroflash::Error> {
    /// // Buffers of another framework: here plain vectors, on a GPU its device pointers.
    /// let shape = Shape { batch: 1, heads: 2, seq: 5, dim: 8 };
    /// let spec = TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd)?;
    /// let (q, k, v) = (vec![0.1f32; 80], vec![0.2f32; 80], vec![0.3f32; 80]);
    /// let (mut o, mut lse) = (vec![0f32; 80], vec![0f32; 10]);
    ///
    /// let problem = Problem::new(spec, spec, spec, spec, &ForwardOptions::new())?;
    /// let mut backend = Cpu::new();
    /// let plan = backend.plan(&problem)?; // once, for any number of launches
    /// let operands = Operands::new(
    ///     q.as_ptr().expose_provenance() as u64,
    ///     k.as_ptr().expose_provenance() as u64,
    ///     v.as_ptr().expose_provenance() as u64,
    ///     o.as_mut_ptr().expose_provenance() as u64,
    /// )
    /// .lse(lse.as_mut_ptr().expose_provenance() as u64);
    /// // SAFETY: the vectors hold as many elements as the problem reaches, and outlive the call, which
    /// // on this backend returns when the work is done.
    /// unsafe { backend.launch(&plan, &operands)? };
    /// assert!(o.iter().all(|value| (value - 0.3).abs() < 1e-6));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// Until the queued work is done, every element that the problem's shapes and strides reach from
    /// the addresses in `operands` must lie in live memory of this backend, those of o and lse must
    /// not be accessed by anyone else, and those of q, k and v must not be written; of a backward pass, those of the gradients that
    /// are written must not be accessed by anyone else, and all others not be written. The same holds of small arrays,
    /// whose values need not be right where the problem says that they are on the device ([`DeviceLengths`],
    /// [`AlibiSlopes::on_device`]), and must be the problem's own where the host knows them. A workspace is as
    /// [`Operands::workspace`] says.
    ///
    /// [`DeviceLengths`]: crate::DeviceLengths
    /// [`AlibiSlopes::on_device`]: crate::AlibiSlopes::on_device
    ///
    /// A call may be captured into a CUDA graph from the stream of a [`CudaDevice`](crate::CudaDevice); "done" above then
    /// means that the graph is not launched again. Nothing of the list above can be captured, so
    ///
    /// * each kernel of the plan has been launched before in the process, on this GPU;
    /// * `operands` gives a workspace, one for each graph that may run at the same time as another, and addresses of
    ///   arrays that the problem has. Left out, they are this backend's own, which then must have run the same plan before,
    ///   outlives the graph and does not run at the same time as it; values that the host knows live as long. After a
    ///   launch of this backend that failed, such a graph is to be captured again.
    ///
    /// Lengths and slopes on the device, and what q, k and v hold, may change between two launches of the graph.
    unsafe fn launch(&mut self, plan: &Plan, operands: &Operands) -> Result<(), Error>;

    /// Queues [`merge`](crate::merge()), which is its safe form.
    ///
    /// # Errors
    /// [`Error::Argument`] on `backend` if it is a GPU that no kernel runs on, [`Error::OutOfMemory`] or [`Error::Device`].
    ///
    /// # Safety
    /// Until the queued work is done, every element of the operands must lie in live memory of this backend; o and lse must
    /// be accessed by nobody else, and the parts not written. All have o's axes, at most 2³² − 1 each, and some element.
    #[doc(hidden)]
    unsafe fn merge_raw(&mut self, merge: &Merge<'_>) -> Result<(), Error>;

    /// Queues [`append_kv`](crate::append_kv()), which is its safe form, on operands given by address. It can be captured into a
    /// CUDA graph, once the kernel has been launched in the process.
    ///
    /// # Errors
    /// [`Error::Argument`] if an address is missing or cannot be that of its operand, or no kernel appends such rows here;
    /// [`Error::Device`].
    ///
    /// # Safety
    /// Until the queued work is done, every element that the problem's shapes and strides reach from the addresses must lie in live
    /// memory of this backend; those of the cache and of rotated queries must be accessed by nobody else, and the others not
    /// written.
    unsafe fn append_raw(
        &mut self,
        problem: &AppendProblem,
        operands: &AppendOperands,
    ) -> Result<(), Error>;

    /// Plans `problem`, of either pass, for these operands and launches it.
    ///
    /// # Errors
    /// Those of [`Plan::for_operands`] and [`launch`](Self::launch).
    ///
    /// # Safety
    /// As for [`launch`](Self::launch).
    unsafe fn forward_raw(&mut self, problem: &Problem, operands: &Operands) -> Result<(), Error> {
        let plan = Plan::for_operands(problem, &self.capabilities(), operands)?;
        // SAFETY: the plan was made for these operands, which the caller vouches for.
        unsafe { self.launch(&plan, operands) }
    }
}
