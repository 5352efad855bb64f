//! Exact fused attention (FlashAttention) with GPU kernels written in Rust.
//!
//! For each head, `o = softmax(q · kᵀ · softmax_scale) · v` over the keys that the mask leaves
//! visible, and `lse`, the log-sum-exp of each row's scores. No score matrix is ever stored. [`Output`] says the shapes.
//!
//! ```
//! use ferroflash::{Backend, Cpu, ForwardOptions, HostTensor, Layout, Mask, Shape, forward};
//!
//! # fn main() -> Result<(), ferroflash::Error> {
//! let mut cpu = Cpu::new();
//! // Two query heads share one head of k and v: grouped-query attention.
//! let q_shape = Shape { batch: 1, heads: 2, seq: 3, dim: 4 };
//! let kv_shape = Shape { heads: 1, ..q_shape };
//! let q = HostTensor::from_f32(&[0.5; 24], q_shape, Layout::Bshd)?.upload(cpu.memory())?;
//! let k = HostTensor::from_f32(&[0.25; 12], kv_shape, Layout::Bshd)?.upload(cpu.memory())?;
//! let values: Vec<f32> = (0..12).map(|x| x as f32).collect();
//! let v = HostTensor::from_f32(&values, kv_shape, Layout::Bshd)?.upload(cpu.memory())?;
//!
//! let out = forward(&mut cpu, &q, &k, &v, &ForwardOptions::new().mask(Mask::Causal))?;
//!
//! // All scores are equal here, so each row is the mean of the values it sees.
//! let o = out.o.download(cpu.memory())?;
//! assert_eq!(o.get(0, 1, 2, 3), (3.0 + 7.0 + 11.0) / 3.0);
//! # Ok(())
//! # }
//! ```
//!
//! On a GPU, or in a simulated one, only the backend changes:
//!
//! ```no_run
//! use ferroflash::{Cuda, CudaDevice, Sim};
//!
//! # fn main() -> Result<(), ferroflash::Error> {
//! let mut gpu = Cuda::on(CudaDevice::new(0)?); // `CudaDevice::with_stream` takes the caller's stream
//! let mut simulated = Sim::new();
//! # Ok(())
//! # }
//! ```
//!
//! Sequences of different lengths are packed, and described by an option ([`CuSeqlens`]); options
//! compose, so there is one function for all of them:
//!
//! ```
//! use ferroflash::{AlibiSlopes, CuSeqlens, Mask};
//! # use ferroflash::{Backend, Cpu, ForwardOptions, HostTensor, Layout, Shape, forward};
//!
//! # fn main() -> Result<(), ferroflash::Error> {
//! # let mut cpu = Cpu::new();
//! // Two sequences, of 3 and 5 rows, of 2 heads of 4 components: [8, 2, 4].
//! let shape = Shape::packed(8, 2, 4);
//! let x = HostTensor::from_f32(&[0.5; 64], shape, Layout::Bshd)?.upload(cpu.memory())?;
//! let options = ForwardOptions::new()
//!     .mask(Mask::Causal)
//!     .cu_seqlens(CuSeqlens::from_lengths([(3, 3), (5, 5)])?)
//!     .alibi(AlibiSlopes::geometric(2));
//! let out = forward(&mut cpu, &x, &x, &x, &options)?; // o is of x's shape
//! # assert_eq!(out.o.download(cpu.memory())?.get(0, 1, 7, 3), 0.5);
//! # Ok(())
//! # }
//! ```
//!
//! Tensors have any i64 strides, so slices, transposes and broadcasts need no copy. Engines that own
//! their buffers pass addresses to [`Backend::forward_raw`] instead.

mod alibi;
pub mod backend;
pub mod cases;
mod cu_seqlens;
mod dtype;
mod error;
mod forward;
mod host_tensor;
#[cfg(feature = "cli")]
pub mod learn;
mod mask;
mod memory;
pub mod modules;
mod options;
pub mod oracle;
mod problem;
mod spec;
mod tensor;
pub mod variant;

pub use alibi::AlibiSlopes;
pub use backend::cpu::Cpu;
pub use backend::cuda::{Cuda, CudaDevice};
pub use backend::sim::Sim;
pub use backend::{Backend, Gpu};
pub use cu_seqlens::CuSeqlens;
pub use error::Error;
pub use forward::{Output, forward, forward_into};
pub use host_tensor::HostTensor;
pub use kernels_gpu::dtype::DType;
pub use mask::Mask;
pub use memory::Memory;
pub use options::ForwardOptions;
pub use problem::{MAX_HEAD_DIM, Operands, Problem, SEQ_LIMIT, Sequence};
pub use spec::{Layout, Shape, Strides, TensorSpec};
pub use tensor::Tensor;
pub use variant::{Capabilities, Variant};

/// Compiles and runs what README.md shows.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
