//! Choosing a kernel, in steps that tests can see: which variants are *eligible* for a problem, and
//! which of them is *preferred*.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use kernels_gpu::config::wgmma::WgmmaTile;
use kernels_gpu::instances::{Arch, Family, INSTANCES, Instance};

use crate::backend::hopper::{HopperPlan, packing};
use crate::{Error, Operands, Problem};

/// A way to compute attention. Every one gives the same answer within the accuracy bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Variant {
    /// The tiled, multi-threaded f32 loop on the CPU.
    Tiled,
    /// One family of GPU kernels.
    Kernels(Family),
}

/// What a backend can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capabilities {
    /// The host's own processor.
    Cpu,
    /// A GPU, or a simulation of one.
    Gpu(GpuCapabilities),
}

/// What a GPU can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuCapabilities {
    /// Major and minor compute capability; (9, 0) is Hopper.
    pub compute_capability: (u32, u32),
    /// Largest shared memory of one block, in bytes, with opt-in.
    pub shared_bytes: u32,
    /// Families whose instructions it has; a simulator may lack some that its compute capability
    /// promises.
    pub families: &'static [Family],
}

impl Variant {
    /// Every variant, the most preferred first.
    pub fn all() -> impl Iterator<Item = Self> {
        // The table lists families from the general to the specialised.
        let kernels = Family::ALL.into_iter().rev().map(Self::Kernels);
        kernels.chain([Self::Tiled])
    }

    /// The name `--force` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tiled => "tiled",
            Self::Kernels(family) => family.name(),
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Variant {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::all().find(|variant| variant.name() == text);
        found.ok_or_else(|| {
            Error::argument(
                "force",
                format!("unknown variant `{text}`"),
                format!("one of {}", names(Self::all())),
            )
        })
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
    let dtype = problem.q().dtype;
    let head_dim = problem.q().shape.dim.max(problem.v().shape.dim);
    // Kernels that take tensor maps are made for either dense or packed operands, the others take both.
    let is_varlen = problem.cu_seqlens().is_some();
    let takes_packing = |tile: &WgmmaTile| tile.varlen == is_varlen;
    let of_dtype = INSTANCES
        .iter()
        .filter(|instance| instance.family == family && instance.dtype == dtype)
        .filter(|instance| instance.wgmma().is_none_or(takes_packing));
    if of_dtype.clone().next().is_none() {
        return Err(format!("it has no {} kernel", dtype.name()));
    }
    let wide_enough = of_dtype.filter(|instance| instance.head_dim as usize >= head_dim);
    let why_not = |instance: &Instance| {
        instance_unfit(instance, gpu).or_else(|| shape_unfit(instance, problem))
    };
    // The least wasteful one that can, and one that cannot, to say why.
    let mut best = None;
    let mut refused = None;
    for instance in wide_enough {
        let waste = waste(instance, problem);
        if best.is_some_and(|(least, _)| least <= waste) {
            continue;
        }
        match why_not(instance) {
            None => best = Some((waste, instance)),
            Some(reason) => {
                if refused.as_ref().is_none_or(|(least, _)| waste < *least) {
                    refused = Some((waste, reason));
                }
            }
        }
    }
    match (best, refused) {
        (Some((_, instance)), _) => Ok(instance),
        (None, Some((_, reason))) => Err(reason),
        (None, None) => Err(format!("it has no kernel for head_dim {head_dim}")),
    }
}

/// Why the shape or the strides of `problem` keep `instance` from running it, wherever its operands lie.
fn shape_unfit(instance: &Instance, problem: &Problem) -> Option<String> {
    let tile = instance.wgmma()?;
    if problem.is_empty() {
        return None;
    }
    let anywhere = problem.forward_params(&Operands::default());
    HopperPlan::new(problem, &anywhere, tile).err()
}

/// Orders kernels that can run a problem: the least padding first; of two for the same head_dim the one made for this
/// many rows.
fn waste(instance: &Instance, problem: &Problem) -> (u32, u32, bool, Reverse<u32>) {
    let (head_dim_v, shortest_run) = instance
        .wgmma()
        .map_or((0, 0), |tile| (tile.head_dim_v, tile.shortest_run));
    let too_short = instance.wgmma().is_some_and(|tile| {
        // Rows of a head, or of the heads that share its tiles.
        let rows = |heads: u32| problem.seq_q() * heads as usize;
        tile.shortest_run > 0 && rows(packing(problem, tile).heads()) < tile.shortest_run as usize
    });
    (
        instance.head_dim,
        head_dim_v,
        too_short,
        Reverse(shortest_run),
    )
}

/// What a problem can be run by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub variant: Variant,
    /// The kernel, where the variant is a family of them.
    pub kernel: Option<&'static Instance>,
}

/// How `variant` runs `problem` here, or why it cannot.
fn fit(variant: Variant, problem: &Problem, here: &Capabilities) -> Result<Choice, String> {
    let kernel = match (variant, here) {
        (Variant::Tiled, Capabilities::Cpu) => None,
        (Variant::Tiled, Capabilities::Gpu(_)) => {
            return Err("it runs on the cpu backend".into());
        }
        (Variant::Kernels(_), Capabilities::Cpu) => {
            return Err("it runs on the cuda and sim backends".into());
        }
        (Variant::Kernels(family), Capabilities::Gpu(gpu)) => {
            Some(find_instance(family, problem, gpu)?)
        }
    };
    Ok(Choice { variant, kernel })
}

/// Why `variant` cannot run `problem` here, or `None` if it can.
pub fn why_not(variant: Variant, problem: &Problem, here: &Capabilities) -> Option<String> {
    fit(variant, problem, here).err()
}

/// What can run `problem` here, the preferred one first, each found when it is asked for.
pub(crate) fn in_order(problem: &Problem, here: &Capabilities) -> impl Iterator<Item = Choice> {
    Variant::all().filter_map(|variant| fit(variant, problem, here).ok())
}

/// The variants that can run `problem` here, the preferred one first.
pub fn eligible(problem: &Problem, here: &Capabilities) -> Vec<Variant> {
    let choices = in_order(problem, here);
    choices.map(|choice| choice.variant).collect()
}

/// The variant that runs `problem` here unless another is forced.
pub fn preferred(problem: &Problem, here: &Capabilities) -> Option<Variant> {
    in_order(problem, here).next().map(|choice| choice.variant)
}

/// The variant that will run: the forced one, else the preferred one.
///
/// # Errors
/// [`Error::Argument`] saying why the forced variant, or every variant, is out of the question.
pub fn select(problem: &Problem, here: &Capabilities) -> Result<Variant, Error> {
    Ok(choose(problem, here)?.variant)
}

/// As [`select`], with the kernel.
pub(crate) fn choose(problem: &Problem, here: &Capabilities) -> Result<Choice, Error> {
    if let Some(forced) = problem.force() {
        return fit(forced, problem, here).map_err(|reason| {
            Error::argument(
                "force",
                format!("variant {forced} cannot run this problem here: {reason}"),
                match eligible(problem, here).as_slice() {
                    [] => "no variant can run it on this backend; another backend might".to_owned(),
                    some => format!("one of {}", names(some.iter().copied())),
                },
            )
        });
    }
    in_order(problem, here).next().ok_or_else(|| {
        let reasons: Vec<_> = Variant::all()
            .filter_map(|variant| Some((variant, why_not(variant, problem, here)?)))
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

fn names(variants: impl IntoIterator<Item = Variant>) -> String {
    let names: Vec<_> = variants.into_iter().map(Variant::name).collect();
    names.join(", ")
}
