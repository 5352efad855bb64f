use std::fmt;
use std::sync::Arc;

use bytemuck::{NoUninit, bytes_of};
use kernels_gpu::abi::ModifierParams;
use kernels_gpu::instances::Instance;
use kernels_gpu::modifiers::{
    Buffer, Hides, MAX_BUFFERS, Pair, Place, ScoreMod, ScoreModKernels, WithScoreMod,
};

use super::array::Array;
use crate::{Error, PtxModules};

/// A score modification of the caller's own: a value of a type that implements [`ScoreMod`], and the PTX of the kernels that it is
/// compiled into.
///
/// It may change scores, after softmax_scale, softcap, ALiBi and bias, and hide pairs, beside all other options that do. Backward
/// multiplies gradients with its derivative. The CPU backend calls the type's functions as they are.
///
/// The crate `examples/score-mod` of ferroflash's repository has three of them, and says how they are compiled.
#[derive(Clone)]
pub struct ScoreModification {
    value: Arc<dyn AnyScoreMod>,
    kernels: &'static Kernels,
    ptx: PtxModules,
    buffers: Vec<(Array, u64)>,
}

/// What is the same of all values of a type.
struct Kernels {
    name: &'static str,
    instances: &'static [Instance],
    block_states: &'static Instance,
    hides: Hides,
    /// Bytes of [`WithScoreMod`].
    param_bytes: usize,
}

/// The kernels of a type.
struct Of<S>(std::marker::PhantomData<S>);

impl<S: ScoreModKernels> Of<S> {
    const KERNELS: Kernels = Kernels {
        name: S::NAME,
        instances: S::INSTANCES,
        block_states: S::BLOCK_STATES,
        hides: S::HIDES,
        param_bytes: size_of::<WithScoreMod<S>>(),
    };
}

impl ScoreModification {
    /// The modification by `value`, which kernels of `ptx` were compiled with; [`include_ptx!`](crate::include_ptx) embeds them, and
    /// [`PtxModules::NONE`] is enough for the CPU.
    ///
    /// # Errors
    /// [`Error::Argument`] on `score_mod` if kernels of that name take parameters of another size than `S`.
    ///
    /// # Safety
    /// Kernels of `ptx` with the names of `S::INSTANCES` and `S::BLOCK_STATES` were compiled from `S`, and no others of these names
    /// are launched in this process. Whatever `S` reads by an address that is not one of its buffers is live memory of the
    /// backend whenever a problem with this option runs there.
    pub unsafe fn new<S: ScoreModKernels>(value: S, ptx: PtxModules) -> Result<Self, Error> {
        let name = S::BLOCK_STATES.name;
        let expected = size_of::<S>();
        if let Some(found) = ptx.text(name).map(|text| param_bytes(text, 1))
            && found != expected
        {
            let wrong = format!("{} was compiled with {found} bytes of parameters", S::NAME);
            let allowed = format!("kernels of the type given, which has {expected} bytes");
            return Err(Error::argument("score_mod", wrong, allowed));
        }
        Ok(Self {
            value: Arc::new(value),
            kernels: const { &Of::<S>::KERNELS },
            ptx,
            buffers: Vec::new(),
        })
    }

    /// Adds an array that the modification reads, which is copied to the device when it is first needed there. Clones share the
    /// copy. At most [`MAX_BUFFERS`], which [`ScoreMod::bind`] is given in their order.
    pub fn buffer<T: NoUninit>(mut self, values: &[T]) -> Self {
        let bytes = size_of_val(values) as u64;
        self.buffers.push((Array::new(values), bytes));
        self
    }

    /// Adds an array in the backend's memory, whose address is given with each launch
    /// ([`ModifierOperands::score_mod`](crate::ModifierOperands::score_mod)). It has `bytes` bytes.
    pub fn buffer_on_device(mut self, bytes: usize) -> Self {
        self.buffers.push((Array::ON_DEVICE, bytes as u64));
        self
    }

    /// The end of its kernels' names.
    pub fn name(&self) -> &'static str {
        self.kernels.name
    }

    /// The functions as the host calls them, with buffers of the host's.
    ///
    /// # Panics
    /// If only the device has a buffer.
    pub fn on_host(&self) -> BoundScoreMod {
        let address = |(values, _): &(Array, u64)| {
            let values = values.values().expect("the host has the buffer");
            Some(values.as_ptr().expose_provenance() as u64)
        };
        let mut addresses = [None; MAX_BUFFERS];
        for (found, buffer) in addresses.iter_mut().zip(&self.buffers) {
            *found = address(buffer);
        }
        self.bound(&addresses)
    }

    /// The value with the addresses of its buffers.
    pub(crate) fn bound(&self, addresses: &[Option<u64>; MAX_BUFFERS]) -> BoundScoreMod {
        let bound = self.try_bind(addresses);
        BoundScoreMod {
            value: bound.expect("checked with the problem"),
            param_bytes: self.kernels.param_bytes,
        }
    }

    fn try_bind(
        &self,
        addresses: &[Option<u64>; MAX_BUFFERS],
    ) -> Result<Box<dyn AnyScoreMod>, &'static str> {
        let buffers = self.buffers.iter().zip(addresses);
        let buffers = buffers.map(|(&(_, bytes), address)| Buffer {
            address: address.unwrap_or_default(),
            bytes,
        });
        self.value.bound(&buffers.collect::<Vec<_>>())
    }

    /// Refuses buffers that do not fit.
    pub(super) fn check(&self) -> Result<(), Error> {
        let count = self.buffers.len();
        if count > MAX_BUFFERS {
            let wrong = format!("{} has {count} buffers", self.name());
            let allowed = format!("at most {MAX_BUFFERS}");
            return Err(Error::argument("score_mod", wrong, allowed));
        }
        let bound = self.try_bind(&[None; MAX_BUFFERS]);
        bound.map(|_| ()).map_err(|reason| {
            let wrong = format!("{} refuses its buffers", self.name());
            Error::argument("score_mod", wrong, reason)
        })
    }

    /// Its buffers.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = &Array> {
        self.buffers.iter().map(|(array, _)| array)
    }

    /// Which pairs it may hide.
    pub(crate) fn hides(&self) -> Hides {
        self.kernels.hides
    }

    /// Kernels of problems with it.
    pub(crate) fn instances(&self) -> &'static [Instance] {
        self.kernels.instances
    }

    /// The kernel that finds what tiles and blocks look like.
    pub(crate) fn block_states(&self) -> &'static Instance {
        self.kernels.block_states
    }

    /// The PTX of its kernels.
    pub(crate) fn ptx(&self) -> PtxModules {
        self.ptx
    }
}

impl PartialEq for ScoreModification {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.kernels.instances, other.kernels.instances)
            && self.name() == other.name()
            && self.ptx == other.ptx
            && self.value.bytes() == other.value.bytes()
            && self.buffers == other.buffers
    }
}

impl fmt::Debug for ScoreModification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScoreModification")
            .field("name", &self.name())
            .field("params", &self.value.bytes())
            .field("buffers", &self.buffers.len())
            .finish_non_exhaustive()
    }
}

/// A score modification whose buffers have addresses.
pub struct BoundScoreMod {
    value: Box<dyn AnyScoreMod>,
    param_bytes: usize,
}

impl BoundScoreMod {
    /// What a pair's score, in nats, becomes.
    pub fn score(&self, score: f32, at: &Place, pair: Pair) -> f32 {
        self.value.score(score, at, pair)
    }

    /// Its derivative by what it was.
    pub fn derivative(&self, score: f32, at: &Place, pair: Pair) -> f32 {
        self.value.derivative(score, at, pair)
    }

    /// Whether the query sees the key, but for other options.
    pub fn is_visible(&self, at: &Place, pair: Pair) -> bool {
        self.value.is_visible(at, pair)
    }

    /// The parameter of a kernel that finds what tiles and blocks look like.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.value.bytes()
    }

    /// The parameter of other kernels: that, behind `modifiers`.
    pub(crate) fn behind(&self, modifiers: &ModifierParams) -> Vec<u8> {
        let mut bytes = [bytes_of(modifiers), self.value.bytes()].concat();
        bytes.resize(self.param_bytes, 0);
        bytes
    }
}

/// A [`ScoreMod`] of any type.
trait AnyScoreMod: Send + Sync {
    fn bound(&self, buffers: &[Buffer]) -> Result<Box<dyn AnyScoreMod>, &'static str>;
    fn bytes(&self) -> &[u8];
    fn score(&self, score: f32, at: &Place, pair: Pair) -> f32;
    fn derivative(&self, score: f32, at: &Place, pair: Pair) -> f32;
    fn is_visible(&self, at: &Place, pair: Pair) -> bool;
}

impl<S: ScoreMod> AnyScoreMod for S {
    fn bound(&self, buffers: &[Buffer]) -> Result<Box<dyn AnyScoreMod>, &'static str> {
        let mut bound = *self;
        bound.bind(buffers)?;
        Ok(Box::new(bound))
    }

    fn bytes(&self) -> &[u8] {
        bytes_of(self)
    }

    fn score(&self, score: f32, at: &Place, pair: Pair) -> f32 {
        match S::CHANGES_SCORES {
            true => ScoreMod::score(self, score, at, pair),
            false => score,
        }
    }

    fn derivative(&self, score: f32, at: &Place, pair: Pair) -> f32 {
        match S::CHANGES_SCORES {
            true => ScoreMod::derivative(self, score, at, pair),
            false => 1.0,
        }
    }

    fn is_visible(&self, at: &Place, pair: Pair) -> bool {
        !S::HIDES.any() || ScoreMod::is_visible(self, at, pair)
    }
}

/// Bytes of parameter number `index` of the only kernel of a PTX module; 0 if it has none.
fn param_bytes(ptx: &str, index: usize) -> usize {
    let end = format!("_param_{index}");
    let declared = ptx.lines().find_map(|line| {
        let words = line.trim().trim_end_matches(',').strip_prefix(".param ")?;
        let (ty, name) = words.rsplit_once(' ')?;
        match name.split_once('[') {
            Some((name, bytes)) if name.ends_with(&end) => bytes.strip_suffix(']')?.parse().ok(),
            // A number: `.u64`.
            None if name.ends_with(&end) => {
                let bits = ty.trim_start_matches(|c: char| !c.is_ascii_digit());
                bits.parse().ok().map(|bits: usize| bits / 8)
            }
            _ => None,
        }
    });
    declared.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::param_bytes;

    #[test]
    fn sizes_of_parameters_are_found() {
        let ptx = ".visible .entry f(\n\t.param .align 8 .b8 f_param_0[688],\n\t.param .align 4 .b8 f_param_1[24]\n)";
        assert_eq!([0, 1, 2].map(|index| param_bytes(ptx, index)), [688, 24, 0]);
        assert_eq!(param_bytes("\t.param .u64 f_param_1\n", 1), 8);
    }
}
