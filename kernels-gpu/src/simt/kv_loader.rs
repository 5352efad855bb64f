//! Pipeline through which K and V arrive: two stages, one being computed on while the other is filled.

use cuda_std::cp_async::commit_group;

use super::context::TileContext;
use super::copy::{Inner, SmemRect};
use super::stages::Stages;
use super::{BLOCK_N, SimtKernel};
use crate::config::simt::SimtConfig;
use crate::modifiers::Modifiers;
use crate::tile::black_box64;
use crate::tile::sequence::{Sequence, head_kv};
use crate::tile::source::Source;
use crate::units::F32_BYTES;

/// Loads chunks of K, which are `k_chunk` head dimensions of a block of keys, and of V, `v_chunk` of its rows: of equal
/// size, so that they share the stages.
pub struct KvLoader<'a, K: SimtKernel> {
    tile: &'a TileContext<'a, K::Modifiers>,
    head_kv: u32,
    seq_kv: u32,
    inner_k: Inner,
    inner_v: Inner,
    /// Whether the columns of chunks exist and are made of whole 16 bytes. Never with modifiers, which take the registers that
    /// addresses would be kept in.
    has_columns: bool,
    pub stages: Stages<K>,
}

impl<'a, K: SimtKernel> KvLoader<'a, K> {
    /// Head dimensions of Q and K.
    #[inline(always)]
    pub fn head_dim(&self) -> u32 {
        self.tile.params.attention.head_dim
    }

    /// Chunks of a block of K.
    #[inline(always)]
    pub fn k_chunks(&self) -> u32 {
        self.head_dim().div_ceil(K::CONFIG.k_chunk as u32)
    }

    /// A loader without pending copies, with its stages at shared address `smem`.
    #[inline(always)]
    pub fn new(tile: &'a TileContext<'a, K::Modifiers>, sequence: &Sequence, smem: u32) -> Self {
        let head_kv = head_kv(&tile.params.attention, tile.coord.head);
        let [k, v] = Self::sources(tile, sequence, head_kv);
        Self {
            tile,
            head_kv,
            seq_kv: sequence.seq_kv,
            inner_k: Inner::new(&k),
            inner_v: Inner::new(&v),
            has_columns: K::Modifiers::IS_NONE
                && k.has_columns(K::CONFIG.k_chunk)
                && v.has_columns(K::CONFIG.head_dim),
            stages: Stages::new(smem),
        }
    }

    /// The head's K and V.
    #[inline(always)]
    fn sources(
        tile: &TileContext<'a, K::Modifiers>,
        sequence: &Sequence,
        head_kv: u32,
    ) -> [Source; 2] {
        let attention = &tile.params.attention;
        let source = |operand, dims| {
            let address = sequence.kv_address(operand, head_kv, F32_BYTES);
            Source::new(operand, address, [sequence.seq_kv, dims], F32_BYTES)
        };
        [
            source(&attention.k, attention.head_dim),
            source(&attention.v, attention.head_dim_v),
        ]
    }

    /// [`Self::sources`], asked for again rather than kept.
    ///
    /// # Safety
    /// As [`KvLoader::load_k`].
    #[inline(always)]
    unsafe fn again(&self) -> [Source; 2] {
        let sequence = Sequence {
            seq_kv: self.seq_kv,
            ..self.tile.sequence()
        };
        Self::sources(self.tile, &sequence, self.head_kv)
    }

    /// Whether rows `begin .. begin + count` of K and V exist.
    #[inline(always)]
    fn has_rows(&self, begin: u32, count: u32) -> bool {
        begin + count <= self.seq_kv
    }

    /// Starts loading the tile of Q to `q_smem`, in the same group as the chunk that is asked for next.
    ///
    /// # Safety
    /// Shared memory holds the tile there, and nobody accesses it until [`Stages::wait`].
    #[inline(always)]
    pub unsafe fn load_q(&self, q_smem: u32, seq_q: u32) {
        let TileContext {
            params,
            coord,
            m_begin,
            ..
        } = *self.tile;
        let mut q = params.attention.q;
        if K::Modifiers::IS_NONE {
            // So that what is computed from it is not kept for the next tile.
            q.seq_stride = black_box64(q.seq_stride as u64) as i64;
        }
        let address = self.tile.sequence().q_address(&q, coord.head, F32_BYTES);
        let q_gmem = Source::new(&q, address, [seq_q, params.attention.head_dim], F32_BYTES);
        let to = SmemRect {
            address: q_smem,
            cols: K::CONFIG.head_dim,
            pad: SimtConfig::ROW_PAD,
        };
        q_gmem.copy(K::workers(), to, m_begin, K::CONFIG.block_m() as u32, 0);
    }

    /// Starts loading chunk `chunk` of the block of K that begins with key `key_begin` to a free stage.
    ///
    /// # Safety
    /// The stage is free: [`Stages::wait`] has just returned it, or nothing has been loaded yet.
    #[inline(always)]
    pub unsafe fn load_k(&self, stage: u32, key_begin: u32, chunk: u32) {
        let to = SmemRect {
            address: self.stages.address(stage),
            cols: K::CONFIG.k_chunk,
            pad: SimtConfig::ROW_PAD,
        };
        let dim_begin = chunk * K::CONFIG.k_chunk as u32;
        let keys = BLOCK_N as u32;
        if self.has_columns && self.has_rows(key_begin, keys) {
            self.inner_k
                .copy(K::workers(), to, key_begin, keys, dim_begin);
        } else {
            let [k, _] = self.again();
            k.copy(K::workers(), to, key_begin, keys, dim_begin);
        }
        commit_group();
    }

    /// Starts loading chunk `chunk` of the block of V that begins with key `key_begin` to a free stage.
    ///
    /// # Safety
    /// As [`KvLoader::load_k`].
    #[inline(always)]
    pub unsafe fn load_v(&self, stage: u32, key_begin: u32, chunk: u32) {
        let to = SmemRect {
            address: self.stages.address(stage),
            cols: K::CONFIG.head_dim,
            pad: 0,
        };
        let keys = K::CONFIG.v_chunk() as u32;
        let key_begin = key_begin + chunk * keys;
        if self.has_columns && self.has_rows(key_begin, keys) {
            self.inner_v.copy(K::workers(), to, key_begin, keys, 0);
        } else {
            let [_, v] = self.again();
            v.copy(K::workers(), to, key_begin, keys, 0);
        }
        commit_group();
    }
}
