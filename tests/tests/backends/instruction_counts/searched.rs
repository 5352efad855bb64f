//! Problems in which elements of o that are not finite are looked into, each by what else may have made it so.

use ferroflash::backend::sim::Sim;
use ferroflash::{Error, Mask};
use ferroflash_testing::cases::{CorpusCase, Lengths};
use ferroflash_tests::corpus;
use kernels_gpu::config::wgmma::ATOM_COLS;
use kernels_gpu::instances::Instance;
use kernels_gpu::layout::fragment::TILE_M;

use crate::borders::{self, Scores, Sort};

/// A problem of few rows that see all of few keys, for a kernel that computes elements of o again which such keys do not explain. One for
/// modifiers asks of each pair whether it is hidden.
pub fn case(sim: &mut Sim, instance: &Instance) -> Option<CorpusCase> {
    const KEYS: usize = 64;
    let config = instance.wgmma().filter(|config| !config.cached)?;
    let (case, _) = borders::case(sim, instance, Scores::Plain, [0, 0], Sort::Bias)?;
    let CorpusCase::Attention(mut case) = case else {
        return None;
    };
    // A lane looks after a pair of columns in each atom column; a head for each of those.
    let heads = 2 * config.head_dim_v.div_ceil(ATOM_COLS);
    case.spec.heads_kv = heads as usize;
    case.spec.mask = Mask::None;
    if instance.name.ends_with("_modified") {
        case.spec.modifiers.chunk = Some(KEYS as u32);
    }
    [TILE_M, config.min_rows as usize]
        .into_iter()
        .find_map(|rows| {
            let mut case = case.clone();
            case.spec.lengths = match config.varlen {
                true => Lengths::Varlen(vec![(rows, KEYS)]),
                false => Lengths::one(rows, KEYS),
            };
            let case = CorpusCase::Attention(case);
            let kernels = corpus::kernels(sim, &case)?;
            kernels.contains(&instance.name).then_some(case)
        })
}

/// Runs it with a value in the v of each head that is not finite, and that explains what is not of the head's o, each in another column
/// of a lane: what a kernel takes for such a value in v or o, or not, makes it look at all keys, or compute rows again.
pub fn run(sim: &mut Sim, case: &CorpusCase) -> Result<(), Error> {
    /// Of the keys that are looked at together, not the first ones; each of them by turns.
    const FIRST_KEY: usize = 4;
    const TOGETHER: usize = 4;
    const VALUES: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let CorpusCase::Attention(case) = case else {
        return Ok(());
    };
    let mut case = case.forward()?;
    for head in 0..case.v.spec().shape.heads {
        let (atom_column, of_pair) = (head / 2, head % 2);
        let key = FIRST_KEY + head % TOGETHER;
        let component = atom_column * ATOM_COLS as usize + 2 * head + of_pair;
        case.v
            .set(0, head, key, component, VALUES[head % VALUES.len()]);
    }
    case.run(sim).map(|_| ())
}
