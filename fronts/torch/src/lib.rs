//! Attention on torch's tensors for Python, past Python's half where it can be.
//!
//! | file | what it does |
//! |---|---|
//! | `view` | how tensors lie, and where: by DLPack's exchange API, in which torch hands out what Python would ask it for attribute by attribute, or, of a torch before 2.10, by asking |
//! | `call` | a call that is checked once: plans it, gets it memory, and launches it without holding Python's lock |
//! | `calls` | the calls that are made most often, looked up by how their tensors lie |
//! | `described` | Python's descriptions of tensors and caches, as the library's |
//! | `exception` | which exception an error becomes |

mod call;
mod calls;
mod described;
mod exception;
mod view;

pub use call::{Arrays, Call, Memory, Results};
pub use calls::Calls;
pub use described::{Cache, View, operand};
pub use exception::exception;
pub use view::signature;
