//! What a launch should leave.

use ferroflash::cases::Case;
use ferroflash::oracle::Rows;
use ferroflash::{
    AlibiSlopes, ForwardOptions, HostTensor, Layout, Mask, Operands, Shape, TensorSpec,
};
use kernels_gpu::abi::{Corner, SequenceRows};
use kernels_gpu::wgmma::tile_list::Workspace;

use super::{Outcome, PATTERN, Scene};

impl Scene {
    /// The rows that sequence `batch` should have: wrong lengths brought inside, by rules of this file's own.
    pub fn rows(&self, batch: u32) -> SequenceRows {
        let index = batch as usize;
        let [q_shape, k_shape] = [&self.q, &self.k].map(|tensor| tensor.spec().shape);
        let extent = |which: usize, total: usize| match &self.lengths.cu_seqlens {
            Some(arrays) => {
                let ends = &arrays[which][index..index + 2];
                let begin = i64::from(ends[0]).clamp(0, total as i64);
                let end = i64::from(ends[1]).clamp(begin, total as i64);
                let rows = (end - begin).min(self.longest[which].into());
                (begin as u32, rows as u32)
            }
            None => (0, total as u32),
        };
        let (q_begin, seq_q) = extent(0, q_shape.seq);
        let (kv_begin, seq_kv) = extent(1, k_shape.seq);
        let used = self
            .lengths
            .used
            .as_ref()
            .map_or(i32::MAX, |used| used[index]);
        SequenceRows {
            q_begin,
            seq_q,
            kv_begin,
            seq_kv: seq_kv.min(u32::try_from(used).unwrap_or(0)),
        }
    }

    /// Holds every sequence's rows to the oracle, and every other row to the pattern.
    ///
    /// # Panics
    /// If one is wrong.
    pub fn check(&self, outcome: &Outcome, what: &str) {
        let name = self.instance.name;
        let shape = outcome.o.spec().shape;
        let mut is_written = vec![false; shape.batch * shape.seq];
        for batch in 0..self.batch {
            let rows = self.rows(batch);
            let place = self.place(batch);
            let begin = place * shape.seq + rows.q_begin as usize;
            is_written[begin..begin + rows.seq_q as usize].fill(true);
            if rows.seq_q > 0 {
                let (case, o, lse) = self.alone(outcome, batch);
                let verdict = case.check(&o, &lse, Rows::All).expect("checked");
                assert!(
                    verdict.passed(),
                    "{name}: {what}: sequence {batch}: {verdict}"
                );
            }
        }
        self.check_untouched(outcome, &is_written, what);
        self.check_workspace(outcome, what);
    }

    /// Rows of o and lse that are not written hold the pattern.
    ///
    /// # Panics
    /// If one does not.
    pub fn check_untouched(&self, outcome: &Outcome, is_written: &[bool], what: &str) {
        let name = self.instance.name;
        let spec = outcome.o.spec();
        let row_bytes = spec.shape.heads * spec.shape.dim * spec.dtype.bytes();
        for (row, bytes) in outcome.o.bytes().chunks(row_bytes).enumerate() {
            let is_touched = bytes.iter().any(|&byte| byte != PATTERN);
            assert!(
                !is_touched || is_written[row],
                "{name}: {what}: o's row {row}"
            );
        }
        let pattern = f32::from_ne_bytes([PATTERN; 4]);
        for (batch, of_batch) in outcome
            .lse
            .chunks(spec.shape.heads * spec.shape.seq)
            .enumerate()
        {
            for (index, lse) in of_batch.iter().enumerate() {
                let row = batch * spec.shape.seq + index % spec.shape.seq;
                let is_touched = lse.to_bits() != pattern.to_bits();
                assert!(
                    !is_touched || is_written[row],
                    "{name}: {what}: lse's row {row}"
                );
            }
        }
    }

    /// The tile counter is 0 again, and nothing lies behind the list.
    ///
    /// # Panics
    /// If it is not so.
    pub fn check_workspace(&self, outcome: &Outcome, what: &str) {
        let Some(list) = &outcome.list else {
            return;
        };
        let name = self.instance.name;
        let (counter, _) = outcome
            .workspace
            .split_at(Workspace::COUNTER_BYTES as usize);
        assert_eq!(counter, [0; 4], "{name}: {what}: the tile counter");
        let behind = &outcome.workspace[list.layout().bytes as usize..];
        assert!(
            behind.iter().all(|&byte| byte == PATTERN),
            "{name}: {what}: behind the list"
        );
    }

    /// Index of a sequence along the operands' batch axis.
    pub fn place(&self, batch: u32) -> usize {
        match self.lengths.cu_seqlens {
            Some(_) => 0,
            None => batch as usize,
        }
    }

    /// One sequence as a problem of its own, and its rows of o and lse.
    fn alone(&self, outcome: &Outcome, batch: u32) -> (Case, HostTensor, HostTensor) {
        let SequenceRows {
            q_begin,
            seq_q,
            kv_begin,
            seq_kv,
        } = self.rows(batch);
        let place = self.place(batch);
        // From the top-left corner, no query sees keys beyond seq_q; with fewer keys the corners are that far apart.
        let (seq_kv, mask) = match self.corner {
            Corner::BottomRight => (seq_kv, self.mask),
            Corner::TopLeft => {
                assert!(self.mask == Mask::Causal && self.slopes.is_none());
                let seq_kv = seq_kv.min(seq_q);
                let right = Some(seq_q - seq_kv);
                (seq_kv, Mask::Window { left: None, right })
            }
        };
        let [heads_q, _] = self.heads();
        let slopes = self.slopes.as_ref().map(|slopes| {
            let own = &slopes[batch as usize * heads_q..][..heads_q];
            AlibiSlopes::per_head(own).expect("numbers")
        });
        let case = Case {
            q: slice(&self.q, place, q_begin, seq_q),
            k: slice(&self.k, place, kv_begin, seq_kv),
            v: slice(&self.v, place, kv_begin, seq_kv),
            options: ForwardOptions::new()
                .mask(mask)
                .softcap(self.softcap)
                .alibi(slopes),
        };
        let total = outcome.o.spec().shape.seq;
        let lse = (0..heads_q).flat_map(|head| {
            let begin = (place * heads_q + head) * total + q_begin as usize;
            &outcome.lse[begin..begin + seq_q as usize]
        });
        let lse: Vec<f32> = lse.copied().collect();
        let shape = Shape {
            batch: 1,
            heads: heads_q,
            seq: seq_q as usize,
            dim: 1,
        };
        let lse = HostTensor::from_f32(&lse, shape, Layout::Bhsd).expect("as many");
        (case, slice(&outcome.o, place, q_begin, seq_q), lse)
    }
}

/// Rows `begin .. begin + count` of a batch entry.
fn slice(tensor: &HostTensor, batch: usize, begin: u32, count: u32) -> HostTensor {
    let shape = Shape {
        batch: 1,
        seq: count as usize,
        ..tensor.spec().shape
    };
    let spec = TensorSpec::contiguous(tensor.spec().dtype, shape, Layout::Bshd).expect("small");
    let bytes = vec![0; shape.element_count().expect("small") * spec.dtype.bytes()];
    let mut slice = HostTensor::new(spec, 0, bytes).expect("as many");
    for head in 0..shape.heads {
        for row in 0..shape.seq {
            for dim in 0..shape.dim {
                let value = tensor.get(batch, head, begin as usize + row, dim);
                slice.set(0, head, row, dim, value);
            }
        }
    }
    slice
}
