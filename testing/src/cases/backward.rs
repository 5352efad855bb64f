//! A case with the loss's gradients, for the backward pass.

use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::arrangement::{Arrangement, is_kept_between, unwritten_f32};
use super::fill::mix;
use super::spec::{Case, CaseSpec};
use crate::oracle::{
    BackwardInputs, BackwardVerdict, GradientTensors, Inputs, Rows, check_backward,
};
use ferroflash::plan::why_not;
use ferroflash::{
    Backend, BackwardOptions, Capabilities, Error, ForwardOptions, GradientSpecs, Gradients,
    HostTensor, Layout, Memory, OutputGradients, Problem, Shape, TensorSpec, Variant, backward,
    backward_into,
};

/// A case and the loss's gradients by the outputs of its forward pass.
#[derive(Clone, Debug)]
pub struct BackwardCase {
    /// q, k, v and the options.
    pub forward: Case,
    /// `[batch, heads_q, seq_q, head_dim_v]`.
    pub d_o: HostTensor,
    /// f32 `[batch, heads_q, seq_q, 1]`.
    pub d_lse: Option<HostTensor>,
    /// Whether two runs have to give the same bits.
    pub deterministic: bool,
    /// [`BackwardOptions::workspace_limit_bytes`], if it is not the default.
    pub workspace_limit_bytes: Option<usize>,
    /// Whether the gradient by slopes is asked for.
    pub alibi_gradient: bool,
    /// Whether the gradient by the bias is.
    pub bias_gradient: bool,
    /// How dq, dk and dv lie in memory, if not as the backend lays them out.
    pub arrangements: Option<[Arrangement; 3]>,
}

/// Results of both passes.
#[derive(Clone, Debug, PartialEq)]
pub struct BackwardRun {
    /// Output of the forward pass.
    pub o: HostTensor,
    /// Log-sum-exp of the forward pass.
    pub lse: HostTensor,
    /// The loss's gradient by q.
    pub dq: HostTensor,
    /// The loss's gradient by k.
    pub dk: HostTensor,
    /// The loss's gradient by v.
    pub dv: HostTensor,
    /// The loss's gradient by the slopes of ALiBi, if it is asked for.
    pub d_alibi_slopes: Option<HostTensor>,
    /// The loss's gradient by the bias, if it is asked for.
    pub d_bias: Option<HostTensor>,
}

impl CaseSpec {
    /// Makes the inputs of both passes. d_o lies in memory as v does; every other seed has a d_lse, and of those with slopes or a
    /// bias two of three ask for their gradients.
    ///
    /// # Errors
    /// [`Error::Argument`] if a buffer would be too large.
    pub fn build_backward(&self) -> Result<BackwardCase, Error> {
        let forward = self.build()?;
        let o = Shape {
            dim: self.head_dim_v,
            ..forward.q.spec().shape
        };
        let mut d_o = self.arrangements[2].allocate(self.dtype, o)?;
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(mix(self.seed, 4));
        d_o.fill(|| rng.sample(StandardNormal));
        self.kind.apply_to_gradient(&mut d_o, self.seed);
        let rows = Shape { dim: 1, ..o };
        let d_lse = (self.seed % 2 == 1).then(|| {
            let values = (0..o.batch * o.heads * o.seq).map(|_| rng.sample(StandardNormal));
            let values: Vec<f32> = values.collect();
            HostTensor::from_f32(&values, rows, Layout::Bhsd)
        });
        Ok(BackwardCase {
            forward,
            d_o,
            d_lse: d_lse.transpose()?,
            deterministic: false,
            workspace_limit_bytes: None,
            alibi_gradient: self.alibi.is_some() && !self.seed.is_multiple_of(3),
            bias_gradient: self.modifiers.bias.is_some() && !self.seed.is_multiple_of(3),
            arrangements: None,
        })
    }

    /// [`BackwardCase::arrangements`] for this seed: a third of all seeds have some.
    pub fn arrangements_of_gradients(&self) -> Option<[Arrangement; 3]> {
        const ROWS: Arrangement = Arrangement::ODD_ROWS;
        const COLUMNS: Arrangement = Arrangement::COLUMNS;
        match mix(self.seed, 6) % 6 {
            0 => Some([ROWS, COLUMNS, ROWS]),
            1 => Some([COLUMNS, ROWS, COLUMNS]),
            _ => None,
        }
    }
}

impl BackwardCase {
    /// The options of the backward pass.
    pub fn options(&self) -> BackwardOptions {
        let options = BackwardOptions::of(&self.forward.options)
            .deterministic(self.deterministic)
            .alibi_gradient(self.alibi_gradient)
            .bias_gradient(self.bias_gradient);
        match self.workspace_limit_bytes {
            None => options,
            Some(bytes) => options.workspace_limit_bytes(bytes),
        }
    }

    /// The checked problem.
    ///
    /// # Errors
    /// [`Error::Argument`] if the inputs do not fit together.
    pub fn problem(&self) -> Result<Problem, Error> {
        let o = *self.forward.problem()?.o();
        let [q, k, v] = [&self.forward.q, &self.forward.k, &self.forward.v].map(|x| *x.spec());
        let (d_o, options) = (*self.d_o.spec(), self.options());
        let Some([dq, dk, dv]) = self.places()? else {
            return Problem::backward_with_dense_gradients(q, k, v, o, d_o, &options);
        };
        let specs = GradientSpecs {
            o,
            d_o,
            dq: *dq.spec(),
            dk: *dk.spec(),
            dv: *dv.spec(),
        };
        Problem::backward(q, k, v, specs, &options)
    }

    /// The problem of the forward pass that [`run`](Self::run) computes first on a backend with these capabilities.
    ///
    /// # Errors
    /// Those of [`problem`](Self::problem).
    pub fn forward_problem(&self, here: &Capabilities) -> Result<Problem, Error> {
        self.forward.problem_with(&self.forward_options(here)?)
    }

    /// Options of the forward pass. The variant that is forced may have one pass alone, so that it is not: only `simt` is, which others
    /// are preferred to, and where sequences are packed Hopper's is, which is not preferred for such short ones as cases have; where
    /// they can run.
    ///
    /// # Errors
    /// Those of [`problem`](Self::problem).
    pub fn forward_options(&self, here: &Capabilities) -> Result<ForwardOptions, Error> {
        let options = self.forward.options.clone().force(None);
        let problem = self.forward.problem_with(&options)?;
        let by_simt = self.forward.options.force == Some(Variant::Simt);
        let by_hopper = problem.is_packed().then_some(Variant::Wgmma);
        let forced = if by_simt {
            Some(Variant::Simt)
        } else {
            by_hopper
        };
        let can_run = |variant: &Variant| why_not(*variant, &problem, here).is_none();
        Ok(options.force(forced.filter(can_run)))
    }

    /// Where dq, dk and dv go, NaN all over, if not where the backend puts them.
    fn places(&self) -> Result<Option<[HostTensor; 3]>, Error> {
        let Some([of_q, of_k, of_v]) = self.arrangements else {
            return Ok(None);
        };
        let Case { q, k, v, .. } = &self.forward;
        let place = |arrangement: Arrangement, like: &HostTensor| {
            arrangement.unwritten(like.spec().dtype, like.spec().shape)
        };
        Ok(Some([place(of_q, q)?, place(of_k, k)?, place(of_v, v)?]))
    }

    /// Runs both passes on `backend` and fetches what they computed.
    ///
    /// # Errors
    /// Those of [`Case::run`] and [`backward`].
    pub fn run<B: Backend>(&self, backend: &mut B) -> Result<BackwardRun, Error> {
        let Case { q, k, v, .. } = &self.forward;
        let options = self.forward_options(&backend.capabilities())?;
        let memory = backend.memory();
        let [q, k, v] = [q.upload(memory)?, k.upload(memory)?, v.upload(memory)?];
        let d_o = self.d_o.upload(memory)?;
        let d_lse = self
            .d_lse
            .as_ref()
            .map(|d_lse| d_lse.upload(memory))
            .transpose()?;
        let output = self.forward.compute(backend, [&q, &k, &v], &options)?;
        let d_output = OutputGradients::new(&d_o, d_lse.as_ref());
        let computed = match self.places()? {
            None => backward(backend, &q, &k, &v, &output, d_output, &self.options())?,
            Some(places) => {
                let mut gradients = self.gradients_at(backend.memory(), places)?;
                let options = self.options();
                backward_into(
                    backend,
                    &q,
                    &k,
                    &v,
                    &output,
                    d_output,
                    &mut gradients,
                    &options,
                )?;
                gradients
            }
        };
        let memory = backend.memory();
        Ok(BackwardRun {
            o: output.o.download(memory)?,
            lse: output.lse.expect("it is wanted").download(memory)?,
            dq: computed.dq.download(memory)?,
            dk: computed.dk.download(memory)?,
            dv: computed.dv.download(memory)?,
            d_alibi_slopes: computed
                .d_alibi_slopes
                .map(|slopes| slopes.download(memory))
                .transpose()?,
            d_bias: computed
                .d_bias
                .map(|bias| bias.download(memory))
                .transpose()?,
        })
    }

    /// Uploads `places`, and makes tensors for the other gradients that are asked for.
    fn gradients_at<M: Memory>(
        &self,
        memory: &mut M,
        [dq, dk, dv]: [HostTensor; 3],
    ) -> Result<Gradients<M>, Error> {
        let [dq, dk, dv] = [dq.upload(memory)?, dk.upload(memory)?, dv.upload(memory)?];
        let problem = self.problem()?;
        let mut of_parameter = |spec: Option<&TensorSpec>| {
            let Some(spec) = spec else { return Ok(None) };
            unwritten_f32(spec.shape)?.upload(memory).map(Some)
        };
        let mut gradients = Gradients::new(dq, dk, dv);
        gradients.d_alibi_slopes = of_parameter(problem.d_alibi_slopes())?;
        gradients.d_bias = of_parameter(problem.d_bias())?;
        Ok(gradients)
    }

    /// Whether a run has left what lies between the elements of dq, dk and dv as it was.
    ///
    /// # Errors
    /// [`Error::Argument`] if a buffer would be too large.
    fn is_kept_between(&self, run: &BackwardRun) -> Result<bool, Error> {
        let Some(places) = self.places()? else {
            return Ok(true);
        };
        let computed = [&run.dq, &run.dk, &run.dv];
        let mut pairs = places.iter().zip(computed);
        Ok(pairs.all(|(place, computed)| is_kept_between(place, computed)))
    }

    /// Compares all of both passes with the oracle's, and what lies between the gradients' elements with what was there; says what
    /// is wrong.
    ///
    /// # Errors
    /// Those of [`problem`](Self::problem).
    pub fn check_all(&self, run: &BackwardRun) -> Result<Option<String>, Error> {
        if let Some(wrong) = self.forward.check_all(&run.o, &run.lse)? {
            return Ok(Some(format!("forward: {wrong}")));
        }
        if !self.is_kept_between(run)? {
            let wrong = "something is written between the gradients' elements";
            return Ok(Some(wrong.to_owned()));
        }
        let verdict = self.check(run, Rows::All)?;
        Ok((!verdict.passed()).then(|| verdict.to_string()))
    }

    /// Compares gradients with the oracle's, of the o and lse that they were computed with.
    ///
    /// # Errors
    /// Those of [`problem`](Self::problem).
    pub fn check(&self, run: &BackwardRun, rows: Rows) -> Result<BackwardVerdict, Error> {
        let BackwardRun {
            o,
            lse,
            dq,
            dk,
            dv,
            d_alibi_slopes,
            d_bias,
        } = run;
        let given = BackwardInputs {
            inputs: Inputs {
                q: &self.forward.q,
                k: &self.forward.k,
                v: &self.forward.v,
            },
            o,
            lse,
            d_o: &self.d_o,
            d_lse: self.d_lse.as_ref(),
        };
        let computed = GradientTensors {
            dq,
            dk,
            dv,
            d_alibi_slopes: d_alibi_slopes.as_ref(),
            d_bias: d_bias.as_ref(),
        };
        Ok(check_backward(&self.problem()?, given, computed, rows))
    }
}
