//! Choice of a kernel, in steps that tests can observe: which variants are *eligible*, and which one is *preferred*.

use std::cmp::Reverse;

use kernels_gpu::abi::ForwardParams;
use kernels_gpu::config::wgmma::WgmmaConfig;
use kernels_gpu::instances::{CACHED, Family, INSTANCES, Instance, Operation};

use super::backward::BackwardKernels;
use super::decode::find_decode;
use super::hopper::{HopperForward, pack_gqa};
use super::kernel::{Companion, How, Kernel};
use super::operands::{Misaligned, TMA_ALIGN_BYTES};
use super::params::forward_params;
use super::unfit::{modified, unfit, with_modifiers};
use super::{Capabilities, GpuCapabilities, few_queries, short_sequences};
use crate::{Error, Lengths, Problem, Variant};

/// A problem, and the capabilities of the backend that is to run it.
pub(super) struct Question<'a> {
    problem: &'a Problem,
    here: &'a Capabilities,
    /// Parameters of a forward kernel, without addresses.
    params: ForwardParams,
    /// An operand whose address TMA cannot take, if there is one.
    misaligned: Option<Misaligned>,
}

impl<'a> Question<'a> {
    pub fn new(
        problem: &'a Problem,
        here: &'a Capabilities,
        misaligned: Option<Misaligned>,
    ) -> Self {
        Self {
            problem,
            here,
            params: forward_params(problem),
            misaligned,
        }
    }

    /// Refuses addresses that TMA cannot reach.
    fn check_aligned(&self) -> Result<(), String> {
        match self.misaligned {
            None => Ok(()),
            Some(Misaligned { operand, address }) => Err(format!(
                "TMA cannot reach {operand}: address {address:#x} is not a multiple of {TMA_ALIGN_BYTES}"
            )),
        }
    }

    /// The parameters of a forward kernel for the problem, without addresses.
    pub fn params(&self) -> &ForwardParams {
        &self.params
    }
}

/// The kernel of `family` that wastes least on `problem`: the smallest padded head_dim that fits. Among equals, the
/// first in the table that can run: the table lists the smaller tile that replaces a larger one, where shared memory is
/// short, behind it.
///
/// # Errors
/// Why there is none.
pub fn find_instance(
    family: Family,
    problem: &Problem,
    gpu: &GpuCapabilities,
) -> Result<&'static Instance, String> {
    let here = Capabilities::Gpu(*gpu);
    let kernel = find_kernel(family, &Question::new(problem, &here, None), gpu)?;
    Ok(kernel.instance)
}

/// As [`find_instance`].
fn find_kernel(
    family: Family,
    asked: &Question<'_>,
    gpu: &GpuCapabilities,
) -> Result<Kernel, String> {
    let problem = asked.problem;
    if problem.gradients().is_some() {
        return find_backward(family, asked, gpu);
    }
    let reads_cache = problem.cache_layout().is_some();
    if reads_cache {
        check_cache_covered(problem)?;
    }
    let dtype = problem.q().dtype;
    let head_dim = problem.q().shape.dim.max(problem.v().shape.dim);
    // Kernels that take tensor maps are compiled either for equal lengths or for varlen; the others take both.
    let may_differ = reads_cache || !matches!(problem.lengths(), Lengths::Dense);
    let has_bias = problem.modifiers().bias.is_some();
    let takes_lengths = |config: &WgmmaConfig| config.varlen == may_differ;
    let operation = match reads_cache {
        true => Operation::Decode,
        false => Operation::Forward,
    };
    let of_dtype = table(problem)
        .iter()
        .filter(|instance| instance.operation == operation)
        .filter(|instance| instance.family == family && instance.dtype == dtype)
        .filter(|instance| instance.wgmma().is_none_or(takes_lengths))
        .filter(|instance| instance.is_for(has_bias));
    if of_dtype.clone().next().is_none() {
        let what = match reads_cache {
            true => " for a cache".to_owned(),
            false => with_modifiers(problem),
        };
        return Err(format!("it has no {} kernel{what}", dtype.name()));
    }
    let wide_enough = of_dtype.filter(|instance| instance.head_dim as usize >= head_dim);
    let mut candidates: Vec<_> = wide_enough
        .map(|instance| (waste(instance, problem), instance))
        .collect();
    // A stable sort: among equals, the first in the table stays first.
    candidates.sort_by_key(|(waste, _)| *waste);
    let mut refusal = None;
    for (_, instance) in candidates {
        match unfit(instance, problem, gpu).map_or_else(|| how(instance, asked, gpu), Err) {
            Ok(how) => return Ok(Kernel { instance, how }),
            Err(reason) => {
                refusal.get_or_insert(reason);
            }
        }
    }
    Err(refusal.unwrap_or_else(|| format!("it has no kernel for head_dim {head_dim}")))
}

/// Refuses what no kernel for a cache but decode kernels does.
fn check_cache_covered(problem: &Problem) -> Result<(), String> {
    let of_keys = problem.k().dtype;
    if of_keys != problem.q().dtype {
        return Err(format!(
            "it has no kernel for a cache of {}",
            of_keys.name()
        ));
    }
    if problem.modifiers().tree.is_some() {
        return Err("it has no kernel for a tree of drafts".to_owned());
    }
    Ok(())
}

/// The kernels that may run a forward pass of `problem`, or attention to its cache.
fn table(problem: &Problem) -> &'static [Instance] {
    match problem.cache_layout() {
        Some(_) => CACHED,
        None => modified(problem).unwrap_or(INSTANCES),
    }
}

/// The kernels of `family` for a backward pass.
fn find_backward(
    family: Family,
    asked: &Question<'_>,
    gpu: &GpuCapabilities,
) -> Result<Kernel, String> {
    let problem = asked.problem;
    let kernels = BackwardKernels::find(family, problem, gpu)?;
    if kernels.maps.is_some() {
        asked.check_aligned()?;
    }
    Ok(Kernel {
        instance: kernels.keys,
        how: match problem.is_empty() {
            true => How::NotAtAll,
            false => How::Backward(Box::new(kernels)),
        },
    })
}

/// The decode kernel for the problem.
fn find_decode_kernel(problem: &Problem, gpu: &GpuCapabilities) -> Result<Kernel, String> {
    let (instance, launch) = find_decode(problem, gpu, None)?;
    let how = match problem.is_empty() {
        true => How::NotAtAll,
        false => How::Decode(Box::new(launch)),
    };
    Ok(Kernel { instance, how })
}

/// How `instance` runs the problem, or why the problem's shape, strides or addresses prevent it.
fn how(instance: &Instance, asked: &Question<'_>, gpu: &GpuCapabilities) -> Result<How, String> {
    if asked.problem.is_empty() {
        return Ok(How::NotAtAll);
    }
    let Some(config) = instance.wgmma() else {
        return Ok(match asked.problem.modifiers().is_none() {
            true => How::Plain,
            false => How::Modified,
        });
    };
    asked.check_aligned()?;
    let hopper = HopperForward::new(asked.problem, &asked.params, config, gpu)?;
    Ok(How::Hopper(
        Box::new(hopper),
        companion(asked.problem, gpu)?,
    ))
}

/// The decode kernel for sequences with few queries, beside a Hopper kernel for the others.
fn companion(problem: &Problem, gpu: &GpuCapabilities) -> Result<Option<Companion>, String> {
    let most = few_queries::most_of_a_sequence(problem);
    if problem.cache_layout().is_none() || !problem.is_packed() || most == 0 {
        return Ok(None);
    }
    let (instance, launch) = find_decode(problem, gpu, Some(most))?;
    Ok(Some((instance, Box::new(launch))))
}

/// Sort key of kernels for a problem: padded head_dim, padded head_dim_v, whether the problem has fewer rows than the
/// kernel's `min_rows`, and `min_rows`, largest first.
type Waste = (u32, u32, bool, Reverse<u32>);

/// The sort key of `instance` among the kernels for `problem`: least padding first; for the same head_dims, the kernel
/// made for this many rows.
fn waste(instance: &Instance, problem: &Problem) -> Waste {
    let Some(config) = instance.wgmma() else {
        return (instance.head_dim, 0, false, Reverse(0));
    };
    let is_too_short = || {
        // Query rows of one head, or of all heads that share its tiles.
        let heads = pack_gqa(problem, config).heads() as usize;
        problem.seq_q() * heads < config.min_rows as usize
    };
    let too_short = config.min_rows > 0 && is_too_short();
    let min_rows = Reverse(config.min_rows);
    (config.head_dim, config.head_dim_v, too_short, min_rows)
}

/// The variant chosen for a problem, and its kernel.
#[derive(Debug)]
pub(super) struct Choice {
    pub variant: Variant,
    /// The kernel, if the variant is a kernel family.
    pub kernel: Option<Kernel>,
}

/// How `variant` runs the problem here, or why it cannot.
fn fit(variant: Variant, asked: &Question<'_>) -> Result<Choice, String> {
    let kernel = match (variant.family(), asked.here) {
        (None, Capabilities::Cpu) => None,
        (None, Capabilities::Gpu(_)) => {
            return Err("it runs on the cpu backend".into());
        }
        (Some(_), Capabilities::Cpu) => {
            return Err("it runs on the cuda and sim backends".into());
        }
        (Some(_), Capabilities::Gpu(gpu)) if variant == Variant::Decode => {
            Some(find_decode_kernel(asked.problem, gpu)?)
        }
        (Some(family), Capabilities::Gpu(gpu)) => Some(find_kernel(family, asked, gpu)?),
    };
    Ok(Choice { variant, kernel })
}

/// Why `variant` cannot run `problem` here, or `None` if it can.
pub fn why_not(variant: Variant, problem: &Problem, here: &Capabilities) -> Option<String> {
    fit(variant, &Question::new(problem, here, None)).err()
}

/// The choices that can run the problem here, in the order of [`Variant::all`], computed lazily.
fn in_order(asked: &Question<'_>) -> impl Iterator<Item = Choice> {
    Variant::all().filter_map(|variant| fit(variant, asked).ok())
}

/// The preferred choice among those that can run the problem here: the first, unless decode kernels are faster, or one that has
/// no list of tiles to wait for.
fn first(asked: &Question<'_>) -> Option<Choice> {
    let first = in_order(asked).next()?;
    let other =
        decode_for_few_queries(asked, &first).or_else(|| mma_for_short_sequences(asked, &first));
    Some(other.unwrap_or(first))
}

/// Kernel `mma` for the problem, if Hopper's kernel lists tiles for it, and is slower for that.
fn mma_for_short_sequences(asked: &Question<'_>, hopper: &Choice) -> Option<Choice> {
    let (Capabilities::Gpu(gpu), Some(kernel)) = (asked.here, &hopper.kernel) else {
        return None;
    };
    let is_plain = asked.problem.gradients().is_none() && asked.problem.modifiers().is_none();
    if !is_plain || !short_sequences::is_listed(asked.problem, kernel) {
        return None;
    }
    let choice = fit(Variant::Mma, asked).ok()?;
    let mma = choice.kernel.as_ref()?;
    short_sequences::is_faster(mma, &asked.params.attention, gpu).then_some(choice)
}

/// A decode kernel for the problem, if it is the better one: faster than that of `prefill`, or one that keeps the bits of drafts.
fn decode_for_few_queries(asked: &Question<'_>, prefill: &Choice) -> Option<Choice> {
    let (Capabilities::Gpu(gpu), Some(prefill)) = (asked.here, &prefill.kernel) else {
        return None;
    };
    if !few_queries::may_decode(asked.problem) {
        return None;
    }
    // Packed queries of a cache, of which Hopper's kernels leave the few of a sequence to decode kernels.
    if asked.problem.is_packed() && !few_queries::are_drafts(asked.problem) {
        return None;
    }
    let choice = fit(Variant::Decode, asked).ok()?;
    let decode = choice.kernel.as_ref()?.instance;
    let is_faster = || few_queries::is_faster(decode, prefill, &asked.params.attention, gpu);
    (few_queries::are_drafts(asked.problem) || is_faster()).then_some(choice)
}

/// The variants that can run `problem` here, the preferred one first.
pub fn eligible(problem: &Problem, here: &Capabilities) -> Vec<Variant> {
    let asked = Question::new(problem, here, None);
    let first = first(&asked).map(|choice| choice.variant);
    let others = in_order(&asked).map(|choice| choice.variant);
    let others = others.filter(|variant| Some(*variant) != first);
    first.into_iter().chain(others).collect()
}

/// The variant that runs `problem` here unless another is forced.
pub fn preferred(problem: &Problem, here: &Capabilities) -> Option<Variant> {
    let asked = Question::new(problem, here, None);
    first(&asked).map(|choice| choice.variant)
}

/// The choice that will run: the forced variant, else the preferred one.
///
/// # Errors
/// [`Error::Argument`] saying why the forced variant, or every variant, cannot run.
pub(super) fn choose(asked: &Question<'_>) -> Result<Choice, Error> {
    if let Some(forced) = asked.problem.force() {
        return fit(forced, asked).map_err(|reason| {
            let others: Vec<_> = in_order(asked).map(|choice| choice.variant).collect();
            let allowed = match others.as_slice() {
                [] => "no variant can run it on this backend; another backend might".to_owned(),
                some => format!("one of {}", Variant::names(some.iter().copied())),
            };
            let wrong = format!("variant {forced} cannot run this problem here: {reason}");
            Error::argument("force", wrong, allowed)
        });
    }
    first(asked).ok_or_else(|| {
        let reasons: Vec<_> = Variant::all()
            .filter_map(|variant| Some((variant, fit(variant, asked).err()?)))
            .map(|(variant, reason)| format!("{variant}: {reason}"))
            .collect();
        Error::argument(
            "backend",
            format!(
                "no variant can run this problem here ({})",
                reasons.join(", ")
            ),
            "a problem or a backend that a variant supports",
        )
    })
}
