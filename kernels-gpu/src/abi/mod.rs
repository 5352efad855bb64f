//! Data that host and kernel exchange at a launch: parameter structs passed by value, byte for byte.
//!
//! Operations share [`AttentionParams`] and add their own. The offsets are pinned by a test in this file: the two sides
//! are compiled by different compilers. `Pod` guarantees that there is no padding, so a struct's bytes are its image.
//! Optional values are `Option`s whose `None` is zero.

mod append;
mod attention;
mod backward;
mod cache_pages;
mod decode;
mod forward;
mod lengths;
mod mask;
mod merge;
mod modifiers;
mod score;
mod tensor;

pub use append::AppendParams;
pub use attention::AttentionParams;
pub use backward::{BackwardParams, DeltaParams, DsChunk, RowTerms, SlopeSumsParams};
pub use cache_pages::{CachePages, CheckCacheParams};
pub use decode::{CacheFault, CacheScales, DecodeParams, FewestItems, ScaleArg};
pub use forward::ForwardParams;
pub use lengths::{LengthsParams, SequenceRows};
pub use mask::{Band, Corner, MaskParams};
pub use merge::{MergeParams, MergePart};
pub use modifiers::{
    BiasGradientParams, BiasType, BlockState, BlockStatesArg, BlockStatesParams, Divisor,
    DocumentsArg, DropoutParams, KeepMaskArg, KeepMaskParams, ModifierParams, PairsArg,
    SinkGradientParams, SinkParams,
};
pub use score::{Positive, ScoreParams};
pub use tensor::{DeviceAddress, TensorArg};

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};

    #[test]
    fn offsets_are_pinned() {
        assert_eq!(size_of::<TensorArg>(), 40);
        assert_eq!(offset_of!(AttentionParams, q), 0);
        assert_eq!(offset_of!(AttentionParams, batch), 120);
        assert_eq!(offset_of!(AttentionParams, head_dim_v), 144);
        assert_eq!(offset_of!(AttentionParams, mask), 148);
        assert_eq!(offset_of!(AttentionParams, score), 160);
        assert_eq!(offset_of!(ScoreParams, softcap), 4);
        assert_eq!(offset_of!(ScoreParams, alibi_slopes), 8);
        assert_eq!(offset_of!(AttentionParams, lengths), 184);
        assert_eq!(offset_of!(LengthsParams, cu_seqlens_q), 8);
        assert_eq!(offset_of!(LengthsParams, seqused_kv), 24);
        assert_eq!(offset_of!(ForwardParams, o), 216);
        assert_eq!(offset_of!(ForwardParams, lse), 256);
        assert_eq!(size_of::<ForwardParams>(), 264);
        assert_eq!(offset_of!(DecodeParams, block_table), 264);
        assert_eq!(offset_of!(DecodeParams, kv_lens), 280);
        assert_eq!(offset_of!(DecodeParams, tree_mask), 304);
        assert_eq!(offset_of!(DecodeParams, workspace), 312);
        assert_eq!(offset_of!(DecodeParams, slots), 332);
        assert_eq!(offset_of!(DecodeParams, most_queries), 336);
        assert_eq!(offset_of!(DecodeParams, fewest_items), 344);
        assert_eq!(offset_of!(FewestItems, supers), 4);
        assert_eq!(size_of::<DecodeParams>(), 352);
        assert_eq!(offset_of!(ScaleArg, place_stride), 24);
        assert_eq!(offset_of!(CacheScales, v), 32);
        assert_eq!(size_of::<CacheScales>(), 64);
        assert_eq!(offset_of!(CachePages, lens), 16);
        assert_eq!(offset_of!(CachePages, box_rows), 32);
        assert_eq!(size_of::<CachePages>(), 40);
        assert_eq!(offset_of!(CheckCacheParams, pages), 216);
        assert_eq!(offset_of!(CheckCacheParams, kv_lens), 256);
        assert_eq!(offset_of!(CheckCacheParams, fewest_queries), 272);
        assert_eq!(size_of::<CheckCacheParams>(), 280);
        assert_eq!(offset_of!(AppendParams, k_cache), 80);
        assert_eq!(offset_of!(AppendParams, cos), 240);
        assert_eq!(offset_of!(AppendParams, block_table), 320);
        assert_eq!(offset_of!(AppendParams, kv_lens), 352);
        assert_eq!(offset_of!(AppendParams, num_pages), 368);
        assert_eq!(offset_of!(AppendParams, positions), 412);
        assert_eq!(size_of::<AppendParams>(), 416);
        assert_eq!(offset_of!(DeltaParams, lse), 80);
        assert_eq!(offset_of!(DeltaParams, terms), 96);
        assert_eq!(offset_of!(DeltaParams, dim), 140);
        assert_eq!(offset_of!(DeltaParams, zeroed_bytes), 152);
        assert_eq!(size_of::<DeltaParams>(), 160);
        assert_eq!(offset_of!(BackwardParams, d_o), 216);
        assert_eq!(offset_of!(BackwardParams, terms), 376);
        assert_eq!(offset_of!(BackwardParams, dq_sums), 408);
        assert_eq!(offset_of!(BackwardParams, tile_count), 432);
        assert_eq!(offset_of!(BackwardParams, ds), 440);
        assert_eq!(offset_of!(DsChunk, first_unit), 16);
        assert_eq!(offset_of!(DsChunk, end_q_block), 36);
        assert_eq!(size_of::<BackwardParams>(), 480);
        assert_eq!(offset_of!(SlopeSumsParams, batch), 16);
        assert_eq!(offset_of!(SlopeSumsParams, is_batched), 28);
        assert_eq!(size_of::<SlopeSumsParams>(), 32);
        assert_eq!(size_of::<PairsArg>(), 40);
        assert_eq!(offset_of!(ModifierParams, documents), 120);
        assert_eq!(offset_of!(ModifierParams, prefix), 152);
        assert_eq!(offset_of!(ModifierParams, states), 168);
        assert_eq!(offset_of!(ModifierParams, dropout), 200);
        assert_eq!(offset_of!(DropoutParams, threshold), 24);
        assert_eq!(offset_of!(ModifierParams, bias_type), 232);
        assert_eq!(offset_of!(ModifierParams, block_kv), 272);
        assert_eq!(offset_of!(ModifierParams, keep_mask), 288);
        assert_eq!(offset_of!(KeepMaskArg, units), 12);
        assert_eq!(offset_of!(KeepMaskArg, head_words), 24);
        assert_eq!(size_of::<ModifierParams>(), 320);
        assert_eq!(offset_of!(BlockStatesParams, modifiers), 216);
        assert_eq!(offset_of!(BlockStatesParams, batch), 536);
        assert_eq!(size_of::<BlockStatesParams>(), 560);
        assert_eq!(offset_of!(KeepMaskParams, block_queries), 536);
        assert_eq!(offset_of!(KeepMaskParams, run_tiles), 544);
        assert_eq!(size_of::<KeepMaskParams>(), 552);
        assert_eq!(size_of::<SinkGradientParams>(), 48);
        assert_eq!(size_of::<SinkParams>(), 8);
        assert_eq!(offset_of!(BiasGradientParams, batch), 40);
        assert_eq!(offset_of!(BiasGradientParams, queries), 48);
        assert_eq!(size_of::<BiasGradientParams>(), 56);
        assert_eq!(offset_of!(MergePart, lse), 40);
        assert_eq!(size_of::<MergePart>(), 80);
        assert_eq!(offset_of!(MergeParams, lse), 48);
        assert_eq!(offset_of!(MergeParams, dim), 72);
        assert_eq!(size_of::<MergeParams>(), 80);
    }
}
