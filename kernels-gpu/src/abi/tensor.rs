//! Operands of attention in device memory.

use core::num::NonZeroU64;

use bytemuck::{Pod, Zeroable};

/// Address of an array that a launch may lack: `Option<DeviceAddress>` has the size of an address, and zero is `None`.
pub type DeviceAddress = NonZeroU64;

/// One operand of attention in device memory: a base address and the strides of its logical axes
/// `[batch, head, seq, dim]`, in elements of its dtype.
///
/// Any stride is allowed, zero and negative included; the host has checked that every element the
/// kernel can reach lies inside the allocation.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct TensorArg {
    /// Device address of element `[0, 0, 0, 0]`.
    pub address: u64,
    pub batch_stride: i64,
    pub head_stride: i64,
    pub seq_stride: i64,
    pub dim_stride: i64,
}
