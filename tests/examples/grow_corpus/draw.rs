//! Drawing cases for a kernel.

use std::collections::BTreeMap;

use ferroflash::backend::sim::Sim;
use ferroflash::{DType, Mask};
use ferroflash_testing::cases::{
    Arrangement, AttentionCase, CaseSpec, CorpusCase, DecodeSpec, InputKind, Lengths, Limits,
    ModifierSpec, Pass, drawn, drawn_caches,
};
use ferroflash_tests::corpus;
use kernels_gpu::config::decode::DecodeConfig;
use kernels_gpu::config::limits::SM90_SHARED_BYTES;
use kernels_gpu::instances::{self, Family, Instance, Operation};
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::seen::Seen;

/// Cases for the kernels of which least is executed.
pub struct Draws {
    targets: Vec<&'static Instance>,
    /// Draws for each kernel since one gained something.
    idle: BTreeMap<&'static str, u32>,
    rng: Xoshiro256PlusPlus,
}

/// Large enough for several tiles a side.
const SMALL: Limits = Limits {
    seq: 300,
    work: 5_000_000,
};

/// Caps under which most scores bend, some, and few.
const SOFTCAPS: [f32; 4] = [0.05, 0.3, 1.0, 5.0];

/// Most keys of a sequence in a cache: several chunks of the smallest head_dim's.
const MOST_CACHED_KEYS: usize = 1100;

/// Query heads to one of K and V, and queries: rows for a tile of 16, and for more than one.
const MANY_ROWS: [(usize, usize); 8] = [
    (9, 1),
    (16, 1),
    (17, 1),
    (8, 2),
    (3, 3),
    (4, 3),
    (2, 7),
    (1, 12),
];

/// Whether the corpus has a form for its cases: not for appends, parts that are merged, and what no problem is given to.
fn has_cases(instance: &Instance) -> bool {
    use Operation::{Append, CheckCache, Insight, Merge};
    let reads_pages = instance.wgmma().is_some_and(|config| config.cached);
    !reads_pages && !matches!(instance.operation, Append | CheckCache | Insight | Merge)
}

/// The lowest head_dim for which the kernels of `widest` are chosen.
fn least_dim(widest: usize) -> usize {
    match widest {
        0..=64 => 1,
        65..=128 => 65,
        _ => 129,
    }
}

impl Draws {
    pub fn new(is_wanted: impl Fn(&str) -> bool, rng: Xoshiro256PlusPlus) -> Self {
        let targets = instances::all().filter(|row| has_cases(row) && is_wanted(row.name));
        Self {
            targets: targets.collect(),
            idle: BTreeMap::new(),
            rng,
        }
    }

    /// Whether there is no kernel to draw for.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// A kernel, and a case for it.
    pub fn next(&mut self, sim: &mut Sim, seen: &Seen) -> Option<(&'static str, CorpusCase)> {
        let target = self.target(seen);
        let case = self.case(target);
        let kernels = corpus::kernels(sim, &case);
        if kernels.is_some_and(|kernels| kernels.contains(&target.name)) {
            return Some((target.name, case));
        }
        None
    }

    /// Notes whether a case drawn for `target` gained something.
    pub fn learn(&mut self, target: &'static str, has_gained: bool) {
        let idle = self.idle.entry(target).or_default();
        *idle = if has_gained { 0 } else { *idle + 1 };
    }

    fn target(&mut self, seen: &Seen) -> &'static Instance {
        let weight = |row: &Instance| {
            let idle = self.idle.get(row.name).copied().unwrap_or(0) as f64;
            // One that never ran comes first.
            let missing = seen
                .missing(row.name)
                .map_or(1e5, |(missing, _)| missing as f64);
            let by_finite = seen.missing_by_finite(row.name) as f64;
            (missing + by_finite + 1.0) / (1.0 + idle * idle)
        };
        let weights: Vec<f64> = self.targets.iter().map(|row| weight(row)).collect();
        let mut at = self.rng.random_range(0.0..weights.iter().sum::<f64>());
        let last = self.targets.len() - 1;
        let index = weights.iter().position(|weight| {
            at -= weight;
            at < 0.0
        });
        self.targets[index.unwrap_or(last)]
    }

    fn is_so(&mut self, probability: f64) -> bool {
        self.rng.random_bool(probability)
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.rng.random_range(0..values.len())]
    }

    fn case(&mut self, target: &Instance) -> CorpusCase {
        let reads_e4m3 = target.decode().is_some_and(|config| config.is_e4m3);
        if target.operation == Operation::Decode && (reads_e4m3 || self.is_so(0.7)) {
            return CorpusCase::Decode(Box::new(self.cache(target, reads_e4m3)));
        }
        CorpusCase::Attention(Box::new(self.attention(target)))
    }

    fn cache(&mut self, target: &Instance, is_e4m3: bool) -> DecodeSpec {
        let seed = self.rng.random();
        let dtypes = [target.dtype];
        let mut specs = drawn_caches(&dtypes, MOST_CACHED_KEYS, seed);
        let wanted = specs.find(|spec| spec.e4m3.is_some() == is_e4m3);
        let mut spec = wanted.expect("both are drawn");
        let widest = target.head_dim as usize;
        if self.is_so(0.5) {
            (spec.head_dim, spec.head_dim_v) = (widest, widest);
        } else {
            let least = least_dim(widest);
            spec.head_dim = self.rng.random_range(least..=widest);
            spec.head_dim_v = self.rng.random_range(1..=widest);
        }
        if self.is_so(0.3) {
            spec.softcap = Some(self.one_of(&SOFTCAPS));
        }
        let config = target.decode().expect("a decode kernel");
        if config.rows > DecodeConfig::HALF_ROWS {
            (spec.group, spec.seq_q) = self.one_of(&MANY_ROWS);
        }
        if self.is_so(0.2) {
            self.lengthen_cache(&mut spec, config);
        }
        spec
    }

    /// Makes the first sequence so long that its chunks form groups, and is alone or with others. A window leaves few of the chunks,
    /// on both sides of where a group ends: then there may be so many heads or rows that blocks take sequences whole.
    fn lengthen_cache(&mut self, spec: &mut DecodeSpec, config: &DecodeConfig) {
        let chunk = config.chunk_keys() as usize;
        let group = chunk << config.tree().group_shift;
        spec.heads_kv = 1;
        spec.kv_lens.truncate(self.one_of(&[0, 0, 2]));
        let keys = self.rng.random_range(group..=group + 3 * chunk);
        spec.kv_lens.insert(0, keys);
        if self.is_so(0.6) {
            let left = keys - group + self.rng.random_range(0..chunk);
            let (left, right) = (Some(left as u32), Some(0));
            spec.mask = Mask::Window { left, right };
            if self.is_so(0.5) {
                let has_many_rows = config.rows > DecodeConfig::HALF_ROWS;
                (spec.heads_kv, spec.group, spec.seq_q) = if has_many_rows {
                    (3, 17, 7)
                } else {
                    spec.kv_lens = vec![keys; 3];
                    (11, 2, 3)
                };
            }
        }
        if let Some(queries) = &mut spec.queries {
            queries.resize(spec.kv_lens.len(), spec.seq_q);
            for rows in queries {
                *rows = spec.seq_q.min(*rows);
            }
        }
    }

    fn attention(&mut self, target: &Instance) -> AttentionCase {
        let is_modified =
            target.name.ends_with("_modified") || target.operation == Operation::BlockStates;
        let wants = |spec: &CaseSpec| {
            let has_modifiers =
                target.operation != Operation::BackwardSinks || spec.modifiers.sinks;
            has_modifiers && spec.modifiers.is_none() != is_modified
                || matches!(
                    target.operation,
                    Operation::BackwardDelta | Operation::BackwardSinks
                )
        };
        let dtype = if target.operation == Operation::BlockStates
            || target.operation == Operation::BackwardSinks
        {
            self.one_of(&DType::ALL)
        } else {
            target.dtype
        };
        let seed = self.rng.random();
        let dtypes = [dtype];
        let mut specs = drawn(&dtypes, SMALL, seed).filter(wants);
        let spec = specs.next().expect("every kind is drawn");
        let family = match target.name.contains("_wgmma_") {
            _ if dtype == DType::F32 => Family::Simt,
            true => Family::Wgmma,
            false if target.family == Family::Simt => self.one_of(&[Family::Mma, Family::Wgmma]),
            false => target.family,
        };
        let pass = match target.operation {
            Operation::Forward | Operation::TileList | Operation::Decode => Pass::Forward,
            Operation::BlockStates => self.one_of(&Pass::ALL),
            _ => self.one_of(&Pass::ALL[1..]),
        };
        let mut spec = self.fitted(spec, target, family, pass);
        spec.dtype = dtype;
        let variant = match target.operation {
            Operation::Decode => "decode",
            _ => family.name(),
        };
        let gradients = match pass {
            Pass::Forward => None,
            Pass::Backward { .. } if self.is_so(0.15) => Some([Arrangement::ODD_ROWS; 3]),
            Pass::Backward { .. } => spec.arrangements_of_gradients(),
        };
        AttentionCase {
            gradients,
            spec,
            variant: variant.to_owned(),
            shared_bytes: self.shared_bytes(target),
            pass,
        }
    }

    /// Of a GPU that it fits: mostly the least, so that a tile for much shared memory is not chosen in its place.
    fn shared_bytes(&mut self, target: &Instance) -> u32 {
        let least = corpus::SHARED_BYTES
            .into_iter()
            .find(|limit| target.shared_bytes <= *limit);
        let least = least.filter(|_| target.shared_bytes > 0 && self.is_so(0.9));
        least.unwrap_or(SM90_SHARED_BYTES)
    }

    /// `spec` with dimensions and lengths of those that `target` is chosen for, and more often what few draws have.
    fn fitted(
        &mut self,
        spec: CaseSpec,
        target: &Instance,
        family: Family,
        pass: Pass,
    ) -> CaseSpec {
        let mut spec = spec;
        if target.head_dim > 0 {
            self.fit_dims(&mut spec, target);
        }
        if let Some(config) = target.wgmma() {
            if config.varlen && matches!(spec.lengths, Lengths::Dense { .. }) {
                spec.lengths = spec.lengths.made_uneven(spec.seed);
            }
            if config.min_rows > 0 && self.is_so(0.9) {
                self.lengthen(&mut spec, config.min_rows as usize);
            }
        }
        if self.is_so(0.4) {
            spec.softcap = Some(self.one_of(&SOFTCAPS));
        }
        if target.name.ends_with("_modified") && self.is_so(0.35) {
            self.show_all(&mut spec);
        }
        if pass == Pass::Forward && self.is_so(0.25) && spec.dtype != DType::F32 {
            spec.kind = self.one_of(&InputKind::ALL);
            spec.scale_factor = None;
        } else if self.is_so(0.3) {
            spec.kind = InputKind::NonFinite;
        }
        if self.is_so(0.15) {
            spec.mask = Mask::Causal;
        }
        if self.is_so(0.2) {
            spec.arrangements = [Arrangement::BSHD; 3];
        }
        match family {
            Family::Wgmma => spec.reachable_by_tma(),
            _ => spec,
        }
    }

    /// Leaves no modifier that hides pairs, and no score but a plain one, so that blocks are seen whole.
    fn show_all(&mut self, spec: &mut CaseSpec) {
        let bias = (
            [self.is_so(0.5); 3],
            self.one_of(&[DType::F32, DType::F16, DType::Bf16]),
        );
        let (is_biased, drops) = self.one_of(&[(true, false), (false, true), (true, true)]);
        spec.modifiers = ModifierSpec {
            bias: is_biased.then_some(bias),
            dropout: drops.then_some(0.3),
            ..ModifierSpec::default()
        };
        (spec.mask, spec.softcap, spec.alibi) = (Mask::None, None, None);
        let mut seq = || self.rng.random_range(128..=SMALL.seq);
        spec.lengths = Lengths::Dense {
            batch: 1,
            seq_q: seq(),
            seq_kv: seq(),
        };
    }

    fn fit_dims(&mut self, spec: &mut CaseSpec, target: &Instance) {
        let widest = target.head_dim as usize;
        let of_v = target
            .wgmma()
            .map_or(widest, |config| config.head_dim_v as usize);
        let exact = self.is_so(0.5);
        let above = least_dim(widest) - 1;
        let within = |dim: usize, widest: usize| {
            if exact {
                widest
            } else {
                above.min(widest - 1) + 1 + dim % (widest - above.min(widest - 1))
            }
        };
        let dims = (within(spec.head_dim, widest), within(spec.head_dim_v, of_v));
        let wide_v = self.is_so(0.2) && of_v == widest;
        (spec.head_dim, spec.head_dim_v) = if wide_v { (dims.1, dims.0) } else { dims };
    }

    /// Makes the first sequence so long that a kernel is preferred, and heads few.
    fn lengthen(&mut self, spec: &mut CaseSpec, rows: usize) {
        let by = self.rng.random_range(0..40);
        (spec.heads_kv, spec.group) = (1, 1);
        match &mut spec.lengths {
            Lengths::Dense {
                batch,
                seq_q,
                seq_kv,
            } => {
                (*batch, *seq_q, *seq_kv) = (1, rows + by, (*seq_kv).min(200));
            }
            Lengths::Varlen(lengths) => {
                lengths.truncate(3);
                lengths.push((rows + by, self.rng.random_range(1..200)));
            }
        }
    }
}
