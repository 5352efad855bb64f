//! A warpgroup's two GEMMs: when it may issue them, and what it waits for.

use cuda_std::wgmma::{GemmRs, InFlight};

use super::consumer::Consumer;
use super::traits::{ForwardKernel, QkOperand};

impl<K, const S_REGS: usize, const P_REGS: usize, const O_REGS: usize>
    Consumer<'_, K, S_REGS, P_REGS, O_REGS>
where
    K: ForwardKernel<S_REGS, P_REGS, O_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; O_REGS]: InFlight,
{
    /// Issues S = Q Kᵀ of the next block and O += P V of the present one, in this warpgroup's turn.
    #[inline(always)]
    pub(super) unsafe fn issue_qk_pv(&mut self, q_operand: &K::QkOperand) {
        let config = Self::CONFIG;
        if config.overlap {
            self.k.consumer_wait();
            if config.ping_pong {
                self.scheduler_barrier.sync();
            }
            self.issue_qk(q_operand);
            self.v.consumer_wait();
            self.issue_pv();
        } else {
            self.v.consumer_wait();
            if config.ping_pong {
                self.scheduler_barrier.sync();
            }
            self.issue_pv();
            self.k.consumer_wait();
            self.issue_qk(q_operand);
        }
        if config.ping_pong {
            self.scheduler_barrier.arrive();
        }
    }

    /// Waits for S = Q Kᵀ, under which O += P V continues; without overlap, for both.
    #[inline(always)]
    pub(super) unsafe fn wait_qk(&mut self) {
        if Self::CONFIG.overlap {
            self.acc_s.wait::<1>();
        } else {
            self.acc_o.wait::<0>();
            self.acc_s.waited();
            self.release_v();
        }
    }

    /// Waits for O += P V, unless [`Self::wait_qk`] has.
    #[inline(always)]
    pub(super) unsafe fn wait_pv(&mut self) {
        self.wait_pv_unless(false);
    }

    /// As [`Self::wait_pv`], unless `is_first`: no PV was issued then, and the present stage of V stays.
    #[inline(always)]
    pub(super) unsafe fn wait_pv_unless(&mut self, is_first: bool) {
        if Self::CONFIG.overlap {
            self.acc_o.wait::<0>();
            if !is_first {
                self.release_v();
            }
        }
    }

    /// Issues S = Q Kᵀ with the present stage of K.
    #[inline(always)]
    pub(super) unsafe fn issue_qk(&mut self, q_operand: &K::QkOperand) {
        let k = self.k_smem.offset(self.k.stage * Self::CONFIG.k_bytes());
        q_operand.issue_qk(&mut self.acc_s, k);
    }

    /// Issues O += P V with the present stage of V.
    #[inline(always)]
    pub(super) unsafe fn issue_pv(&mut self) {
        let v = self.v_smem.offset(self.v.stage * Self::CONFIG.v_bytes());
        K::Element::multiply_add(&mut self.acc_o, &self.p_frag, v);
    }

    /// The warp has read the present stage of K.
    #[inline(always)]
    pub(super) unsafe fn release_k(&mut self) {
        self.k
            .consumer_release(self.lanes.lane, Self::CONFIG.cluster);
        self.k.advance();
    }

    /// The warp has read the present stage of V.
    #[inline(always)]
    pub(super) unsafe fn release_v(&mut self) {
        self.v
            .consumer_release(self.lanes.lane, Self::CONFIG.cluster);
        self.v.advance();
    }
}
