//! The launches of a backward pass: lse in bits and delta of every row, then dk and dv, then dq.
//!
//! Where a family has a kernel that adds up dq while it computes dk and dv, that one is taken, and dq is rounded in the end;
//! unless results are to repeat bit for bit, or the sums of dq need more workspace than is allowed. Where it has a pair of
//! kernels of which one stores dS for the other, those are taken, for as many heads at a time as the workspace holds
//! (`ds_chunks`); so it is with dropout's keep mask, which the first kind finds in the workspace (`keep_mask`).
//!
//! | file | what it does |
//! |---|---|
//! | `kernels` | which kernels there are for a problem, and which of them run it |
//! | `attention` | what all of them are given, and the sums of dq that follow from it |
//! | `layout` | the workspace |
//! | `launches` | the parameters and grids of all launches |
//! | `steps` | these in their order |
//! | `bind` | the parameters with addresses |
//! | `ds_chunks` | a pass in parts, where dS lies in the workspace |
//! | `keep_mask` | the same where dropout's keep mask does |
//! | `slopes` | the launches of the gradient by ALiBi's slopes |
//! | `bias` | that of the gradient by a bias |

mod attention;
pub(crate) mod bias;
pub(crate) mod bind;
mod ds_chunks;
mod keep_mask;
mod kernels;
mod launches;
mod layout;
pub(crate) mod slopes;
mod steps;

pub(super) use kernels::BackwardKernels;
pub(super) use layout::RESERVED_BYTES;
pub(crate) use layout::WorkspaceLayout;
