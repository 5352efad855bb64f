//! Functions compiled for the vector units that a CPU may have, of which the best is chosen when they are called.
//!
//! What such a function calls has to be inlined into it, or lacks the vector instructions of its caller.

#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Vector units, each with what those before have.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// What the build assumes.
    Baseline,
    /// AVX2, FMA, F16C and the bit manipulation of their time: x86-64-v3.
    Avx2,
    /// AVX-512's F, BW, DQ and VL: x86-64-v4.
    Avx512,
}

#[cfg(target_arch = "x86_64")]
impl Unit {
    /// The best one that this CPU has.
    #[inline(always)]
    pub(super) fn best() -> Self {
        /// 0 until it is known, then one more than the unit's number.
        static KNOWN: AtomicU8 = AtomicU8::new(0);
        match KNOWN.load(Relaxed) {
            1 => Self::Baseline,
            2 => Self::Avx2,
            3 => Self::Avx512,
            _ => {
                let found = Self::detect();
                KNOWN.store(found as u8 + 1, Relaxed);
                found
            }
        }
    }

    #[cold]
    fn detect() -> Self {
        use std::arch::is_x86_feature_detected as has;
        let bits = has!("bmi1") && has!("bmi2") && has!("lzcnt") && has!("popcnt");
        if !(has!("avx2") && has!("fma") && has!("f16c") && bits) {
            return Self::Baseline;
        }
        let has_512 = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        if has_512 { Self::Avx512 } else { Self::Avx2 }
    }
}

/// `fn NAME(ARGUMENTS) -> RESULT = INLINED;` is a function that calls `INLINED`, which is `#[inline(always)]`, as compiled for
/// [`Unit::best`]. `INLINED` gets as its first type argument whether a product and a sum are one instruction there ([`Fused`]
/// or [`Apart`]).
macro_rules! vectorised {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? = $inlined:ident;) => {
        $(#[$meta])*
        #[inline]
        $vis fn $name($($argument: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
                fn avx2($($argument: $type),*) $(-> $result)? {
                    $inlined::<$crate::exec::vector::Fused>($($argument),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
                fn avx512($($argument: $type),*) $(-> $result)? {
                    $inlined::<$crate::exec::vector::Fused>($($argument),*)
                }
                match $crate::exec::vector::Unit::best() {
                    // SAFETY: this CPU has what the function is compiled for.
                    $crate::exec::vector::Unit::Avx512 => return unsafe { avx512($($argument),*) },
                    // SAFETY: as above.
                    $crate::exec::vector::Unit::Avx2 => return unsafe { avx2($($argument),*) },
                    $crate::exec::vector::Unit::Baseline => {}
                }
            }
            $inlined::<$crate::exec::vector::Apart>($($argument),*)
        }
    };
}
pub(super) use vectorised;

/// How `x * y + z` is computed where the product is exact, so that one rounding or two give the same.
pub(super) trait MultiplyAdd {
    fn of(x: f64, y: f64, z: f64) -> f64;
}

/// By one instruction.
#[cfg(target_arch = "x86_64")]
pub(super) struct Fused;

/// By two: where there is no such instruction, `mul_add` is a slow function.
pub(super) struct Apart;

#[cfg(target_arch = "x86_64")]
impl MultiplyAdd for Fused {
    #[inline(always)]
    fn of(x: f64, y: f64, z: f64) -> f64 {
        x.mul_add(y, z)
    }
}

impl MultiplyAdd for Apart {
    #[inline(always)]
    fn of(x: f64, y: f64, z: f64) -> f64 {
        x * y + z
    }
}
