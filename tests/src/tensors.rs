//! Operands of cases, changed.

use ferroflash::{HostTensor, Layout};

/// Multiplies every element by `factor`, and rounds the product to the tensor's dtype.
pub fn multiply(tensor: &mut HostTensor, factor: f32) {
    // In the order in which it is filled.
    let mut values = tensor.to_f32(Layout::Bhsd).into_iter();
    tensor.fill(|| factor * values.next().expect("as many"));
}
