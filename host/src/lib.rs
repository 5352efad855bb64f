//! Exact fused attention (FlashAttention) with GPU kernels written in Rust.
//!
//! For each head, `o = softmax(q · kᵀ · softmax_scale) · v` over the keys that the mask leaves
//! visible, and `lse`, the log-sum-exp of each row's scores. No score matrix is ever stored.
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
//! Tensors have any i64 strides, so slices, transposes and broadcasts need no copy. Engines that own
//! their buffers pass addresses to [`Backend::forward_raw`] instead.

pub mod backend;
pub mod cases;
mod dtype;
mod error;
mod forward;
mod host_tensor;
mod mask;
mod memory;
mod modules;
mod options;
pub mod oracle;
mod problem;
mod spec;
mod tensor;
pub mod variant;

pub use backend::cpu::Cpu;
pub use backend::{Backend, Gpu};
pub use error::Error;
pub use forward::{Output, forward, forward_into};
pub use host_tensor::HostTensor;
pub use kernels_gpu::dtype::DType;
pub use mask::Mask;
pub use memory::Memory;
pub use options::ForwardOptions;
pub use problem::{MAX_HEAD_DIM, Operands, Problem, SEQ_LIMIT};
pub use spec::{Layout, Shape, Strides, TensorSpec};
pub use tensor::Tensor;
pub use variant::{Capabilities, Variant};
