//! The way from the textbook's softmax to FlashAttention-2, one rung after the other.
//!
//! [`softmax`] is about one row of scores; [`attention`] lists the rungs of attention, each a function that computes
//! one head ([`head`]) and whose loads and stores are counted ([`global`]). All agree, with masks and with dropout, because
//! each entry of P is hidden or dropped by its row and column alone.

pub mod attention;
pub mod backward;
pub mod dropout;
pub mod exact;
mod fa1;
mod fa2;
pub mod global;
pub mod gpu;
pub mod head;
mod one_pass;
pub mod product;
pub mod softmax;
mod unfused;
