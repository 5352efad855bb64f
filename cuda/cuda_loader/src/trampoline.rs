//! One trampoline and one slot for each driver function.
//!
//! `cust` links against the names in libcuda. Each of them is defined here as a single jump through a
//! slot, so arguments and result pass untouched whatever the signature is. A slot first holds a fallback
//! and, once [`crate::load`] has opened the library, the driver's own function.

/// The body of the naked function `$name`: a jump to the address in `slot::$name`.
///
/// Hidden, so that a shared library with these trampolines in it does not answer for libcuda elsewhere in
/// the process.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_through {
    ($name:ident) => {
        core::arch::naked_asm!(
            concat!(".hidden ", stringify!($name)),
            "jmp qword ptr [rip + {slot}]",
            slot = sym slot::$name
        )
    };
}

/// The body of the naked function `$name`, as above. `x16` is the register that the procedure call
/// standard leaves to such veneers.
#[cfg(all(target_arch = "aarch64", target_os = "linux"))]
macro_rules! jump_through {
    ($name:ident) => {
        core::arch::naked_asm!(
            concat!(".hidden ", stringify!($name)),
            "adrp x16, {slot}",
            "ldr x16, [x16, #:lo12:{slot}]",
            "br x16",
            slot = sym slot::$name
        )
    };
}

/// Defines the trampolines, their slots and [`SYMBOLS`](crate::symbols::SYMBOLS).
///
/// * `typed` rows are callable from Rust with the signature written here and return
///   [`CuResult`](crate::CuResult). `= path` gives the slot's fallback; without it, calls before the
///   driver is loaded return `CUDA_ERROR_NOT_INITIALIZED`.
/// * `forwarded` rows only exist for the linker: `cust_raw` declares their signatures.
macro_rules! driver_symbols {
    (
        typed { $(
            $(#[$doc:meta])*
            fn $typed:ident($($arg:ident: $ty:ty),* $(,)?) $(= $fallback:path)?;
        )* }
        forwarded { $($forwarded:ident)* }
    ) => {
        /// Where each trampoline jumps to.
        #[allow(non_upper_case_globals)]
        mod slot {
            use core::sync::atomic::AtomicPtr;
            $(pub(super) static $typed: AtomicPtr<()> =
                AtomicPtr::new(driver_symbols!(@fallback $($fallback)?) as *mut ());)*
            $(pub(super) static $forwarded: AtomicPtr<()> =
                AtomicPtr::new(driver_symbols!(@fallback) as *mut ());)*
        }

        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As NVIDIA's documentation of this driver function demands.
            #[allow(non_snake_case, clippy::too_many_arguments)]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $typed($($arg: $ty),*) -> $crate::CuResult {
                jump_through!($typed)
            }
        )*

        /// Trampolines whose signatures `cust_raw` declares.
        #[allow(non_snake_case)]
        mod forwarded {
            use super::slot;
            $(
                #[unsafe(naked)]
                #[unsafe(no_mangle)]
                pub(super) unsafe extern "C" fn $forwarded() {
                    jump_through!($forwarded)
                }
            )*
        }

        /// Every driver function with a trampoline: its name in libcuda and its slot.
        pub(crate) static SYMBOLS: &[(&str, &core::sync::atomic::AtomicPtr<()>)] = &[
            $((stringify!($typed), &slot::$typed),)*
            $((stringify!($forwarded), &slot::$forwarded),)*
        ];

        #[cfg(test)]
        #[test]
        fn cust_links_to_the_trampolines() {
            // A misspelt row does not compile.
            $(assert_eq!(
                cust_raw::$forwarded as *const (),
                forwarded::$forwarded as *const (),
                stringify!($forwarded)
            );)*
        }
    };
    (@fallback $fallback:path) => { $fallback };
    (@fallback) => { $crate::fallback::not_initialized };
}
