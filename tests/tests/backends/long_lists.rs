//! Heads and sequences whose K and V do not fit L2 together: sections of heads, and lists of tiles that are cut into parts.

use std::cmp::Reverse;

use ferroflash::backend::sim::SimDevice;
use ferroflash::backend::{Device, Gpu};
use ferroflash::{Backend, DType, Mask, Sim, Variant};
use ferroflash_testing::cases::{CaseSpec, DecodeSpec, Lengths, ModifierSpec};
use ferroflash_tests::device_lengths::{Shape, scene};
use ferroflash_tests::not_run::not_run;
use ferroflash_tests::on_schedules_in_turn_and_gpu;
use ferroflash_tests::replaced::is_untouched;
use ferroflash_tests::specs::plain;
use ferroflash_tests::verdicts::variant_is_right;
use kernels_gpu::config::wgmma::WgmmaConfig;
use kernels_gpu::instances::{self, Family, Instance, Operation};
use kernels_gpu::tile::l2::L2_BYTES;

const HEAD_DIM: usize = 256;

/// Packed sequences of more keys than fit, of which rows see few: of several tiles, one, and none, each of a number of rows that no other
/// has, in no order.
fn sequences() -> Vec<(usize, usize)> {
    const COUNT: usize = 35;
    const KEYS: usize = 990;
    /// Has no divisor in common with the count.
    const STEP: usize = 13;
    let sequence = |index| (3 * (index * STEP % COUNT), KEYS + index);
    (0..COUNT).map(sequence).collect()
}

/// The part of the list that each of `sequences` is in, which are shared out longest first.
fn parts(sequences: &[(usize, usize)]) -> Vec<Option<u32>> {
    let has_rows = |index: &usize| sequences[*index].0 > 0;
    let mut order: Vec<usize> = (0..sequences.len()).filter(has_rows).collect();
    order.sort_unstable_by_key(|index| Reverse(sequences[*index].0));
    let total: usize = order.iter().map(|index| sequences[*index].1).sum();
    let bytes = total * 2 * HEAD_DIM * size_of::<u16>();
    let count = bytes.div_ceil(L2_BYTES as usize);
    assert!(count > 1, "{bytes}");
    let mut parts = vec![None; sequences.len()];
    let mut before = 0;
    for index in order {
        let keys = sequences[index].1;
        parts[index] = Some(((before + keys / 2) * count / total) as u32);
        before += keys;
    }
    parts
}

fn every_tile_is_listed<D: Device>(gpu: &mut Gpu<D>) {
    /// Packed, with lengths that are promised to be larger, and causal from the first query on.
    const SCENE: usize = 6;
    if !gpu.gpu_capabilities().families.contains(&Family::Wgmma) {
        not_run("long lists of tiles: they are of Hopper's kernels");
        return;
    }
    let sequences = sequences();
    let shape = Shape {
        dtype: DType::Bf16,
        head_dim: HEAD_DIM,
        head_dim_v: HEAD_DIM,
    };
    let scene = scene(shape, SCENE, &sequences);
    let plan = gpu.plan(&scene.problem(Variant::Wgmma)).expect("it runs");
    let outcome = scene.run(gpu, &plan).expect("it runs");
    scene.check(&outcome, "a long list");
    let of_parts = parts(&sequences);
    let notes = &outcome.workspace[..plan.workspace_bytes()];
    let notes = notes.rchunks_exact(size_of::<u32>()).take(sequences.len());
    let notes = notes.map(|note| u32::from_ne_bytes(note.try_into().expect("four")));
    for (index, note) in notes.enumerate() {
        let index = sequences.len() - 1 - index;
        assert!(
            of_parts[index].is_none_or(|part| part == note),
            "{index}: {note}"
        );
    }
    of_caches(gpu);
}

/// The same of sequences of a cache, of which all have as many queries, or each its own.
fn of_caches<D: Device>(gpu: &mut Gpu<D>) {
    for queries in [None, Some(vec![70, 3, 0, 20])] {
        let spec = DecodeSpec {
            seq_q: 40,
            queries,
            page_size: Some(256),
            heads_kv: 1,
            group: 1,
            head_dim: HEAD_DIM,
            head_dim_v: HEAD_DIM,
            ..DecodeSpec::plain(&[9_000, 12_000, 80, 13_000])
        };
        let mut case = spec.build().expect("it fits");
        case.options.force = Some(Variant::Wgmma);
        let (o, lse) = case.run(gpu).expect("it runs");
        assert_eq!(case.check_all(&o, &lse).expect("checked"), None, "{spec}");
    }
}

on_schedules_in_turn_and_gpu!(every_tile_is_listed, "long lists of tiles");

/// Three heads of K and V in sections of two, so that the last has fewer, by every kernel that takes tiles by their numbers; of packed
/// sequences those in a list, too.
#[test]
fn the_last_section_of_heads_has_fewer() {
    for instance in instances::all().filter(|row| row.operation == Operation::Forward) {
        let Some(config) = instance.wgmma().filter(|config| !config.cached) else {
            continue;
        };
        if is_untouched(instance.name) {
            continue;
        }
        let lists = [false, true]
            .into_iter()
            .take(1 + usize::from(config.varlen));
        for is_listed in lists {
            in_sections(instance, config, is_listed);
        }
    }
}

fn in_sections(instance: &Instance, config: &WgmmaConfig, is_listed: bool) {
    const HEADS: usize = 3;
    /// Rows that see keys, and some more; of a kernel for long sequences all others see none.
    const ROWS: usize = 300;
    let rows = ROWS.max(config.min_rows as usize);
    let [head_dim, head_dim_v] = [config.head_dim, config.head_dim_v].map(|dim| dim as usize);
    let row_bytes = (head_dim + head_dim_v) * size_of::<u16>();
    let keys = L2_BYTES as usize * 9 / 8 / HEADS / row_bytes;
    let mut lengths = vec![(rows, keys)];
    if is_listed {
        lengths.push((3, 17));
    }
    let tiles: usize = lengths
        .iter()
        .map(|(rows, _)| rows.div_ceil(config.cluster_m() as usize))
        .sum();
    // So many clusters that the last section is begun with, and the rest of it fetched.
    let clusters = (HEADS - 1) * tiles + 1;
    let spec = CaseSpec {
        mask: Mask::Band {
            lower: None,
            upper: Some(30 + ROWS as i32 - rows as i32),
        },
        heads_kv: HEADS,
        head_dim_v,
        modifiers: ModifierSpec {
            sinks: instance.name.ends_with("_modified"),
            bias: (!instance.is_for(false)).then_some(([true; 3], DType::Bf16)),
            ..ModifierSpec::default()
        },
        ..plain(
            instance.dtype,
            match config.varlen {
                true => Lengths::Varlen(lengths),
                false => Lengths::one(rows, keys),
            },
            head_dim,
        )
    };
    let device = SimDevice::default().multiprocessors(clusters as u32 * config.cluster);
    let mut sim = Sim::on(device);
    let mut case = spec.build().expect("it fits");
    case.options.force = Some(Variant::Wgmma);
    let plan = sim.plan(&case.problem().expect("valid")).expect("it runs");
    assert_eq!(plan.kernel_name(), instance.name, "{spec}");
    variant_is_right(&mut sim, Variant::Wgmma, &mut case, &spec.to_string());
}
