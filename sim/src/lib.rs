//! A PTX simulator: runs GPU kernels on the CPU, and checks them while they run.
//!
//! Give it PTX text as a compiler emits it, device memory, and a launch; it runs grids of CTAs of
//! warps with real divergence, barriers and memory spaces, and stops at the first thing a GPU would
//! have hidden: an access out of bounds or misaligned, a read of memory nothing wrote, a barrier that
//! part of a warp reaches. Every error names the kernel, the PTX line, the block and the thread.
//!
//! ```
//! use ptx_sim::{LaunchConfig, Memory, Module, launch};
//!
//! let module = Module::parse(
//!     r#"
//! .version 7.0
//! .target sm_80
//! .address_size 64
//! .visible .entry iota(.param .u64 out)
//! {
//!     .reg .b32 %r<2>;
//!     .reg .b64 %rd<3>;
//!     ld.param.u64 %rd1, [out];
//!     mov.u32 %r1, %tid.x;
//!     mad.wide.u32 %rd2, %r1, 4, %rd1;
//!     st.global.u32 [%rd2], %r1;
//!     ret;
//! }
//! "#,
//! )?;
//! let memory = Memory::new();
//! let out = memory.alloc(64 * 4)?;
//! let config = LaunchConfig::new([1, 1, 1], [64, 1, 1]);
//! launch(&module, "iota", &config, &[&out.to_le_bytes()], &memory)?;
//! let mut last = [0; 4];
//! memory.read(out + 63 * 4, &mut last)?;
//! assert_eq!(u32::from_le_bytes(last), 63);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod analysis;
mod checks;
mod decode;
mod error;
mod exec;
mod fault;
mod ir;
mod memory;
mod module;
mod num;
mod ptx;
mod stats;
mod tensor_map;

pub use analysis::{Divergence, Together};
pub use error::{MemoryError, ParseError, SimError};
pub use exec::{Checks, LaunchConfig, Report, Stream, launch};
pub use fault::{Access, BlockState, Fault, FaultKind};
pub use ir::Parameter;
pub use memory::Memory;
pub use module::{Instruction, KernelInfo, Module};
pub use stats::{Coverage, CoverageError, LineStatistics, Statistics};
pub use tensor_map::{
    OutOfBoundsFill, Swizzle, TENSOR_MAP_BYTES, TensorMap, TensorMapError, TensorMapType,
};
