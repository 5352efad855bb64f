//! Addresses of a problem's operands, and checks of them (`check`).

mod address;
mod cache;
mod check;
mod gradients;

pub use cache::CacheOperands;
pub use gradients::GradientOperands;

use super::{ModifierOperands, Plan};
use crate::Error;

/// Addresses of a problem's operands, in the memory of the backend that runs it.
///
/// Each is the address of element `[0, 0, 0, 0]`, aligned to its element's size. An operand without elements is never
/// read, whatever its address. Shapes are those of a dense problem; packed operands have batch 1.
///
/// ```
/// # use ferroflash::Operands;
/// # let [q, k, v, o, lse] = [16; 5];
/// let operands = Operands::new(q, k, v, o).lse(lse);
/// assert_eq!(operands.workspace, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operands {
    /// q, `[batch, heads_q, seq_q, head_dim]`.
    pub q: u64,
    /// k, `[batch, heads_kv, seq_kv, head_dim]`.
    pub k: u64,
    /// v, `[batch, heads_kv, seq_kv, head_dim_v]`.
    pub v: u64,
    /// o, `[batch, heads_q, seq_q, head_dim_v]`; written.
    pub o: u64,
    /// lse, f32 `[batch, heads_q, seq_q]`, varlen `[heads_q, total_q]`, contiguous, in nats; written. `None`: it is
    /// not wanted; kernels of this version then still write it on a GPU, to memory of the backend.
    pub lse: Option<u64>,
    /// The values of the problem's [`AlibiSlopes`](crate::AlibiSlopes), f32. `None`: the backend uses a copy of the
    /// host's values, made at the first call with them.
    pub alibi_slopes: Option<u64>,
    /// Running sums of the lengths of q, and of k and v, i32 `[batch + 1]` each. `None`: the backend uses a copy of the
    /// host's values, made at the first call with them.
    pub cu_seqlens: Option<[u64; 2]>,
    /// Rows of k and v of each sequence that are used, i32 `[batch]`.
    pub seqused_kv: Option<u64>,
    /// Scratch memory of the launch. `None`: the backend's own.
    pub workspace: Option<Workspace>,
    /// Addresses of a backward pass, which reads o and lse.
    pub gradients: Option<GradientOperands>,
    /// Addresses of the arrays of the problem's [`Modifiers`](crate::Modifiers).
    pub modifiers: ModifierOperands,
    /// Addresses of a problem that reads a cache ([`Problem::decode`](crate::Problem::decode)); its k and v are the cache's.
    pub cache: Option<CacheOperands>,
}

/// Scratch memory of a launch, in the memory of the backend that runs it.
///
/// The caller zeroes it, or as much as [`Plan::zeroed_workspace_bytes`] says, before its first use; every launch that succeeds
/// leaves it fit for the next, of any plan that needs no more ([`Plan::workspace_bytes`]). Those of
/// [`Variant::Decode`](crate::Variant::Decode), which is chosen for few queries, share one only with each other, and with the
/// same number of zeroed bytes. Launches that may run at the same time must not share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// A multiple of [`WORKSPACE_ALIGN_BYTES`].
    pub address: u64,
    /// Size in bytes.
    pub bytes: usize,
}

/// Alignment of a [`Workspace`].
pub const WORKSPACE_ALIGN_BYTES: u64 = kernels_gpu::wgmma::scheduler::tile_list::Workspace::ALIGN;

/// Alignment that the tensor copy engine (TMA) of a Hopper GPU requires of what it copies.
pub(crate) const TMA_ALIGN_BYTES: u64 = kernels_gpu::wgmma::tensor_map::ALIGN_BYTES;

/// An operand whose address TMA cannot take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Misaligned {
    pub operand: &'static str,
    pub address: u64,
}

impl Misaligned {
    /// The error of launching `plan` on it.
    pub(super) fn refuse(&self, plan: &Plan) -> Error {
        let Self { operand, address } = *self;
        let kernel = plan.kernel_name();
        let wrong = format!(
            "address {address:#x} is not a multiple of {TMA_ALIGN_BYTES}, which {kernel} needs"
        );
        let allowed = "another address, or a plan made for these operands (Plan::for_operands)";
        Error::argument(operand, wrong, allowed)
    }
}

impl Operands {
    /// The operands of a problem without arrays, whose lse is not wanted, in the backend's own workspace.
    pub const fn new(q: u64, k: u64, v: u64, o: u64) -> Self {
        Self {
            q,
            k,
            v,
            o,
            lse: None,
            alibi_slopes: None,
            cu_seqlens: None,
            seqused_kv: None,
            workspace: None,
            gradients: None,
            modifiers: ModifierOperands::NONE,
            cache: None,
        }
    }

    /// Sets [`lse`](Self::lse).
    pub fn lse(mut self, address: impl Into<Option<u64>>) -> Self {
        self.lse = address.into();
        self
    }

    /// Sets [`alibi_slopes`](Self::alibi_slopes).
    pub fn alibi_slopes(mut self, address: impl Into<Option<u64>>) -> Self {
        self.alibi_slopes = address.into();
        self
    }

    /// Sets [`cu_seqlens`](Self::cu_seqlens): of q, and of k and v. Beside a cache the latter are not read, and may be the former.
    pub fn cu_seqlens(mut self, addresses: impl Into<Option<[u64; 2]>>) -> Self {
        self.cu_seqlens = addresses.into();
        self
    }

    /// Sets [`seqused_kv`](Self::seqused_kv).
    pub fn seqused_kv(mut self, address: impl Into<Option<u64>>) -> Self {
        self.seqused_kv = address.into();
        self
    }

    /// Sets [`workspace`](Self::workspace).
    pub fn workspace(mut self, workspace: impl Into<Option<Workspace>>) -> Self {
        self.workspace = workspace.into();
        self
    }

    /// Sets [`gradients`](Self::gradients).
    pub fn gradients(mut self, gradients: impl Into<Option<GradientOperands>>) -> Self {
        self.gradients = gradients.into();
        self
    }

    /// Sets [`modifiers`](Self::modifiers).
    pub fn modifiers(mut self, modifiers: ModifierOperands) -> Self {
        self.modifiers = modifiers;
        self
    }

    /// Sets [`cache`](Self::cache).
    pub fn cache(mut self, cache: impl Into<Option<CacheOperands>>) -> Self {
        self.cache = cache.into();
        self
    }

    /// The first operand whose address TMA cannot take, if there is one: of a forward pass q, k, v and o; of a backward pass o is read
    /// without TMA, and is none.
    pub(crate) fn misaligned_for_tma(&self) -> Option<Misaligned> {
        let GradientOperands {
            d_o, dq, dk, dv, ..
        } = self.gradients.unwrap_or_default();
        let gradients = [("d_o", d_o), ("dq", dq), ("dk", dk), ("dv", dv)];
        let is_copied = |operand| operand != "o" || self.gradients.is_none();
        self.tensors()
            .into_iter()
            .filter(|&(operand, _)| is_copied(operand))
            .chain(gradients)
            .find(|(_, address)| !address.is_multiple_of(TMA_ALIGN_BYTES))
            .map(|(operand, address)| Misaligned { operand, address })
    }

    fn tensors(&self) -> [(&'static str, u64); 4] {
        [("q", self.q), ("k", self.k), ("v", self.v), ("o", self.o)]
    }
}
