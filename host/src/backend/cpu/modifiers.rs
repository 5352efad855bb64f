//! Modifiers of single pairs on the CPU: the functions that kernels ask, asked of tiles whose rows are keys and whose columns are
//! queries.

use std::ops::Range;

use kernels_gpu::abi::ModifierParams;
use kernels_gpu::modifiers::{Modifiers as _, Pair, Place, sink_of};

use crate::plan::modifiers::{ModifierOperands, bind_modifiers, modifier_params};
use crate::problem::Array;
use crate::{BoundScoreMod, Operands, Problem, Sequence};

/// The modifiers of a problem, in the host's memory.
pub(super) struct CpuModifiers {
    params: ModifierParams,
    /// The caller's own.
    score_mod: Option<BoundScoreMod>,
    hide: bool,
    heads: u32,
}

impl CpuModifiers {
    /// Those of `problem`, if it has any; their values are the host's, or lie where `operands` say.
    pub fn new(problem: &Problem, operands: &Operands) -> Option<Self> {
        let modifiers = problem.modifiers();
        if modifiers.is_none() {
            return None;
        }
        let arrays = arrays_of(problem, operands);
        Some(Self {
            params: bind_modifiers(&modifier_params(problem), &arrays, None),
            score_mod: modifiers
                .score_mod
                .as_ref()
                .map(|own| own.bound(&arrays.score_mod)),
            hide: modifiers.hide(),
            heads: problem.q().shape.heads as u32,
        })
    }

    /// Query head `head` of the sequence, which is batch entry number `index`.
    pub fn place(&self, sequence: &Sequence, index: usize, head: usize) -> Place {
        let begin = |rows: &Range<usize>| rows.start as u32;
        Place {
            batch: index as u32,
            head: head as u32,
            heads: self.heads,
            q_begin: begin(&sequence.q_rows),
            kv_begin: begin(&sequence.kv_rows),
            seq_q: sequence.seq_q() as u32,
            seq_kv: sequence.seq_kv() as u32,
            band: sequence.band,
        }
    }

    /// Whether pairs may be hidden that the band shows, or the other way round.
    pub fn hide(&self) -> bool {
        self.hide
    }

    /// Whether a query sees a key.
    pub fn sees(&self, at: &Place, query: usize, key: usize) -> bool {
        let pair = pair(query, key);
        // SAFETY: the problem's checks have seen that arrays have an element for every pair.
        let is_shown = unsafe { self.params.sees(at, pair) };
        let own = self.score_mod.as_ref();
        is_shown && own.is_none_or(|own| own.is_visible(at, pair))
    }

    /// Whether scores have derivatives that [`change`](Self::change) tells of.
    pub fn has_slope(&self) -> bool {
        self.score_mod.is_some()
    }

    /// Turns the scores of a column, a query's of the keys `keys`, into those that enter the softmax, and calls `slope` with the
    /// place of each in the column and its derivative, where that may differ from 1.
    pub fn change<'a>(
        &self,
        at: &Place,
        query: usize,
        keys: Range<usize>,
        column: impl Iterator<Item = &'a mut f32>,
        mut slope: impl FnMut(usize, f32),
    ) {
        if !self.params.changes_scores() && self.score_mod.is_none() {
            return;
        }
        for (index, (key, score)) in keys.zip(column).enumerate() {
            let pair = pair(query, key);
            if self.params.changes_scores() {
                // SAFETY: as in `sees`.
                *score += unsafe { self.params.bias_of(at, pair) };
            }
            if let Some(own) = &self.score_mod {
                slope(index, own.derivative(*score, at, pair));
                *score = own.score(*score, at, pair);
            }
        }
    }

    /// Multiplies what belongs to the probabilities of a query by 0 where they are dropped.
    pub fn drop_pairs<'a>(
        &self,
        at: &Place,
        query: usize,
        keys: Range<usize>,
        column: impl Iterator<Item = &'a mut f32>,
    ) {
        // SAFETY: seed and offset are live where they lie in memory.
        let Some(dropout) = (unsafe { self.params.dropout(at) }) else {
            return;
        };
        for (key, p) in keys.zip(column) {
            if !dropout.keeps(pair(query, key)) {
                *p = 0.0;
            }
        }
    }

    /// Multiplies probabilities that are kept.
    pub fn dropout_scale(&self) -> f32 {
        self.params.dropout_scale()
    }

    /// The sink of a query head, in nats.
    pub fn sink(&self, head: usize) -> Option<f32> {
        let sinks = self.params.sinks?;
        // SAFETY: there is one for each head.
        Some(unsafe { sink_of(sinks, head as u32) })
    }
}

/// The addresses of the arrays of `problem`'s modifiers: those that `operands` give, or those of the host's values.
pub(super) fn arrays_of(problem: &Problem, operands: &Operands) -> ModifierOperands {
    let here = |array: &Array| {
        let values = array.values().expect("checked operands");
        Ok(values.as_ptr().expose_provenance() as u64)
    };
    let arrays = operands.modifiers.resolve(problem.modifiers(), here);
    arrays.expect("nothing is copied")
}

fn pair(query: usize, key: usize) -> Pair {
    Pair {
        query: query as u32,
        key: key as u32,
    }
}
