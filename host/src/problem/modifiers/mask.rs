use super::super::{Problem, SEQ_LIMIT};
use super::array::{Array, PairArray};
use crate::Error;

/// A mask with a byte a pair, or one for many: `[batch or 1, heads_q or 1, seq_q or 1, seq_kv]`, where axes of 1 hold for all. A
/// query sees keys whose byte is not 0, of those that the other masks show. A row without keys has o = 0 and lse = −∞.
///
/// Of packed sequences, `batch` is their number, and rows are counted from each sequence's first, up to the longest's.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskTensor(pub(crate) PairArray);

impl MaskTensor {
    /// The mask with these bytes, the last axis first.
    ///
    /// # Errors
    /// [`Error::Argument`] on `mask` unless there are as many as `shape` has elements.
    pub fn new(values: &[u8], shape: [usize; 4]) -> Result<Self, Error> {
        let array = PairArray::contiguous("mask", Array::new(values), values.len(), shape)?;
        Ok(Self(array))
    }

    /// Whether it shows key `pair[3]` to query `pair[2]` of query head `pair[1]` of batch entry `pair[0]`.
    ///
    /// # Panics
    /// If only the device has it.
    pub fn shows(&self, pair: [usize; 4]) -> bool {
        self.0.values.get::<u8>(self.0.index(pair) as usize) != 0
    }

    /// A mask in the backend's memory, whose address is given with each launch
    /// ([`ModifierOperands::mask`](crate::ModifierOperands::mask)); `strides` are in bytes, and may be any.
    pub fn on_device(shape: [usize; 4], strides: [i64; 4]) -> Self {
        Self(PairArray::new(Array::ON_DEVICE, shape, strides))
    }
}

/// Blocks of pairs that are hidden whole: of `block_q` queries and `block_kv` keys, the last of them shorter.
///
/// Blocks that are hidden are neither loaded nor computed. Pairs of the others are shown, unless another mask hides them.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockMask {
    /// `[batch or 1, heads_q or 1, q_blocks, kv_blocks]`, u8: 0 for blocks that are hidden.
    pub(crate) states: PairArray,
    pub(crate) block_q: u32,
    pub(crate) block_kv: u32,
}

impl BlockMask {
    /// The blocks with these bytes, 0 for those that are hidden, `[batch or 1, heads_q or 1, q_blocks, kv_blocks]`.
    ///
    /// # Errors
    /// [`Error::Argument`] on `blocks` unless there are as many as `shape` has elements, or if a block has no query or key.
    pub fn new(states: &[u8], shape: [usize; 4], block: [u32; 2]) -> Result<Self, Error> {
        let array = PairArray::contiguous("blocks", Array::new(states), states.len(), shape)?;
        Self::of(array, block)
    }

    /// The blocks of keys that each block of queries sees, as FlexAttention's `BlockMask` lists them: the first `counts` of
    /// the `kv_blocks` elements of `indices` for each of `[batch or 1, heads_q or 1, q_blocks]`.
    ///
    /// # Errors
    /// [`Error::Argument`] on `block_counts` or `block_indices` if one has not as many elements as `shape`, or names a block
    /// that there is not.
    pub fn from_lists(
        counts: &[i32],
        indices: &[i32],
        shape: [usize; 4],
        block: [u32; 2],
    ) -> Result<Self, Error> {
        let [batch, heads, q_blocks, kv_blocks] = shape;
        let refused = |argument: &'static str, wrong: String, allowed: String| {
            Err(Error::argument(argument, wrong, allowed))
        };
        let rows = batch * heads * q_blocks;
        for (argument, found, expected) in [
            ("block_counts", counts.len(), rows),
            ("block_indices", indices.len(), rows * kv_blocks),
        ] {
            if found != expected {
                let allowed = format!("it must have {expected}");
                return refused(argument, format!("it has {found} elements"), allowed);
            }
        }
        let mut states = vec![0u8; rows * kv_blocks];
        let within =
            |value: i32, limit: usize| usize::try_from(value).ok().filter(|&value| value < limit);
        for (row, &count) in counts.iter().enumerate() {
            let Some(count) = within(count, kv_blocks + 1) else {
                let allowed = format!("0 to {kv_blocks}, the blocks of keys");
                return refused("block_counts", format!("element {row} is {count}"), allowed);
            };
            let of_row = row * kv_blocks..(row + 1) * kv_blocks;
            let states = &mut states[of_row.clone()];
            for (place, &index) in indices[of_row].iter().take(count).enumerate() {
                let Some(index) = within(index, kv_blocks) else {
                    let wrong = format!("element {} is {index}", row * kv_blocks + place);
                    let allowed = format!("a block of keys, below {kv_blocks}");
                    return refused("block_indices", wrong, allowed);
                };
                states[index] = 1;
            }
        }
        Self::new(&states, shape, block)
    }

    /// Whether they show key `pair[3]` to query `pair[2]` of query head `pair[1]` of batch entry `pair[0]`.
    ///
    /// # Panics
    /// If only the device has them.
    pub fn shows(&self, [batch, head, query, key]: [usize; 4]) -> bool {
        let block = [
            batch,
            head,
            query / self.block_q as usize,
            key / self.block_kv as usize,
        ];
        let index = self.states.index(block) as usize;
        self.states.values.get::<u8>(index) != 0
    }

    /// Blocks in the backend's memory, a byte each, whose address is given with each launch
    /// ([`ModifierOperands::blocks`](crate::ModifierOperands::blocks)).
    ///
    /// # Errors
    /// [`Error::Argument`] on `blocks` if a block has no query or key.
    pub fn on_device(shape: [usize; 4], strides: [i64; 4], block: [u32; 2]) -> Result<Self, Error> {
        Self::of(PairArray::new(Array::ON_DEVICE, shape, strides), block)
    }

    fn of(states: PairArray, [block_q, block_kv]: [u32; 2]) -> Result<Self, Error> {
        let sizes = 1..SEQ_LIMIT as u32;
        if !(sizes.contains(&block_q) && sizes.contains(&block_kv)) {
            let wrong = format!("a block has {block_q} queries and {block_kv} keys");
            let allowed = format!("1 of each or more, and below {SEQ_LIMIT}");
            return Err(Error::argument("blocks", wrong, allowed));
        }
        Ok(Self {
            states,
            block_q,
            block_kv,
        })
    }

    pub(super) fn check(&self, [batch, heads, seq_q, seq_kv]: [usize; 4]) -> Result<(), Error> {
        let blocks = [
            batch,
            heads,
            seq_q.div_ceil(self.block_q as usize),
            seq_kv.div_ceil(self.block_kv as usize),
        ];
        self.states.check("blocks", blocks)
    }
}

/// Ids of the documents that queries and keys belong to: a query sees keys of its own document (packed training without lengths).
#[derive(Clone, Debug, PartialEq)]
pub struct Documents {
    pub(crate) of_queries: Array,
    pub(crate) of_keys: Array,
    is_batched: bool,
}

impl Documents {
    /// Ids that all batch entries share: one for each query and each key of a sequence, or for each row of packed operands.
    pub fn new(of_queries: &[i32], of_keys: &[i32]) -> Self {
        Self {
            of_queries: Array::new(of_queries),
            of_keys: Array::new(of_keys),
            is_batched: false,
        }
    }

    /// Ids of each batch entry, `[batch, seq_q]` and `[batch, seq_kv]`, one row after the other.
    pub fn per_batch(of_queries: &[i32], of_keys: &[i32]) -> Self {
        Self {
            is_batched: true,
            ..Self::new(of_queries, of_keys)
        }
    }

    /// Whether the query in row `query` and the key in row `key` of their operands are of one document, in batch entry `batch`.
    /// Operands have `rows` rows, of q, and of k and v.
    ///
    /// # Panics
    /// If only the device has the ids.
    pub fn share(&self, batch: usize, query: usize, key: usize, rows: [usize; 2]) -> bool {
        let [of_query, of_key] = match self.is_batched {
            true => [batch * rows[0] + query, batch * rows[1] + key],
            false => [query, key],
        };
        self.of_queries.get::<i32>(of_query) == self.of_keys.get::<i32>(of_key)
    }

    /// Ids in the backend's memory, whose addresses are given with each launch
    /// ([`ModifierOperands::documents`](crate::ModifierOperands::documents)).
    pub fn on_device(is_batched: bool) -> Self {
        Self {
            of_queries: Array::ON_DEVICE,
            of_keys: Array::ON_DEVICE,
            is_batched,
        }
    }

    /// Whether each batch entry has ids of its own.
    pub fn is_batched(&self) -> bool {
        self.is_batched
    }

    pub(super) fn check(&self, problem: &Problem) -> Result<(), Error> {
        let (q, k) = (problem.q().shape, problem.k().shape);
        if self.is_batched && problem.is_packed() {
            let wrong = "there are ids of each batch entry beside packed sequences";
            return Err(Error::argument("doc_q", wrong, "ids of each row"));
        }
        let entries = if self.is_batched { q.batch } else { 1 };
        for (argument, ids, rows) in [
            ("doc_q", &self.of_queries, q.seq),
            ("doc_kv", &self.of_keys, k.seq),
        ] {
            let expected = entries * rows;
            if let Some(found) = ids.len::<i32>().filter(|&found| found != expected) {
                let wrong = format!("it has {found} ids");
                return Err(Error::argument(
                    argument,
                    wrong,
                    format!("it must have {expected}"),
                ));
            }
        }
        Ok(())
    }
}

/// How many of the first keys every query sees, whatever [`Mask`](crate::Mask) there is: with
/// [`Mask::Causal`](crate::Mask::Causal) a prefix language model.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefixLengths {
    pub(crate) lengths: Array,
    is_batched: bool,
}

impl PrefixLengths {
    /// The same for all batch entries.
    pub fn uniform(length: i32) -> Self {
        Self {
            lengths: Array::new(&[length]),
            is_batched: false,
        }
    }

    /// One for each batch entry, or packed sequence.
    pub fn per_batch(lengths: &[i32]) -> Self {
        Self {
            lengths: Array::new(lengths),
            is_batched: true,
        }
    }

    /// That of batch entry `batch`.
    ///
    /// # Panics
    /// If only the device has it.
    pub fn get(&self, batch: usize) -> i32 {
        self.lengths.get(if self.is_batched { batch } else { 0 })
    }

    /// One for each batch entry, i32, in the backend's memory, whose address is given with each launch
    /// ([`ModifierOperands::prefix`](crate::ModifierOperands::prefix)).
    pub fn on_device() -> Self {
        Self {
            lengths: Array::ON_DEVICE,
            is_batched: true,
        }
    }

    /// Whether each batch entry has a length of its own.
    pub fn is_batched(&self) -> bool {
        self.is_batched
    }

    pub(super) fn check(&self, batch: usize) -> Result<(), Error> {
        let found = self.lengths.len::<i32>();
        match found.filter(|&found| self.is_batched && found != batch) {
            None => Ok(()),
            Some(found) => {
                let wrong = format!("it has {found} lengths");
                Err(Error::argument(
                    "prefix_len",
                    wrong,
                    format!("it must have {batch}, the batch"),
                ))
            }
        }
    }
}
