//! `ferroflash attend`: q, k, v in a file → o and lse in another.

use std::collections::HashMap;
use std::path::PathBuf;

use ferroflash::{
    Backend, DType, ForwardOptions, HostTensor, Layout, Plan, Problem, TensorSpec, forward_planned,
};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::arguments::{BackendName, DTypeName, ForwardArgs, LayoutName};
use crate::backends::{self, Work};
use crate::failure::Failure;
use crate::output::Output;
use crate::say::say;
use crate::{file, progress};

#[derive(clap::Args)]
pub struct Args {
    /// safetensors file with tensors q, k and v of rank 4 in f32, f16 or bf16; or of rank 3, packed, with i32
    /// tensors cu_seqlens_q and cu_seqlens_kv
    input: PathBuf,
    /// safetensors file to write o (q's dtype and layout) and lse (f32, [batch, heads_q, seq_q] or
    /// [heads_q, total_q]) to
    #[arg(short, long)]
    output: PathBuf,
    /// Axis order of q, k, v and o
    #[arg(long, value_enum, default_value_t = LayoutName::Bshd)]
    layout: LayoutName,
    #[command(flatten)]
    forward: ForwardArgs,
    /// Add linear biases, by the f32 tensor alibi_slopes of the file, [heads_q] or [batch, heads_q]; a file with such a
    /// tensor needs this
    #[arg(long)]
    alibi: bool,
    /// Convert q, k and v to this dtype first; o is converted back [default: the file's]
    #[arg(long, value_enum)]
    dtype: Option<DTypeName>,
    /// Where to run
    #[arg(long, value_enum, default_value_t = BackendName::Auto)]
    backend: BackendName,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let layout = Layout::from(args.layout);
    let file::Inputs {
        tensors: inputs,
        cu_seqlens,
        slopes,
    } = file::read(&args.input, layout, args.alibi)?;
    let options = args.forward.options()?.o_layout(layout);
    let options = options.cu_seqlens(cu_seqlens).alibi(slopes);
    // The inputs are checked as they are, before any conversion hides that they differ.
    let [q, k, v] = inputs.each_ref().map(|tensor| *tensor.spec());
    let problem = Problem::with_dense_output(q, k, v, &options)?;
    let output = Output::create("--output", &args.output)?;
    let attend = Attend {
        inputs,
        dtype: args.dtype.map(DType::from),
        layout,
        problem,
        options,
        output,
    };
    backends::run(args.backend, attend)
}

struct Attend {
    inputs: [HostTensor; 3],
    /// What to convert the inputs to.
    dtype: Option<DType>,
    layout: Layout,
    /// Of the inputs as they are.
    problem: Problem,
    options: ForwardOptions,
    output: Output,
}

impl Work for Attend {
    fn run<B: Backend>(self, backend: &mut B) -> Result<(), Failure> {
        let file_dtype = self.inputs[0].spec().dtype;
        let plan = self.plan(backend, self.dtype.unwrap_or(file_dtype))?;
        let dtype = plan.problem().q().dtype;
        let spinner = progress::spinner("attend");
        let kernel = backends::in_words(&plan.kernel_name(), plan.heads_per_tile());
        let memory = backend.memory();
        // Each is dropped before the next is copied.
        let [q, k, v] = self.inputs.map(|input| match input.spec().dtype == dtype {
            true => input.upload(memory),
            false => input.convert(dtype, self.layout)?.upload(memory),
        });
        let (q, k, v) = (q?, k?, v?);
        let result = forward_planned(backend, &plan, &q, &k, &v)?;
        let memory = backend.memory();
        let mut o = result.o.download(memory)?;
        let lse = result.lse.expect("it is asked for by default");
        let lse = lse.download(memory)?;
        if dtype != file_dtype {
            o = o.convert(file_dtype, self.layout)?;
        }
        // Packed tensors have no batch axis in a file.
        let axes = usize::from(plan.problem().is_packed())..;
        let o_dims = self.layout.dims(o.spec().shape)[axes.clone()].to_vec();
        let lse_dims = Layout::Bhsd.dims(lse.spec().shape)[..3][axes].to_vec();
        let layout = match self.layout {
            Layout::Bshd => "bshd",
            Layout::Bhsd => "bhsd",
        };
        let metadata = HashMap::from([("layout".to_owned(), layout.to_owned())]);
        let tensors = [("o", &o, o_dims), ("lse", &lse, lse_dims)];
        let views = || tensors.iter().map(view);
        self.output.persist_by(
            |path| safetensors::serialize_to_file(views(), Some(metadata.clone()), path),
            || safetensors::serialize(views(), Some(metadata.clone())),
        )?;
        spinner.finish_and_clear();
        say!("kernel {kernel}, computed from {} inputs", dtype.name());
        Ok(())
    }
}

impl Attend {
    /// How the problem runs in `wanted`, or in f32 where no kernel takes `wanted`: widening loses nothing.
    fn plan<B: Backend>(&self, backend: &B, wanted: DType) -> Result<Plan, Failure> {
        match self.plan_in(backend, wanted) {
            Ok(plan) => Ok(plan),
            Err(error) => self.plan_in(backend, DType::F32).map_err(|_| error.into()),
        }
    }

    fn plan_in<B: Backend>(&self, backend: &B, dtype: DType) -> Result<Plan, ferroflash::Error> {
        let file_dtype = self.problem.q().dtype;
        if dtype == file_dtype {
            return backend.plan(&self.problem);
        }
        // What a conversion gives.
        let [q, k, v] = self
            .inputs
            .each_ref()
            .map(|tensor| TensorSpec::contiguous(dtype, tensor.spec().shape, self.layout));
        let problem = Problem::with_dense_output(q?, k?, v?, &self.options)?;
        backend.plan(&problem)
    }
}

fn view<'a>(
    (name, tensor, dims): &'a (&str, &HostTensor, Vec<usize>),
) -> (&'a str, TensorView<'a>) {
    let dtype = match tensor.spec().dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
    };
    let view = TensorView::new(dtype, dims.clone(), tensor.bytes());
    (*name, view.expect("a dense tensor's bytes fit its shape"))
}
