//! f16, bf16 and, forward, f32 by `mma.sync`, `ldmatrix` and `cp.async`, on every GPU since Ampere.
//!
//! | file | holds |
//! |---|---|
//! | `forward.rs` | forward: the FlashAttention-2 loop, and the attempts at a tile |
//! | `backward/` | backward: dk and dv of a block of keys, dq of a block of queries, and both at once; the gradients by ALiBi's slopes and by a bias |
//! | `decode/` | attention of a few queries to a cache of keys and values |
//! | `context.rs`, `tile_info.rs` | the tile of queries that a block works on, kept in shared memory |
//! | `kv_loader.rs` | the pipeline that K and V arrive through |
//! | `gemm.rs` | the two matrix products of a block of keys |
//! | `accumulator.rs` | a warp's rows: softmax state and output |
//! | `copy.rs` | from global to shared memory |
//! | `non_finite.rs` | infinities and NaN in V |
//! | `epilogue.rs` | o and lse |
//! | `element.rs` | what f16 and bf16 differ in |
//! | `arithmetic.rs` | what they and f32 differ in, forward |
//! | `tf32.rs` | f32's products, as three of tf32 |
//! | `ieee.rs` | f32's products where those are not enough |

// Most of an unsafe function here passes its own conditions on: they stand under its `# Safety`. Where something is shown,
// an unsafe block says what.
#![allow(unsafe_op_in_unsafe_fn)]

mod accumulator;
mod arithmetic;
mod backward;
mod context;
mod copy;
mod decode;
mod element;
mod epilogue;
mod forward;
mod gemm;
mod ieee;
mod kv_loader;
mod non_finite;
mod tf32;
mod tile_info;

use crate::config::mma::MmaConfig;
use crate::modifiers::Modifiers;

pub use arithmetic::Arithmetic;
pub use backward::{MmaBackwardKernel, backward, bias, slopes};
pub use decode::{DecodeKernel, decode};
pub use element::Element;
pub use forward::forward;

/// One instance of a kernel.
///
/// Of the const generics that go with it, which size arrays in registers, `ROWS` are the configuration's `lane_rows`,
/// `S_COLS` its `score_cols`, `O_COLS` its `output_cols` and `K_STEPS` its `k_steps`.
pub trait MmaKernel {
    const CONFIG: MmaConfig;
    type Element: Arithmetic;
    type Modifiers: Modifiers;
}

/// The element types of [`MmaKernel`].
pub mod elements {
    pub use cuda_std::half::{Bf16, F16};

    pub use crate::tile::element::F32;
}
