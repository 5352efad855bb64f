//! One instance of the kernel as a type.

use cuda_std::half::Half;
use cuda_std::wgmma::{GemmRs, GemmSs, MnMajor};

use crate::backward::side::Side;
use crate::config::wgmma::WARPGROUP_ROWS;
use crate::config::wgmma_backward::WgmmaBackwardConfig;
use crate::modifiers::Modifiers;
use crate::tile::element::Element;
use crate::wgmma::forward::traits::{QkOperand, TensorMapParams};

/// One instance: `S_REGS`, `P_REGS` and `SUM_REGS` are the registers a thread holds of a block's scores, of P or dS as an
/// operand, and of a gradient.
pub trait BackwardKernel<const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize>:
    TensorMapParams
{
    const CONFIG: WgmmaBackwardConfig;
    type Side: Side;
    /// What the kernel can do to single pairs.
    type Modifiers: Modifiers;
    type Element: Half
        + Element
        + GemmRs<MnMajor, SUM_REGS, P_REGS>
        + GemmSs<MnMajor, MnMajor, S_REGS, { WARPGROUP_ROWS as usize }>;
    /// Whether dS is rounded times a power of two.
    const SCALES_DS: bool = Self::Element::SCALES_DS;
    /// Whether dq is added up too, by a kernel that keeps keys.
    const ADDS_DQ: bool = Self::CONFIG.adds_dq();
    /// A warpgroup's part of a kept operand as the left operand of a product.
    type Kept: QkOperand<S_REGS>;
}
