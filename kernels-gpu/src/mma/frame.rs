//! What the tile at hand is, kept in shared memory.
//!
//! The main loop has hardly a register to spare, and these numbers are needed once a block of keys or less: they are
//! written once a tile and read where they are needed.

use cuda_std::shared;
use cuda_std::thread::thread_idx_x;

use crate::abi::Band;
use crate::config::mma::MmaTile;
use crate::tile::schedule::Tile;
use crate::tile::sequence::Sequence;

/// A tile and the rows it belongs to.
#[derive(Clone, Copy)]
pub struct TileInfo {
    pub tile: Tile,
    /// Head of k and v.
    pub head_kv: u32,
    pub sequence: Sequence,
}

/// Where [`TileInfo`] is kept: three times four words.
#[derive(Clone, Copy)]
pub struct Frame {
    /// In shared memory, 16-byte aligned.
    pub address: u32,
}

impl Frame {
    /// Bytes from one load to the next.
    const STEP: u32 = MmaTile::FRAME_BYTES / 3;

    /// Writes the frame; one thread does.
    ///
    /// # Safety
    /// Nobody else accesses it until a barrier is passed.
    #[inline(always)]
    pub unsafe fn store(&self, info: TileInfo) {
        if thread_idx_x() != 0 {
            return;
        }
        let TileInfo {
            tile,
            head_kv,
            sequence,
        } = info;
        let Band { lower, upper } = sequence.band;
        // SAFETY: forwarded to the caller.
        unsafe {
            let words = [tile.m_block, tile.head, tile.batch, head_kv];
            shared::store4_bits(self.address, words);
            let words = [
                sequence.q_begin,
                sequence.kv_begin,
                sequence.batch,
                sequence.seq_q,
            ];
            shared::store4_bits(self.address + Self::STEP, words);
            let words = [sequence.seq_kv, lower as u32, upper as u32, 0];
            shared::store4_bits(self.address + 2 * Self::STEP, words);
        }
    }

    /// Reads the frame.
    ///
    /// # Safety
    /// It is written and visible.
    #[inline(always)]
    pub unsafe fn load(&self) -> TileInfo {
        // SAFETY: forwarded to the caller.
        unsafe {
            let [m_block, head, batch, head_kv] = shared::load4_bits(self.address);
            let words = shared::load4_bits(self.address + Self::STEP);
            let [q_begin, kv_begin, batch_of_strides, seq_q] = words;
            let words = shared::load4_bits(self.address + 2 * Self::STEP);
            let [seq_kv, lower, upper, _] = words;
            let band = Band {
                lower: lower as i32,
                upper: upper as i32,
            };
            TileInfo {
                tile: Tile {
                    m_block,
                    head,
                    batch,
                },
                head_kv,
                sequence: Sequence {
                    batch: batch_of_strides,
                    q_begin,
                    kv_begin,
                    seq_q,
                    seq_kv,
                    band,
                },
            }
        }
    }
}
