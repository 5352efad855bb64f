//! Launches that try every way in which lengths are given.

use std::collections::BTreeSet;

use ferroflash::backend::Device;
use ferroflash::cases::{Arrangement, CaseSpec, InputKind, Lengths as CaseLengths};
use ferroflash::variant::instance_unfit;
use ferroflash::{Backend, Gpu, Layout, Mask};
use kernels_gpu::abi::Corner;
use kernels_gpu::instances::{Family, INSTANCES, Instance};

use super::{Lengths, Scene};
use crate::not_run::not_run;

const MASKS: [(Mask, Corner); 5] = [
    (Mask::Causal, Corner::TopLeft),
    (Mask::None, Corner::BottomRight),
    (Mask::Causal, Corner::BottomRight),
    (
        Mask::Window {
            left: Some(70),
            right: Some(20),
        },
        Corner::BottomRight,
    ),
    (
        Mask::Window {
            left: Some(3),
            right: Some(0),
        },
        Corner::BottomRight,
    ),
];

/// Sequences of (seq_q, seq_kv) on operands that have room for them and some rows more, or of equal ones in a batch.
pub fn scene(instance: &'static Instance, number: usize, sequences: &[(usize, usize)]) -> Scene {
    let (mask, corner) = MASKS[number % MASKS.len()];
    let head_dim_v = instance
        .wgmma()
        .map_or(instance.head_dim, |tile| tile.head_dim_v);
    let is_packed = number.is_multiple_of(2);
    let sums = |of: fn(&(usize, usize)) -> usize| {
        let mut sums = vec![0];
        for sequence in sequences {
            sums.push(sums[sums.len() - 1] + of(sequence) as i32);
        }
        sums
    };
    let longest = |of: fn(&(usize, usize)) -> usize| sequences.iter().map(of).max().unwrap_or(0);
    let (seq_q, seq_kv) = (longest(|pair| pair.0), longest(|pair| pair.1));
    let cu_seqlens = [sums(|pair| pair.0), sums(|pair| pair.1)];
    let axes = if is_packed {
        let total = |sums: &[i32]| sums[sums.len() - 1] as usize;
        // Rows that no sequence has lie behind the last.
        CaseLengths::one(total(&cu_seqlens[0]) + 9, total(&cu_seqlens[1]) + 70)
    } else {
        CaseLengths::Dense {
            batch: sequences.len(),
            seq_q,
            seq_kv,
        }
    };
    let spec = CaseSpec {
        dtype: instance.dtype,
        lengths: axes,
        heads_kv: 1,
        group: 2,
        head_dim: instance.head_dim as usize,
        head_dim_v: head_dim_v as usize,
        mask: Mask::None,
        scale_factor: None,
        softcap: None,
        alibi: None,
        kind: InputKind::Random,
        arrangements: [Arrangement::BSHD; 3],
        o_layout: Layout::Bshd,
        seed: number as u64,
    };
    let case = spec.build().expect("small");
    let batch = sequences.len() as u32;
    let has_slopes = corner == Corner::BottomRight && number.is_multiple_of(3);
    let slopes = (0..2 * batch).map(|index| 0.1 / (1 << (index % 7)) as f32);
    // Keys beyond those used would dominate every row.
    let used = sequences.iter().enumerate();
    let used =
        used.map(|(index, &(_, kv))| [kv as i32 - 3, kv as i32 / 2, kv as i32 + 5][index % 3]);
    Scene {
        instance,
        q: case.q,
        k: case.k,
        v: case.v,
        batch,
        // Where rows are packed, the longest may be promised to be longer than it is.
        longest: [seq_q as u32, seq_kv as u32].map(|rows| if is_packed { 2 * rows } else { rows }),
        lengths: Lengths {
            cu_seqlens: is_packed.then_some(cu_seqlens),
            used: (!is_packed || number.is_multiple_of(4)).then(|| used.collect()),
        },
        mask,
        corner,
        softcap: [None, Some(20.0)][number / 2 % 2],
        slopes: has_slopes.then(|| slopes.collect()),
    }
}

/// Sequences that end tiles in the middle, without queries, without keys, without both.
pub fn mixed(instance: &Instance) -> Vec<(usize, usize)> {
    let (rows, keys) = (instance.block_m * instance.cluster, instance.block_n);
    let (rows, keys) = (rows as usize, keys as usize);
    vec![
        (7, keys + 9),
        (0, 5),
        (rows + 5, 2 * keys + 1),
        (3, 0),
        (0, 0),
        (65, 30),
    ]
}

/// More sequences than run at once, all shorter than a warp's rows.
pub fn tiny(_: &Instance) -> Vec<(usize, usize)> {
    let some = [(1, 1), (0, 2), (9, 3), (2, 0), (5, 11), (1, 17), (0, 0)];
    some.into_iter().cycle().take(40).collect()
}

/// Runs `test` on every kernel of the device that takes lengths, with its number.
///
/// # Panics
/// If there is none.
pub fn every_kernel<D: Device>(
    gpu: &mut Gpu<D>,
    mut test: impl FnMut(&mut D, &'static Instance, usize),
) {
    let here = gpu.gpu_capabilities();
    let takes_lengths = |instance: &&Instance| instance.wgmma().is_none_or(|tile| tile.varlen);
    let mut ran = BTreeSet::new();
    for (number, instance) in INSTANCES.iter().filter(takes_lengths).enumerate() {
        if instance_unfit(instance, &here).is_none() {
            test(gpu.memory(), instance, number);
            ran.insert(instance.family.name());
        }
    }
    for family in Family::ALL {
        if !ran.contains(family.name()) {
            not_run(&format!("device lengths in {} kernels", family.name()));
        }
    }
    assert!(ran.contains(Family::Simt.name()), "{ran:?}");
}
