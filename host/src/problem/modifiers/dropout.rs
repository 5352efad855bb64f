use kernels_gpu::abi::{Band, DropoutParams};
use kernels_gpu::modifiers::dropout::{Dropout as Generator, threshold};
use kernels_gpu::modifiers::{Pair, Place};

use crate::Error;

/// Dropout of probabilities, after the softmax: each is 0 with probability `p`, and times `1 / (1 − p)` otherwise. Sums of the
/// softmax, and lse, are those without dropout.
///
/// Which ones are dropped is decided by a counter-based generator (Philox 4×32-10) from seed, offset, batch entry, query head,
/// query and key alone: the same on every backend, in every kernel, forward and backward ([`keeps`](Self::keeps)). The rate is
/// `p` to within 2⁻¹¹, over four neighbouring pairs together; that of one pair to within 2⁻⁸. One
/// below 2⁻¹¹ drops nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    p: f32,
    seed: u64,
    offset: u64,
    is_on_device: bool,
}

impl Dropout {
    /// Drops probabilities with probability `p`, from `seed` on.
    ///
    /// # Errors
    /// [`Error::Argument`] on `dropout` unless `p` is at least 0 and below 1.
    pub fn new(p: f32, seed: u64) -> Result<Self, Error> {
        if !(0.0..1.0).contains(&p) {
            let wrong = format!("the rate is {p}");
            return Err(Error::argument(
                "dropout",
                wrong,
                "it must be at least 0 and below 1",
            ));
        }
        Ok(Self {
            p,
            seed,
            offset: 0,
            is_on_device: false,
        })
    }

    /// Sets the place in the generator's sequence: steps of a training run take one each.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Takes seed and offset from the backend's memory, two u64, whose address is given with each launch
    /// ([`ModifierOperands::dropout_state`](crate::ModifierOperands::dropout_state)): so that a captured graph drops others each
    /// time.
    pub fn state_on_device(mut self) -> Self {
        self.is_on_device = true;
        self
    }

    /// Whether seed and offset lie in the backend's memory.
    pub fn is_on_device(&self) -> bool {
        self.is_on_device
    }

    /// The rate.
    pub fn p(&self) -> f32 {
        self.p
    }

    /// What multiplies probabilities that are kept, `1 / (1 − p)`.
    pub fn scale(&self) -> f32 {
        (1.0 / (1.0 - f64::from(self.p))) as f32
    }

    /// The parameters of kernels, without an address.
    pub(crate) fn params(&self) -> DropoutParams {
        DropoutParams {
            seed: self.seed,
            offset: self.offset,
            state: None,
            threshold: threshold(f64::from(self.p)),
            scale: self.scale(),
        }
    }

    /// Whether the probability of a query and a key is kept, counted from the first of their sequence, of query head `head` of
    /// the `heads` of batch entry `batch`. For tests: a kernel decides the same.
    ///
    /// # Panics
    /// If the device alone has seed and offset.
    pub fn keeps(&self, [batch, head]: [usize; 2], heads: usize, query: usize, key: usize) -> bool {
        assert!(!self.is_on_device, "the host has seed and offset");
        let params = self.params();
        if params.threshold == 0 {
            return true;
        }
        let place = Place {
            batch: batch as u32,
            head: head as u32,
            heads: heads as u32,
            q_begin: 0,
            kv_begin: 0,
            seq_q: 0,
            seq_kv: 0,
            band: Band::FULL,
        };
        // SAFETY: seed and offset are in the parameters.
        let generator = unsafe { Generator::new(&params, &place) };
        generator.keeps(Pair {
            query: query as u32,
            key: key as u32,
        })
    }
}
