//! What modifiers do to a query and a key, by their definitions.

use ferroflash::{BoundScoreMod, Modifiers, Problem, Sequence};
use kernels_gpu::modifiers::{Pair, Place};

/// The modifiers of one query head of one sequence.
pub(super) struct PairRules<'a> {
    modifiers: &'a Modifiers,
    sequence: Sequence,
    /// Number of the batch entry.
    batch: usize,
    head: usize,
    heads: usize,
    /// Rows of the operands: of q, and of k and v.
    rows: [usize; 2],
    /// A score modification of the caller's own. It is a function of f32, by its definition.
    own: Option<BoundScoreMod>,
}

impl<'a> PairRules<'a> {
    /// Those of query head `head` of batch entry number `batch`.
    pub fn new(problem: &'a Problem, batch: usize, head: usize) -> Self {
        Self {
            modifiers: problem.modifiers(),
            sequence: problem.sequence(batch),
            batch,
            head,
            heads: problem.q().shape.heads,
            rows: [problem.q().shape.seq, problem.k().shape.seq],
            own: problem
                .modifiers()
                .score_mod
                .as_ref()
                .map(|own| own.on_host()),
        }
    }

    /// What the caller's own functions are asked about query `i` and key `j`.
    fn place(&self, i: usize, j: usize) -> (Place, Pair) {
        let at = Place {
            batch: self.batch as u32,
            head: self.head as u32,
            heads: self.heads as u32,
            q_begin: self.sequence.q_rows.start as u32,
            kv_begin: self.sequence.kv_rows.start as u32,
            seq_q: self.sequence.seq_q() as u32,
            seq_kv: self.sequence.seq_kv() as u32,
            band: self.sequence.band,
        };
        let pair = Pair {
            query: i as u32,
            key: j as u32,
        };
        (at, pair)
    }

    /// What `score` becomes by the caller's own score modification, and its derivative; `None` without one.
    pub fn own(&self, score: f64, i: usize, j: usize) -> Option<[f64; 2]> {
        let own = self.own.as_ref()?;
        let (at, pair) = self.place(i, j);
        let score = score as f32;
        Some(
            [
                own.score(score, &at, pair),
                own.derivative(score, &at, pair),
            ]
            .map(f64::from),
        )
    }

    /// Whether query `i`, which stands at `position` among the keys, sees key `j`, if `in_band` says whether the mask shows it.
    pub fn sees(&self, i: usize, j: usize, position: i64, in_band: bool) -> bool {
        // Taken apart by name, so that it does not compile until each is asked.
        let Modifiers {
            mask,
            blocks,
            documents,
            prefix,
            chunk,
            dilation,
            bias: _,
            sinks: _,
            dropout: _,
            score_mod: _,
            ..
        } = self.modifiers;
        let pair = [self.batch, self.head, i, j];
        let in_prefix = prefix
            .as_ref()
            .is_some_and(|prefix| (j as i64) < i64::from(prefix.get(self.batch)));
        let (query, key) = (
            self.sequence.q_rows.start + i,
            self.sequence.kv_rows.start + j,
        );
        let shares = documents
            .as_ref()
            .is_none_or(|ids| ids.share(self.sequence.batch, query, key, self.rows));
        let in_chunk = chunk.is_none_or(|chunk| {
            let of = |position: i64| position.div_euclid(i64::from(chunk));
            of(position) == of(j as i64)
        });
        let steps = |step: u32| (position - j as i64) % i64::from(step) == 0;
        let own = self.own.as_ref().is_none_or(|own| {
            let (at, pair) = self.place(i, j);
            own.is_visible(&at, pair)
        });
        (in_band || in_prefix)
            && mask.as_ref().is_none_or(|mask| mask.shows(pair))
            && blocks.as_ref().is_none_or(|blocks| blocks.shows(pair))
            && shares
            && in_chunk
            && dilation.is_none_or(steps)
            && own
    }

    /// The bias of a query and a key.
    pub fn bias(&self, i: usize, j: usize) -> f64 {
        let bias = self.modifiers.bias.as_ref();
        bias.map_or(0.0, |bias| {
            f64::from(bias.get([self.batch, self.head, i, j]))
        })
    }

    /// What dropout multiplies a probability with: 0, or its scale; 1 without.
    pub fn dropout(&self, i: usize, j: usize) -> f64 {
        let Some(dropout) = self.modifiers.dropout else {
            return 1.0;
        };
        match dropout.keeps([self.batch, self.head], self.heads, i, j) {
            true => 1.0 / (1.0 - f64::from(dropout.p())),
            false => 0.0,
        }
    }

    /// The score of the head's sink.
    pub fn sink(&self) -> Option<f64> {
        let sinks = self.modifiers.sinks.as_ref()?;
        Some(f64::from(sinks.get(self.head)))
    }
}
