//! The parameters of kernels with modifiers, and the launch that finds what their tiles and blocks look like.

use bytemuck::Zeroable;
use kernels_gpu::abi::{
    AttentionParams, BiasType, BlockStatesArg, BlockStatesParams, DeviceAddress, Divisor,
    DocumentsArg, DropoutParams, KeepMaskArg, ModifierParams, PairsArg, SinkGradientParams,
};
use kernels_gpu::config::warp_per_row;
use kernels_gpu::instances::{Instance, Operation};
use kernels_gpu::modifiers::MAX_BUFFERS;

use crate::problem::{Array, Modifiers, PairArray};
use crate::{DType, Error, Problem};

/// Addresses of the arrays of a problem's modifiers, in the memory of the backend that runs it. `None`: the problem has no such
/// array, or the backend uses a copy of the host's values, made at the first call with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModifierOperands {
    /// Element `[0, 0, 0, 0]` of the mask, u8.
    pub mask: Option<u64>,
    /// Element `[0, 0, 0, 0]` of the bias.
    pub bias: Option<u64>,
    /// Element `[0, 0, 0, 0]` of the mask's blocks, u8.
    pub blocks: Option<u64>,
    /// Ids of the documents of queries and of keys, i32: as many as [`Documents`](crate::Documents) says.
    pub documents: Option<[u64; 2]>,
    /// Lengths of prefixes, i32 `[batch]`.
    pub prefix: Option<u64>,
    /// Sinks, f32 `[heads_q]`.
    pub sinks: Option<u64>,
    /// Words of a tree of drafts, u64: as many as [`TreeMask`](crate::TreeMask) says.
    pub tree_mask: Option<u64>,
    /// Seed and offset of dropout, u64 each.
    pub dropout_state: Option<u64>,
    /// Buffers of the score modification, in their order.
    pub score_mod: [Option<u64>; MAX_BUFFERS],
}

/// What errors call these.
const BUFFER_NAMES: [&str; MAX_BUFFERS] = [
    "buffer 0 of score_mod",
    "buffer 1 of score_mod",
    "buffer 2 of score_mod",
    "buffer 3 of score_mod",
];

/// An array of a problem's modifiers: its name, the address given, its alignment, and its values on the host.
type Named<'a> = (&'static str, Option<u64>, u64, &'a Array);

impl ModifierOperands {
    /// No addresses.
    pub const NONE: Self = Self {
        mask: None,
        bias: None,
        blocks: None,
        documents: None,
        prefix: None,
        sinks: None,
        tree_mask: None,
        dropout_state: None,
        score_mod: [None; MAX_BUFFERS],
    };

    /// The arrays that `modifiers` have, with the addresses given for them.
    fn named<'a>(&self, modifiers: &'a Modifiers) -> impl Iterator<Item = Named<'a>> + use<'a> {
        const WORD: u64 = 4;
        let Modifiers {
            mask,
            blocks,
            documents,
            prefix,
            chunk: _,
            dilation: _,
            bias,
            sinks,
            tree,
            dropout: _,
            score_mod,
        } = modifiers;
        let ids = |index: usize| self.documents.map(|both| both[index]);
        let (of_queries, of_keys) = (ids(0), ids(1));
        let &Self {
            mask: mask_at,
            bias: bias_at,
            blocks: blocks_at,
            prefix: prefix_at,
            sinks: sinks_at,
            tree_mask: tree_at,
            score_mod: buffers_at,
            ..
        } = self;
        let mask = mask
            .iter()
            .map(move |mask| ("mask", mask_at, 1, &mask.0.values));
        let bias = bias.iter().map(move |bias| {
            let align = bias.dtype().bytes() as u64;
            ("bias", bias_at, align, &bias.0.values)
        });
        let blocks = blocks.iter();
        let blocks = blocks.map(move |blocks| ("blocks", blocks_at, 1, &blocks.states.values));
        let documents = documents.iter().flat_map(move |ids| {
            [
                ("doc_q", of_queries, WORD, &ids.of_queries),
                ("doc_kv", of_keys, WORD, &ids.of_keys),
            ]
        });
        let prefix = prefix.iter();
        let prefix = prefix.map(move |prefix| ("prefix_len", prefix_at, WORD, &prefix.lengths));
        let sinks = sinks
            .iter()
            .map(move |sinks| ("sinks", sinks_at, WORD, &sinks.values));
        let tree = tree.iter();
        let tree = tree.map(move |tree| ("tree_mask", tree_at, 2 * WORD, &tree.words));
        let buffers = score_mod.iter().flat_map(|score_mod| score_mod.buffers());
        let buffers = BUFFER_NAMES
            .into_iter()
            .zip(buffers_at)
            .zip(buffers)
            .map(|((name, address), array)| (name, address, WORD, array));
        mask.chain(bias)
            .chain(blocks)
            .chain(documents)
            .chain(prefix)
            .chain(sinks)
            .chain(tree)
            .chain(buffers)
    }

    /// Returns an error if the address of an array that `modifiers` have is missing or impossible.
    pub(super) fn check(
        &self,
        modifiers: &Modifiers,
        check: impl Fn(&'static str, u64, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let state = modifiers.dropout.filter(|dropout| dropout.is_on_device());
        let state = state.map(|_| ("dropout_state", self.dropout_state, 8, &Array::ON_DEVICE));
        for (name, address, align, array) in self.named(modifiers).chain(state) {
            match address {
                Some(address) => check(name, address, align)?,
                None if array.values().is_none() => {
                    let wrong = "no address is given, and only the device has the values";
                    let allowed = "its address among the operands";
                    return Err(Error::argument(name, wrong, allowed));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// The addresses of the arrays that `modifiers` have: those given, and of others what `copy` says of the host's values.
    pub(crate) fn resolve(
        &self,
        modifiers: &Modifiers,
        mut copy: impl FnMut(&Array) -> Result<u64, Error>,
    ) -> Result<Self, Error> {
        let mut found = Self {
            dropout_state: self.dropout_state.filter(|_| {
                modifiers
                    .dropout
                    .is_some_and(|dropout| dropout.is_on_device())
            }),
            ..Self::default()
        };
        for (name, given, _, array) in self.named(modifiers) {
            let address = match given {
                Some(address) => address,
                None => copy(array)?,
            };
            match name {
                "mask" => found.mask = Some(address),
                "bias" => found.bias = Some(address),
                "blocks" => found.blocks = Some(address),
                "doc_q" => found.documents = Some([address, 0]),
                "doc_kv" => found.documents = found.documents.map(|[q, _]| [q, address]),
                "prefix_len" => found.prefix = Some(address),
                "sinks" => found.sinks = Some(address),
                "tree_mask" => found.tree_mask = Some(address),
                _ => {
                    let index = BUFFER_NAMES.iter().position(|buffer| *buffer == name);
                    found.score_mod[index.expect("all others are above")] = Some(address);
                }
            }
        }
        Ok(found)
    }
}

/// The parameters of `problem`'s modifiers, without addresses.
pub(crate) fn modifier_params(problem: &Problem) -> ModifierParams {
    let Modifiers {
        mask,
        blocks,
        documents,
        prefix,
        chunk,
        dilation,
        bias,
        sinks: _,
        // Kernels for caches alone have them.
        tree: _,
        dropout,
        // Its parameters are its own.
        score_mod: _,
    } = problem.modifiers();
    let no_pairs = PairsArg::zeroed();
    let (q, k) = (problem.q().shape, problem.k().shape);
    let is_batched = documents.as_ref().is_some_and(|ids| ids.is_batched());
    let ids_stride = |rows: usize| if is_batched { rows as i64 } else { 0 };
    ModifierParams {
        mask: mask.as_ref().map_or(no_pairs, |mask| pairs_arg(&mask.0)),
        bias: bias.as_ref().map_or(no_pairs, |bias| pairs_arg(&bias.0)),
        blocks: blocks
            .as_ref()
            .map_or(no_pairs, |blocks| pairs_arg(&blocks.states)),
        documents: DocumentsArg {
            query_batch_stride: ids_stride(q.seq),
            key_batch_stride: ids_stride(k.seq),
            ..DocumentsArg::zeroed()
        },
        prefix: None,
        sinks: None,
        states: BlockStatesArg::zeroed(),
        dropout: dropout.map_or(NO_DROPOUT, |dropout| dropout.params()),
        bias_type: bias
            .as_ref()
            .map_or(BiasType::F32, |bias| match bias.dtype() {
                DType::F32 => BiasType::F32,
                DType::F16 => BiasType::F16,
                DType::Bf16 => BiasType::Bf16,
                DType::E4m3 => unreachable!("refused with the problem"),
            }) as u32,
        chunk: Divisor::new(chunk.unwrap_or(0)),
        dilation: Divisor::new(dilation.unwrap_or(0)),
        block_q: blocks
            .as_ref()
            .map_or(Divisor::NONE, |blocks| Divisor::new(blocks.block_q)),
        block_kv: blocks
            .as_ref()
            .map_or(Divisor::NONE, |blocks| Divisor::new(blocks.block_kv)),
        prefix_stride: prefix
            .as_ref()
            .is_some_and(|prefix| prefix.is_batched())
            .into(),
        keep_mask: KeepMaskArg::zeroed(),
    }
}

const NO_DROPOUT: DropoutParams = DropoutParams {
    seed: 0,
    offset: 0,
    state: None,
    threshold: 0,
    scale: 1.0,
};

fn pairs_arg(array: &PairArray) -> PairsArg {
    let [batch_stride, head_stride, query_stride, key_stride] = array.strides;
    PairsArg {
        address: None,
        batch_stride,
        head_stride,
        query_stride,
        key_stride,
    }
}

/// `params` with addresses; `states` is that of the states, if there are any.
pub(crate) fn bind_modifiers(
    params: &ModifierParams,
    arrays: &ModifierOperands,
    states: Option<u64>,
) -> ModifierParams {
    let address = |of: Option<u64>| of.and_then(DeviceAddress::new);
    let mut params = *params;
    params.mask.address = address(arrays.mask);
    params.bias.address = address(arrays.bias);
    params.blocks.address = address(arrays.blocks);
    params.documents.of_queries = address(arrays.documents.map(|[q, _]| q));
    params.documents.of_keys = address(arrays.documents.map(|[_, k]| k));
    params.prefix = address(arrays.prefix);
    params.sinks = address(arrays.sinks);
    params.dropout.state = address(arrays.dropout_state);
    params.states.address = address(states);
    params
}

/// The launch that finds the states of a kernel's tiles and blocks, without addresses, and how the kernel reads them.
#[derive(Clone, Debug)]
pub(super) struct StatesLaunch {
    pub params: BlockStatesParams,
    pub grid: u32,
    pub bytes: u64,
}

impl StatesLaunch {
    /// That of a kernel with tiles of `tile_queries` queries and blocks of `block_keys` keys; `None` where nothing but the band
    /// hides pairs, or there are no pairs.
    pub fn new(
        problem: &Problem,
        attention: &AttentionParams,
        [tile_queries, block_keys]: [u32; 2],
    ) -> Option<Self> {
        if !problem.modifiers().hide() {
            return None;
        }
        // Sequences of their own lengths have blocks of their own.
        let [by_batch, by_head] = problem.modifiers().hidden_by();
        let by_batch = by_batch || !matches!(problem.lengths(), crate::Lengths::Dense);
        // States that all batches share are found from those of the first, and so with an empty batch by none.
        let shared = |of: u32, differs: bool| if differs { of } else { of.min(1) };
        let batch = shared(attention.batch, by_batch);
        let heads = shared(attention.heads_q, by_head);
        let tiles = attention.seq_q.div_ceil(tile_queries);
        let blocks = attention.seq_kv.div_ceil(block_keys);
        // Hopper's kernels read the states of a tile by words.
        let tile_stride = u64::from(blocks).next_multiple_of(size_of::<u32>() as u64);
        let of_head = u64::from(tiles) * tile_stride;
        let of_batch = of_head * u64::from(heads);
        let bytes = of_batch * u64::from(batch);
        let mut modifiers = modifier_params(problem);
        modifiers.states = BlockStatesArg {
            address: None,
            batch_stride: if by_batch { of_batch } else { 0 },
            head_stride: if by_head { of_head } else { 0 },
            tile_stride,
        };
        let params = BlockStatesParams {
            attention: *attention,
            modifiers,
            batch,
            heads,
            tiles,
            blocks,
            tile_queries,
            block_keys,
        };
        let states = u64::from(batch) * u64::from(heads) * u64::from(tiles) * u64::from(blocks);
        let grid = warp_per_row::grid(states);
        (bytes > 0).then_some(Self {
            params,
            grid,
            bytes,
        })
    }
}

/// What tiles and blocks look like to several kernels; those of one shape are found once.
#[derive(Clone, Debug)]
pub(super) struct StatesOfKernels(Vec<([u32; 2], Option<StatesLaunch>)>);

impl StatesOfKernels {
    /// Those of backward kernels `kernels`.
    pub fn new<'a>(
        problem: &Problem,
        attention: &AttentionParams,
        kernels: impl IntoIterator<Item = &'a Instance>,
    ) -> Self {
        let mut all: Vec<([u32; 2], Option<StatesLaunch>)> = Vec::new();
        for kernel in kernels {
            let Some(tile) = tile_of_pairs(kernel) else {
                continue;
            };
            if all.iter().all(|(other, _)| *other != tile) {
                all.push((tile, StatesLaunch::new(problem, attention, tile)));
            }
        }
        Self(all)
    }

    /// The number of those of `kernel`, if it takes tiles and blocks of pairs.
    pub fn index(&self, kernel: &Instance) -> Option<usize> {
        let tile = tile_of_pairs(kernel)?;
        let index = self.0.iter().position(|(other, _)| *other == tile);
        Some(index.expect("one of the kernels"))
    }

    /// The launch that finds those with number `index`, if pairs may be hidden.
    pub fn launch(&self, index: usize) -> Option<&StatesLaunch> {
        self.0[index].1.as_ref()
    }

    /// Where they lie behind the first ones.
    pub fn offset(&self, index: usize) -> u64 {
        let before = self.0[..index].iter();
        before
            .flat_map(|(_, states)| states)
            .map(|states| states.bytes)
            .sum()
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.offset(self.0.len())
    }
}

/// Queries and keys of a tile of a backward kernel's and a block that passes; none of the one that rounds dq.
fn tile_of_pairs(kernel: &Instance) -> Option<[u32; 2]> {
    match kernel.operation {
        Operation::BackwardRound => None,
        Operation::BackwardQueries | Operation::BackwardSlopes | Operation::BackwardBias => {
            Some([kernel.block_m, kernel.block_n])
        }
        _ => Some([kernel.block_n, kernel.block_m]),
    }
}

/// The parameters of the kernel that computes the gradient by sinks, without addresses.
pub(super) fn sink_gradient_params(attention: &AttentionParams, rows: usize) -> SinkGradientParams {
    SinkGradientParams {
        lse_log2: 0,
        delta: 0,
        sinks: 0,
        d_sinks: 0,
        // Packed sequences follow each other along the rows.
        batch: if attention.lengths.has_cu_seqlens() {
            1
        } else {
            attention.batch
        },
        heads: attention.heads_q,
        rows: rows as u32,
        reserved: 0,
    }
}
