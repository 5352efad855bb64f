//! The plans of a problem that is launched often.

use std::sync::OnceLock;

use super::{Capabilities, Operands, Plan};
use crate::{Error, Problem};

/// The plans of one problem on one kind of device, made when they are first needed and kept.
///
/// There are two at most, for a plan depends on its operands' addresses by whether all are multiples of 16 bytes, and by nothing
/// else. An engine that keeps one of these for each problem looks a plan up, and need not know what kernels ask of addresses.
///
/// ```
/// use ferroflash::{Backend, Cpu, DType, ForwardOptions, Layout, Operands, Plans, Problem, Shape, TensorSpec};
///
/// # fn main() -> Result<(), ferroflash::Error> {
/// let shape = Shape { batch: 1, heads: 2, seq: 5, dim: 8 };
/// let spec = TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd)?;
/// let problem = Problem::new(spec, spec, spec, spec, &ForwardOptions::new())?;
/// let plans = Plans::new(problem, Cpu::new().capabilities());
/// let first = plans.for_operands(&Operands::new(16, 32, 48, 64))?;
/// let second = plans.for_operands(&Operands::new(96, 80, 64, 48))?;
/// assert!(std::ptr::eq(first, second));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Plans {
    problem: Problem,
    made_for: Capabilities,
    aligned: OnceLock<Plan>,
    misaligned: OnceLock<Plan>,
}

impl Plans {
    /// Those of `problem` for backends with capabilities `here`; none is made yet.
    pub fn new(problem: Problem, here: Capabilities) -> Self {
        Self {
            problem,
            made_for: here,
            aligned: OnceLock::new(),
            misaligned: OnceLock::new(),
        }
    }

    /// The plan for operands at addresses like those of `operands`.
    ///
    /// # Errors
    /// Those of [`Plan::for_operands`], which are not kept: the next call plans again.
    pub fn for_operands(&self, operands: &Operands) -> Result<&Plan, Error> {
        let place = match operands.misaligned_for_tma() {
            None => &self.aligned,
            Some(_) => &self.misaligned,
        };
        if let Some(plan) = place.get() {
            return Ok(plan);
        }
        let plan = Plan::for_operands(&self.problem, &self.made_for, operands)?;
        Ok(place.get_or_init(|| plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BackwardOptions, DType, ForwardOptions, GpuCapabilities, GradientOperands, Layout, Shape,
        TensorSpec, Variant,
    };

    const HOPPER: Capabilities = Capabilities::Gpu(GpuCapabilities::new((9, 0), 227 << 10, 132));

    fn plans(options: &ForwardOptions) -> Plans {
        let shape = Shape {
            batch: 2,
            heads: 4,
            seq: 300,
            dim: 64,
        };
        let spec = TensorSpec::contiguous(DType::Bf16, shape, Layout::Bshd).unwrap();
        let problem = Problem::new(spec, spec, spec, spec, options).unwrap();
        Plans::new(problem, HOPPER)
    }

    #[test]
    fn each_alignment_has_its_plan_which_is_kept() {
        let plans = plans(&ForwardOptions::new());
        let at = |o: u64| plans.for_operands(&Operands::new(16, 32, 48, o)).unwrap();
        assert_eq!(at(64).variant(), Variant::Wgmma);
        assert_eq!(at(68).variant(), Variant::Mma);
        assert!(std::ptr::eq(at(64), at(80)));
        assert!(std::ptr::eq(at(68), at(66)));
    }

    #[test]
    fn a_backward_pass_takes_o_at_any_address_by_the_same_kernel() {
        let spec = *plans(&ForwardOptions::new()).problem.q();
        let options = BackwardOptions::default();
        let problem =
            Problem::backward_with_dense_gradients(spec, spec, spec, spec, spec, &options).unwrap();
        let plans = Plans::new(problem, HOPPER);
        let at = |o: u64, d_o: u64| {
            let gradients = GradientOperands::new(d_o, 16, 16, 16);
            let operands = Operands::new(16, 32, 48, o).gradients(gradients);
            plans.for_operands(&operands).unwrap().variant()
        };
        assert_eq!(at(66, 64), Variant::Wgmma);
        assert_eq!(at(64, 66), Variant::Mma);
    }

    #[test]
    fn a_refusal_names_the_operand_of_its_own_call() {
        let plans = plans(&ForwardOptions::new().force(Variant::Wgmma));
        let refusal = |q: u64, o: u64| {
            let refused = plans.for_operands(&Operands::new(q, 32, 48, o));
            refused.unwrap_err().to_string()
        };
        assert!(refusal(16, 68).contains("cannot reach o: address 0x44"));
        assert!(refusal(18, 64).contains("cannot reach q: address 0x12"));
        assert!(plans.for_operands(&Operands::new(16, 32, 48, 64)).is_ok());
    }
}
