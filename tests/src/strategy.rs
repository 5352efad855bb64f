//! proptest strategies for [`CaseSpec`]: they shrink a failing case to a small one.

use ferroflash::cases::{Arrangement, CaseSpec, InputKind, Limits};
use ferroflash::{DType, Layout, MAX_HEAD_DIM, Mask};
use proptest::prelude::*;
use proptest::sample::select;

/// Any case of one of `dtypes` within `limits`.
pub fn case(dtypes: &[DType], limits: Limits) -> impl Strategy<Value = CaseSpec> + use<> {
    let batch = prop_oneof![30 => 1..=3usize, 1 => Just(0)];
    let heads = (batch, 1..=3usize, 1..=5usize);
    let seqs = (seq(limits.seq), seq(limits.seq), any::<bool>());
    let dims = (head_dim(), head_dim(), any::<bool>());
    let score = (mask(limits.seq as u32), scale_factor(), softcap());
    let place = ([arrangement(), arrangement(), arrangement()], layout());
    let inputs = (
        select(dtypes.to_vec()),
        select(InputKind::ALL.to_vec()),
        any::<u64>(),
    );
    (heads, seqs, dims, score, place, inputs)
        .prop_map(|(heads, seqs, dims, score, place, inputs)| CaseSpec {
            dtype: inputs.0,
            batch: heads.0,
            heads_kv: heads.1,
            group: heads.2,
            seq_q: seqs.0,
            seq_kv: if seqs.2 { seqs.0 } else { seqs.1 },
            head_dim: dims.0,
            head_dim_v: if dims.2 { dims.0 } else { dims.1 },
            mask: score.0,
            scale_factor: score.1,
            softcap: score.2,
            kind: inputs.1,
            arrangements: place.0,
            o_layout: place.1,
            seed: inputs.2,
        })
        .prop_filter("too much work", move |case| limits.allow(case))
}

/// Short and long, and often beside a multiple of 16, where tiles end.
fn seq(limit: usize) -> impl Strategy<Value = usize> {
    let beside = (1..=limit.div_ceil(16), 0..=2usize).prop_map(|(n, by)| 16 * n + by - 1);
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
    prop_oneof![Just(Mask::None), Just(Mask::Causal), window]
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
