//! The rungs below the product's kernels: attention as it is written down first, in fp32, so that each step up can
//! be measured. Never chosen for real work; [`crate::instances::LADDER`] lists them apart.
//!
//! | kernel | keeps on the chip | what it shows |
//! |---|---|---|
//! | `unfused`: `scores`, `softmax`, `output` | nothing | S and P go to memory and back |
//! | `column` | a row of O, a thread a column | one pass, but K and V are read anew for each query |
//! | `fa1` | a block of K and V | K and V are read once; O, m and l are read and written at every block |
//!
//! All operands are contiguous: q, k, v and o `[heads][seq][head_dim]`, S and P `[heads][seq][seq]`, m and l
//! `[heads][seq]`. No masks.

pub mod params;

#[cfg(target_arch = "nvptx64")]
pub mod column;
#[cfg(target_arch = "nvptx64")]
pub mod fa1;
#[cfg(target_arch = "nvptx64")]
pub mod unfused;
