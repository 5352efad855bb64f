//! f32 arithmetic of code that host and device share: an instruction each on the GPU, `std`'s on the host.

#[cfg(target_arch = "nvptx64")]
pub use cuda_std::math::{exp2, fma, log2, max, tanh};

#[cfg(not(target_arch = "nvptx64"))]
pub use host::{exp2, fma, log2, max, tanh};

#[cfg(not(target_arch = "nvptx64"))]
mod host {
    extern crate std;

    /// 2ˣ.
    pub fn exp2(x: f32) -> f32 {
        x.exp2()
    }

    /// `a · b + c`, rounded once.
    pub fn fma(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    /// log₂ x.
    pub fn log2(x: f32) -> f32 {
        x.log2()
    }

    /// The larger of two numbers; a NaN loses against a number.
    pub fn max(a: f32, b: f32) -> f32 {
        a.max(b)
    }

    /// tanh x.
    pub fn tanh(x: f32) -> f32 {
        x.tanh()
    }
}
