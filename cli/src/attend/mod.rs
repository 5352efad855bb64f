//! `ferroflash attend`: q, k, v in a file → o and lse in another, and with d_o the gradients.

mod cache;
mod file;
mod inputs;
mod modifiers;
mod results;
mod tensor_file;

use std::path::PathBuf;

use ferroflash::{
    Backend, BackwardOptions, DType, Error, Gradients, HostTensor, Layout, Plan, Problem,
    TensorSpec, backward, forward_planned,
};

use crate::arguments::{BackendName, DTypeName, ForwardArgs, LayoutName};
use crate::backends::{self, Work};
use crate::failure::Failure;
use crate::modifiers::ModifierArgs;
use crate::output::Output;
use crate::progress;
use crate::say::say;

use cache::AttendCache;
use modifiers::BlockArgs;
use results::Results;

#[derive(clap::Args)]
pub struct Args {
    /// safetensors file with tensors q, k and v of rank 4 in f32, f16 or bf16; or of rank 3, packed, with i32
    /// tensors cu_seqlens_q and cu_seqlens_kv; with --backward also d_o, of o's shape and dtype. Used where they are there:
    /// mask (u8 or bool) and bias (f32, f16 or bf16), [batch or 1, heads_q or 1, seq_q or 1, seq_kv]; sinks (f32,
    /// [heads_q]); doc_q and doc_kv (i32, [seq] or [batch, seq]); block_counts and block_indices (i32, [batch or 1,
    /// heads_q or 1, q_blocks] and the same with [.., kv_blocks]). With block_table (i32, [batch, max_pages]) and kv_lens (i32,
    /// [batch]) k and v are a cache's pages, [num_pages, page_size, heads_kv, head_dim] in bshd; they may then be f8_e4m3,
    /// multiplied with k_scales and v_scales if these are there (f32: a number, [heads_kv], or k's axes without head_dim, each
    /// of k's size or 1). With tree_mask (i64 or u64, [seq_q] or [batch, seq_q]) the last seq_q keys of a sequence are drafts,
    /// of which a query sees number j where bit j of its word is set
    input: PathBuf,
    /// safetensors file to write o (q's dtype and layout) and lse (f32, [batch, heads_q, seq_q] or
    /// [heads_q, total_q]) to; with --backward also dq, dk and dv (q's dtype and layout), and with
    /// --alibi-gradient d_alibi_slopes, with --bias-gradient d_bias, and with sinks d_sinks (f32, [heads_q])
    #[arg(short, long)]
    output: PathBuf,
    /// Axis order of q, k, v and o, and of their gradients
    #[arg(long, value_enum, default_value_t = LayoutName::Bshd)]
    layout: LayoutName,
    #[command(flatten)]
    forward: ForwardArgs,
    #[command(flatten)]
    modifiers: ModifierArgs,
    #[command(flatten)]
    blocks: BlockArgs,
    /// Add linear biases, by the f32 tensor alibi_slopes of the file, [heads_q] or [batch, heads_q]; a file with such a
    /// tensor needs this
    #[arg(long)]
    alibi: bool,
    /// Compute the gradients dq, dk and dv from the tensor d_o of the file, the loss's gradient by o; a file with such a
    /// tensor needs this
    #[arg(long)]
    backward: bool,
    /// Sum gradients in one order, so that every run gives the same bits
    #[arg(long, requires = "backward")]
    deterministic: bool,
    /// Compute the gradient by the slopes too, d_alibi_slopes, f32 and of the shape of alibi_slopes
    #[arg(long, requires_all = ["alibi", "backward"])]
    alibi_gradient: bool,
    /// Compute the gradient by the file's bias too, d_bias, f32 and of the shape of bias
    #[arg(long, requires = "backward")]
    bias_gradient: bool,
    /// Convert the inputs to this dtype first; o and gradients are converted back [default: the file's]
    #[arg(long, value_enum)]
    dtype: Option<DTypeName>,
    /// Where to run
    #[arg(long, value_enum, default_value_t = BackendName::Auto)]
    backend: BackendName,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let layout = Layout::from(args.layout);
    let asked = inputs::Asked {
        slopes: args.alibi,
        d_o: args.backward,
    };
    let options = args.modifiers.apply(args.forward.options()?)?;
    let inputs::Inputs {
        tensors,
        cu_seqlens,
        slopes,
        d_o,
        options,
        cache,
    } = inputs::read(&args.input, layout, asked, &args.blocks, options)?;
    let options = options
        .o_layout(layout)
        .cu_seqlens(cu_seqlens)
        .alibi(slopes);
    if let Some(arrays) = cache {
        args.refuse_gradients_of_cache()?;
        let specs = tensors.each_ref().map(|tensor| *tensor.spec());
        AttendCache::problem(specs, &arrays, &options)?;
        let attend = AttendCache {
            inputs: tensors,
            arrays,
            dtype: args.dtype.map(DType::from),
            layout,
            options,
            output: Output::create("--output", &args.output)?,
        };
        return backends::run(args.backend, attend);
    }
    let has_sinks = options.modifiers.sinks.is_some();
    let options = BackwardOptions::of(&options)
        .deterministic(args.deterministic)
        .alibi_gradient(args.alibi_gradient)
        .sink_gradient(has_sinks)
        .bias_gradient(args.bias_gradient);
    // The inputs are checked as they are, before any conversion hides that they differ.
    let specs = tensors.each_ref().map(|tensor| *tensor.spec());
    let d_o_spec = d_o.as_ref().map(|d_o| *d_o.spec());
    let problems = Problems::new(specs, d_o_spec, &options)?;
    let output = Output::create("--output", &args.output)?;
    let attend = Attend {
        inputs: tensors,
        d_o,
        dtype: args.dtype.map(DType::from),
        layout,
        problems,
        options,
        output,
    };
    backends::run(args.backend, attend)
}

impl Args {
    fn refuse_gradients_of_cache(&self) -> Result<(), Failure> {
        if !self.backward {
            return Ok(());
        }
        let wrong = "the file has a cache, of which no gradients are computed";
        let allowed = "a file without block_table and kv_lens";
        Err(Failure::refused("--backward", wrong, allowed))
    }
}

/// The forward pass, and the backward pass where gradients are asked for.
struct Problems {
    forward: Problem,
    backward: Option<Problem>,
}

impl Problems {
    fn new(
        [q, k, v]: [TensorSpec; 3],
        d_o: Option<TensorSpec>,
        options: &BackwardOptions,
    ) -> Result<Self, Error> {
        let forward = Problem::with_dense_output(q, k, v, &options.forward)?;
        let o = *forward.o();
        let of_d_o = |d_o| Problem::backward_with_dense_gradients(q, k, v, o, d_o, options);
        let backward = d_o.map(of_d_o).transpose()?;
        Ok(Self { forward, backward })
    }

    fn plan<B: Backend>(&self, backend: &B) -> Result<Plans, Error> {
        let of_backward = |problem| backend.plan(problem);
        Ok(Plans {
            forward: backend.plan(&self.forward)?,
            backward: self.backward.as_ref().map(of_backward).transpose()?,
        })
    }
}

/// How they run.
struct Plans {
    forward: Plan,
    backward: Option<Plan>,
}

struct Attend {
    inputs: [HostTensor; 3],
    d_o: Option<HostTensor>,
    /// Dtype to convert the inputs to.
    dtype: Option<DType>,
    layout: Layout,
    /// Of the inputs as they are.
    problems: Problems,
    options: BackwardOptions,
    output: Output,
}

impl Work for Attend {
    fn run<B: Backend>(self, backend: &mut B) -> Result<(), Failure> {
        let file_dtype = self.inputs[0].spec().dtype;
        let plans = self.plan(backend, self.dtype.unwrap_or(file_dtype))?;
        let plan = &plans.forward;
        let dtype = plan.problem().q().dtype;
        let spinner = progress::spinner("attend");
        let upload = |input: HostTensor, backend: &mut B| match input.spec().dtype == dtype {
            true => input.upload(backend.memory()),
            false => input.convert(dtype, self.layout)?.upload(backend.memory()),
        };
        // Each is dropped before the next is copied.
        let [q, k, v] = self.inputs.map(|input| upload(input, backend));
        let (q, k, v) = (q?, k?, v?);
        let result = forward_planned(backend, plan, &q, &k, &v)?;
        let mut results = Results::new(file_dtype, self.layout, plan.problem().is_packed());
        results.add("o", result.o.download(backend.memory())?)?;
        let lse = result.lse.as_ref().expect("it is asked for by default");
        results.add_lse(lse.download(backend.memory())?);
        if let Some(d_o) = self.d_o {
            let d_o = upload(d_o, backend)?;
            let gradients = backward(backend, &q, &k, &v, &result, &d_o, &self.options)?;
            let Gradients {
                dq,
                dk,
                dv,
                d_alibi_slopes,
                d_sinks,
                d_bias,
                ..
            } = gradients;
            for (name, gradient) in [("dq", dq), ("dk", dk), ("dv", dv)] {
                results.add(name, gradient.download(backend.memory())?)?;
            }
            if let Some(slopes) = d_alibi_slopes {
                let is_batched = self.options.forward.alibi.is_some_and(|a| a.is_batched());
                let slopes = slopes.download(backend.memory())?;
                results.add_of_heads("d_alibi_slopes", slopes, is_batched);
            }
            if let Some(sinks) = d_sinks {
                results.add_of_heads("d_sinks", sinks.download(backend.memory())?, false);
            }
            if let Some(bias) = d_bias {
                results.add_bias(bias.download(backend.memory())?);
            }
        }
        results.write(self.output)?;
        spinner.finish_and_clear();
        let mut kernels = backends::in_words(&plan.kernel_name(), plan.heads_per_tile());
        if let Some(plan) = plans.backward {
            kernels += &format!(" and {}", plan.kernel_name());
        }
        say!("kernel {kernels}, computed from {} inputs", dtype.name());
        Ok(())
    }
}

impl Attend {
    /// How the problems run in `wanted`, or in f32 where no kernel takes `wanted`: widening loses nothing.
    fn plan<B: Backend>(&self, backend: &B, wanted: DType) -> Result<Plans, Failure> {
        match self.plan_in(backend, wanted) {
            Ok(plans) => Ok(plans),
            Err(error) => self.plan_in(backend, DType::F32).map_err(|_| error.into()),
        }
    }

    fn plan_in<B: Backend>(&self, backend: &B, dtype: DType) -> Result<Plans, Error> {
        if dtype == self.problems.forward.q().dtype {
            return self.problems.plan(backend);
        }
        // As a conversion gives them.
        let converted =
            |tensor: &HostTensor| TensorSpec::contiguous(dtype, tensor.spec().shape, self.layout);
        let [q, k, v] = self.inputs.each_ref().map(converted);
        let d_o = self.d_o.as_ref().map(converted).transpose()?;
        Problems::new([q?, k?, v?], d_o, &self.options)?.plan(backend)
    }
}
