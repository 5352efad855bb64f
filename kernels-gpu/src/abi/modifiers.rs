//! Parameters of what may change, hide or drop pairs of a query and a key beyond [`ScoreParams`](super::ScoreParams) and the
//! band: masks, biases, sinks and dropout. Kernels without them do not take these parameters.

use bytemuck::{Pod, Zeroable};

use super::tensor::DeviceAddress;

/// An array with an element for each pair, or for each of some of their coordinates: strides of 0 broadcast.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct PairsArg {
    /// Device address of element `[0, 0, 0, 0]`; `None` where there is no array.
    pub address: Option<DeviceAddress>,
    /// Strides in elements; queries and keys are counted from the first of their sequence.
    pub batch_stride: i64,
    pub head_stride: i64,
    pub query_stride: i64,
    pub key_stride: i64,
}

/// Ids of documents, i32: a query sees keys of its own id.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct DocumentsArg {
    /// i32 `[batch, seq_q]`, packed `[total_q]`. `None`: there are no documents.
    pub of_queries: Option<DeviceAddress>,
    /// As `of_queries`, of keys; given where `of_queries` is.
    pub of_keys: Option<DeviceAddress>,
    /// Elements between the ids of two batch entries: 0 where all share them, and where sequences are packed.
    pub query_batch_stride: i64,
    pub key_batch_stride: i64,
}

/// What the pairs of each tile of queries and block of keys look like: a byte each, [`BlockState`]. Tiles and blocks are those
/// of the kernel that reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockStatesArg {
    /// `None`: nothing hides pairs but the band.
    pub address: Option<DeviceAddress>,
    /// Bytes between two batch entries, and two query heads; 0 where all share them.
    pub batch_stride: u64,
    pub head_stride: u64,
    /// Bytes between two tiles of queries: blocks of keys of the longest sequence.
    pub tile_stride: u64,
}

/// What the pairs of a tile of queries and a block of keys look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockState {
    /// No query sees a key.
    Hidden = 0,
    /// Some pairs are hidden.
    Partial = 1,
    /// Every query of the tile sees every key of the block, and all of them exist.
    Full = 2,
}

/// Which probabilities are dropped, after the softmax: those whose random byte reaches a fourth of `threshold`
/// ([`crate::modifiers::dropout`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct DropoutParams {
    /// Key of the generator, and the place in its sequence; used where `state` is `None`.
    pub seed: u64,
    pub offset: u64,
    /// Device address of both, u64 each: seed, offset.
    pub state: Option<DeviceAddress>,
    /// Of four neighbours' bytes, 0 to 255, so many values together stay; 0 where nothing is dropped.
    pub threshold: u32,
    /// `1 / (1 − p)`, which multiplies those that stay.
    pub scale: f32,
}

/// Where the keep mask of a part of a backward pass lies ([`crate::modifiers::keep_mask`]): that of some units, heads of k and v of a
/// batch entry, which one launch computes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct KeepMaskArg {
    /// Device address of its first word; `None` where the kernel calls the generator itself, or nothing is dropped.
    pub address: Option<DeviceAddress>,
    /// Number of the first unit, and how many there are; of no meaning without an address, as what follows.
    pub first_unit: u32,
    pub units: u32,
    /// Number of the first unit's first query head, of those of all batch entries.
    pub first_head: u32,
    /// Warps' words of the keys of a query, and of a query head.
    pub key_words: u32,
    pub head_words: u64,
}

/// A number to divide by, of which the GPU has no instruction: `x / d = x · multiplier >> (31 + shift)` for x below 2³¹
/// (Granlund, Montgomery 1994, "Division by invariant integers using multiplication").
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Divisor {
    /// 0: there is none.
    divisor: u32,
    multiplier: u32,
    shift: u32,
}

impl Divisor {
    /// No number.
    pub const NONE: Self = Self {
        divisor: 0,
        multiplier: 0,
        shift: 0,
    };

    /// The number `divisor`, which is below 2³¹; none for 0.
    pub const fn new(divisor: u32) -> Self {
        assert!(divisor < 1 << 31);
        if divisor == 0 {
            return Self::NONE;
        }
        let shift = divisor.next_power_of_two().trailing_zeros();
        let multiplier = (1u64 << (31 + shift)).div_ceil(divisor as u64);
        Self {
            divisor,
            multiplier: multiplier as u32,
            shift,
        }
    }

    /// Whether there is a number.
    #[inline(always)]
    pub const fn is_some(&self) -> bool {
        self.divisor != 0
    }

    /// Whether there is none.
    #[inline(always)]
    pub const fn is_none(&self) -> bool {
        self.divisor == 0
    }

    /// `x` divided by the number, rounded down; `x` is below 2³¹.
    #[inline(always)]
    pub const fn divide(&self, x: u32) -> u32 {
        ((x as u64 * self.multiplier as u64) >> 31 >> self.shift) as u32
    }

    /// The number; 0 where there is none.
    #[inline(always)]
    pub const fn get(&self) -> u32 {
        self.divisor
    }

    /// The rest of that division.
    #[inline(always)]
    pub const fn rest(&self, x: u32) -> u32 {
        x - self.divide(x) * self.divisor
    }
}

/// Everything that a kernel with modifiers is given beside the parameters of every kernel.
///
/// A query sees a key if the key is in the band or among the first `prefix` ones, and the mask, the blocks, the documents, the
/// chunk and the dilation all let it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct ModifierParams {
    /// u8: a query sees a key whose byte is not 0.
    pub mask: PairsArg,
    /// Elements of type `bias_type`, in nats: added to the score after softcap and ALiBi.
    pub bias: PairsArg,
    /// u8, a [`BlockState`] for each `block_q` queries and `block_kv` keys.
    pub blocks: PairsArg,
    pub documents: DocumentsArg,
    /// i32 `[batch]`, or `[1]` where `prefix_stride` is 0: the first keys of a sequence that every query sees, the band
    /// notwithstanding.
    pub prefix: Option<DeviceAddress>,
    /// f32 `[heads_q]`: scores of a key without a value, in nats, that every query of the head sees.
    pub sinks: Option<DeviceAddress>,
    pub states: BlockStatesArg,
    pub dropout: DropoutParams,
    /// A [`BiasType`] as a number.
    pub bias_type: u32,
    /// A query sees keys of its own chunk of so many positions, where there is one.
    pub chunk: Divisor,
    /// A query sees keys whose distance from it is a multiple of this, where there is one.
    pub dilation: Divisor,
    /// Queries and keys that an element of `blocks` stands for.
    pub block_q: Divisor,
    pub block_kv: Divisor,
    /// Elements between the prefixes of two batch entries.
    pub prefix_stride: u32,
    pub keep_mask: KeepMaskArg,
}

/// Element types of a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum BiasType {
    F32 = 0,
    F16 = 1,
    Bf16 = 2,
}

/// Parameters of the kernel that finds the [`BlockState`] of every tile and block.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct BlockStatesParams {
    pub attention: super::AttentionParams,
    /// Those of the kernel that is to read the states, `states` included.
    pub modifiers: ModifierParams,
    /// Batch entries and heads that have states of their own.
    pub batch: u32,
    pub heads: u32,
    /// Tiles of queries and blocks of keys of the longest sequence.
    pub tiles: u32,
    pub blocks: u32,
    /// Queries of a tile and keys of a block.
    pub tile_queries: u32,
    pub block_keys: u32,
}

/// Parameters of the kernel that makes a keep mask.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct KeepMaskParams {
    pub attention: super::AttentionParams,
    /// Those of the kernel that is to read the mask, `keep_mask` and `states` included.
    pub modifiers: ModifierParams,
    /// Queries of a block and keys of a tile of that kernel, powers of two.
    pub block_queries: u32,
    pub tile_keys: u32,
    /// Tiles of keys, of the mask's own, that a warp makes one after the other.
    pub run_tiles: u32,
    /// 0.
    pub reserved: u32,
}

/// Parameters of the kernels that compute the gradient by a bias.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct BiasGradientParams {
    /// The gradient, f32, whose elements follow each other along keys; written. Strides are 0 along axes that it is summed over.
    pub d_bias: PairsArg,
    /// Its shape but for keys, of which it has as many as the longest sequence: 1 along axes that it is summed over.
    pub batch: u32,
    pub heads: u32,
    pub queries: u32,
    /// 0.
    pub reserved: u32,
}

/// Modifiers of a kernel that takes none but sinks.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct SinkParams {
    /// f32 `[heads_q]`, in nats.
    pub sinks: Option<DeviceAddress>,
}

/// Parameters of the kernel that computes the gradient by sinks.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct SinkGradientParams {
    /// lse in bits and delta of every row, of all heads of a batch entry before those of the next.
    pub lse_log2: u64,
    pub delta: u64,
    /// f32 `[heads]`.
    pub sinks: u64,
    /// f32 `[heads]`; written.
    pub d_sinks: u64,
    pub batch: u32,
    pub heads: u32,
    pub rows: u32,
    /// 0.
    pub reserved: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_divide() {
        let divisors = [
            1,
            2,
            3,
            5,
            7,
            64,
            100,
            127,
            128,
            129,
            8191,
            1 << 30,
            (1 << 31) - 1,
        ];
        let beside = |x: u32| [x.saturating_sub(1), x, (x + 1).min((1 << 31) - 1)];
        for d in divisors {
            let divisor = Divisor::new(d);
            let multiples = [0, 1, 2, 3, 1000, ((1u32 << 31) - 1) / d];
            for x in multiples.map(|m| m.saturating_mul(d).min((1 << 31) - 1)) {
                for x in beside(x) {
                    assert_eq!(
                        (divisor.divide(x), divisor.rest(x)),
                        (x / d, x % d),
                        "{x} / {d}"
                    );
                }
            }
        }
        assert!(Divisor::new(0).is_none() && Divisor::new(5).is_some());
    }
}
