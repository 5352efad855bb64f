//! The coordinates of the present tile, kept in shared memory.
//!
//! The main loop has hardly a register to spare, and these numbers are needed once a block of keys or less: they are
//! written once a tile and read where they are needed.

use cuda_std::shared;
use cuda_std::thread::thread_idx_x;

use crate::abi::Band;
use crate::config::mma::MmaConfig;
use crate::tile::black_box;
use crate::tile::block_range::BlockRange;
use crate::tile::grid::BlockCoord;
use crate::tile::sequence::Sequence;

/// A head of k or v in global memory.
#[derive(Clone, Copy)]
pub struct HeadKv {
    /// Of row 0, dimension 0.
    pub address: u64,
    /// Whether [`has_plain_rows`](crate::tile::source::Source::has_plain_rows).
    pub plain: bool,
}

/// A tile, the rows it belongs to, and the keys and values they attend to.
#[derive(Clone, Copy)]
pub struct TileInfo {
    pub coord: BlockCoord,
    pub sequence: Sequence,
    /// The blocks of keys that the tile's rows see.
    pub blocks: BlockRange,
    pub k: HeadKv,
    pub v: HeadKv,
}

/// Where [`TileInfo`] is kept: five times four words.
#[derive(Clone, Copy)]
pub struct SmemTileInfo {
    /// In shared memory, 16-byte aligned.
    pub address: u32,
}

/// Bits of the word of flags.
const K_PLAIN: u32 = 1;
const V_PLAIN: u32 = 2;

impl SmemTileInfo {
    /// Bytes from one load to the next.
    const STEP: u32 = MmaConfig::TILE_INFO_BYTES / 5;

    /// Writes the tile's numbers; one thread does.
    ///
    /// # Safety
    /// Nobody else accesses it until a barrier is passed.
    #[inline(always)]
    pub unsafe fn store(&self, info: TileInfo) {
        if thread_idx_x() != 0 {
            return;
        }
        let TileInfo {
            coord:
                BlockCoord {
                    m_block,
                    head,
                    batch,
                },
            sequence,
            blocks,
            k,
            v,
        } = info;
        let Band { lower, upper } = sequence.band;
        let flags = if k.plain { K_PLAIN } else { 0 } | if v.plain { V_PLAIN } else { 0 };
        let (low, high) = (|word: u64| word as u32, |word: u64| (word >> 32) as u32);
        let address = black_box(self.address);
        let write = |index: u32, words: [u32; 4]| {
            shared::store4_bits(address + index * Self::STEP, words);
        };
        let (k, v) = (k.address, v.address);
        write(0, [low(k), high(k), low(v), high(v)]);
        write(1, [flags, sequence.seq_kv, sequence.seq_q, m_block]);
        write(2, [lower as u32, upper as u32, head, batch]);
        let Sequence {
            q_begin, kv_begin, ..
        } = sequence;
        write(3, [q_begin, kv_begin, sequence.batch, 0]);
        write(4, blocks.to_words());
    }

    /// Reads the tile's numbers; what is not used is not loaded.
    ///
    /// # Safety
    /// It is written and visible.
    #[inline(always)]
    pub unsafe fn load(&self) -> TileInfo {
        // One address and four immediate offsets, rather than four addresses.
        let address = black_box(self.address);
        let read = |index: u32| shared::load4_bits(address + index * Self::STEP);
        let [k_low, k_high, v_low, v_high] = read(0);
        let [flags, seq_kv, seq_q, m_block] = read(1);
        let [lower, upper, head, batch] = read(2);
        let [q_begin, kv_begin, batch_of_strides, _] = read(3);
        let head_kv = |low: u32, high: u32, plain: u32| HeadKv {
            address: (high as u64) << 32 | low as u64,
            plain: flags & plain != 0,
        };
        TileInfo {
            coord: BlockCoord {
                m_block,
                head,
                batch,
            },
            sequence: Sequence {
                batch: batch_of_strides,
                q_begin,
                kv_begin,
                seq_q,
                seq_kv,
                band: Band {
                    lower: lower as i32,
                    upper: upper as i32,
                },
            },
            blocks: BlockRange::from_words(read(4)),
            k: head_kv(k_low, k_high, K_PLAIN),
            v: head_kv(v_low, v_high, V_PLAIN),
        }
    }
}
