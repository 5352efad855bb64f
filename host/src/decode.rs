//! Attention of new queries to a cache of keys and values.

use crate::forward::{check_output, inputs, run, run_into_new};
use crate::spec::{Shape, TensorSpec};
use crate::tensor::check_planned;
use crate::{Backend, Error, ForwardOptions, KvCache, Operands, Output, Plan, Problem, Tensor};

/// Attention of the last queries of each sequence to its cache: decoding, drafts to verify, or a chunk of a prompt.
///
/// The last of a sequence's `seq_q` queries stands at its last key, number `kv_lens[b] − 1`, so that causal masks, windows and
/// ALiBi are aligned there; the cache holds the queries' own keys already. Lengths and block table are read on the device
/// ([`KvCache`]), so a call neither waits for them nor plans by them.
///
/// A sequence's results depend on its own queries and keys alone, bit for bit: not on which others are in the batch, on the size
/// or order of pages, or on how many blocks a GPU runs. Up to 64 rows, queries × heads of a group, have the bits that each query has
/// alone, as drafts need, also where they are packed beside sequences with more. Of more rows, on Hopper, bits may depend on which
/// queries are asked together, and on whether pages are of a size that its kernels take (a power of two from 16 on);
/// [`Variant::Decode`](crate::Variant::Decode) forced keeps them from that.
///
/// # Arguments
/// * `q`: `[batch, heads_q, seq_q, head_dim]` in any strides, f32, f16 or bf16; f32 on the CPU alone. Sequences with queries of
///   different numbers, as chunks of prompts beside single tokens, are packed: `[1, heads_q, total_q, head_dim]`, with
///   `options.cu_seqlens(`[`CuSeqlens::of_queries`](crate::CuSeqlens::of_queries)`(…)?)`.
/// * `cache`: of q's dtype, or e4m3; heads_q is a multiple of heads_kv.
/// * `options`: as for [`forward`](crate::forward()), but for lengths of keys, and for modifiers other than sinks and a tree.
///
/// # Errors
/// [`Error::Argument`] naming the operand or option that is refused, [`Error::OutOfMemory`] or [`Error::Device`].
pub fn decode<B: Backend + ?Sized>(
    backend: &mut B,
    q: &Tensor<B::Memory>,
    cache: &KvCache<B::Memory>,
    options: &ForwardOptions,
) -> Result<Output<B::Memory>, Error> {
    let shape = Shape {
        dim: cache.v.spec().shape.dim,
        ..q.spec().shape
    };
    let o = TensorSpec::contiguous(q.spec().dtype, shape, options.o_layout)?;
    let problem = problem(q, cache, o, options)?;
    let inputs = cached_inputs(backend, q, cache)?;
    let plan = Plan::for_operands(&problem, &backend.capabilities(), &inputs)?;
    run_into_new(backend, &plan, &inputs)
}

/// [`decode`] into tensors made before, as [`forward_into`](crate::forward_into) does.
///
/// # Errors
/// Those of [`decode`], and [`Error::Argument`] if o or lse is not of the shape and dtype that [`decode`] gives it, lse is not
/// contiguous, or one shares elements with another operand.
pub fn decode_into<B: Backend + ?Sized>(
    backend: &mut B,
    q: &Tensor<B::Memory>,
    cache: &KvCache<B::Memory>,
    output: &mut Output<B::Memory>,
    options: &ForwardOptions,
) -> Result<(), Error> {
    let problem = problem(q, cache, *output.o.spec(), options)?;
    let inputs = cached_inputs(backend, q, cache)?;
    let memory = backend.memory();
    check_output(memory, [q, &cache.k, &cache.v], output)?;
    let operands = Operands {
        o: output.o.address(memory),
        ..inputs
    };
    let plan = Plan::for_operands(&problem, &backend.capabilities(), &operands)?;
    run(backend, &plan, &operands, output)
}

/// [`decode`] with a plan made before, of [`Problem::decode`]: the problem is not checked again and no kernel is chosen again.
///
/// # Errors
/// [`Error::Argument`] naming an operand that is not of the plan's problem or not at an address it was made for, or the
/// plan if it is for another kind of backend; [`Error::OutOfMemory`] or [`Error::Device`].
pub fn decode_planned<B: Backend + ?Sized>(
    backend: &mut B,
    plan: &Plan,
    q: &Tensor<B::Memory>,
    cache: &KvCache<B::Memory>,
) -> Result<Output<B::Memory>, Error> {
    let inputs = planned_inputs(backend, plan, q, cache)?;
    run_into_new(backend, plan, &inputs)
}

/// [`decode_into`] with a plan made before, as for [`decode_planned`].
///
/// # Errors
/// Those of [`decode_planned`], and [`Error::Argument`] if o or lse is not of the plan's problem, or shares elements with
/// another operand.
pub fn decode_planned_into<B: Backend + ?Sized>(
    backend: &mut B,
    plan: &Plan,
    q: &Tensor<B::Memory>,
    cache: &KvCache<B::Memory>,
    output: &mut Output<B::Memory>,
) -> Result<(), Error> {
    let inputs = planned_inputs(backend, plan, q, cache)?;
    check_planned("o", &output.o, plan.problem().o())?;
    check_output(backend.memory(), [q, &cache.k, &cache.v], output)?;
    run(backend, plan, &inputs, output)
}

fn problem<B: crate::Memory>(
    q: &Tensor<B>,
    cache: &KvCache<B>,
    o: TensorSpec,
    options: &ForwardOptions,
) -> Result<Problem, Error> {
    let (k, v) = (*cache.k.spec(), *cache.v.spec());
    let problem = Problem::decode(*q.spec(), k, v, o, cache.layout(), options)?;
    let (batch, sequences) = (problem.batch(), cache.batch());
    if batch != sequences {
        return Err(Error::argument(
            "kv_lens",
            format!("it has {sequences} lengths"),
            format!("{batch}, one for each sequence of q"),
        ));
    }
    match cache.scale_specs() {
        None => Ok(problem),
        Some([k, v]) => problem.with_cache_scales(k, v),
    }
}

/// The addresses of q and the cache.
fn cached_inputs<B: Backend + ?Sized>(
    backend: &mut B,
    q: &Tensor<B::Memory>,
    cache: &KvCache<B::Memory>,
) -> Result<Operands, Error> {
    let memory = backend.memory();
    let inputs = inputs(memory, q, &cache.k, &cache.v)?;
    Ok(inputs.cache(cache.operands(memory)?))
}

/// As [`cached_inputs`], if they match the plan's problem.
fn planned_inputs<B: Backend + ?Sized>(
    backend: &mut B,
    plan: &Plan,
    q: &Tensor<B::Memory>,
    cache: &KvCache<B::Memory>,
) -> Result<Operands, Error> {
    let problem = plan.problem();
    check_planned("q", q, problem.q())?;
    check_planned("k", &cache.k, problem.k())?;
    check_planned("v", &cache.v, problem.v())?;
    if problem.cache_layout() != Some(cache.layout()) || problem.batch() != cache.batch() {
        let wrong = format!("it is {:?} of {}", cache.layout(), cache.batch());
        let allowed = format!("{:?} of {}", problem.cache_layout(), problem.batch());
        return Err(Error::argument("cache", wrong, allowed));
    }
    let scales = problem.scales_like(cache.scale_specs())?;
    if scales != problem.cache_scales() {
        let allowed = format!("{:?}, as planned", problem.cache_scales());
        return Err(Error::argument(
            "scales",
            format!("they are {scales:?}"),
            allowed,
        ));
    }
    cached_inputs(backend, q, cache)
}
