use ferroflash::{BackwardOptions, Error, ForwardOptions, GradientSpecs, Problem, TensorSpec};

/// A forward pass of q, k, v and o, or, with d_o, dq, dk and dv behind these, the backward pass that `backward` makes of its options.
///
/// # Errors
/// Those of [`Problem::new`] and [`Problem::backward`].
///
/// # Panics
/// Unless there are four tensors or eight.
pub fn problem(
    specs: &[TensorSpec],
    forward: &ForwardOptions,
    backward: impl FnOnce(&ForwardOptions) -> BackwardOptions,
) -> Result<Problem, Error> {
    match *specs {
        [q, k, v, o] => Problem::new(q, k, v, o, forward),
        [q, k, v, o, d_o, dq, dk, dv] => {
            #[rustfmt::skip] // as they are named
            let specs = GradientSpecs { o, d_o, dq, dk, dv };
            Problem::backward(q, k, v, specs, &backward(forward))
        }
        _ => panic!("a pass has four tensors or eight"),
    }
}
