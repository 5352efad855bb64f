//! Attention as custom calls of XLA: handlers for its FFI, which JAX calls by name ([`TARGETS`]).
//!
//! | file | what it does |
//! |---|---|
//! | `c_api` | the structs and functions of `xla/ffi/api/c_api.h` that are needed here |
//! | `call` | a call as XLA hands it over: its buffers, attributes, stream, device and scratch memory |
//! | `failure` | why a call fails, as an error of XLA's |
//! | `options` | a call's attributes, as the library's options |
//! | `shapes` | an array's shape and dtype, as the library's or refused |
//! | `arrays` | masks, biases and what else a call may have beside its tensors |
//! | `plans` | the plans of calls, kept by shapes, dtypes, options and device |
//! | `attention` | both passes |
//!
//! XLA allocates what is read and written, and orders the work by its stream; nothing here knows kernels or JAX. The bindings are
//! our own: crates such as `xla` bind XLA's library for those who compile programs, not this API.

mod arrays;
mod attention;
mod c_api;
mod call;
mod failure;
mod options;
mod plans;
mod shapes;
#[cfg(test)]
mod tests;

use std::ffi::c_void;
use std::ptr::NonNull;

use c_api::{CallFrame, XlaError};

/// A handler, by the name and for the platform that it is registered with.
pub struct Target {
    /// What custom calls name.
    pub name: &'static str,
    /// XLA's name of the platform.
    pub platform: &'static str,
    handler: unsafe extern "C" fn(*mut CallFrame) -> *mut XlaError,
}

impl Target {
    /// The handler's address, an `XLA_FFI_Handler` of the C API, which is there as long as this library is loaded.
    pub fn address(&self) -> NonNull<c_void> {
        NonNull::new(self.handler as *mut c_void).expect("a function has an address")
    }
}

/// Both passes on both platforms.
///
/// | target | arguments | results | attributes |
/// |---|---|---|---|
/// | `ferroflash_forward` | q, k, v | o, lse | f32 `softmax_scale`, `softcap`, `dropout_p`; i64 `left`, `right`; bool `top_left`, `ieee` |
/// | `ferroflash_backward` | q, k, v, o, lse, d_o | dq, dk, dv | those and bool `deterministic` |
///
/// All arrays are dense, in the order of their axes. q is `[..., seq_q, heads_q, head_dim]`, k `[..., seq_k, heads_k, head_dim]`, v
/// `[..., seq_k, heads_k, head_dim_v]` and o `[..., seq_q, heads_q, head_dim_v]`, f32, f16 or bf16; lse is f32 `[..., heads_q,
/// seq_q]`. The leading axes are batch entries, however many there are; a gradient is of its array's shape.
///
/// Others may follow, in this order, each of which a bool attribute of its own name says of whether it is there:
///
/// | array | shape, where the leading axes are one batch entry, for all, or all of them | |
/// |---|---|---|
/// | `d_lse` | `[..., heads_q, seq_q]`, f32, of all | argument of backward: the loss depends on lse |
/// | `mask` | `[..., heads_q or 1, seq_q or 1, seq_k or 1]`, bool | |
/// | `bias` | as `mask`; f32, f16 or bf16 | |
/// | `alibi_slopes` | `[..., heads_q]`, f32 | |
/// | `doc_q`, `doc_k` | `[..., seq_q]` and `[..., seq_k]`, i32, both of one entry or both of all | neither without the other |
/// | `dropout_state` | `[4]`, u32: seed and offset of dropout, the lower words first | where `dropout_p` is above 0 |
/// | `d_bias` | that of `bias` but with seq_k keys, f32 | result of backward |
/// | `d_alibi_slopes` | that of `alibi_slopes` | result of backward |
pub const TARGETS: [Target; 4] = [
    Target {
        name: "ferroflash_forward",
        platform: "cpu",
        handler: attention::forward_on_cpu,
    },
    Target {
        name: "ferroflash_forward",
        platform: "CUDA",
        handler: attention::forward_on_cuda,
    },
    Target {
        name: "ferroflash_backward",
        platform: "cpu",
        handler: attention::backward_on_cpu,
    },
    Target {
        name: "ferroflash_backward",
        platform: "CUDA",
        handler: attention::backward_on_cuda,
    },
];
