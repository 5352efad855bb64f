//! Smaller versions of a case: fewer heads, fewer and shorter sequences.

use ferroflash_testing::cases::{CorpusCase, DecodeSpec, Lengths};

/// Versions of `case` that take less time, those that take least first. What they execute has to be seen.
pub fn versions(case: &CorpusCase) -> Vec<CorpusCase> {
    match case {
        CorpusCase::Attention(attention) => {
            let spec = &attention.spec;
            let sizes = (spec.heads_kv, spec.group, spec.lengths.clone());
            let mut versions = Vec::new();
            for (heads_kv, group, lengths) in of_sizes(&sizes) {
                let mut smaller = attention.clone();
                smaller.spec.heads_kv = heads_kv;
                smaller.spec.group = group;
                smaller.spec.lengths = lengths;
                versions.push(CorpusCase::Attention(smaller));
            }
            versions
        }
        CorpusCase::Decode(spec) => {
            let versions = of_cache(spec).into_iter();
            versions
                .map(|spec| CorpusCase::Decode(Box::new(spec)))
                .collect()
        }
    }
}

/// Heads of K and V, query heads to each, and sequences.
type Sizes = (usize, usize, Lengths);

fn of_sizes((heads_kv, group, lengths): &Sizes) -> Vec<Sizes> {
    let (heads_kv, group) = (*heads_kv, *group);
    let same = || lengths.clone();
    let mut all = vec![
        (1, 1, one_of(lengths)),
        (1, 1, same()),
        (1, group, one_of(lengths)),
        (1, group, same()),
        (heads_kv, 1, same()),
        (heads_kv, group, one_of(lengths)),
        (1, 2, same()),
        (2, 1, same()),
        (heads_kv.div_ceil(2), group, same()),
        (heads_kv, group.div_ceil(2), same()),
        (heads_kv, group, first_half(lengths)),
        (heads_kv, group, second_half(lengths)),
    ];
    for (of_queries, of_keys) in [(2, 2), (2, 4), (4, 2), (2, 3), (3, 2), (3, 3)] {
        all.push((heads_kv, group, shortened(lengths, of_queries, of_keys)));
    }
    all.retain(|sizes| {
        let (heads_kv_of, group_of, lengths_of) = sizes;
        let fits = *heads_kv_of <= heads_kv && *group_of <= group && lengths_of.batch() > 0;
        fits && (*heads_kv_of != heads_kv || *group_of != group || lengths_of != lengths)
    });
    all
}

/// The sequence of most pairs alone.
fn one_of(lengths: &Lengths) -> Lengths {
    match lengths {
        Lengths::Dense { seq_q, seq_kv, .. } => Lengths::one(*seq_q, *seq_kv),
        Lengths::Varlen(all) => {
            let longest = all.iter().max_by_key(|(seq_q, seq_kv)| seq_q * seq_kv);
            Lengths::Varlen(longest.copied().into_iter().collect())
        }
    }
}

fn first_half(lengths: &Lengths) -> Lengths {
    part(lengths, |all| &all[..all.len().div_ceil(2)])
}

fn second_half(lengths: &Lengths) -> Lengths {
    part(lengths, |all| &all[all.len() / 2..])
}

fn part(lengths: &Lengths, of_all: impl Fn(&[(usize, usize)]) -> &[(usize, usize)]) -> Lengths {
    match lengths {
        Lengths::Dense {
            batch,
            seq_q,
            seq_kv,
        } => Lengths::Dense {
            batch: batch.div_ceil(2),
            seq_q: *seq_q,
            seq_kv: *seq_kv,
        },
        Lengths::Varlen(all) => Lengths::Varlen(of_all(all).to_vec()),
    }
}

/// `of_queries` quarters of the queries of each sequence, and `of_keys` of its keys.
fn shortened(lengths: &Lengths, of_queries: usize, of_keys: usize) -> Lengths {
    let quarters = |length: usize, count: usize| (length * count).div_ceil(4);
    match lengths {
        Lengths::Dense {
            batch,
            seq_q,
            seq_kv,
        } => Lengths::Dense {
            batch: *batch,
            seq_q: quarters(*seq_q, of_queries),
            seq_kv: quarters(*seq_kv, of_keys),
        },
        Lengths::Varlen(all) => {
            let each = all.iter();
            let each = each
                .map(|&(seq_q, seq_kv)| (quarters(seq_q, of_queries), quarters(seq_kv, of_keys)));
            Lengths::Varlen(each.collect())
        }
    }
}

fn of_cache(spec: &DecodeSpec) -> Vec<DecodeSpec> {
    let sequences = spec.kv_lens.len();
    let mut all = Vec::new();
    for (heads_kv, from, to) in [
        (1, 0, 1),
        (1, 0, sequences),
        (spec.heads_kv, 0, 1),
        (spec.heads_kv, 0, sequences.div_ceil(2)),
        (spec.heads_kv, sequences / 2, sequences),
        (spec.heads_kv.div_ceil(2), 0, sequences),
    ] {
        if sequences == 0 {
            continue;
        }
        let mut smaller = spec.clone();
        smaller.heads_kv = heads_kv;
        smaller.kv_lens = spec.kv_lens[from..to].to_vec();
        smaller.queries = spec.queries.as_ref().map(|all| all[from..to].to_vec());
        all.push(smaller);
    }
    all.retain(|smaller| smaller != spec);
    all
}
