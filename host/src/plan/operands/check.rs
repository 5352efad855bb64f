//! Checks of addresses, beside what is planned.

use super::address::{WORD_BYTES, check_address};
use super::{GradientOperands, Operands, WORKSPACE_ALIGN_BYTES, Workspace};
use crate::plan::Plan;
use crate::{Error, Lengths, Problem};

impl Operands {
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
