use super::{
    AlibiSlopes, BiasTensor, BlockMask, CuSeqlens, Documents, Dropout, Lengths, Mask, MaskTensor,
    Modifiers, Precision, PrefixLengths, ScoreModification, Sinks, TreeMask, Variant,
};
use crate::Layout;

/// Options of attention: everything but the tensors.
///
/// # Range of scores
/// The CPU takes any score that is finite in f32. GPU kernels subtract a row's largest score from the others in one
/// rounding together with the change of base, as FlashAttention-2 does; for scores so large that f32 resolves only
/// dozens of nats, even the difference of a score to itself is off by that much. A row is right while its largest score
/// is below 1.8e8 in size for f16, and below 1.4e9 for bf16 and f32 (2²⁸ and 2³¹ bits); beyond, o may be 0 or NaN and
/// lse ±∞ (`tests/tests/backends/score_limits.rs`). GPU kernels also need `q · k` before scaling to be finite in f32.
///
/// ```
/// use ferroflash::{ForwardOptions, Mask};
/// let options = ForwardOptions::new().mask(Mask::Causal).softmax_scale(0.125);
/// assert_eq!(options.softcap, None);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ForwardOptions {
    /// Multiplies `q · k`; any finite value. `None` means `1 / sqrt(head_dim)`.
    pub softmax_scale: Option<f32>,
    /// Which keys each query sees.
    pub mask: Mask,
    /// Scores become `softcap · tanh(score / softcap)`, after scaling; finite and above 0.
    pub softcap: Option<f32>,
    /// Biases that grow with distance, added to scores after softmax_scale and softcap.
    pub alibi: Option<AlibiSlopes>,
    /// What changes, hides or drops single pairs of a query and a key: masks, a bias, sinks, dropout.
    pub modifiers: Modifiers,
    /// Lengths of the sequences, and whether they are packed.
    pub lengths: Lengths,
    /// Axis order of the output tensor in memory.
    pub o_layout: Layout,
    /// Whether [`forward`](crate::forward) returns lse too; `true` by default.
    pub lse: bool,
    /// Runs this kernel variant instead of the preferred one.
    pub force: Option<Variant>,
    /// How closely f32 products follow f32's own arithmetic.
    pub precision: Precision,
}

impl Default for ForwardOptions {
    fn default() -> Self {
        Self {
            softmax_scale: None,
            mask: Mask::None,
            softcap: None,
            alibi: None,
            modifiers: Modifiers::default(),
            lengths: Lengths::Dense,
            o_layout: Layout::default(),
            lse: true,
            force: None,
            precision: Precision::default(),
        }
    }
}

impl ForwardOptions {
    /// Plain softmax attention: no mask, the default scale, output in bshd.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`softmax_scale`](Self::softmax_scale).
    pub fn softmax_scale(mut self, scale: impl Into<Option<f32>>) -> Self {
        self.softmax_scale = scale.into();
        self
    }

    /// Sets [`mask`](Self::mask).
    pub fn mask(mut self, mask: Mask) -> Self {
        self.mask = mask;
        self
    }

    /// Sets [`softcap`](Self::softcap).
    pub fn softcap(mut self, softcap: impl Into<Option<f32>>) -> Self {
        self.softcap = softcap.into();
        self
    }

    /// Sets [`alibi`](Self::alibi).
    pub fn alibi(mut self, slopes: impl Into<Option<AlibiSlopes>>) -> Self {
        self.alibi = slopes.into();
        self
    }

    /// Sets [`Modifiers::mask`].
    pub fn mask_tensor(mut self, mask: impl Into<Option<MaskTensor>>) -> Self {
        self.modifiers.mask = mask.into();
        self
    }

    /// Sets [`Modifiers::blocks`].
    pub fn block_mask(mut self, blocks: impl Into<Option<BlockMask>>) -> Self {
        self.modifiers.blocks = blocks.into();
        self
    }

    /// Sets [`Modifiers::documents`].
    pub fn documents(mut self, documents: impl Into<Option<Documents>>) -> Self {
        self.modifiers.documents = documents.into();
        self
    }

    /// Sets [`Modifiers::prefix`].
    pub fn prefix(mut self, prefix: impl Into<Option<PrefixLengths>>) -> Self {
        self.modifiers.prefix = prefix.into();
        self
    }

    /// Sets [`Modifiers::chunk`].
    pub fn chunk(mut self, positions: impl Into<Option<u32>>) -> Self {
        self.modifiers.chunk = positions.into();
        self
    }

    /// Sets [`Modifiers::dilation`].
    pub fn dilation(mut self, step: impl Into<Option<u32>>) -> Self {
        self.modifiers.dilation = step.into();
        self
    }

    /// Sets [`Modifiers::bias`].
    pub fn bias(mut self, bias: impl Into<Option<BiasTensor>>) -> Self {
        self.modifiers.bias = bias.into();
        self
    }

    /// Sets [`Modifiers::tree`].
    pub fn tree(mut self, tree: impl Into<Option<TreeMask>>) -> Self {
        self.modifiers.tree = tree.into();
        self
    }

    /// Sets [`Modifiers::sinks`].
    pub fn sinks(mut self, sinks: impl Into<Option<Sinks>>) -> Self {
        self.modifiers.sinks = sinks.into();
        self
    }

    /// Sets [`Modifiers::dropout`].
    pub fn dropout(mut self, dropout: impl Into<Option<Dropout>>) -> Self {
        self.modifiers.dropout = dropout.into();
        self
    }

    /// Sets [`Modifiers::score_mod`].
    pub fn score_mod(mut self, score_mod: impl Into<Option<ScoreModification>>) -> Self {
        self.modifiers.score_mod = score_mod.into();
        self
    }

    /// Sets [`lengths`](Self::lengths) to those of packed sequences, or to [`Lengths::Dense`].
    pub fn cu_seqlens(self, cu_seqlens: impl Into<Option<CuSeqlens>>) -> Self {
        let cu_seqlens = cu_seqlens.into();
        self.lengths(cu_seqlens.map_or(Lengths::Dense, Lengths::Packed))
    }

    /// Sets [`lengths`](Self::lengths).
    pub fn lengths(mut self, lengths: impl Into<Lengths>) -> Self {
        self.lengths = lengths.into();
        self
    }

    /// Sets [`o_layout`](Self::o_layout).
    pub fn o_layout(mut self, layout: Layout) -> Self {
        self.o_layout = layout;
        self
    }

    /// Sets [`lse`](Self::lse).
    pub fn lse(mut self, is_wanted: bool) -> Self {
        self.lse = is_wanted;
        self
    }

    /// Sets [`force`](Self::force).
    pub fn force(mut self, variant: impl Into<Option<Variant>>) -> Self {
        self.force = variant.into();
        self
    }

    /// Sets [`precision`](Self::precision).
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }
}
