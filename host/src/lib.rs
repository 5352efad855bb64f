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
//! On a GPU, or in a simulated one (feature `sim`), only the backend changes:
//!
#![cfg_attr(all(feature = "cuda", feature = "sim"), doc = "```no_run")]
#![cfg_attr(not(all(feature = "cuda", feature = "sim")), doc = "```ignore")]
//! use ferroflash::{Cuda, Sim};
//!
//! # fn main() -> Result<(), ferroflash::Error> {
//! let mut gpu = Cuda::new(0)?; // `CudaDevice::with_stream` takes the caller's stream
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
//!     .alibi(AlibiSlopes::geometric(2)?);
//! let out = forward(&mut cpu, &x, &x, &x, &options)?; // o is of x's shape
//! # assert_eq!(out.o.download(cpu.memory())?.get(0, 1, 7, 3), 0.5);
//! # Ok(())
//! # }
//! ```
//!
//! Tensors have any i64 strides, so slices, transposes and broadcasts need no copy. Engines that own
//! their buffers and streams make a [`Plan`] once and launch it with addresses ([`Backend::launch`]).
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `cuda` (default) | NVIDIA GPUs, through the driver that is found when the program runs |
//! | `sim` | a simulated GPU, which checks the kernels while it runs them |
//! | `gpu` | what both share: the kernels' PTX and how they are launched; either feature asks for it |
//! | `serde` | `Serialize` for what backends count |
//!
//! The CPU backend is always there; without features it is all there is.

// Plans are made for GPUs whether or not this build can launch them.
#![cfg_attr(not(feature = "gpu"), allow(dead_code))]

mod append;
pub mod backend;
mod backward;
mod decode;
mod dtype;
mod error;
mod forward;
mod host_tensor;
mod kv_cache;
mod memory;
mod merge;
pub mod plan;
mod problem;
mod ptx;
mod sealed;
mod spec;
mod tensor;

pub use append::{AppendOperands, NewKv, append_kv};
#[cfg(feature = "cuda")]
pub use backend::Auto;
pub use backend::Backend;
#[cfg(feature = "gpu")]
pub use backend::Gpu;
pub use backend::cpu::Cpu;
#[cfg(feature = "cuda")]
pub use backend::cuda::{Cuda, CudaDevice};
#[cfg(feature = "sim")]
pub use backend::sim::Sim;
pub use backward::{
    Gradients, OutputGradients, backward, backward_into, backward_planned, backward_planned_into,
};
pub use decode::{decode, decode_into, decode_planned, decode_planned_into};
pub use error::Error;
pub use forward::{Output, forward, forward_into, forward_planned, forward_planned_into};
pub use host_tensor::HostTensor;
pub use kernels_gpu::dtype::DType;
pub use kv_cache::{CacheFaults, Indices, KvCache};
pub use memory::Memory;
pub use merge::merge;
#[doc(hidden)]
pub use merge::{Merge, MergePart, MergeTensor};
pub use plan::{
    CacheOperands, Capabilities, GpuCapabilities, GradientOperands, ModifierOperands, Operands,
    Plan, Plans, WORKSPACE_ALIGN_BYTES, Workspace,
};
// For the oracle, which takes it apart; an option is a new field.
#[doc(hidden)]
pub use problem::Score;
pub use problem::{
    AlibiSlopes, AppendProblem, BackwardOptions, BiasTensor, BlockMask, BoundScoreMod, CacheLayout,
    CuSeqlens, DEFAULT_WORKSPACE_LIMIT_BYTES, DeviceLengths, Documents, Dropout, ForwardOptions,
    GradientSpecs, KnownArrays, Lengths, MAX_HEAD_DIM, Mask, MaskTensor, Modifiers, Precision,
    PrefixLengths, Problem, RotaryStyle, SEQ_LIMIT, ScoreModification, Sequence, Sinks, TreeMask,
    Variant,
};
pub use ptx::PtxModules;
// For `include_ptx!`.
#[cfg(feature = "gpu")]
#[doc(hidden)]
pub use ferroflash_ptx::{Module as __PtxModule, Pack as __PtxPack};
pub use spec::{Layout, Shape, Strides, TensorSpec};
pub use tensor::Tensor;

/// Compiles and runs what README.md shows.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
