//! The parameters of a launch: first everything that follows from the problem, then the addresses.

use bytemuck::Zeroable;
use kernels_gpu::abi::{
    AttentionParams, BlockStatesParams, CachePages, CheckCacheParams, DeviceAddress, ForwardParams,
    KeepMaskParams, LengthsParams, Positive, ScoreParams, SinkParams, TensorArg,
};

use kernels_gpu::wgmma::scheduler::tile_list::TileListParams;

use super::modifiers::bind_modifiers;
use super::{CacheOperands, ModifierOperands, Operands};
use crate::problem::Score;
use crate::spec::TensorSpec;
use crate::{AlibiSlopes, CacheLayout, Lengths, Problem};

/// Parameters of every forward kernel for `problem`, without addresses.
pub(crate) fn forward_params(problem: &Problem) -> ForwardParams {
    ForwardParams {
        attention: attention_params(problem),
        o: tensor_arg(problem.o()),
        lse: 0,
    }
}

/// Parameters for `problem` that the forward, dk/dv and dq kernels share, without addresses.
pub(super) fn attention_params(problem: &Problem) -> AttentionParams {
    let (q, k, v) = (problem.q(), problem.k(), problem.v());
    let (seq_q, seq_kv) = (problem.seq_q(), problem.seq_kv());
    let mask = match problem.lengths() {
        Lengths::Dense if problem.cache_layout().is_none() => problem.mask().of_all(seq_q, seq_kv),
        _ => problem.mask().of_each_sequence(seq_q, seq_kv),
    };
    let lengths = match problem.is_packed() {
        true => LengthsParams {
            total_q: q.shape.seq as u32,
            total_kv: match problem.cache_layout() {
                None => k.shape.seq as u32,
                Some(_) => 0,
            },
            ..LengthsParams::zeroed()
        },
        false => LengthsParams::zeroed(),
    };
    AttentionParams {
        q: tensor_arg(q),
        k: tensor_arg(k),
        v: tensor_arg(v),
        batch: problem.batch() as u32,
        heads_q: q.shape.heads as u32,
        heads_kv: k.shape.heads as u32,
        seq_q: seq_q as u32,
        seq_kv: seq_kv as u32,
        head_dim: q.shape.dim as u32,
        head_dim_v: v.shape.dim as u32,
        mask,
        score: score_params(problem.score()),
        lengths,
    }
}

fn score_params(score: &Score) -> ScoreParams {
    let Score {
        softmax_scale,
        softcap,
        alibi,
    } = score;
    // A part of a subnormal softcap may be 0, which must not meet the −∞ of masked-out keys; scores are as good as 0 below either.
    let softcap = softcap.map(|softcap| softcap.max(f32::MIN_POSITIVE));
    let softmax_scale = match softcap {
        Some(softcap) => finite_over(*softmax_scale, softcap),
        None => *softmax_scale,
    };
    ScoreParams {
        softmax_scale,
        softcap: softcap.and_then(Positive::new),
        alibi_slopes: None,
        alibi_batch_stride: alibi.as_ref().map_or(0, AlibiSlopes::batch_stride) as u64,
    }
}

/// The largest `softmax_scale / softcap` that kernels multiply `q · k` by: four times it, which they use too, is finite.
const LARGEST_FACTOR: f32 = f32::MAX / 8.0;

/// `scale`, if `scale / softcap` is at most [`LARGEST_FACTOR`]; else a scale of the same sign for which it is about half of that.
/// An infinite factor would turn a product of 0 into NaN; any other product is so far beyond the cap that a part of f32's range
/// gives the same score.
fn finite_over(scale: f32, softcap: f32) -> f32 {
    match (scale / softcap).abs() <= LARGEST_FACTOR {
        true => scale,
        false => (softcap * (LARGEST_FACTOR / 2.0)).copysign(scale),
    }
}

pub(crate) fn tensor_arg(spec: &TensorSpec) -> TensorArg {
    let strides = spec.strides;
    TensorArg {
        address: 0,
        batch_stride: strides.batch,
        head_stride: strides.head,
        seq_stride: strides.seq,
        dim_stride: strides.dim,
    }
}

/// The addresses of `cache` that one of this layout has.
fn of_layout((cache, layout): (CacheOperands, CacheLayout)) -> CacheOperands {
    match layout {
        CacheLayout::Contiguous => cache.block_table(None),
        CacheLayout::Paged { .. } => cache,
    }
}

/// Addresses of small arrays, those of the backend's own copies included.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrays {
    pub cu_seqlens: Option<[u64; 2]>,
    pub seqused_kv: Option<u64>,
    pub alibi_slopes: Option<u64>,
    /// Of a cache.
    pub cache: Option<CacheOperands>,
    /// Of the problem's modifiers, all that it has.
    pub modifiers: ModifierOperands,
}

impl Arrays {
    /// The addresses in `operands` of arrays that `problem` has; others are dropped, as kernels read every array given.
    pub fn given(problem: &Problem, operands: &Operands) -> Self {
        Self {
            cu_seqlens: operands.cu_seqlens.filter(|_| problem.is_packed()),
            seqused_kv: operands.seqused_kv.filter(|_| problem.has_seqused_kv()),
            alibi_slopes: operands.alibi_slopes.filter(|_| problem.alibi().is_some()),
            cache: operands.cache.zip(problem.cache_layout()).map(of_layout),
            modifiers: ModifierOperands::default(),
        }
    }

    /// Puts the addresses into `lengths`.
    fn bind_lengths(&self, lengths: &mut LengthsParams) {
        let cu_seqlens = |index: usize| address(self.cu_seqlens.map(|both| both[index]));
        lengths.cu_seqlens_q = cu_seqlens(0);
        lengths.cu_seqlens_kv = cu_seqlens(1);
        lengths.seqused_kv = address(self.seqused_kv);
    }
}

/// `params` with addresses. `lse_address` is needed even if lse is not wanted, since kernels always write it.
pub(crate) fn bind_forward(
    params: &ForwardParams,
    operands: &Operands,
    lse_address: u64,
    arrays: &Arrays,
) -> ForwardParams {
    let mut params = *params;
    let ForwardParams { attention, o, lse } = &mut params;
    bind_attention(attention, operands, arrays);
    o.address = operands.o;
    *lse = lse_address;
    params
}

/// Puts the addresses of the inputs into `attention`.
pub(super) fn bind_attention(
    attention: &mut AttentionParams,
    operands: &Operands,
    arrays: &Arrays,
) {
    attention.q.address = operands.q;
    attention.k.address = operands.k;
    attention.v.address = operands.v;
    arrays.bind_lengths(&mut attention.lengths);
    attention.score.alibi_slopes = address(arrays.alibi_slopes);
}

/// `params` with the addresses of the length arrays and the workspace: the kernel reads no operands. Of a cache, `lens` are the
/// lengths.
pub(crate) fn bind_tile_list(
    params: &TileListParams,
    arrays: &Arrays,
    workspace: u64,
    lens: Option<u64>,
) -> TileListParams {
    let mut params = *params;
    arrays.bind_lengths(&mut params.attention.lengths);
    if lens.is_some() {
        params.attention.lengths.seqused_kv = address(lens);
    }
    params.workspace = workspace;
    params
}

/// `pages` with the addresses of lengths that have been, or will be, checked, and of a cache's block table. That of a contiguous
/// cache, which has a page for each sequence, lies behind the lengths.
pub(crate) fn bind_pages(pages: &CachePages, arrays: &Arrays, lens: u64) -> CachePages {
    let block_table = match pages.is_contiguous() {
        true => Some(lens + u64::from(pages.batch) * size_of::<i32>() as u64),
        false => arrays.cache.and_then(|cache| cache.block_table),
    };
    CachePages {
        block_table: address(block_table),
        lens: address(Some(lens)),
        ..*pages
    }
}

/// The sinks of a launch that reads a cache.
pub(crate) fn bind_sinks(arrays: &Arrays) -> SinkParams {
    SinkParams {
        sinks: address(arrays.modifiers.sinks),
    }
}

/// `params` with the addresses of a cache's arrays, and of the lengths that the kernel writes.
pub(crate) fn bind_check_cache(
    params: &CheckCacheParams,
    arrays: &Arrays,
    lens: u64,
) -> CheckCacheParams {
    let mut attention = params.attention;
    arrays.bind_lengths(&mut attention.lengths);
    CheckCacheParams {
        pages: bind_pages(&params.pages, arrays, lens),
        kv_lens: address(arrays.cache.map(|cache| cache.kv_lens)),
        status: address(arrays.cache.and_then(|cache| cache.status)),
        attention,
        ..*params
    }
}

/// `params` with the addresses of the arrays it reads and of the states it writes: the kernel reads no operands.
pub(crate) fn bind_block_states(
    params: &BlockStatesParams,
    arrays: &Arrays,
    states: Option<u64>,
) -> BlockStatesParams {
    let mut params = *params;
    arrays.bind_lengths(&mut params.attention.lengths);
    params.modifiers = bind_modifiers(&params.modifiers, &arrays.modifiers, states);
    params
}

/// As [`bind_block_states`], of the mask that the kernel writes.
pub(crate) fn bind_keep_mask(
    params: &KeepMaskParams,
    arrays: &Arrays,
    states: Option<u64>,
    mask: Option<DeviceAddress>,
) -> KeepMaskParams {
    let mut params = *params;
    arrays.bind_lengths(&mut params.attention.lengths);
    params.modifiers = bind_modifiers(&params.modifiers, &arrays.modifiers, states);
    params.modifiers.keep_mask.address = mask;
    params
}

fn address(of: Option<u64>) -> Option<DeviceAddress> {
    of.and_then(DeviceAddress::new)
}

#[cfg(test)]
mod tests {
    use kernels_gpu::abi::Corner;

    use super::*;
    use crate::{CuSeqlens, DType, DeviceLengths, ForwardOptions, Layout, Mask, Shape};

    const OPERANDS: Operands = Operands {
        q: 1,
        k: 2,
        v: 3,
        o: 4,
        lse: Some(5),
        alibi_slopes: None,
        cu_seqlens: None,
        seqused_kv: None,
        workspace: None,
        gradients: None,
        modifiers: ModifierOperands::NONE,
        cache: None,
    };

    fn bound(problem: &Problem, arrays: &Arrays) -> ForwardParams {
        bind_forward(&forward_params(problem), &OPERANDS, 5, arrays)
    }

    #[test]
    fn arrays_that_a_problem_does_not_have_are_left_out() {
        let all = Operands {
            alibi_slopes: Some(6),
            cu_seqlens: Some([7, 8]),
            seqused_kv: Some(9),
            cache: Some(CacheOperands::new(10)),
            ..OPERANDS
        };
        let of = |options: &ForwardOptions| {
            let q = spec(Shape::packed(9, 6, 4));
            let problem = Problem::new(q, q, q, q, options).unwrap();
            let arrays = Arrays::given(&problem, &all);
            assert_eq!(arrays.cache, None);
            (arrays.cu_seqlens, arrays.seqused_kv, arrays.alibi_slopes)
        };
        let options = ForwardOptions::new();
        assert_eq!(of(&options), (None, None, None));
        let used = options.clone().lengths(DeviceLengths::seqused_kv());
        assert_eq!(of(&used), (None, Some(9), None));
        let packed = CuSeqlens::from_lengths([(2, 5), (7, 4)]).unwrap();
        let packed = options
            .alibi(AlibiSlopes::geometric(6).unwrap())
            .cu_seqlens(packed);
        assert_eq!(of(&packed), (Some([7, 8]), None, Some(6)));
    }

    #[test]
    fn a_contiguous_cache_has_no_block_table() {
        let cache = CacheOperands::new(10).block_table(11);
        let given = Operands {
            cache: Some(cache),
            ..OPERANDS
        };
        let table = |layout| {
            let q = spec(Shape {
                batch: 2,
                heads: 6,
                seq: 9,
                dim: 4,
            });
            let problem = Problem::decode(q, q, q, q, layout, &ForwardOptions::new()).unwrap();
            let arrays = Arrays::given(&problem, &given);
            arrays.cache.and_then(|cache| cache.block_table)
        };
        assert_eq!(table(CacheLayout::Contiguous), None);
        let paged = CacheLayout::Paged {
            max_pages: 1,
            table_stride: 1,
        };
        assert_eq!(table(paged), Some(11));
    }

    fn spec(shape: Shape) -> TensorSpec {
        TensorSpec::contiguous(DType::F32, shape, Layout::Bshd).unwrap()
    }

    #[test]
    fn parameters_carry_the_problem() {
        let shape = |heads, seq, dim| Shape {
            batch: 2,
            heads,
            seq,
            dim,
        };
        let options = ForwardOptions::new().mask(Mask::Causal).softcap(30.0);
        let (q, k) = (spec(shape(6, 5, 4)), spec(shape(3, 7, 4)));
        let (v, o) = (spec(shape(3, 7, 8)), spec(shape(6, 5, 8)));
        let problem = Problem::new(q, k, v, o, &options).unwrap();
        let params = bound(&problem, &Arrays::default());
        let attention = &params.attention;
        let addresses = (attention.q.address, params.o.address, params.lse);
        assert_eq!(addresses, (1, 4, 5));
        assert_eq!((attention.heads_q, attention.heads_kv), (6, 3));
        assert_eq!((attention.head_dim, attention.head_dim_v), (4, 8));
        let score = &attention.score;
        let expected = (0.5, Positive::new(30.0));
        assert_eq!((score.softmax_scale, score.softcap), expected);
        assert_eq!(attention.mask.band.upper, 2);
        assert_eq!(attention.mask.corner(), Corner::TopLeft);
        assert_eq!(attention.k.seq_stride, 12);
        assert_eq!(attention.lengths, LengthsParams::zeroed());
    }

    #[test]
    fn a_softcap_divides_the_scale_to_a_finite_factor() {
        let caps = [
            f32::from_bits(1),
            1e-40,
            2.9e-39,
            f32::MIN_POSITIVE,
            30.0,
            f32::MAX,
        ];
        for softcap in caps {
            for scale in [1.0, -0.125, 1e10, f32::MAX, 0.0] {
                let factor = finite_over(scale, softcap) / softcap;
                assert!((4.0 * factor).is_finite(), "{scale:e} / {softcap:e}");
                let is_exact = factor == scale / softcap;
                let is_large = factor.abs() > LARGEST_FACTOR / 4.0
                    && factor.is_sign_positive() == (scale > 0.0);
                assert!(is_exact || is_large, "{scale:e} / {softcap:e}: {factor:e}");
            }
        }
    }

    #[test]
    fn parameters_carry_packed_sequences_and_slopes() {
        let packed = CuSeqlens::from_lengths([(2, 5), (0, 1), (7, 3)]).unwrap();
        let on_device = DeviceLengths::cu_seqlens(3, 7, 5).unwrap();
        for lengths in [Lengths::from(packed), Lengths::from(on_device)] {
            let options = ForwardOptions::new()
                .mask(Mask::Causal)
                .lengths(lengths)
                .alibi(AlibiSlopes::on_device(6, true));
            let (q, kv) = (spec(Shape::packed(9, 6, 4)), spec(Shape::packed(9, 3, 4)));
            let problem = Problem::new(q, kv, kv, q, &options).unwrap();
            let arrays = Arrays {
                alibi_slopes: Some(6),
                cu_seqlens: Some([7, 8]),
                seqused_kv: Some(9),
                ..Arrays::default()
            };
            let AttentionParams {
                batch,
                seq_q,
                seq_kv,
                mask,
                score,
                lengths,
                ..
            } = bound(&problem, &arrays).attention;
            assert_eq!((batch, seq_q, seq_kv), (3, 7, 5));
            assert_eq!((mask.band.upper, mask.corner()), (0, Corner::BottomRight));
            let expected = LengthsParams {
                total_q: 9,
                total_kv: 9,
                cu_seqlens_q: DeviceAddress::new(7),
                cu_seqlens_kv: DeviceAddress::new(8),
                seqused_kv: DeviceAddress::new(9),
            };
            assert_eq!(lengths, expected);
            assert_eq!(score.alibi_slopes, DeviceAddress::new(6));
            assert_eq!(score.alibi_batch_stride, 6);
        }
    }
}
