//! Choosing a kernel, in steps that tests can see: which variants are *eligible* for a problem, and
//! which of them is *preferred*.

use std::cmp::Reverse;

use kernels_gpu::abi::ForwardParams;
use kernels_gpu::config::wgmma::WgmmaConfig;
use kernels_gpu::instances::{Arch, Family, INSTANCES, Instance, Operation};

use super::backward::BackwardKernels;
use super::hopper::{HopperForward, pack_gqa};
use super::operands::{Misaligned, TMA_ALIGN_BYTES};
use super::params::forward_params;
use super::{Capabilities, GpuCapabilities};
use crate::{Error, Lengths, Problem, Variant};

/// What is to be run, and where.
pub(super) struct Question<'a> {
    problem: &'a Problem,
    here: &'a Capabilities,
    /// Without addresses.
    params: ForwardParams,
    /// An operand that keeps TMA from reaching them.
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

    /// The parameters of a forward kernel that runs it, without addresses.
    pub fn params(&self) -> &ForwardParams {
        &self.params
    }
}

/// Why `instance` cannot run on `gpu`, or `None` if it can.
pub fn instance_unfit(instance: &Instance, gpu: &GpuCapabilities) -> Option<String> {
    let (major, minor) = gpu.compute_capability;
    let (fits, needed) = match instance.arch {
        Arch::Sm80 => (major >= 8, "8.0 or newer"),
        Arch::Sm90a => ((major, minor) == (9, 0), "9.0"),
    };
    if !fits {
        return Some(format!(
            "it needs compute capability {needed}, this is {major}.{minor}"
        ));
    }
    if !gpu.families.contains(&instance.family) {
        return Some("its instructions are not simulated yet".to_owned());
    }
    (instance.shared_bytes > gpu.shared_bytes).then(|| {
        format!(
            "it needs {} bytes of shared memory, a block has {} here",
            instance.shared_bytes, gpu.shared_bytes
        )
    })
}

/// The kernel of `family` that wastes least on `problem`: the smallest padded head_dim that fits. Of two that waste as
/// little, the first in the table that can run: a smaller tile follows the one it stands in for where shared memory is
/// short.
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

/// A kernel that can run a problem, and how.
#[derive(Debug)]
pub(super) struct Kernel {
    pub instance: &'static Instance,
    pub how: How,
}

/// How a kernel runs a problem.
#[derive(Debug)]
pub(super) enum How {
    /// By the parameters of every forward kernel alone.
    Plain,
    /// By those and what TMA is told.
    Hopper(Box<HopperForward>),
    /// A backward pass, by several kernels.
    Backward(BackwardKernels),
    /// There is nothing to compute.
    NotAtAll,
}

/// As [`find_instance`].
fn find_kernel(
    family: Family,
    asked: &Question<'_>,
    gpu: &GpuCapabilities,
) -> Result<Kernel, String> {
    let problem = asked.problem;
    if problem.gradients().is_some() {
        return find_backward(family, problem, gpu);
    }
    let dtype = problem.q().dtype;
    let head_dim = problem.q().shape.dim.max(problem.v().shape.dim);
    // Kernels that take tensor maps are made for sequences that are all alike, or for such that may differ; the others
    // take both.
    let may_differ = !matches!(problem.lengths(), Lengths::Dense);
    let takes_lengths = |config: &WgmmaConfig| config.varlen == may_differ;
    let of_dtype = INSTANCES
        .iter()
        .filter(|instance| instance.operation == Operation::Forward)
        .filter(|instance| instance.family == family && instance.dtype == dtype)
        .filter(|instance| instance.wgmma().is_none_or(takes_lengths));
    if of_dtype.clone().next().is_none() {
        return Err(format!("it has no {} kernel", dtype.name()));
    }
    let wide_enough = of_dtype.filter(|instance| instance.head_dim as usize >= head_dim);
    let mut candidates: Vec<_> = wide_enough
        .map(|instance| (waste(instance, problem), instance))
        .collect();
    // Stable: of two that waste as little, the first in the table.
    candidates.sort_by_key(|(waste, _)| *waste);
    let mut refusal = None;
    for (_, instance) in candidates {
        match instance_unfit(instance, gpu).map_or_else(|| how(instance, asked), Err) {
            Ok(how) => return Ok(Kernel { instance, how }),
            Err(reason) => {
                refusal.get_or_insert(reason);
            }
        }
    }
    Err(refusal.unwrap_or_else(|| format!("it has no kernel for head_dim {head_dim}")))
}

/// The kernels of `family` for a backward pass.
fn find_backward(
    family: Family,
    problem: &Problem,
    gpu: &GpuCapabilities,
) -> Result<Kernel, String> {
    let kernels = BackwardKernels::find(family, problem, gpu)?;
    Ok(Kernel {
        instance: kernels.keys,
        how: match problem.is_empty() {
            true => How::NotAtAll,
            false => How::Backward(kernels),
        },
    })
}

/// How `instance` runs the problem, or why its shape, strides or addresses keep it from that.
fn how(instance: &Instance, asked: &Question<'_>) -> Result<How, String> {
    if asked.problem.is_empty() {
        return Ok(How::NotAtAll);
    }
    let Some(config) = instance.wgmma() else {
        return Ok(How::Plain);
    };
    if let Some(Misaligned { operand, address }) = asked.misaligned {
        return Err(format!(
            "TMA cannot reach {operand}: address {address:#x} is not a multiple of {TMA_ALIGN_BYTES}"
        ));
    }
    let hopper = HopperForward::new(asked.problem, &asked.params, config)?;
    Ok(How::Hopper(Box::new(hopper)))
}

/// Orders kernels for a problem: by padded head_dim, padded head_dim_v, whether the sequences are shorter than
/// the kernel is made for, and how short they may be, from the longest on.
type Waste = (u32, u32, bool, Reverse<u32>);

/// The place of `instance` among the kernels for `problem`: the least padding first; of two for the same head_dim the one
/// made for this many rows.
fn waste(instance: &Instance, problem: &Problem) -> Waste {
    let Some(config) = instance.wgmma() else {
        return (instance.head_dim, 0, false, Reverse(0));
    };
    let is_too_short = || {
        // Rows of a head, or of the heads that share its tiles.
        let heads = pack_gqa(problem, config).heads() as usize;
        problem.seq_q() * heads < config.min_rows as usize
    };
    let too_short = config.min_rows > 0 && is_too_short();
    let min_rows = Reverse(config.min_rows);
    (config.head_dim, config.head_dim_v, too_short, min_rows)
}

/// What a problem is run by.
#[derive(Debug)]
pub(super) struct Choice {
    pub variant: Variant,
    /// The kernel, where the variant is a family of them.
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
        (Some(family), Capabilities::Gpu(gpu)) => Some(find_kernel(family, asked, gpu)?),
    };
    Ok(Choice { variant, kernel })
}

/// Why `variant` cannot run `problem` here, or `None` if it can.
pub fn why_not(variant: Variant, problem: &Problem, here: &Capabilities) -> Option<String> {
    fit(variant, &Question::new(problem, here, None)).err()
}

/// What can run the problem here, the preferred one first, each found when it is asked for.
fn in_order(asked: &Question<'_>) -> impl Iterator<Item = Choice> {
    Variant::all().filter_map(|variant| fit(variant, asked).ok())
}

/// The variants that can run `problem` here, the preferred one first.
pub fn eligible(problem: &Problem, here: &Capabilities) -> Vec<Variant> {
    let asked = Question::new(problem, here, None);
    in_order(&asked).map(|choice| choice.variant).collect()
}

/// The variant that runs `problem` here unless another is forced.
pub fn preferred(problem: &Problem, here: &Capabilities) -> Option<Variant> {
    let asked = Question::new(problem, here, None);
    in_order(&asked).next().map(|choice| choice.variant)
}

/// What will run: the forced variant, else the preferred one.
///
/// # Errors
/// [`Error::Argument`] saying why the forced variant, or every variant, is out of the question.
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
    in_order(asked).next().ok_or_else(|| {
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
