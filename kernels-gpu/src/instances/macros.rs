//! Macros that the tables share, and where kernels are compiled.

/// What a kernel is compiled with that takes modifiers as parameter `$modifiers`, or none.
#[doc(hidden)]
#[macro_export]
macro_rules! __modifiers {
    (type) => {
        $crate::modifiers::NoModifiers
    };
    (type $modifiers:ident) => {
        $crate::abi::ModifierParams
    };
    (type $modifiers:ident: $type:ty) => {
        $type
    };
    (value) => {
        $crate::modifiers::NoModifiers
    };
    (value $modifiers:ident) => {
        $modifiers
    };
}

/// The kernels in it, of this crate, where it is compiled for sm_80 with them.
macro_rules! entries {
    ($($item:item)*) => {
        $(
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
            $item
        )*
    };
}

/// The kernels in it, where this crate is compiled for sm_80.
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_80"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __on_sm_80 {
    ($($item:item)*) => { $($item)* };
}
#[cfg(not(all(target_arch = "nvptx64", gpu_arch = "sm_80")))]
#[doc(hidden)]
#[macro_export]
macro_rules! __on_sm_80 {
    ($($item:item)*) => {};
}

/// The kernels in it, where this crate is compiled for sm_90a.
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __on_sm_90a {
    ($($item:item)*) => { $($item)* };
}
#[cfg(not(all(target_arch = "nvptx64", gpu_arch = "sm_90a")))]
#[doc(hidden)]
#[macro_export]
macro_rules! __on_sm_90a {
    ($($item:item)*) => {};
}
