//! A warpgroup's two multiplications, and its turns and waits around them.

use cuda_std::wgmma::{GemmRs, InFlight};

use super::consumer::Consumer;
use super::policy::{Policy, Query};
use crate::tile::opaque;

impl<K, const S: usize, const P: usize, const O: usize> Consumer<'_, K, S, P, O>
where
    K: Policy<S, P, O>,
    [f32; S]: InFlight,
    [f32; O]: InFlight,
{
    /// Issues S = Q Kᵀ of the next block and O += P V of the present one, and waits for S.
    #[inline(always)]
    pub(super) unsafe fn multiply(&mut self, query: &K::Query) {
        let tile = Self::TILE;
        // SAFETY: forwarded to the caller.
        unsafe {
            if tile.overlap {
                self.k.wait_full();
                if tile.ping_pong {
                    self.turns.take();
                }
                self.scores(query);
                self.v.wait_full();
                self.output();
                if tile.ping_pong {
                    self.turns.hand_over();
                }
                self.acc_s.wait::<1>();
            } else {
                self.v.wait_full();
                if tile.ping_pong {
                    self.turns.take();
                }
                self.output();
                self.k.wait_full();
                self.scores(query);
                if tile.ping_pong {
                    self.turns.hand_over();
                }
                self.acc_o.wait::<0>();
                self.acc_s.wait::<0>();
                self.release_v();
            }
        }
    }

    /// Waits for O += P V, unless [`Self::multiply`] has.
    #[inline(always)]
    pub(super) unsafe fn finish_output(&mut self) {
        if Self::TILE.overlap {
            // SAFETY: forwarded to the caller.
            unsafe {
                self.acc_o.wait::<0>();
                self.release_v();
            }
        }
    }

    /// Starts S = Q Kᵀ.
    #[inline(always)]
    pub(super) unsafe fn scores(&mut self, query: &K::Query) {
        let k = self.k_smem.offset(self.k.stage * Self::TILE.k_bytes());
        // SAFETY: forwarded to the caller.
        unsafe { query.scores(&mut self.acc_s, k) };
    }

    /// Starts O += P V.
    #[inline(always)]
    pub(super) unsafe fn output(&mut self) {
        let v = self.v_smem.offset(self.v.stage * Self::TILE.v_bytes());
        // SAFETY: forwarded to the caller.
        unsafe { K::Element::multiply_add(&mut self.acc_o, &self.p_frag, v, self.accumulate) };
        // Hidden from the optimiser, which would make a second copy of the loop for its first round.
        self.accumulate = opaque(1);
    }

    #[inline(always)]
    pub(super) unsafe fn release_k(&mut self) {
        // SAFETY: forwarded to the caller.
        unsafe { self.k.release(self.lanes.lane, Self::TILE.cluster) };
        self.k.advance();
    }

    #[inline(always)]
    pub(super) unsafe fn release_v(&mut self) {
        // SAFETY: forwarded to the caller.
        unsafe { self.v.release(self.lanes.lane, Self::TILE.cluster) };
        self.v.advance();
    }
}
