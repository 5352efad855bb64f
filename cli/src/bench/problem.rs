//! One problem of attention or its gradients to time.

use ferroflash::{
    Backend, BackwardOptions, DType, ForwardOptions, Layout, Memory, Output, Plan, Problem, Shape,
    Tensor, TensorSpec, backward, backward_into, backward_planned_into, forward, forward_into,
    forward_planned_into,
};
use ferroflash_testing::cases::{BackwardCase, BackwardRun, Case, InputKind, normal};
use ferroflash_testing::oracle::Rows;
use indicatif::ProgressBar;

use super::protocol::{self, Times};
use super::report::{Amount, Ran, Report};
use super::verdict::refuse_unless;
use crate::arguments::Pass;
use crate::backends::Work;
use crate::failure::Failure;
use crate::progress;

/// One problem to time.
pub struct Bench {
    /// Shapes of q, k and v.
    pub shapes: [Shape; 3],
    pub dtype: DType,
    pub layout: Layout,
    pub options: ForwardOptions,
    pub input: InputKind,
    pub pass: Pass,
    pub deterministic: bool,
    pub json: bool,
}

/// Seed of the random values of [`InputKind::apply`].
const INPUT_SEED: u64 = 0;

/// Rows that are checked before anything is timed.
const CHECKED_ROWS: Rows = Rows::Sampled { count: 64, seed: 0 };

impl Work for Bench {
    fn run<B: Backend>(self, backend: &mut B) -> Result<(), Failure> {
        let report = self.measure(backend)?;
        match self.json {
            true => report.print_json()?,
            false => report.print()?,
        }
        Ok(())
    }
}

impl Bench {
    /// The problem to time, without its inputs.
    pub fn problem(&self) -> Result<Problem, Failure> {
        let specs = self
            .shapes
            .map(|shape| TensorSpec::contiguous(self.dtype, shape, self.layout));
        let [q, k, v] = specs;
        let (q, k, v) = (q?, k?, v?);
        let forward = Problem::with_dense_output(q, k, v, &self.options)?;
        if self.pass == Pass::Fwd {
            return Ok(forward);
        }
        let o = *forward.o();
        let options = self.backward_options();
        Ok(Problem::backward_with_dense_gradients(
            q, k, v, o, o, &options,
        )?)
    }

    fn backward_options(&self) -> BackwardOptions {
        BackwardOptions::of(&self.options).deterministic(self.deterministic)
    }

    /// The name of the inputs' kind; `None` for the default, N(0, 1).
    pub fn input_name(&self) -> Option<&'static str> {
        (self.input != InputKind::Random).then(|| self.input.name())
    }

    /// Whether it has the default inputs, and no options besides mask, layout and forced variant.
    pub fn is_plain(&self) -> bool {
        let ForwardOptions { mask, o_layout, .. } = self.options;
        let plain = ForwardOptions::new().mask(mask).o_layout(o_layout);
        self.input_name().is_none() && self.options.clone().force(None) == plain
    }

    /// The problem with its inputs.
    pub fn case(&self) -> Result<Case, Failure> {
        let [q, k, v] = self.shapes;
        let input = |shape, seed| normal(self.dtype, shape, self.layout, seed);
        let mut case = Case {
            q: input(q, 1)?,
            k: input(k, 2)?,
            v: input(v, 3)?,
            options: self.options.clone(),
            o: None,
        };
        self.input.apply(&mut case, INPUT_SEED);
        Ok(case)
    }

    /// Checks the result, then times it.
    pub fn measure<B: Backend>(&self, backend: &mut B) -> Result<Report, Failure> {
        let problem = self.problem()?;
        let plan = backend.plan(&problem)?;
        let kernel = plan.kernel_name();
        // Fails early if the problem does not fit the device: making the inputs takes long.
        backend.memory().alloc(problem.bytes() as usize)?;

        let spinner = progress::spinner("inputs");
        let case = self.case()?;
        let memory = backend.memory();
        let q = case.q.upload(memory)?;
        let k = case.k.upload(memory)?;
        let v = case.v.upload(memory)?;

        spinner.set_message("check");
        // A forced family may have kernels for one pass only.
        let options = match self.pass {
            Pass::Fwd => self.options.clone(),
            Pass::Bwd => self.options.clone().force(None),
        };
        let output = forward(backend, &q, &k, &v, &options)?;
        let inputs = Inputs { case, q, k, v };
        let (times, host_us_planned) = match self.pass {
            Pass::Fwd => self.time_forward(backend, &plan, &inputs, output, &spinner)?,
            Pass::Bwd => self.time_backward(backend, &plan, inputs, &output, &spinner)?,
        };
        spinner.finish_and_clear();
        let ran = Ran {
            kernel,
            heads_per_tile: plan.heads_per_tile(),
            input: self.input_name().map(str::to_owned),
            device: backend.device_name(),
            is_queued: backend.memory().is_queued(),
            host_us_planned,
            workspace_bytes: plan.workspace_bytes(),
        };
        Ok(Report::new(ran, &Amount::of(&problem), &times))
    }

    /// Checks `output`, and times the pass that made it, with a new plan each call and, on the host, with a kept one.
    fn time_forward<B: Backend>(
        &self,
        backend: &mut B,
        plan: &Plan,
        inputs: &Inputs<B>,
        mut output: Output<B::Memory>,
        spinner: &ProgressBar,
    ) -> Result<(Times, Option<f64>), Failure> {
        let Inputs { case, q, k, v } = inputs;
        let memory = backend.memory();
        let lse = output.lse.as_ref().expect("it is asked for by default");
        let (o, lse) = (output.o.download(memory)?, lse.download(memory)?);
        let verdict = case.check(&o, &lse, CHECKED_ROWS)?;
        refuse_unless(verdict.passed(), &plan.kernel_name(), &verdict)?;
        spinner.set_message("time");
        let mut run = |backend: &mut B| {
            forward_into(backend, q, k, v, &mut output, &self.options).map_err(Failure::from)
        };
        let times = protocol::times(backend, &mut run)?;
        let mut run = |backend: &mut B| {
            forward_planned_into(backend, plan, q, k, v, &mut output).map_err(Failure::from)
        };
        let host_us_planned = protocol::host_us(backend, &times, &mut run)?;
        Ok((times, host_us_planned))
    }

    /// Checks the gradients of `output`, and times the pass that makes them, with a new plan each call and, on the host, with a
    /// kept one.
    fn time_backward<B: Backend>(
        &self,
        backend: &mut B,
        plan: &Plan,
        Inputs { case, q, k, v }: Inputs<B>,
        output: &Output<B::Memory>,
        spinner: &ProgressBar,
    ) -> Result<(Times, Option<f64>), Failure> {
        let options = self.backward_options();
        let o = output.o.spec().shape;
        let case = BackwardCase {
            forward: case,
            d_o: normal(self.dtype, o, self.layout, D_O_SEED)?,
            d_lse: None,
            deterministic: self.deterministic,
            workspace_limit_bytes: None,
            alibi_gradient: false,
            bias_gradient: false,
            arrangements: None,
        };
        let d_o = case.d_o.upload(backend.memory())?;
        let mut gradients = backward(backend, &q, &k, &v, output, &d_o, &options)?;
        let memory = backend.memory();
        let lse = output.lse.as_ref().expect("it is asked for by default");
        let run = BackwardRun {
            o: output.o.download(memory)?,
            lse: lse.download(memory)?,
            dq: gradients.dq.download(memory)?,
            dk: gradients.dk.download(memory)?,
            dv: gradients.dv.download(memory)?,
            d_alibi_slopes: None,
            d_bias: None,
        };
        let verdict = case.check(&run, CHECKED_ROWS)?;
        refuse_unless(verdict.passed(), &plan.kernel_name(), &verdict)?;
        spinner.set_message("time");
        let mut run = |backend: &mut B| {
            backward_into(backend, &q, &k, &v, output, &d_o, &mut gradients, &options)
                .map_err(Failure::from)
        };
        let times = protocol::times(backend, &mut run)?;
        let mut run = |backend: &mut B| {
            backward_planned_into(backend, plan, &q, &k, &v, output, &d_o, &mut gradients)
                .map_err(Failure::from)
        };
        let host_us_planned = protocol::host_us(backend, &times, &mut run)?;
        Ok((times, host_us_planned))
    }
}

/// A case and its inputs on the backend.
struct Inputs<B: Backend> {
    case: Case,
    q: Tensor<B::Memory>,
    k: Tensor<B::Memory>,
    v: Tensor<B::Memory>,
}

/// Seed of the loss's gradient by o.
const D_O_SEED: u64 = 4;
