//! Modifiers of a case: which there are, small enough to print, and their values from a seed.

use std::fmt;

use ferroflash::{
    BiasTensor, BlockMask, DType, Documents, Dropout, Error, HostTensor, Layout, MaskTensor,
    Modifiers, PrefixLengths, Problem, Shape, Sinks,
};
use proptest::bool::weighted;
use proptest::prelude::*;
use proptest::sample::select;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::fill::mix;
use super::foreign;

/// The most elements of an array; of one that would be larger, axes hold for all.
const MOST_ELEMENTS: usize = 1 << 21;

/// Axes of an array over pairs that hold for all: batch, heads and queries.
type Broadcast = [bool; 3];

/// Which modifiers a case has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModifierSpec {
    /// A mask that hides pairs at random, so many of a hundred, and some rows whole.
    pub mask: Option<(Broadcast, u32)>,
    /// A bias of N(0, 1) numbers.
    #[serde(with = "foreign::bias")]
    pub bias: Option<(Broadcast, DType)>,
    /// Blocks of so many queries and keys, a third of them hidden.
    pub blocks: Option<[u32; 2]>,
    /// Documents of about so many rows, and whether each batch entry has its own.
    pub documents: Option<(u32, bool)>,
    /// The first keys, the same number in all batch entries or one each up to it.
    pub prefix: Option<(u32, bool)>,
    /// [`Modifiers::chunk`].
    pub chunk: Option<u32>,
    /// [`Modifiers::dilation`].
    pub dilation: Option<u32>,
    /// Whether there are sinks, N(0, 1) each.
    pub sinks: bool,
    /// The rate of dropout.
    pub dropout: Option<f32>,
}

impl ModifierSpec {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The modifiers of a case of `problem`, which has none yet.
    ///
    /// # Errors
    /// [`Error::Argument`] if they do not fit it.
    pub fn build(&self, problem: &Problem, seed: u64) -> Result<Modifiers, Error> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(mix(seed, 6));
        let heads = problem.q().shape.heads;
        let pairs = [problem.batch(), heads, problem.seq_q(), problem.seq_kv()];
        let mut modifiers = Modifiers::default();
        if let Some((broadcast, hidden)) = self.mask {
            modifiers.mask = Some(mask(broadcasted(pairs, broadcast), hidden, &mut rng)?);
        }
        if let Some((broadcast, dtype)) = self.bias {
            let [batch, heads, seq, dim] = broadcasted(pairs, broadcast);
            let shape = Shape {
                batch,
                heads,
                seq,
                dim,
            };
            let values: Vec<f32> = (0..batch * heads * seq * dim)
                .map(|_| rng.sample(StandardNormal))
                .collect();
            let tensor = HostTensor::from_f32(&values, shape, Layout::Bhsd)?;
            modifiers.bias = Some(BiasTensor::new(&tensor.convert(dtype, Layout::Bhsd)?)?);
        }
        if let Some(block) = self.blocks {
            modifiers.blocks = Some(blocks(pairs, block, &mut rng)?);
        }
        if let Some((length, is_batched)) = self.documents {
            modifiers.documents = Some(documents(problem, length, is_batched, &mut rng));
        }
        modifiers.prefix = self.prefix.map(|(length, is_batched)| match is_batched {
            true => {
                let lengths = (0..pairs[0]).map(|_| rng.random_range(0..=length as i32));
                PrefixLengths::per_batch(&lengths.collect::<Vec<_>>())
            }
            false => PrefixLengths::uniform(length as i32),
        });
        modifiers.chunk = self.chunk;
        modifiers.dilation = self.dilation;
        if self.sinks {
            let sinks: Vec<f32> = (0..heads).map(|_| rng.sample(StandardNormal)).collect();
            modifiers.sinks = Some(Sinks::per_head(&sinks)?);
        }
        if let Some(p) = self.dropout {
            modifiers.dropout = Some(Dropout::new(p, rng.random())?.offset(rng.random()));
        }
        Ok(modifiers)
    }
}

/// `pairs`, with 1 along axes that hold for all, and as many more as it takes to be small.
fn broadcasted(pairs: [usize; 4], broadcast: Broadcast) -> [usize; 4] {
    let mut shape = pairs;
    for (axis, is_broadcast) in broadcast.into_iter().enumerate() {
        let elements: usize = shape.iter().product();
        if is_broadcast || elements > MOST_ELEMENTS {
            shape[axis] = 1;
        }
    }
    shape
}

fn mask(shape: [usize; 4], hidden: u32, rng: &mut impl RngExt) -> Result<MaskTensor, Error> {
    let [batch, heads, rows, keys] = shape;
    let mut values = Vec::with_capacity(batch * heads * rows * keys);
    for _ in 0..batch * heads * rows {
        // Some rows are hidden whole, and some are shown.
        let of_row = match rng.random_range(0..16) {
            0 => 100,
            1 => 0,
            _ => hidden,
        };
        values.extend((0..keys).map(|_| u8::from(rng.random_range(0..100) >= of_row)));
    }
    MaskTensor::new(&values, shape)
}

fn blocks(
    [batch, heads, seq_q, seq_kv]: [usize; 4],
    [block_q, block_kv]: [u32; 2],
    rng: &mut impl RngExt,
) -> Result<BlockMask, Error> {
    let q_blocks = seq_q.div_ceil(block_q as usize);
    let kv_blocks = seq_kv.div_ceil(block_kv as usize);
    let shape = [batch, heads, q_blocks, kv_blocks];
    let rows = batch * heads * q_blocks;
    let (mut counts, mut indices) = (Vec::new(), vec![0; rows * kv_blocks]);
    for row in 0..rows {
        let shown: Vec<i32> = (0..kv_blocks as i32)
            .filter(|_| rng.random_range(0..3) > 0)
            .collect();
        indices[row * kv_blocks..][..shown.len()].copy_from_slice(&shown);
        counts.push(shown.len() as i32);
    }
    BlockMask::from_lists(&counts, &indices, shape, [block_q, block_kv])
}

fn documents(problem: &Problem, length: u32, is_batched: bool, rng: &mut impl RngExt) -> Documents {
    let (q, k) = (problem.q().shape, problem.k().shape);
    let is_batched = is_batched && !problem.is_packed();
    let mut ids = |rows: usize| -> Vec<i32> {
        let mut id = 0;
        let entries = if is_batched { q.batch } else { 1 };
        let row = |_| {
            id = (id + i32::from(rng.random_range(0..length.max(1)) == 0)) % 5;
            id - 2
        };
        (0..entries * rows).map(row).collect()
    };
    let (of_queries, of_keys) = (ids(q.seq), ids(k.seq));
    match is_batched {
        true => Documents::per_batch(&of_queries, &of_keys),
        false => Documents::new(&of_queries, &of_keys),
    }
}

/// Modifiers of sequences up to `limit`: none in two of three cases, one or several in the others.
pub(super) fn strategy(limit: usize) -> impl Strategy<Value = ModifierSpec> {
    let rarely = |is_wanted: f64| weighted(is_wanted);
    let broadcast = || [rarely(0.4), rarely(0.4), rarely(0.3)];
    let dtypes = select(DType::ALL.to_vec());
    let option = |is_on: bool| is_on.then_some(());
    let wanted = [(); 9].map(|()| rarely(0.22));
    let sizes = (
        (broadcast(), select(vec![5u32, 40, 90, 99])),
        (broadcast(), dtypes),
        [
            select(vec![1u32, 16, 24, 64, 128]),
            select(vec![8u32, 33, 64, 128]),
        ],
        (1..=limit as u32, any::<bool>()),
        (0..=limit as u32, any::<bool>()),
        1..=limit as u32,
        2..=5u32,
        select(vec![0.0f32, 0.1, 0.5, 0.9]),
    );
    let some = (wanted, sizes).prop_map(move |(wanted, sizes)| ModifierSpec {
        mask: option(wanted[0]).map(|()| sizes.0),
        bias: option(wanted[1]).map(|()| sizes.1),
        blocks: option(wanted[2]).map(|()| sizes.2),
        documents: option(wanted[3]).map(|()| sizes.3),
        prefix: option(wanted[4]).map(|()| sizes.4),
        chunk: option(wanted[5]).map(|()| sizes.5),
        dilation: option(wanted[6]).map(|()| sizes.6),
        sinks: wanted[7],
        dropout: option(wanted[8]).map(|()| sizes.7),
    });
    prop_oneof![2 => Just(ModifierSpec::default()), 1 => some]
}

impl fmt::Display for ModifierSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mask,
            bias,
            blocks,
            documents,
            prefix,
            chunk,
            dilation,
            sinks,
            dropout,
        } = self;
        let axes = |broadcast: &Broadcast| -> String {
            let names = ["batch", "heads", "queries"].into_iter().zip(broadcast);
            let held = names.filter(|(_, is_broadcast)| !**is_broadcast);
            let held: Vec<_> = held.map(|(name, _)| name).collect();
            held.join("+")
        };
        if let Some((broadcast, hidden)) = mask {
            write!(f, " mask {hidden}% of {}", axes(broadcast))?;
        }
        if let Some((broadcast, dtype)) = bias {
            write!(f, " {} bias of {}", dtype.name(), axes(broadcast))?;
        }
        if let Some([queries, keys]) = blocks {
            write!(f, " blocks {queries}×{keys}")?;
        }
        let each = |is_batched: &bool| if *is_batched { " each" } else { "" };
        if let Some((length, is_batched)) = documents {
            write!(f, " documents of {length}{}", each(is_batched))?;
        }
        if let Some((length, is_batched)) = prefix {
            write!(f, " prefix {length}{}", each(is_batched))?;
        }
        for (name, size) in [("chunk", chunk), ("dilation", dilation)] {
            if let Some(size) = size {
                write!(f, " {name} {size}")?;
            }
        }
        if *sinks {
            f.write_str(" sinks")?;
        }
        match dropout {
            Some(p) => write!(f, " dropout {p}"),
            None => Ok(()),
        }
    }
}
