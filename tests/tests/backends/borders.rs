//! Every kernel of attention and of its gradients on problems in which every pair counts: rows see few keys, all of about the same
//! weight, from a first to a last one, so that a border that is off by one shows wherever it lies in a tile.

use std::collections::BTreeSet;

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::backend::{Device, Gpu};
use ferroflash::{DType, Mask};
use ferroflash_testing::cases::{
    AlibiSpec, Arrangement, AttentionCase, CaseSpec, CorpusCase, InputKind, Lengths, ModifierSpec,
    Pass,
};
use ferroflash_tests::corpus;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::record;
use ferroflash_tests::record::Record;
use ferroflash_tests::replaced::is_untouched;
use ferroflash_tests::schedules::{SCHEDULES, of_text};
use ferroflash_tests::specs::plain;
use kernels_gpu::config::wgmma::WARPGROUP_ROWS;
use kernels_gpu::instances::{self, Family, Instance, Operation};
use kernels_gpu::layout::fragment::TILE_N;
use kernels_gpu::layout::swizzle::VEC16_BYTES;

/// What is done to scores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// Products, times the scale.
    Plain,
    /// A cap that bends half of them, at one shift none, and at two there is none; slopes, but at one of those, and a scale that turns
    /// their order round.
    Bent,
    /// A cap, alone, which Hopper's kernels have own code for: one that no score reaches half of, as far as their polynomial goes; and,
    /// where rows see few keys, one that bends half of them.
    Capped,
    /// All 0, as the scale is: of what is hidden 0 times −∞ must not come.
    Flat,
    /// Products of which two of sixteen rows' grow so much along the keys that a kernel computes the tile again, its other rows too.
    Grown,
    /// The same for kernels that begin with the last keys.
    Fallen,
    /// Products, and a V that has NaN and infinities in some components of many rows, hidden ones too.
    Poisoned,
}

impl Scores {
    fn kind(self, shift: usize) -> InputKind {
        match self {
            // But at one shift, so that log-sum-exps have either sign: what lies beyond a border outweighs all that is seen.
            Self::Plain if shift != 0 => InputKind::Low,
            Self::Plain | Self::Bent | Self::Capped | Self::Flat => InputKind::Random,
            Self::Grown => InputKind::GrowingSome,
            Self::Fallen => InputKind::FallingSome,
            Self::Poisoned => InputKind::Scattered,
        }
    }

    /// Whether kernels for their dtypes alone are given them, and forward.
    fn is_stress(self) -> bool {
        self.is_grown() || self == Self::Poisoned
    }

    /// Whether a tile is computed again for them, for which it must not matter how rows are copied or where keys end.
    fn is_grown(self) -> bool {
        matches!(self, Self::Grown | Self::Fallen)
    }

    /// Whether keys end with a block, and operands lie in other ways than usual: at every other place.
    fn lie_apart(self, shift: usize) -> bool {
        !shift.is_multiple_of(2) && !self.is_grown()
    }

    /// Whether they are more than products times a positive scale.
    fn is_changed(self) -> bool {
        matches!(self, Self::Bent | Self::Flat)
    }

    /// Whether fp32 kernels are left out, which would take three quarters of the time, and in which other shifts notice as much.
    fn is_cheaper_without_simt(self, shift: usize) -> bool {
        match self {
            Self::Plain => matches!(shift, 0 | CUT),
            Self::Bent => !matches!(shift, PACKED | DIAGONALS),
            Self::Flat => true,
            _ => false,
        }
    }

    /// The softcap at a shift.
    fn softcap(self, shift: usize) -> Option<f32> {
        match self {
            // So far above all scores that what tanh loses of small numbers shows.
            Self::Bent if shift == 1 => Some(1000.0),
            Self::Bent if !matches!(shift, CUT | FEW_KEYS) => Some(1.5),
            Self::Capped if shift == FEW_KEYS => Some(1.5),
            Self::Capped => Some(11.0),
            _ => None,
        }
    }

    /// Whether problems with such scores are given to `instance` at a shift.
    fn suits(self, instance: &Instance, shift: usize) -> bool {
        if instance.family == Family::Simt && self.is_cheaper_without_simt(shift) {
            return false;
        }
        let is_forward = instance.operation == Operation::Forward;
        if shift == HEADS && !is_of_hopper(instance) {
            return false;
        }
        let is_modified = instance.name.ends_with("_modified");
        if shift == DIAGONALS && (is_of_hopper(instance) || self == Self::Bent && !is_modified) {
            return false;
        }
        if self == Self::Capped {
            // Others bend scores as they do where half of them are bent.
            return is_forward && is_of_hopper(instance) && !is_modified;
        }
        !self.is_stress() || is_forward && self.kind(shift).suits(instance.dtype)
    }
}

/// What kernels for modifiers are given, and those for the gradient by a bias: every modifier, in as many sorts as there are shifts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Bias,
    Documents,
    Mask,
    Chunks,
    Dropout,
}

impl Sort {
    const ALL: [Self; 5] = [
        Self::Bias,
        Self::Documents,
        Self::Mask,
        Self::Chunks,
        Self::Dropout,
    ];

    /// One in turn, so that a kernel has each of them at some shift, and at another where scores are others; where scores grow one that hides
    /// nothing, so that it is the growth by which a tile is computed again.
    fn of(instance: &Instance, scores: Scores, shift: usize) -> Self {
        if shift == DIAGONALS {
            // One that leaves it to the band what is seen, and one that asks for more, but shows all that the band does.
            return match scores {
                Scores::Plain => Self::Bias,
                _ => Self::Chunks,
            };
        }
        let turn = of_text(instance.name) + scores as usize + shift;
        if scores.is_grown() {
            // By turns, whose shifts are 1 and 3.
            return [Self::Bias, Self::Dropout][turn / 2 % 2];
        }
        Self::ALL[turn % Self::ALL.len()]
    }
}

/// Options of a sort that `instance` is for, as well as `scores` are.
fn modifiers(instance: &Instance, scores: Scores, shift: usize, sort: Sort) -> ModifierSpec {
    let needs_bias = instance.operation == Operation::BackwardBias;
    let is_modified = instance.name.ends_with("_modified") || needs_bias;
    let takes = |wanted: Sort| is_modified && sort == wanted;
    let hides_blocks = hides_blocks(instance, scores, shift);
    // Of few keys a block, or the documents, would hide all.
    let has_few_keys = shift == FEW_KEYS && instance.family != Family::Simt;
    let block = if has_few_keys { [8, 8] } else { [32, 48] };
    let shows_documents = !hides_blocks && !has_few_keys;
    let chunk = if shift == DIAGONALS { 1 << 10 } else { 40 };
    ModifierSpec {
        bias: (takes(Sort::Bias) || needs_bias).then_some(([false; 3], DType::F32)),
        // Documents and chunks would hide the first blocks as well.
        documents: (takes(Sort::Documents) && shows_documents).then_some((20, false)),
        dilation: takes(Sort::Documents).then_some(3),
        mask: takes(Sort::Mask).then_some(([false; 3], 30)),
        // By which a block is seen before one that is hidden.
        prefix: (takes(Sort::Mask) || is_modified && hides_blocks).then_some((15, false)),
        chunk: (takes(Sort::Chunks) && !hides_blocks).then_some(chunk),
        blocks: (takes(Sort::Chunks) && shift != DIAGONALS).then_some(block),
        dropout: takes(Sort::Dropout).then_some(0.2),
        ..ModifierSpec::default()
    }
}

/// The keys that rows see: those beside their own; or so many before it that the first ones lie in another block than the last, or that
/// there is no first one, and many blocks are seen whole. None is far behind it.
///
/// A thread has rows 8 apart and every fourth pair of columns, and the last block of a tile is the one that its last row needs: which
/// elements of which blocks a border goes through depends on where it is. Shifts move both borders, by 8 and by half a block.
fn mask(instance: &Instance, scores: Scores, shift: usize) -> Mask {
    if let Some(row) = last_seeing_row(instance, scores, shift) {
        let lower = Some(few_keys(instance, scores) as i32 - 1 - row as i32);
        return Mask::Band { lower, upper: None };
    }
    if shift == DIAGONALS {
        let [left, right] = [12, 4].map(Some);
        return Mask::Window { left, right };
    }
    if shift == FEW_KEYS {
        let [left, right] = match instance.family {
            // So that each row of a thread sees keys of four of its columns, which kernels ask for together.
            Family::Simt => [32; 2],
            _ => [17, 0],
        }
        .map(Some);
        return Mask::Window { left, right };
    }
    let (block, eight) = (instance.block_n, 8 * (shift as u32 / 2));
    if shift == WHOLE || has_many_blocks(instance, shift) {
        let right = Some(2 * block);
        return Mask::Window { left: None, right };
    }
    // Threads of fp32 kernels have rows 8 or 16 apart, and keys 16 apart.
    let is_simt = instance.family == Family::Simt && !hides_blocks(instance, scores, shift);
    if is_simt && matches!(shift, 1 | PACKED) {
        let [left, right] = match shift {
            1 => [block, 12 + block / 2],
            _ => [49, 52],
        }
        .map(Some);
        return Mask::Window { left, right };
    }
    let half = shift as u32 % 2 * (block / 2);
    let left = match (scores, shift) {
        (Scores::Bent | Scores::Capped, 1) => None,
        (Scores::Bent, _) | (_, 0) => Some(17 + eight + half),
        _ => Some(block + 17 + eight + half),
    };
    let right = Some(12 + eight + half);
    Mask::Window { left, right }
}

/// A shift of packed sequences, of which the last begins behind another, and of two heads, where any kernel takes them.
pub const PACKED: usize = 2;
/// A shift at which operands have a few components less, so that the last vec16 of a row is cut; fp32 kernels have those among packed ones.
pub const CUT: usize = 3;
/// A shift of so few keys that a tile of rows and more see none.
pub const FEW_KEYS: usize = 4;
/// A shift at which rows see all keys before theirs and two blocks behind, so that tiles of any size see blocks whole, and operands have so
/// many components less that a warp has units of columns that do not exist: it shows in counts of instructions alone.
pub const WHOLE: usize = 5;

/// A shift of few rows of two batch entries, two KV heads and two query heads each, which Hopper's copies name in coordinates of their own.
const HEADS: usize = 6;

/// A shift of packed sequences whose diagonals lie so far apart that both borders go through nearly every element that a thread of any
/// tile has, of whichever side the tile keeps.
const DIAGONALS: usize = 8;

/// Of a forward kernel of Hopper's, the first row of a part of a tile, if it is to be the last one that sees a key, the last, and no other:
/// a range of keys that begins where it ends, in a block of keys behind the first that the tile sees. The part is a warpgroup's, a block's
/// or a cluster's by turns.
fn last_seeing_row(instance: &Instance, scores: Scores, shift: usize) -> Option<u32> {
    let config = instance.wgmma()?;
    let parts = [WARPGROUP_ROWS, config.block_m(), config.cluster_m()];
    let turn = of_text(instance.name) + scores as usize;
    let has_other_keys = matches!(scores, Scores::Bent | Scores::Capped | Scores::Flat);
    (shift == FEW_KEYS && has_other_keys && !config.cached).then(|| parts[turn % parts.len()])
}

/// Keys of a problem of few.
fn few_keys(instance: &Instance, scores: Scores) -> usize {
    const FEW: usize = 20;
    match last_seeing_row(instance, scores, FEW_KEYS) {
        Some(_) => instance.block_n as usize + FEW,
        None => FEW,
    }
}

/// Whether tiles see so many blocks of keys that the next tile is asked for before the last of them is loaded, of several tiles.
fn has_many_blocks(instance: &Instance, shift: usize) -> bool {
    shift == HEADS && instance.wgmma().is_some()
}

/// Whether blocks between seen ones are hidden: at the place alone where scores of fp32 kernels are bent.
fn hides_blocks(instance: &Instance, scores: Scores, shift: usize) -> bool {
    instance.family == Family::Simt && (scores, shift) == (Scores::Bent, PACKED)
}

/// Two tiles of rows, the second with a few, and three blocks of keys, the last with a few or, every other time, whole; four where rows
/// of a tile and tiles of a cluster may begin with different blocks, or once as many keys as rows, so that a cluster that takes all
/// tiles leaves blocks to others at every stage of its pipelines. Of packed sequences another is before them, or behind.
fn lengths(instance: &Instance, scores: Scores, shift: usize, is_packed: bool) -> Lengths {
    const SHORT: (usize, usize) = (19, 23);
    let shortest = instance.wgmma().map_or(0, |config| config.min_rows);
    let rows = (instance.block_m * instance.cluster).max(instance.block_n);
    let rows = (rows + 9).max(shortest) as usize;
    let whole = match (instance.wgmma(), shift) {
        (None, WHOLE) => (instance.block_m / instance.block_n).max(2),
        (None, _) => 2,
        (Some(_), 0) => (rows as u32 / instance.block_n).max(3),
        (Some(_), _) if has_many_blocks(instance, shift) => 6,
        (Some(_), _) => 3,
    };
    let few = if scores.lie_apart(shift) { 0 } else { 9 };
    let keys = (whole * instance.block_n + few) as usize;
    let (rows, keys) = match shift {
        FEW_KEYS if instance.family == Family::Simt => (rows + 128, 64),
        FEW_KEYS => (2 * rows, few_keys(instance, scores)),
        HEADS => ((instance.block_n as usize + 9).max(shortest as usize), keys),
        _ => (rows, keys),
    };
    match (is_packed, shift) {
        (false, HEADS) => Lengths::Dense {
            batch: 2,
            seq_q: rows,
            seq_kv: keys,
        },
        (false, _) => Lengths::one(rows, keys),
        // Diagonals 24 keys apart, from one that the first queries see no key by to one by which no query sees the first keys.
        (true, DIAGONALS) => Lengths::Varlen(vec![(152, 136), (130, 138), (130, 162)]),
        // As many heads are worth few rows. The last has fewer than the first, and begins behind it, so that its first block is another if
        // it were as long.
        (true, PACKED) if !is_of_hopper(instance) => {
            let block = instance.block_n as usize;
            let [first, second] = match hides_blocks(instance, scores, shift) {
                // So long that every element of a thread is of a pair; and blocks of which the middle one is hidden.
                true => [151, 2 * block + 60],
                false => [23, block + 40],
            };
            Lengths::Varlen(vec![(158, first), (24, second), (3, 5)])
        }
        (true, PACKED) => Lengths::Varlen(vec![SHORT, (rows, keys)]),
        (true, _) => Lengths::Varlen(vec![(rows, keys), SHORT]),
    }
}

/// Components of q and of v that a kernel for `most` is given: fewer where the last vec16 of a row, or TMA's box, is to be cut, each time by
/// another number, so that plain and bent scores together cut it in every way.
fn components(
    instance: &Instance,
    most: [u32; 2],
    scores: Scores,
    [number, shift]: [usize; 2],
) -> [usize; 2] {
    let most = most.map(|most| most as usize);
    if instance.family == Family::Simt {
        // The kernels of dk and dv and of dq, whose numbers follow each other, have one problem.
        let turn = number / 2;
        // Of rows that are copied by elements, a vec16 is cut behind 0 and 2 of its four by turns, and elsewhere behind 1 or 3.
        let even = 2 * (turn % 2);
        match (scores, shift) {
            // Rows end in the last and the first of the parts that they are copied in.
            (_, 1) => return [most[0] - 4 + even, 12 + 2 * (turn / 2 % 2)],
            // And the other way round.
            (Scores::Bent, PACKED) => return [14 - even, most[1] - 2],
            // Few, as which pairs are seen does not depend on them.
            (_, DIAGONALS) => return [12, most[1]],
            (_, FEW_KEYS) => return most.map(|most| most - 1 - 2 * (turn / 2 % 2)),
            _ => {}
        }
    }
    let cuts = VEC16_BYTES as usize / instance.dtype.bytes() - 1;
    let of_scores = match scores {
        Scores::Plain => 0,
        Scores::Bent => 4,
        _ => 1,
    };
    let of_shift = match shift {
        CUT => 1,
        FEW_KEYS => 2,
        _ => 0,
    };
    let cut = match (instance.family, shift) {
        // Three units, of the four that a warp has at most.
        (_, WHOLE) => 3 * TILE_N,
        (Family::Wgmma, CUT) => 8,
        (Family::Mma, 1 | CUT | FEW_KEYS) | (Family::Simt, PACKED) => {
            1 + (of_scores + of_shift) % cuts
        }
        _ => 0,
    };
    most.map(|most| most - cut)
}

/// Rows of `dims` components of which each begins at a multiple of 16 bytes, as those of `head_dim` do.
fn cut_rows(head_dim: u32, dims: usize) -> Arrangement {
    Arrangement {
        padding: [0, 0, 0, head_dim as usize - dims],
        ..Arrangement::BSHD
    }
}

/// Rows of `dims` components that begin anywhere.
fn odd_rows(dims: usize) -> Arrangement {
    // Not as far apart as rows of a few components more.
    let padding = if (dims + 3).is_multiple_of(4) { 4 } else { 3 };
    Arrangement {
        padding: [1, 0, 2, padding],
        ..Arrangement::ODD_ROWS
    }
}

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

/// How q, k and v lie, of which rows have `dims` components and are `usual`, and then o. Every other time one of the inputs, and o, have other things between
/// their elements or rows: a kernel has a fast way to copy rows of which every operand asks whether it is open. What Hopper's kernels
/// copy are rows of whole pieces of 16 bytes.
fn arrangements(
    instance: &Instance,
    scores: Scores,
    shift: usize,
    (dims, usual): ([usize; 3], [Arrangement; 3]),
) -> ([Arrangement; 3], Option<Arrangement>) {
    // Then rows end within what is copied by elements; those that are copied again, where values are not finite, by vec16s.
    let is_poisoned = scores == Scores::Poisoned;
    if shift == FEW_KEYS && !is_of_hopper(instance) && !is_poisoned {
        return (dims.map(odd_rows), None);
    }
    let mut inputs = usual;
    if hides_blocks(instance, scores, shift) {
        // Where they end behind a whole vec16, an element more would be behind the last of the operand.
        inputs[..2].fill(Arrangement::ALIGNED_COLUMNS);
    }
    let turn = 2 * scores as usize + shift / 2;
    let others = dims.map(|dims| match turn / 3 % 2 {
        _ if is_of_hopper(instance) => Arrangement::ALIGNED_ROWS,
        0 => Arrangement::ALIGNED_COLUMNS,
        _ => odd_rows(dims),
    });
    if !scores.lie_apart(shift) {
        if instance.family == Family::Mma && !scores.is_grown() && !is_poisoned {
            // The third's rows are whole, as the fast way wants them; the next one's are too, and of them the first is aligned.
            inputs[turn % 3] = others[turn % 3];
            inputs[(turn + 1) % 3] = Arrangement::ODD_DISTANCES;
        }
        return (inputs, None);
    }
    if !is_of_hopper(instance) {
        // Each operand asks for itself, and at no other place do they lie apart in several blocks, or are cut in as many ways.
        inputs = others;
    } else if is_packed(instance) != Some(true) {
        inputs[turn % 3] = others[turn % 3];
        if (scores, shift) == (Scores::Bent, CUT) {
            // V, and d_o as it, cut.
            inputs[2] = others[2];
        }
    }
    (inputs, Some(others[2]))
}

/// How dq, dk and dv lie: in places of their own where o does.
fn gradients(instance: &Instance, shift: usize) -> Option<[Arrangement; 3]> {
    const ROWS: Arrangement = Arrangement::ODD_ROWS;
    const COLUMNS: Arrangement = Arrangement::COLUMNS;
    match shift {
        _ if instance.operation == Operation::Forward => None,
        1 | 3 if is_of_hopper(instance) => Some([Arrangement::ALIGNED_ROWS; 3]),
        1 => Some([ROWS, COLUMNS, ROWS]),
        3 => Some([COLUMNS, ROWS, COLUMNS]),
        _ => None,
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
    let needs_slopes = instance.operation == Operation::BackwardSlopes;
    let rows = ([dims[0], dims[0], dims[1]], [qk, qk, v]);
    let (arrangements, o) = arrangements(instance, scores, shift, rows);
    let has_heads = is_packed && shift == PACKED && !is_of_hopper(instance) || shift == HEADS;
    // What keeps keys passes over the queries of a group's heads, each from its first block on.
    let is_forward = instance.operation == Operation::Forward;
    let has_group = shift == HEADS || shift == DIAGONALS && !is_forward;
    CaseSpec {
        heads_kv: if has_heads { 2 } else { 1 },
        group: if has_group { 2 } else { 1 },
        mask: mask(instance, scores, shift),
        softcap: scores.softcap(shift),
        alibi: (is_bent && shift != FEW_KEYS || needs_slopes).then_some(slopes),
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
