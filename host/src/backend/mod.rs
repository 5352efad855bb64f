//! What runs a problem.

pub mod cpu;
pub mod cuda;
mod device;
mod gpu;
pub(crate) mod hopper;
pub mod sim;
mod tensor_maps;
mod uploads;

pub use device::{Counts, Device, DeviceInfo, Launch};
pub use gpu::Gpu;

use crate::{Capabilities, Error, Memory, Operands, Problem};

/// Something that runs attention problems: the CPU, a GPU or a simulated GPU.
pub trait Backend {
    /// Where this backend's tensors live.
    type Memory: Memory;

    /// The name `--backend` takes.
    fn name(&self) -> &'static str;

    /// The device in words, for reports.
    fn device_name(&self) -> String;

    /// The memory this backend computes in.
    fn memory(&mut self) -> &mut Self::Memory;

    /// What this backend can run.
    fn capabilities(&self) -> Capabilities;

    /// Name of the kernel that [`forward_raw`](Self::forward_raw) runs for `problem`.
    ///
    /// # Errors
    /// [`Error::Argument`] if no variant, or not the forced one, can run it here.
    fn kernel_name(&self, problem: &Problem) -> Result<String, Error>;

    /// Query heads of a group whose rows share a tile of that kernel (packed GQA), the next power of two; 1 where each
    /// head has tiles of its own.
    ///
    /// # Errors
    /// As [`kernel_name`](Self::kernel_name).
    fn heads_per_tile(&self, problem: &Problem) -> Result<u32, Error>;

    /// Queues `problem` on operands given by address and returns; [`Cpu`](crate::Cpu) and [`Sim`](crate::Sim) do the
    /// work first.
    ///
    /// On a GPU a call neither waits nor allocates device memory, with these exceptions, each the first time only:
    ///
    /// * A kernel that nothing in the process has launched on this GPU yet is compiled, which takes the driver hundreds
    ///   of milliseconds and device memory for its code.
    /// * The first launch of a Hopper kernel, and the first after one that failed, allocates the 4-byte tile counter,
    ///   writes it and waits for that.
    /// * Slopes, and cu_seqlens of kernels that read them (`simt`, `mma`), for which `operands` has no address are copied
    ///   to the device: allocated, written, waited for. The copy is known by the value in the problem and its clones
    ///   ([`AlibiSlopes`](crate::AlibiSlopes), [`CuSeqlens`](crate::CuSeqlens)) and kept while one of them lives, at most
    ///   128 of slopes and 128 of cu_seqlens, of which the oldest go first.
    /// * A Hopper kernel takes a list of tiles in place of cu_seqlens, whatever `operands` has. It is made on the host,
    ///   copied and kept likewise, among those of cu_seqlens: one for each `CuSeqlens`, mask, head_dim, head_dim_v, number
    ///   of query heads to a head of k and v, and slopes or none. Some of these share one.
    ///
    /// Whatever is made in one of the last two ways first frees what was made for values that live no more. On a GPU
    /// without memory pools, allocating and freeing wait for the device.
    ///
    /// # Errors
    /// [`Error::Argument`] if no variant, or not the forced one, can run it here;
    /// [`Error::Device`] if the launch fails.
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
    /// let operands = Operands {
    ///     q: q.as_ptr().expose_provenance() as u64,
    ///     k: k.as_ptr().expose_provenance() as u64,
    ///     v: v.as_ptr().expose_provenance() as u64,
    ///     o: o.as_mut_ptr().expose_provenance() as u64,
    ///     lse: lse.as_mut_ptr().expose_provenance() as u64,
    ///     ..Operands::default()
    /// };
    /// // SAFETY: the vectors hold as many elements as the problem reaches, and outlive the call, which
    /// // on this backend returns when the work is done.
    /// unsafe { Cpu::new().forward_raw(&problem, &operands)? };
    /// assert!(o.iter().all(|value| (value - 0.3).abs() < 1e-6));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// Until the queued work is done, every element that `problem`'s shapes and strides reach from
    /// the addresses in `operands` must lie in live memory of this backend, those of o and lse must
    /// not be accessed by anyone else, and those of q, k and v must not be written. Addresses must
    /// be aligned to their element's size. Where `operands` has addresses of slopes and cu_seqlens, the
    /// problem's own values must lie there.
    ///
    /// A call may be captured into a CUDA graph from the stream of a [`CudaDevice`](crate::CudaDevice) only if all of
    /// these hold; "done" above then means that the graph is not launched again:
    ///
    /// * The same problem has been run by this backend before, outside a capture, on operands of the same alignment to
    ///   16 bytes and with the same addresses left out, and no launch of the backend has failed since: nothing of the
    ///   list above is left to be done, as none of it can be captured.
    /// * The graph never runs at the same time as itself, as another graph captured from this backend or as another
    ///   launch of it: they draw tiles from one counter, and would each leave some to the other.
    /// * This backend, and the problem's `CuSeqlens` and `AlibiSlopes`, live as long as the graph, which reads what was
    ///   made for them, and fewer than 128 of each kind are made after them; and the graph is not launched again once a
    ///   launch of the backend has failed, which frees the counter.
    unsafe fn forward_raw(&mut self, problem: &Problem, operands: &Operands) -> Result<(), Error>;
}
