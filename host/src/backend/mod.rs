//! What runs a problem.

pub mod cpu;
pub mod cuda;
mod device;
mod gpu;
pub(crate) mod hopper;
pub mod sim;
mod tensor_maps;
mod tile_list;
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

    /// Queues `problem` on operands given by address, without waiting for it and without
    /// allocating device memory.
    ///
    /// Slopes and cu_seqlens for which `operands` has no address are the exception: the first call with them
    /// copies them to the device, which allocates and waits, and later ones use that copy. So is the list of tiles that
    /// a Hopper kernel takes instead of cu_seqlens: the first call with a [`CuSeqlens`](crate::CuSeqlens), and with
    /// another mask or head_dim, makes one.
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
    unsafe fn forward_raw(&mut self, problem: &Problem, operands: &Operands) -> Result<(), Error>;
}
