//! Addresses of a problem's operands, and checks of them.

use super::{ModifierOperands, Plan};
use crate::{CacheLayout, Error, Lengths, Problem};

/// Addresses of a problem's operands, in the memory of the backend that runs it.
///
/// Each is the address of element `[0, 0, 0, 0]`, aligned to its element's size. An operand without elements is never
/// read, whatever its address. Shapes are those of a dense problem; packed operands have batch 1.
///
/// ```
/// # use ferroflash::Operands;
/// # let [q, k, v, o, lse] = [16; 5];
/// let operands = Operands::new(q, k, v, o).lse(lse);
/// assert_eq!(operands.workspace, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operands {
    /// q, `[batch, heads_q, seq_q, head_dim]`.
    pub q: u64,
    /// k, `[batch, heads_kv, seq_kv, head_dim]`.
    pub k: u64,
    /// v, `[batch, heads_kv, seq_kv, head_dim_v]`.
    pub v: u64,
    /// o, `[batch, heads_q, seq_q, head_dim_v]`; written.
    pub o: u64,
    /// lse, f32 `[batch, heads_q, seq_q]`, varlen `[heads_q, total_q]`, contiguous, in nats; written. `None`: it is
    /// not wanted; kernels of this version then still write it on a GPU, to memory of the backend.
    pub lse: Option<u64>,
    /// The values of the problem's [`AlibiSlopes`](crate::AlibiSlopes), f32. `None`: the backend uses a copy of the
    /// host's values, made at the first call with them.
    pub alibi_slopes: Option<u64>,
    /// Running sums of the lengths of q, and of k and v, i32 `[batch + 1]` each. `None`: the backend uses a copy of the
    /// host's values, made at the first call with them.
    pub cu_seqlens: Option<[u64; 2]>,
    /// Rows of k and v of each sequence that are used, i32 `[batch]`.
    pub seqused_kv: Option<u64>,
    /// Scratch memory of the launch. `None`: the backend's own.
    pub workspace: Option<Workspace>,
    /// Addresses of a backward pass, which reads o and lse.
    pub gradients: Option<GradientOperands>,
    /// Addresses of the arrays of the problem's [`Modifiers`](crate::Modifiers).
    pub modifiers: ModifierOperands,
    /// Addresses of a problem that reads a cache ([`Problem::decode`]); its k and v are the cache's.
    pub cache: Option<CacheOperands>,
}

/// Addresses that attention to a cache has in addition to those of [`Operands`].
///
/// Kernels do not trust what lies there: see [`KvCache`](crate::KvCache).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheOperands {
    /// Keys of each sequence, i32 `[batch]`.
    pub kv_lens: u64,
    /// Pages of each sequence, i32 `[batch, max_pages]`; needed by a paged cache, and ignored otherwise.
    pub block_table: Option<u64>,
    /// A u32 in which a launch sets the bits of [`CacheFaults`](crate::CacheFaults) that it meets, and clears none.
    pub status: Option<u64>,
    /// f32 scales of k and v, of an e4m3 cache that has some.
    pub scales: Option<[u64; 2]>,
}

impl CacheOperands {
    /// The addresses of a contiguous cache.
    pub const fn new(kv_lens: u64) -> Self {
        Self {
            kv_lens,
            block_table: None,
            status: None,
            scales: None,
        }
    }

    /// Sets [`block_table`](Self::block_table).
    pub fn block_table(mut self, address: impl Into<Option<u64>>) -> Self {
        self.block_table = address.into();
        self
    }

    /// Sets [`status`](Self::status).
    pub fn status(mut self, address: impl Into<Option<u64>>) -> Self {
        self.status = address.into();
        self
    }

    /// Sets [`scales`](Self::scales).
    pub fn scales(mut self, addresses: impl Into<Option<[u64; 2]>>) -> Self {
        self.scales = addresses.into();
        self
    }

    /// Returns an error if one cannot be the address of its array, or scales are given that the problem has none of, or not those
    /// that it has.
    pub(crate) fn check(&self, layout: CacheLayout, has_scales: bool) -> Result<(), Error> {
        if has_scales != self.scales.is_some() {
            let wrong = format!("given: {}", self.scales.is_some());
            let allowed = format!("{has_scales}, as the problem has it");
            return Err(Error::argument("scales", wrong, allowed));
        }
        // Of no page there are none, which may lie nowhere.
        let scales = self.scales.into_iter().flatten();
        for scales in scales.filter(|&address| address != 0) {
            check_address("scales", scales, WORD_BYTES)?;
        }
        check_address("kv_lens", self.kv_lens, WORD_BYTES)?;
        match (layout, self.block_table) {
            (CacheLayout::Paged { .. }, None) => {
                let wrong = "no address is given, and the cache has pages";
                let allowed = "its address among those of the cache";
                return Err(Error::argument("block_table", wrong, allowed));
            }
            (CacheLayout::Paged { max_pages, .. }, Some(address)) if max_pages > 0 => {
                check_address("block_table", address, WORD_BYTES)?;
            }
            _ => {}
        }
        match self.status {
            Some(address) => check_address("status", address, WORD_BYTES),
            None => Ok(()),
        }
    }
}

/// Addresses that a backward pass has in addition to those of [`Operands`].
///
/// A plan of a backward pass is launched as one of a forward pass is ([`Backend::launch`](crate::Backend::launch)), with the
/// caller's workspace or the backend's, in the backend's stream.
///
/// ```
/// use ferroflash::{Backend, BackwardOptions, Cpu, GradientOperands, Layout, Operands, Problem};
/// use ferroflash::{DType, Shape, TensorSpec};
///
/// # fn main() -> Result<(), ferroflash::Error> {
/// // Buffers of another framework: here plain vectors, on a GPU its device pointers.
/// let shape = Shape { batch: 1, heads: 2, seq: 5, dim: 8 };
/// let spec = TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd)?;
/// let x = vec![0.5f32; 80];
/// // Of a forward pass: all keys are alike, so o is v, and lse is score + ln 5 with score = 8 · 0.25 / √8.
/// let lse = vec![8f32.sqrt() / 4.0 + 5f32.ln(); 10];
/// let mut gradients = [(); 3].map(|()| vec![0f32; 80]);
///
/// let options = BackwardOptions::default();
/// let problem = Problem::backward_with_dense_gradients(spec, spec, spec, spec, spec, &options)?;
/// let mut backend = Cpu::new();
/// let plan = backend.plan(&problem)?; // once, for any number of launches
/// let x_address = x.as_ptr().expose_provenance() as u64;
/// let [dq, dk, dv] = gradients.each_mut().map(|x| x.as_mut_ptr().expose_provenance() as u64);
/// let operands = Operands::new(x_address, x_address, x_address, x_address)
///     .lse(lse.as_ptr().expose_provenance() as u64)
///     .gradients(GradientOperands::new(x_address, dq, dk, dv));
/// // SAFETY: the vectors hold as many elements as the problem reaches, and outlive the call, which
/// // on this backend returns when the work is done.
/// unsafe { backend.launch(&plan, &operands)? };
/// // Each query gives a key a fifth of its d_o.
/// assert!(gradients[2].iter().all(|dv| (dv - 0.5).abs() < 1e-6));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GradientOperands {
    /// The loss's gradient by o, of o's shape.
    pub d_o: u64,
    /// The loss's gradient by lse, f32 of lse's shape. `None`: 0, as where the loss does not depend on lse.
    pub d_lse: Option<u64>,
    /// dq, of q's shape; written.
    pub dq: u64,
    /// dk, of k's shape; written.
    pub dk: u64,
    /// dv, of v's shape; written.
    pub dv: u64,
    /// The gradient by ALiBi's slopes, laid out as [`Problem::d_alibi_slopes`] says; written. Needed where it is asked for
    /// ([`BackwardOptions::alibi_gradient`](crate::BackwardOptions::alibi_gradient)), and ignored otherwise.
    pub d_alibi_slopes: Option<u64>,
    /// The gradient by sinks, f32 `[heads_q]`; written. Needed where it is asked for
    /// ([`BackwardOptions::sink_gradient`](crate::BackwardOptions::sink_gradient)), and ignored otherwise.
    pub d_sinks: Option<u64>,
    /// The gradient by the bias, laid out as [`Problem::d_bias`] says; written. Needed where it is asked for
    /// ([`BackwardOptions::bias_gradient`](crate::BackwardOptions::bias_gradient)), and ignored otherwise.
    pub d_bias: Option<u64>,
}

impl GradientOperands {
    /// The addresses for a loss that does not depend on lse, without a gradient by slopes.
    pub const fn new(d_o: u64, dq: u64, dk: u64, dv: u64) -> Self {
        Self {
            d_o,
            d_lse: None,
            dq,
            dk,
            dv,
            d_alibi_slopes: None,
            d_sinks: None,
            d_bias: None,
        }
    }

    /// Sets [`d_lse`](Self::d_lse).
    pub fn d_lse(mut self, address: impl Into<Option<u64>>) -> Self {
        self.d_lse = address.into();
        self
    }

    /// Sets [`d_alibi_slopes`](Self::d_alibi_slopes).
    pub fn d_alibi_slopes(mut self, address: impl Into<Option<u64>>) -> Self {
        self.d_alibi_slopes = address.into();
        self
    }

    /// Sets [`d_sinks`](Self::d_sinks).
    pub fn d_sinks(mut self, address: impl Into<Option<u64>>) -> Self {
        self.d_sinks = address.into();
        self
    }

    /// Sets [`d_bias`](Self::d_bias).
    pub fn d_bias(mut self, address: impl Into<Option<u64>>) -> Self {
        self.d_bias = address.into();
        self
    }
}

/// Scratch memory of a launch, in the memory of the backend that runs it.
///
/// The caller zeroes it, or as much as [`Plan::zeroed_workspace_bytes`] says, before its first use; every launch that succeeds
/// leaves it fit for the next, of any plan that needs no more ([`Plan::workspace_bytes`]). Those of
/// [`Variant::Decode`](crate::Variant::Decode), which is chosen for few queries, share one only with each other, and with the
/// same number of zeroed bytes. Launches that may run at the same time must not share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// A multiple of [`WORKSPACE_ALIGN_BYTES`].
    pub address: u64,
    /// Size in bytes.
    pub bytes: usize,
}

/// Alignment of a [`Workspace`].
pub const WORKSPACE_ALIGN_BYTES: u64 = kernels_gpu::wgmma::scheduler::tile_list::Workspace::ALIGN;

/// Alignment of q, k, v and o that the tensor copy engine (TMA) of a Hopper GPU requires.
pub(crate) const TMA_ALIGN_BYTES: u64 = kernels_gpu::wgmma::tensor_map::ALIGN_BYTES;

/// Bytes of a slope, a length, or an element of lse.
const WORD_BYTES: u64 = 4;

/// An operand whose address TMA cannot take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Misaligned {
    pub operand: &'static str,
    pub address: u64,
}

impl Misaligned {
    /// The error of launching `plan` on it.
    pub(super) fn refuse(&self, plan: &Plan) -> Error {
        let Self { operand, address } = *self;
        let kernel = plan.kernel_name();
        let wrong = format!(
            "address {address:#x} is not a multiple of {TMA_ALIGN_BYTES}, which {kernel} needs"
        );
        let allowed = "another address, or a plan made for these operands (Plan::for_operands)";
        Error::argument(operand, wrong, allowed)
    }
}

impl Operands {
    /// The operands of a problem without arrays, whose lse is not wanted, in the backend's own workspace.
    pub const fn new(q: u64, k: u64, v: u64, o: u64) -> Self {
        Self {
            q,
            k,
            v,
            o,
            lse: None,
            alibi_slopes: None,
            cu_seqlens: None,
            seqused_kv: None,
            workspace: None,
            gradients: None,
            modifiers: ModifierOperands::NONE,
            cache: None,
        }
    }

    /// Sets [`lse`](Self::lse).
    pub fn lse(mut self, address: impl Into<Option<u64>>) -> Self {
        self.lse = address.into();
        self
    }

    /// Sets [`alibi_slopes`](Self::alibi_slopes).
    pub fn alibi_slopes(mut self, address: impl Into<Option<u64>>) -> Self {
        self.alibi_slopes = address.into();
        self
    }

    /// Sets [`cu_seqlens`](Self::cu_seqlens): of q, and of k and v. Beside a cache the latter are not read, and may be the former.
    pub fn cu_seqlens(mut self, addresses: impl Into<Option<[u64; 2]>>) -> Self {
        self.cu_seqlens = addresses.into();
        self
    }

    /// Sets [`seqused_kv`](Self::seqused_kv).
    pub fn seqused_kv(mut self, address: impl Into<Option<u64>>) -> Self {
        self.seqused_kv = address.into();
        self
    }

    /// Sets [`workspace`](Self::workspace).
    pub fn workspace(mut self, workspace: impl Into<Option<Workspace>>) -> Self {
        self.workspace = workspace.into();
        self
    }

    /// Sets [`gradients`](Self::gradients).
    pub fn gradients(mut self, gradients: impl Into<Option<GradientOperands>>) -> Self {
        self.gradients = gradients.into();
        self
    }

    /// Sets [`modifiers`](Self::modifiers).
    pub fn modifiers(mut self, modifiers: ModifierOperands) -> Self {
        self.modifiers = modifiers;
        self
    }

    /// Sets [`cache`](Self::cache).
    pub fn cache(mut self, cache: impl Into<Option<CacheOperands>>) -> Self {
        self.cache = cache.into();
        self
    }

    /// The first operand whose address TMA cannot take, if there is one.
    pub(crate) fn misaligned_for_tma(&self) -> Option<Misaligned> {
        let GradientOperands {
            d_o, dq, dk, dv, ..
        } = self.gradients.unwrap_or_default();
        let gradients = [("d_o", d_o), ("dq", dq), ("dk", dk), ("dv", dv)];
        self.tensors()
            .into_iter()
            .chain(gradients)
            .find(|(_, address)| !address.is_multiple_of(TMA_ALIGN_BYTES))
            .map(|(operand, address)| Misaligned { operand, address })
    }

    fn tensors(&self) -> [(&'static str, u64); 4] {
        [("q", self.q), ("k", self.k), ("v", self.v), ("o", self.o)]
    }

    /// Returns an error if an address cannot be that of one of `plan`'s operands.
    pub(crate) fn check(&self, plan: &Plan) -> Result<(), Error> {
        let problem = plan.problem();
        let elements = [problem.q(), problem.k(), problem.v(), problem.o()];
        for ((name, address), spec) in self.tensors().into_iter().zip(elements) {
            if !spec.is_empty() {
                check_address(name, address, spec.dtype.bytes() as u64)?;
            }
        }
        // A backward pass may have keys but no query, and then no lse.
        if let Some(lse) = self.lse.filter(|_| !problem.o().is_empty()) {
            check_address("lse", lse, WORD_BYTES)?;
        }
        self.check_gradients(problem)?;
        if let Some(layout) = problem.cache_layout() {
            let Some(cache) = &self.cache else {
                let wrong = "no addresses of a cache are given";
                return Err(Error::argument("cache", wrong, "that of kv_lens at least"));
            };
            cache.check(layout, problem.cache_scales().is_some())?;
        }
        self.check_workspace(plan.workspace_bytes())?;
        self.modifiers.check(problem.modifiers(), check_address)?;
        self.check_arrays(problem)
    }

    /// Returns an error if an address that a backward pass needs is missing or impossible.
    fn check_gradients(&self, problem: &Problem) -> Result<(), Error> {
        let Some(specs) = problem.gradients() else {
            return Ok(());
        };
        if self.lse.is_none() && !problem.o().is_empty() {
            let wrong = "no address is given";
            return Err(Error::argument(
                "lse",
                wrong,
                "it must be that of the forward pass's lse",
            ));
        }
        let Some(gradients) = &self.gradients else {
            let wrong = "no addresses of gradients are given";
            return Err(Error::argument(
                "gradients",
                wrong,
                "those of d_o, dq, dk and dv",
            ));
        };
        for (name, spec, address) in [
            ("d_o", specs.d_o, gradients.d_o),
            ("dq", specs.dq, gradients.dq),
            ("dk", specs.dk, gradients.dk),
            ("dv", specs.dv, gradients.dv),
        ] {
            if !spec.is_empty() {
                check_address(name, address, spec.dtype.bytes() as u64)?;
            }
        }
        check_parameters(problem, gradients)?;
        match gradients.d_lse {
            Some(address) if !problem.o().is_empty() => check_address("d_lse", address, WORD_BYTES),
            _ => Ok(()),
        }
    }

    /// Returns an error if a workspace is given that has less than `needed` bytes or an impossible address.
    fn check_workspace(&self, needed: usize) -> Result<(), Error> {
        match self.workspace {
            Some(Workspace { address, bytes }) if needed > 0 => {
                check_address("workspace", address, WORKSPACE_ALIGN_BYTES)?;
                if bytes >= needed {
                    return Ok(());
                }
                let wrong = format!("it has {bytes} bytes");
                Err(Error::argument(
                    "workspace",
                    wrong,
                    format!("at least {needed}"),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns an error if the address of a small array is missing or impossible.
    fn check_arrays(&self, problem: &Problem) -> Result<(), Error> {
        let cu_seqlens = |index: usize| self.cu_seqlens.map(|both| both[index]);
        let is_packed = problem.is_packed();
        let on_device = match problem.lengths() {
            Lengths::OnDevice(lengths) => Some(lengths),
            _ => None,
        };
        let packed_there = on_device.is_some_and(|lengths| lengths.is_packed());
        let used_there = problem.has_seqused_kv();
        let slopes_there = problem
            .alibi()
            .is_some_and(|slopes| slopes.values().is_none());
        for (name, address, is_read, is_needed) in [
            ("cu_seqlens_q", cu_seqlens(0), is_packed, packed_there),
            ("cu_seqlens_kv", cu_seqlens(1), is_packed, packed_there),
            ("seqused_kv", self.seqused_kv, used_there, used_there),
            (
                "alibi_slopes",
                self.alibi_slopes,
                problem.alibi().is_some(),
                slopes_there,
            ),
        ] {
            match address {
                Some(address) if is_read => check_address(name, address, WORD_BYTES)?,
                None if is_needed => {
                    let wrong = "no address is given, and only the device has the values";
                    return Err(Error::argument(
                        name,
                        wrong,
                        "its address among the operands",
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns an error if the address of the gradient by slopes, sinks or a bias is missing or impossible, where it is asked for.
fn check_parameters(problem: &Problem, gradients: &GradientOperands) -> Result<(), Error> {
    for (name, spec, address) in [
        (
            "d_alibi_slopes",
            problem.d_alibi_slopes(),
            gradients.d_alibi_slopes,
        ),
        ("d_sinks", problem.d_sinks(), gradients.d_sinks),
        ("d_bias", problem.d_bias(), gradients.d_bias),
    ] {
        match (spec.filter(|spec| !spec.is_empty()), address) {
            (None, _) => {}
            (Some(_), Some(address)) => check_address(name, address, WORD_BYTES)?,
            (Some(_), None) => {
                let wrong = "no address is given, and the problem asks for it";
                let allowed = "its address among those of the gradients";
                return Err(Error::argument(name, wrong, allowed));
            }
        }
    }
    Ok(())
}

fn check_address(argument: &'static str, address: u64, align: u64) -> Result<(), Error> {
    let wrong = match address {
        0 => "its address is null".to_owned(),
        _ if !address.is_multiple_of(align) => {
            format!("address {address:#x} is not a multiple of {align}")
        }
        _ => return Ok(()),
    };
    let allowed = format!("the address of live memory, a multiple of {align}");
    Err(Error::argument(argument, wrong, allowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AlibiSlopes, CuSeqlens, DType, DeviceLengths, ForwardOptions, Layout, Shape, TensorSpec,
    };
    use crate::{Capabilities, GpuCapabilities};

    const HOPPER: Capabilities = Capabilities::Gpu(GpuCapabilities::new((9, 0), 227 << 10, 132));

    fn refusal(
        options: &ForwardOptions,
        edit: impl FnOnce(&mut Operands),
    ) -> Option<(String, String)> {
        let shape = Shape::packed(9, 2, 8);
        let spec = TensorSpec::contiguous(DType::Bf16, shape, Layout::Bshd).unwrap();
        let problem = Problem::new(spec, spec, spec, spec, options).unwrap();
        let mut operands = Operands {
            q: 2,
            k: 4,
            v: 6,
            o: 8,
            lse: Some(4),
            ..Operands::default()
        };
        edit(&mut operands);
        let plan = Plan::new(&problem, &HOPPER).unwrap();
        match operands.check(&plan) {
            Ok(()) => None,
            Err(Error::Argument {
                argument, wrong, ..
            }) => Some((argument.into_owned(), wrong)),
            Err(other) => panic!("{other}"),
        }
    }

    fn workspace(address: u64, bytes: usize) -> Option<Workspace> {
        Some(Workspace { address, bytes })
    }

    #[test]
    fn impossible_addresses_are_named() {
        let options = ForwardOptions::new();
        let refused = |edit: fn(&mut Operands)| refusal(&options, edit);
        let message = |argument: &str, wrong: &str| Some((argument.to_owned(), wrong.to_owned()));
        assert_eq!(refused(|_| {}), None);
        assert_eq!(refused(|at| at.q = 0), message("q", "its address is null"));
        let odd = "address 0x7 is not a multiple of 2";
        assert_eq!(refused(|at| at.v = 7), message("v", odd));
        let odd = "address 0x6 is not a multiple of 4";
        assert_eq!(refused(|at| at.lse = Some(6)), message("lse", odd));
        let null = "its address is null";
        assert_eq!(
            refused(|at| at.workspace = workspace(0, 99)),
            message("workspace", null)
        );
        let odd = "address 0x8 is not a multiple of 16";
        assert_eq!(
            refused(|at| at.workspace = workspace(8, 99)),
            message("workspace", odd)
        );
        assert_eq!(
            refused(|at| at.workspace = workspace(32, 3)),
            message("workspace", "it has 3 bytes")
        );
        assert_eq!(refused(|at| at.workspace = workspace(32, 4)), None);
    }

    #[test]
    fn arrays_that_only_the_device_has_need_an_address() {
        let missing = "no address is given, and only the device has the values";
        let missing = |argument: &str| Some((argument.to_owned(), missing.to_owned()));
        let lengths = DeviceLengths::cu_seqlens(2, 9, 9).unwrap();
        let packed = ForwardOptions::new().lengths(lengths);
        assert_eq!(refusal(&packed, |_| {}), missing("cu_seqlens_q"));
        assert_eq!(refusal(&packed, |at| at.cu_seqlens = Some([4, 8])), None);
        let null = refusal(&packed, |at| at.cu_seqlens = Some([4, 0]));
        assert_eq!(null.unwrap().0, "cu_seqlens_kv");
        let used = ForwardOptions::new().lengths(DeviceLengths::seqused_kv());
        assert_eq!(refusal(&used, |_| {}), missing("seqused_kv"));
        let slopes = ForwardOptions::new().alibi(AlibiSlopes::on_device(2, false));
        assert_eq!(refusal(&slopes, |_| {}), missing("alibi_slopes"));
        // Arrays that the host knows need no address.
        let known = CuSeqlens::from_lengths([(4, 4), (5, 5)]).unwrap();
        let known = ForwardOptions::new()
            .cu_seqlens(known)
            .alibi(AlibiSlopes::geometric(2).unwrap());
        assert_eq!(refusal(&known, |_| {}), None);
    }
}
