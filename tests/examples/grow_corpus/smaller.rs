//! Smaller versions of a case: fewer heads, fewer and shorter sequences.

use ferroflash_testing::cases::{AttentionCase, CaseSpec, CorpusCase, DecodeSpec, Lengths};

/// Versions of `case` that take less time, those that take least first. What they execute has to be seen.
pub fn versions(case: &CorpusCase) -> Vec<CorpusCase> {
    let all = match case {
        CorpusCase::Attention(attention) => of_attention(attention),
        CorpusCase::Decode(spec) => of_cache(spec),
    };
    let mut versions = Vec::new();
    for version in all {
        // Of few heads and sequences several are the same.
        if version != *case && !versions.contains(&version) {
            versions.push(version);
        }
    }
    versions
}

fn of_attention(case: &AttentionCase) -> Vec<CorpusCase> {
    let CaseSpec {
        heads_kv,
        group,
        ref lengths,
        ..
    } = case.spec;
    let same = || lengths.clone();
    let mut all = vec![
        (1, 1, one_of(lengths)),
        (1, 1, same()),
        (1, group, one_of(lengths)),
        (1, group, same()),
        (heads_kv, 1, same()),
        (heads_kv, group, one_of(lengths)),
        (1, group.min(2), same()),
        (heads_kv.min(2), 1, same()),
        (heads_kv.div_ceil(2), group, same()),
        (heads_kv, group.div_ceil(2), same()),
        (
            heads_kv,
            group,
            half(lengths, |all| &all[..all.len().div_ceil(2)]),
        ),
        (heads_kv, group, half(lengths, |all| &all[all.len() / 2..])),
    ];
    for quarters in [(2, 2), (2, 4), (4, 2), (2, 3), (3, 2), (3, 3)] {
        all.push((heads_kv, group, shortened(lengths, quarters)));
    }
    let version = |(heads_kv, group, lengths)| {
        let mut version = case.clone();
        version.spec.heads_kv = heads_kv;
        version.spec.group = group;
        version.spec.lengths = lengths;
        CorpusCase::Attention(Box::new(version))
    };
    all.into_iter().map(version).collect()
}

/// The sequence of most pairs alone.
fn one_of(lengths: &Lengths) -> Lengths {
    let mut one = lengths.clone();
    match &mut one {
        Lengths::Dense { batch, .. } => *batch = (*batch).min(1),
        Lengths::Varlen(all) => {
            let longest = all.iter().max_by_key(|(seq_q, seq_kv)| seq_q * seq_kv);
            *all = longest.copied().into_iter().collect();
        }
    }
    one
}

/// Half of the sequences: of packed ones those that `of_all` takes.
fn half(lengths: &Lengths, of_all: impl Fn(&[(usize, usize)]) -> &[(usize, usize)]) -> Lengths {
    let mut half = lengths.clone();
    match &mut half {
        Lengths::Dense { batch, .. } => *batch = batch.div_ceil(2),
        Lengths::Varlen(all) => *all = of_all(all).to_vec(),
    }
    half
}

/// So many quarters of the queries and of the keys of each sequence.
fn shortened(lengths: &Lengths, (of_queries, of_keys): (usize, usize)) -> Lengths {
    let mut shortened = lengths.clone();
    let shorten = |seq_q: &mut usize, seq_kv: &mut usize| {
        *seq_q = (*seq_q * of_queries).div_ceil(4);
        *seq_kv = (*seq_kv * of_keys).div_ceil(4);
    };
    match &mut shortened {
        Lengths::Dense { seq_q, seq_kv, .. } => shorten(seq_q, seq_kv),
        Lengths::Varlen(all) => all
            .iter_mut()
            .for_each(|(seq_q, seq_kv)| shorten(seq_q, seq_kv)),
    }
    shortened
}

fn of_cache(spec: &DecodeSpec) -> Vec<CorpusCase> {
    let sequences = spec.kv_lens.len();
    let mut all = Vec::new();
    for (heads_kv, from, to) in [
        (1, 0, sequences.min(1)),
        (1, 0, sequences),
        (spec.heads_kv, 0, sequences.min(1)),
        (spec.heads_kv, 0, sequences.div_ceil(2)),
        (spec.heads_kv, sequences / 2, sequences),
        (spec.heads_kv.div_ceil(2), 0, sequences),
    ] {
        let mut smaller = spec.clone();
        smaller.heads_kv = heads_kv;
        smaller.kv_lens = spec.kv_lens[from..to].to_vec();
        smaller.queries = spec.queries.as_ref().map(|all| all[from..to].to_vec());
        all.push(CorpusCase::Decode(Box::new(smaller)));
    }
    all
}
