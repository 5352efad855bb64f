//! The generator of caches.

use ferroflash::plan::preferred;
use ferroflash::{Backend, DType, Error, Mask, RotaryStyle};
use proptest::prelude::*;
use proptest::sample::select;

use super::append::AppendSpec;
use super::arrangement::Arrangement;
use super::decode::{DecodeSpec, KeyKind};
use super::scales::ScaleKind;
use super::spec::AlibiSpec;
use super::strategy::{arrangement, drawn_from, scale_factor, softcap};
use super::tree::TreeSpec;

/// Cases of one of `dtypes`, of at most `most_keys` keys a sequence, without end and the same for the same `seed`.
pub fn drawn_caches(
    dtypes: &[DType],
    most_keys: usize,
    seed: u64,
) -> impl Iterator<Item = DecodeSpec> {
    drawn_from(decode_strategy(dtypes, most_keys), seed)
}

/// The dtypes in which `backend` attends to a cache.
///
/// # Errors
/// [`Error::Argument`] if there is none.
pub fn cache_dtypes_of<B: Backend>(backend: &B) -> Result<Vec<DType>, Error> {
    let here = backend.capabilities();
    let mut dtypes = Vec::new();
    for dtype in DType::ALL {
        let spec = DecodeSpec {
            dtype,
            ..DecodeSpec::plain(&[1])
        };
        if preferred(&spec.build()?.problem()?, &here).is_some() {
            dtypes.push(dtype);
        }
    }
    if dtypes.is_empty() {
        return Err(Error::argument(
            "backend",
            format!("no variant attends to a cache on {}", backend.device_name()),
            "cpu, sim, or a GPU of compute capability 8.0 or later",
        ));
    }
    Ok(dtypes)
}

/// Any case of one of `dtypes`, of at most `most_keys` keys a sequence.
pub fn decode_strategy(dtypes: &[DType], most_keys: usize) -> BoxedStrategy<DecodeSpec> {
    let length = prop_oneof![
        1 => Just(0),
        2 => 1..8usize,
        4 => 1..=most_keys,
        6 => (select(vec![64, 128, 256, 512, 1024]), 0..=2usize).prop_map(|(tile, by)| tile + by - 1),
    ]
    .prop_map(move |length| length.min(most_keys));
    let lengths = proptest::collection::vec(length, 0..=4);
    let page_size =
        prop_oneof![1 => Just(None), 4 => select(vec![1, 3, 16, 64, 256]).prop_map(Some)];
    let heads = (
        1..=3usize,
        select(vec![1, 2, 3, 4, 8, 17]),
        select(vec![1, 1, 2, 3, 7]),
    );
    let dim = || select(vec![8, 40, 64, 80, 128, 160, 256]);
    let dims = (dim(), dim(), any::<bool>());
    let mask = prop_oneof![
        2 => Just(Mask::None),
        3 => Just(Mask::Causal),
        3 => (0..200u32).prop_map(|left| Mask::Window { left: Some(left), right: Some(0) }),
        1 => (0..9u32, 0..5u32).prop_map(|(left, right)| Mask::Window { left: Some(left), right: Some(right) }),
    ];
    let alibi = prop_oneof![
        2 => Just(None),
        1 => any::<bool>().prop_map(|is_batched| Some(AlibiSpec { steepest: 0.1, is_batched })),
    ];
    let tree = prop_oneof![
        2 => Just(None),
        1 => (any::<bool>(), any::<bool>())
            .prop_map(|(is_batched, is_wild)| Some(TreeSpec { is_batched, is_wild })),
    ];
    let score = (mask, scale_factor(), softcap(), alibi, any::<bool>(), tree);
    let keys = select(KeyKind::ALL.to_vec());
    let e4m3 = prop_oneof![
        3 => Just(None),
        2 => select(ScaleKind::ALL.to_vec()).prop_map(Some),
    ];
    let inputs = (select(dtypes.to_vec()), keys, any::<u64>(), e4m3);
    // As often as any, as kernels read it fastest.
    let place = || prop_oneof![Just(Arrangement::BSHD), arrangement()];
    let place = [place().boxed(), place().boxed(), place().boxed()];
    // Queries of different numbers, some of none.
    let queries = prop_oneof![
        3 => Just(None),
        1 => proptest::collection::vec(0..=5usize, 4).prop_map(Some),
    ];
    let shape = (lengths, queries).prop_map(|(kv_lens, queries)| {
        let queries = queries.map(|counts| counts[..kv_lens.len()].to_vec());
        (kv_lens, queries)
    });
    (shape, page_size, heads, dims, score, inputs, place)
        .prop_map(
            |((kv_lens, queries), page_size, heads, dims, score, inputs, arrangements)| {
                DecodeSpec {
                    dtype: inputs.0,
                    kv_lens,
                    seq_q: heads.2,
                    queries,
                    page_size,
                    heads_kv: heads.0,
                    group: heads.1,
                    head_dim: dims.0,
                    head_dim_v: if dims.2 { dims.0 } else { dims.1 },
                    mask: score.0,
                    scale_factor: score.1,
                    softcap: score.2,
                    alibi: score.3,
                    sinks: score.4,
                    tree: score.5,
                    e4m3: inputs.3,
                    keys: inputs.1,
                    arrangements,
                    seed: inputs.2,
                }
            },
        )
        .boxed()
}

/// Any append to a cache of one of `dtypes`, of at most `most_keys` keys a sequence.
pub fn append_strategy(dtypes: &[DType], most_keys: usize) -> BoxedStrategy<AppendSpec> {
    let style = select(vec![RotaryStyle::Neox, RotaryStyle::Interleaved]);
    // A share of head_dim, rounded to pairs.
    let rotary = prop_oneof![
        1 => Just(None),
        3 => (style, select(vec![1, 2, 4, 8])).prop_map(Some),
    ];
    let place = || prop_oneof![Just(Arrangement::BSHD), arrangement()];
    let place = [place().boxed(), place().boxed(), place().boxed()];
    let cache = decode_strategy(dtypes, most_keys);
    (cache, rotary, any::<bool>(), any::<bool>(), place)
        .prop_map(
            |(cache, rotary, rotates_q, by_slots, arrangements)| AppendSpec {
                rotary: rotary.map(|(style, eighths)| (style, cache.head_dim * eighths / 16 * 2)),
                cache: DecodeSpec {
                    queries: None,
                    ..cache
                },
                rotates_q,
                by_slots,
                arrangements,
            },
        )
        .prop_filter("a rotation of nothing", |spec| {
            spec.rotary.is_none_or(|(_, dim)| dim > 0)
        })
        .boxed()
}
