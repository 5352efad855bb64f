//! What is refused of the operands of a backward pass, and their addresses.

use super::{Gradients, OutputGradients};
use crate::spec::TensorSpec;
use crate::tensor::lse_spec;
use crate::{Error, GradientOperands, Memory, Operands, Output, Problem, Shape, Tensor};

/// Refuses an lse or a d_lse that does not fit o, and an output without lse.
pub(super) fn check_rows<M: Memory>(
    output: &Output<M>,
    d_output: &OutputGradients<'_, M>,
) -> Result<(), Error> {
    let expected = lse_spec(&output.o.spec().shape)?;
    let check = |argument: &'static str, spec: &TensorSpec| {
        if *spec == expected {
            return Ok(());
        }
        let allowed = "it must be a contiguous f32 tensor of [batch, heads_q, seq_q, 1]";
        Err(Error::argument(
            argument,
            format!("it is {spec:?}"),
            allowed,
        ))
    };
    let Some(lse) = &output.lse else {
        let allowed = "the forward pass must have kept it";
        return Err(Error::argument("lse", "the output has none", allowed));
    };
    check("lse", lse.spec())?;
    d_output
        .d_lse
        .map_or(Ok(()), |d_lse| check("d_lse", d_lse.spec()))
}

/// The tensors that are read, by name.
fn read<'a, M: Memory>(
    [q, k, v]: [&'a Tensor<M>; 3],
    output: &'a Output<M>,
    d_output: &OutputGradients<'a, M>,
) -> impl Iterator<Item = (&'static str, &'a Tensor<M>)> {
    let given = [
        ("q", q),
        ("k", k),
        ("v", v),
        ("o", &output.o),
        ("d_o", d_output.d_o),
    ];
    let lse = output.lse.as_ref().map(|lse| ("lse", lse));
    let d_lse = d_output.d_lse.map(|d_lse| ("d_lse", d_lse));
    given.into_iter().chain(lse).chain(d_lse)
}

/// Refuses a gradient by slopes, sinks or a bias that is missing, not asked for, or not of their shape.
pub(super) fn check_parameters<M: Memory>(
    problem: &Problem,
    gradients: &Gradients<M>,
) -> Result<(), Error> {
    let (slopes, sinks) = (&gradients.d_alibi_slopes, &gradients.d_sinks);
    let of_slopes = ("d_alibi_slopes", "alibi_gradient");
    check_parameter(of_slopes, problem.d_alibi_slopes(), slopes.as_ref())?;
    let of_sinks = ("d_sinks", "sink_gradient");
    check_parameter(of_sinks, problem.d_sinks(), sinks.as_ref())?;
    let of_bias = ("d_bias", "bias_gradient");
    check_parameter(of_bias, problem.d_bias(), gradients.d_bias.as_ref())
}

/// Refuses the gradient called `argument`, which `option` asks for, unless it is as `expected`.
fn check_parameter<M: Memory>(
    (argument, option): (&'static str, &str),
    expected: Option<&TensorSpec>,
    given: Option<&Tensor<M>>,
) -> Result<(), Error> {
    let refused = |wrong: String, allowed: &str| Err(Error::argument(argument, wrong, allowed));
    match (expected, given) {
        (None, None) => Ok(()),
        (Some(expected), Some(tensor)) if is_same(tensor.spec(), expected) => Ok(()),
        (Some(expected), Some(tensor)) => {
            let Shape {
                batch,
                heads,
                seq,
                dim,
            } = expected.shape;
            let allowed = format!("a contiguous f32 tensor of [{batch}, {heads}, {seq}, {dim}]");
            refused(format!("it is {:?}", tensor.spec()), &allowed)
        }
        (Some(_), None) => {
            let wrong = format!("there is none, and the options ask for it ({option})");
            refused(wrong, "a tensor for it")
        }
        (None, Some(_)) => {
            let wrong = format!("the options do not ask for it ({option})");
            refused(wrong, "none, or an option that asks for it")
        }
    }
}

/// Whether elements are of one dtype, and in the same places: the stride of an axis of size 1 does not matter.
fn is_same(spec: &TensorSpec, expected: &TensorSpec) -> bool {
    let axes = spec.axes().into_iter().zip(expected.axes());
    let mut places = axes.map(|(a, b)| a == b || a.0 == 1 && b.0 == 1);
    spec.dtype == expected.dtype && places.all(|is_same| is_same)
}

/// Refuses gradients that share elements with each other or with what is read, or that `memory` does not own.
pub(super) fn check_gradients<M: Memory>(
    memory: &M,
    inputs: [&Tensor<M>; 3],
    output: &Output<M>,
    d_output: &OutputGradients<'_, M>,
    gradients: &Gradients<M>,
) -> Result<(), Error> {
    let mut others: Vec<_> = read(inputs, output, d_output).collect();
    for (argument, tensor) in gradients.named() {
        tensor.check_owned(memory, argument)?;
        if let Some((name, _)) = others
            .iter()
            .find(|(_, other)| tensor.may_share_elements(other))
        {
            return Err(Error::argument(
                argument,
                format!("it shares elements with {name}"),
                "it must lie apart from the other operands, for it is written",
            ));
        }
        others.push((argument, tensor));
    }
    Ok(())
}

/// The addresses of what is read; those of the gradients are 0, a multiple of any alignment.
///
/// # Errors
/// [`Error::Argument`] on a tensor whose buffer `memory` did not allocate.
pub(super) fn inputs<M: Memory>(
    memory: &M,
    [q, k, v]: [&Tensor<M>; 3],
    output: &Output<M>,
    d_output: &OutputGradients<'_, M>,
) -> Result<Operands, Error> {
    for (argument, tensor) in read([q, k, v], output, d_output) {
        tensor.check_owned(memory, argument)?;
    }
    Ok(Operands {
        q: q.address(memory),
        k: k.address(memory),
        v: v.address(memory),
        o: output.o.address(memory),
        lse: output.lse.as_ref().map(|lse| lse.address(memory)),
        gradients: Some(GradientOperands {
            d_o: d_output.d_o.address(memory),
            d_lse: d_output.d_lse.map(|d_lse| d_lse.address(memory)),
            ..GradientOperands::default()
        }),
        ..Operands::default()
    })
}
