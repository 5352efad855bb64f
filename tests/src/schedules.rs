//! The simulator's schedules that its tests run on.

/// Seeds for `SimDevice::with_schedule`: warps in turn with copies as late as can be, and two orders drawn at random.
pub const SCHEDULES: [u64; 3] = [0, 0x5eed, 0xa5c3];
