//! In which order a Hopper kernel takes tiles: by their numbers, or by a list that another kernel writes before.
//!
//! The list of a varlen launch's tiles takes some 4 µs of the GPU's time, and a second launch of the caller's. Without one every sequence
//! has as many tiles as the longest, and those without rows take a cluster 1 µs each. Kernels count tiles of packed sequences that use all of
//! their keys, and of sequences of a cache that have the same number of queries.

use kernels_gpu::abi::AttentionParams;
use kernels_gpu::config::wgmma::WgmmaConfig;
use kernels_gpu::wgmma::pack_gqa::PackGqa;
use kernels_gpu::wgmma::scheduler::Schedule;

use super::GpuCapabilities;
use crate::Problem;

/// Percent of the rows that there would be if all sequences were as long as the longest, from which on they count as equally long.
const EVEN_PERCENT: u64 = 90;

/// The order of tiles of a kernel of shape `config` that runs `problem`, with parameters `attention`, on `gpu`; `None` if it has no
/// tile, or more than it can count.
pub(super) fn schedule(
    problem: &Problem,
    attention: &AttentionParams,
    config: &WgmmaConfig,
    pack_gqa: PackGqa,
    gpu: &GpuCapabilities,
) -> Option<Schedule> {
    let on_gpu = |schedule: Schedule| schedule.on_gpu(gpu.multiprocessors, config.cluster);
    let counted = Schedule::new(attention, pack_gqa, config).map(on_gpu);
    if !config.varlen {
        return counted;
    }
    let has_one_each = |counted: &Schedule| counted.last < counted.clusters;
    let (may_be_counted, are_even) = match config.cached {
        true => (!problem.is_packed(), attention.batch == 1),
        false => (
            problem.is_packed() && !problem.has_seqused_kv(),
            are_even(attention),
        ),
    };
    counted
        .filter(|counted| may_be_counted && (has_one_each(counted) || are_even))
        .or_else(|| Schedule::listed(attention, pack_gqa, config).map(on_gpu))
}

/// Whether packed sequences are about equally long.
fn are_even(attention: &AttentionParams) -> bool {
    let lengths = &attention.lengths;
    let is_even = |total: u32, longest: u32| {
        let most = u64::from(longest) * u64::from(attention.batch);
        u64::from(total) * 100 >= most * EVEN_PERCENT
    };
    is_even(lengths.total_q, attention.seq_q) && is_even(lengths.total_kv, attention.seq_kv)
}

#[cfg(test)]
mod tests {
    use kernels_gpu::config::wgmma::{HD64, WgmmaConfig};

    use super::*;
    use crate::plan::params::forward_params;
    use crate::{CuSeqlens, DType, DeviceLengths, ForwardOptions, Layout, Shape, TensorSpec};

    /// A GPU with 132 multiprocessors.
    const GPU: GpuCapabilities = GpuCapabilities::new((9, 0), 227 << 10, 132);
    /// 192 rows a tile.
    const CONFIG: WgmmaConfig = HD64.for_varlen();

    fn schedule_of(problem: &Problem) -> Schedule {
        let params = forward_params(problem);
        let pack_gqa = PackGqa::none(1);
        schedule(problem, &params.attention, &CONFIG, pack_gqa, &GPU).expect("tiles")
    }

    /// Of packed sequences with so many queries and keys each, and `heads` heads.
    fn packed(lengths: &[(usize, usize)], heads: usize) -> Problem {
        let packed = CuSeqlens::from_lengths(lengths.iter().copied()).expect("short");
        let [q, kv] = [packed.total_q(), packed.total_kv()].map(|rows| {
            let shape = Shape::packed(rows, heads, 64);
            TensorSpec::contiguous(DType::Bf16, shape, Layout::Bshd).expect("small")
        });
        let options = ForwardOptions::new().cu_seqlens(packed);
        Problem::with_dense_output(q, kv, kv, &options).expect("valid")
    }

    #[test]
    fn no_more_tiles_than_blocks_are_not_listed() {
        // Six tiles a head for the longest, and as many for each of the others.
        let lengths = [(1152, 1152), (7, 9)];
        let counted = schedule_of(&packed(&lengths, 11));
        assert!(!counted.is_listed());
        assert_eq!((counted.last, counted.clusters), (131, 132));
        assert!(schedule_of(&packed(&lengths, 12)).is_listed());
    }

    #[test]
    fn sequences_of_about_one_length_are_not_listed() {
        let many = |shortest| [(1000, 1000), (1000, 1000), (shortest, 1000)];
        assert!(!schedule_of(&packed(&many(1000), 64)).is_listed());
        assert!(!schedule_of(&packed(&many(700), 64)).is_listed());
        assert!(schedule_of(&packed(&many(699), 64)).is_listed());
        assert!(schedule_of(&packed(&[(1000, 1000), (1000, 700)], 64)).is_listed());
    }

    /// Whose keys the kernels would have to read, too, to count tiles.
    #[test]
    fn tiles_of_partly_used_keys_are_listed() {
        let shape = Shape {
            batch: 2,
            heads: 2,
            seq: 100,
            dim: 64,
        };
        let spec = TensorSpec::contiguous(DType::Bf16, shape, Layout::Bshd).expect("small");
        let options = ForwardOptions::new().lengths(DeviceLengths::seqused_kv());
        let padded = Problem::with_dense_output(spec, spec, spec, &options).expect("valid");
        assert!(schedule_of(&padded).is_listed());
        let rows = TensorSpec::contiguous(DType::Bf16, Shape::packed(200, 2, 64), Layout::Bshd);
        let rows = rows.expect("small");
        let packed = DeviceLengths::cu_seqlens(2, 100, 100).expect("short");
        let of = |lengths: DeviceLengths| {
            let options = ForwardOptions::new().lengths(lengths);
            schedule_of(&Problem::with_dense_output(rows, rows, rows, &options).expect("valid"))
        };
        assert!(!of(packed).is_listed());
        assert!(of(packed.and_seqused_kv()).is_listed());
    }
}
