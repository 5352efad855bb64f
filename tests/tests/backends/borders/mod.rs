//! Every kernel of attention and of its gradients on problems in which every pair counts: rows see few keys, all of about the same
//! weight, from a first to a last one, so that a border that is off by one shows wherever it lies in a tile.

mod operands;
mod places;
mod scores;
mod sorts;

use std::collections::BTreeSet;

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::backend::{Device, Gpu};
use ferroflash_testing::cases::{AlibiSpec, AttentionCase, CaseSpec, CorpusCase, Pass};
use ferroflash_tests::corpus;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::record;
use ferroflash_tests::record::Record;
use ferroflash_tests::replaced::is_untouched;
use ferroflash_tests::schedules::{SCHEDULES, of_text};
use ferroflash_tests::specs::plain;
use kernels_gpu::instances::{self, Family, Instance, Operation};

use self::operands::{arrangements, components, cut_rows, gradients};
pub use self::places::{CUT, FEW_KEYS, PACKED, WHOLE};
use self::places::{DIAGONALS, HEADS, lengths, mask};
pub use self::scores::Scores;
pub use self::sorts::Sort;
use self::sorts::modifiers;

/// Whether it is of `wgmma`, whose backward kernels have no configuration of the forward ones'.
fn is_of_hopper(instance: &Instance) -> bool {
    instance.family == Family::Wgmma
}

/// Whether it is for packed sequences; `None` of one that takes others too.
fn is_packed(instance: &Instance) -> Option<bool> {
    match instance.wgmma() {
        Some(config) => Some(config.varlen),
        None if is_of_hopper(instance) => Some(false),
        None => None,
    }
}

fn spec(
    instance: &Instance,
    scores: Scores,
    [number, shift]: [usize; 2],
    sort: Sort,
    is_packed: bool,
) -> CaseSpec {
    let number = number + shift;
    let most = instance.wgmma().map_or([instance.head_dim; 2], |config| {
        [config.head_dim, config.head_dim_v]
    });
    let dims = components(instance, most, scores, [number, shift]);
    let [qk, v] = [0, 1].map(|i| cut_rows(most[i], dims[i]));
    let slopes = AlibiSpec {
        steepest: 0.01,
        is_batched: false,
    };
    let is_bent = scores == Scores::Bent;
    let is_forward = instance.operation == Operation::Forward;
    let needs_slopes = instance.operation == Operation::BackwardSlopes;
    // Where rows are computed again; and where there are several heads.
    let has_slopes = is_of_hopper(instance) && (scores, shift) == (Scores::Poisoned, CUT)
        || is_forward && shift == HEADS;
    let rows = ([dims[0], dims[0], dims[1]], [qk, qk, v]);
    let (arrangements, o) = arrangements(instance, scores, shift, rows);
    let has_heads = is_packed && shift == PACKED && !is_of_hopper(instance) || shift == HEADS;
    // What keeps keys passes over the queries of a group's heads, each from its first block on.
    let has_group = shift == HEADS || shift == DIAGONALS && !is_forward;
    CaseSpec {
        heads_kv: if has_heads { 2 } else { 1 },
        group: if has_group { 2 } else { 1 },
        mask: mask(instance, scores, shift),
        softcap: scores.softcap(shift),
        alibi: (is_bent && shift != FEW_KEYS || needs_slopes || has_slopes).then_some(slopes),
        scale_factor: match scores {
            Scores::Bent => Some(-1.0),
            Scores::Flat => Some(0.0),
            _ => None,
        },
        head_dim_v: dims[1],
        modifiers: modifiers(instance, scores, shift, sort),
        kind: scores.kind(shift),
        arrangements,
        o,
        // Of seeds that 3 divides there are no gradients by slopes and biases.
        seed: 3 * number as u64 + 1,
        ..plain(
            instance.dtype,
            lengths(instance, scores, shift, is_packed),
            dims[0],
        )
    }
}

/// Whether it is a kernel of problems that these are: not one of caches, of parts, or beside others.
pub fn is_wanted(instance: &Instance) -> bool {
    matches!(
        instance.operation,
        Operation::Forward
            | Operation::BackwardBias
            | Operation::BackwardFused
            | Operation::BackwardKeys
            | Operation::BackwardQueries
            | Operation::BackwardSlopes
            | Operation::BackwardSplitKeys
            | Operation::BackwardSplitQueries
    )
}

/// A case that `instance` is chosen for; none if it computes no such scores.
pub fn case<D: Device>(
    gpu: &mut Gpu<D>,
    instance: &Instance,
    scores: Scores,
    [number, shift]: [usize; 2],
    sort: Sort,
) -> Option<(CorpusCase, Vec<&'static str>)> {
    let passes = match instance.operation {
        Operation::Forward => &Pass::ALL[..1],
        _ => &Pass::ALL[1..],
    };
    let limits = corpus::SHARED_BYTES
        .into_iter()
        .filter(|bytes| instance.shared_bytes <= *bytes);
    let ways = limits.flat_map(|bytes| passes.iter().map(move |pass| (bytes, *pass)));
    let is_packed_here = matches!(shift, PACKED | DIAGONALS);
    let packed = is_packed(instance).map_or(vec![is_packed_here, false], |packed| vec![packed]);
    let mut ways = ways.flat_map(|(bytes, pass)| packed.iter().map(move |p| (bytes, pass, *p)));
    ways.find_map(|(shared_bytes, pass, is_packed)| {
        let case = CorpusCase::Attention(Box::new(AttentionCase {
            spec: spec(instance, scores, [number, shift], sort, is_packed),
            variant: instance.family.name().to_owned(),
            shared_bytes,
            pass,
            gradients: gradients(instance, shift),
        }));
        let kernels = corpus::kernels(gpu, &case)?;
        kernels.contains(&instance.name).then_some((case, kernels))
    })
}

/// Runs a case for each kernel that none before was for, on one of `gpus`; `shift` turns masks, options and schedules.
fn every_pair_counts<D: Device>(
    gpus: &mut [Gpu<D>],
    scores: Scores,
    shift: usize,
    record: &mut Record,
) {
    let here = gpus[0].gpu_capabilities();
    let fits = |row: &Instance| {
        here.families.contains(&row.family) && row.shared_bytes <= here.shared_bytes
    };
    let mut ran = BTreeSet::new();
    let mut not_run = Vec::new();
    let wanted =
        instances::all().filter(|row| is_wanted(row) && scores.suits(row, shift) && fits(row));
    for (number, instance) in wanted.enumerate() {
        // Beside others a kernel for the gradient by a bias has a bias alone.
        let has_own = instance.operation == Operation::BackwardBias;
        if ran.contains(instance.name) && !has_own {
            continue;
        }
        let gpu = &mut gpus[(of_text(instance.name) + shift) % gpus.len()];
        let sort = Sort::of(instance, scores, shift);
        let Some((case, kernels)) = case(gpu, instance, scores, [number, shift], sort) else {
            not_run.push(instance.name);
            continue;
        };
        if !kernels.iter().all(|kernel| is_untouched(kernel)) {
            let outcome = corpus::check(gpu, &case);
            let checksum =
                outcome.unwrap_or_else(|wrong| panic!("{}: {case}: {wrong}", instance.name));
            record.take(instance.name.to_owned(), checksum);
        }
        ran.extend(kernels);
    }
    println!("{} ran; not run: {not_run:?}", ran.len());
    // Hopper's backward kernels are for plain scores.
    let is_refused =
        |name: &&str| scores.is_changed() && name.contains("_wgmma_") && name.contains("_bwd_");
    assert!(not_run.iter().all(is_refused), "{not_run:?}");
}

/// On the simulator's schedules, and by turns on so few multiprocessors that blocks of persistent kernels take several tiles.
fn simulated(scores: Scores, shift: usize, mut record: Record) {
    let multiprocessors = match shift {
        PACKED | FEW_KEYS | HEADS => 4,
        _ => 2,
    };
    let device = |seed| SimDevice::with_schedule(seed).multiprocessors(multiprocessors);
    let mut sims = SCHEDULES.map(|seed| Sim::on(device(seed)));
    every_pair_counts(&mut sims, scores, shift, &mut record);
    record.finish(&mut sims);
}

/// The tests of a sort of scores: of each of these shifts one.
macro_rules! tests_of {
    ($name:ident, $scores:expr, $($test:ident at $shift:expr),+) => {
        mod $name {
            use super::*;

            $(
                #[test]
                fn $test() {
                    let record = record!(concat!(
                        "borders-",
                        stringify!($name),
                        "-",
                        stringify!($test)
                    ));
                    simulated($scores, $shift, record);
                }
            )+

            #[test]
            fn cuda() {
                if let Some(gpu) = gpu_or_not_run("problems in which every pair counts") {
                    let mut gpus = [gpu];
                    for shift in [$($shift),+] {
                        // A GPU's exponentials and products have bits of their own.
                        let mut unrecorded = Record::default();
                        every_pair_counts(&mut gpus, $scores, shift, &mut unrecorded);
                    }
                }
            }
        }
    };
}

tests_of!(
    plain_scores,
    Scores::Plain,
    sim at 0,
    sim_otherwise at 1,
    sim_packed at PACKED,
    sim_cut at CUT,
    sim_few_keys at FEW_KEYS,
    sim_heads at HEADS,
    sim_diagonals at DIAGONALS
);
tests_of!(
    bent_scores,
    Scores::Bent,
    sim at 0,
    sim_otherwise at 1,
    sim_packed at PACKED,
    sim_cut at CUT,
    sim_few_keys at FEW_KEYS,
    sim_diagonals at DIAGONALS
);
// What these are for is in few of a kernel's lines, which do not ask where a border is.
tests_of!(capped_scores, Scores::Capped, sim_otherwise at 1, sim_few_keys at FEW_KEYS);
tests_of!(flat_scores, Scores::Flat, sim_few_keys at FEW_KEYS);
tests_of!(grown_scores, Scores::Grown, sim_otherwise at 1, sim_cut at CUT);
tests_of!(fallen_scores, Scores::Fallen, sim_otherwise at 1, sim_cut at CUT);
tests_of!(
    poisoned_values,
    Scores::Poisoned,
    sim_cut at CUT,
    sim_few_keys at FEW_KEYS,
    sim_diagonals at DIAGONALS
);
