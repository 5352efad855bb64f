//! proptest strategies for [`CaseSpec`]: they shrink a failing case to a small one.

use ferroflash::cases::{AlibiSpec, Arrangement, CaseSpec, InputKind, Lengths, Limits, tile_sizes};
use ferroflash::{DType, Layout, MAX_HEAD_DIM, Mask};
use proptest::prelude::*;
use proptest::sample::select;

/// Any case of one of `dtypes` within `limits`.
pub fn case(dtypes: &[DType], limits: Limits) -> impl Strategy<Value = CaseSpec> + use<> {
    let group = prop_oneof![3 => 1..=5usize, 1 => select(vec![8, 16])];
    let heads = (1..=3usize, group);
    let dims = (head_dim(), head_dim(), any::<bool>());
    let score = (
        mask(limits.seq as u32),
        scale_factor(),
        softcap(),
        alibi(limits.seq),
    );
    let place = ([arrangement(), arrangement(), arrangement()], layout());
    let inputs = (
        select(dtypes.to_vec()),
        select(InputKind::ANY_DTYPE.to_vec()),
        any::<u64>(),
    );
    (lengths(limits.seq), heads, dims, score, place, inputs)
        .prop_map(|(lengths, heads, dims, score, place, inputs)| CaseSpec {
            dtype: inputs.0,
            lengths,
            heads_kv: heads.0,
            group: heads.1,
            head_dim: dims.0,
            head_dim_v: if dims.2 { dims.0 } else { dims.1 },
            mask: score.0,
            scale_factor: score.1,
            softcap: score.2,
            alibi: score.3,
            kind: inputs.1,
            arrangements: place.0,
            o_layout: place.1,
            seed: inputs.2,
        })
        .prop_filter("too much work", move |case| limits.allow(case))
}

/// Dense batches, and packed ones of more sequences, many of them short or empty.
fn lengths(limit: usize) -> impl Strategy<Value = Lengths> {
    let pair = move || {
        (seq(limit), seq(limit), any::<bool>())
            .prop_map(|(seq_q, seq_kv, alike)| (seq_q, if alike { seq_q } else { seq_kv }))
    };
    let batch = prop_oneof![30 => 1..=3usize, 1 => Just(0)];
    let dense = (batch, pair()).prop_map(|(batch, (seq_q, seq_kv))| Lengths::Dense {
        batch,
        seq_q,
        seq_kv,
    });
    let packed = proptest::collection::vec(pair(), 0..6).prop_map(Lengths::Varlen);
    prop_oneof![dense, packed]
}

/// Slopes of models, gentle ones under which planted keys keep dominating, and ones that favour what is far.
fn alibi(limit: usize) -> impl Strategy<Value = Option<AlibiSpec>> {
    let gentle = 4.0 / limit as f32;
    let steepest = prop_oneof![0.0..1.0f32, 0.0..gentle, -0.1..0.0f32];
    let slopes = (steepest, any::<bool>()).prop_map(|(steepest, is_batched)| AlibiSpec {
        steepest,
        is_batched,
    });
    proptest::option::of(slopes)
}

/// Short and long, and often beside the end of a tile.
fn seq(limit: usize) -> impl Strategy<Value = usize> {
    let beside = (select(tile_sizes()), 1..=4usize, 0..=2usize)
        .prop_map(|(tile, tiles, by)| tile * tiles + by - 1);
    let any_length = prop_oneof![0..8usize, 0..=limit.min(150), 0..=limit];
    prop_oneof![any_length, beside].prop_map(move |length| length.min(limit))
}

fn head_dim() -> impl Strategy<Value = usize> {
    let common = select(vec![8, 16, 32, 40, 64, 96, 128, 192, 256]);
    prop_oneof![1..=MAX_HEAD_DIM, common]
}

fn mask(limit: u32) -> impl Strategy<Value = Mask> {
    let side = || {
        let length = prop_oneof![Just(0), 0..40u32, 0..=limit, Just(u32::MAX)];
        proptest::option::of(length)
    };
    let window = (side(), side()).prop_map(|(left, right)| Mask::Window { left, right });
    let edge = || {
        let distance = prop_oneof![Just(0), -40..40i32, -(limit as i32)..=limit as i32];
        proptest::option::of(distance)
    };
    let band = (edge(), edge()).prop_map(|(lower, upper)| Mask::Band { lower, upper });
    let causal_top_left = Just(Mask::CAUSAL_TOP_LEFT);
    prop_oneof![
        Just(Mask::None),
        Just(Mask::Causal),
        window,
        causal_top_left,
        band
    ]
}

fn scale_factor() -> impl Strategy<Value = Option<f32>> {
    prop_oneof![Just(None), (-2.0..2.0f32).prop_map(Some), Just(Some(0.0))]
}

fn softcap() -> impl Strategy<Value = Option<f32>> {
    prop_oneof![2 => Just(None), 1 => (0.5..60.0f32).prop_map(Some)]
}

fn layout() -> impl Strategy<Value = Layout> {
    select(vec![Layout::Bshd, Layout::Bhsd])
}

fn arrangement() -> impl Strategy<Value = Arrangement> {
    let order = Just(Arrangement::BSHD.order).prop_shuffle();
    let padding = [0..9usize, 0..9, 0..9, 0..9];
    let strided =
        (order, padding, any::<[bool; 4]>()).prop_map(|(order, padding, reversed)| Arrangement {
            order,
            padding,
            reversed,
        });
    prop_oneof![Just(Arrangement::BSHD), strided]
}
