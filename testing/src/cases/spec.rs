use std::fmt;

use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::arrangement::{Arrangement, is_kept_between, unwritten_f32};
use super::fill::mix;
use super::foreign;
use super::kind::InputKind;
use super::lengths::Lengths;
use super::modifiers::ModifierSpec;
use crate::oracle::{self, Inputs, Rows, Verdict};
use ferroflash::{
    AlibiSlopes, Backend, DType, Error, ForwardOptions, HostTensor, Layout, Mask, Output, Problem,
    Shape, Tensor, forward, forward_into,
};

/// Slopes of a case.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlibiSpec {
    /// The first slope; each one after it is half the one before, and every seventh is this one again.
    pub steepest: f32,
    /// Each batch entry has slopes of its own.
    pub is_batched: bool,
}

impl AlibiSpec {
    pub(super) fn slopes(&self, batch: usize, heads: usize) -> Result<AlibiSlopes, Error> {
        // Heads and batch entries that are mixed up show: neighbours differ, and no number of heads is 7.
        let slope = |index: usize| self.steepest / (1u32 << (index % 7)) as f32;
        let rows = if self.is_batched { batch } else { 1 };
        let slopes: Vec<f32> = (0..rows * heads).map(slope).collect();
        match self.is_batched {
            true => AlibiSlopes::per_batch(&slopes, heads),
            false => AlibiSlopes::per_head(&slopes),
        }
    }
}

/// One case, small enough to print.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseSpec {
    /// Element type of q, k, v and o.
    #[serde(with = "foreign::dtype")]
    pub dtype: DType,
    /// Its sequences.
    pub lengths: Lengths,
    /// Heads of k and v.
    pub heads_kv: usize,
    /// Query heads to a head of k and v.
    pub group: usize,
    /// Components of q and k.
    pub head_dim: usize,
    /// Components of v and o.
    pub head_dim_v: usize,
    /// Which keys each query sees.
    #[serde(with = "foreign::mask")]
    pub mask: Mask,
    /// softmax_scale over its default of `1 / sqrt(head_dim)`, or the default itself.
    pub scale_factor: Option<f32>,
    /// Scores are capped at this.
    pub softcap: Option<f32>,
    /// Biases that grow with distance.
    pub alibi: Option<AlibiSpec>,
    /// What changes, hides or drops single pairs.
    #[serde(default, skip_serializing_if = "ModifierSpec::is_none")]
    pub modifiers: ModifierSpec,
    /// Contents of the inputs.
    pub kind: InputKind,
    /// Arrangement of q, k and v in memory.
    pub arrangements: [Arrangement; 3],
    /// Layout of o in memory.
    #[serde(with = "foreign::LayoutText")]
    pub o_layout: Layout,
    /// Arrangement of o in memory, if it is not contiguous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub o: Option<Arrangement>,
    /// Seed of the inputs' values.
    pub seed: u64,
}

/// A case with its inputs.
#[derive(Clone, Debug)]
pub struct Case {
    /// `[batch, heads_q, seq_q, head_dim]`.
    pub q: HostTensor,
    /// `[batch, heads_kv, seq_kv, head_dim]`.
    pub k: HostTensor,
    /// `[batch, heads_kv, seq_kv, head_dim_v]`.
    pub v: HostTensor,
    /// Options of the computation.
    pub options: ForwardOptions,
    /// How o lies in memory, if it is not contiguous in the layout of the options.
    pub o: Option<Arrangement>,
}

impl CaseSpec {
    fn heads_q(&self) -> usize {
        self.heads_kv * self.group
    }

    /// Shapes of q, k and v.
    fn shapes(&self) -> [Shape; 3] {
        let (batch, seq_q, seq_kv) = self.lengths.axes();
        let shape = |heads, seq, dim| Shape {
            batch,
            heads,
            seq,
            dim,
        };
        [
            shape(self.heads_q(), seq_q, self.head_dim),
            shape(self.heads_kv, seq_kv, self.head_dim),
            shape(self.heads_kv, seq_kv, self.head_dim_v),
        ]
    }

    /// Makes the inputs.
    ///
    /// # Errors
    /// [`Error::Argument`] if a buffer would be too large.
    pub fn build(&self) -> Result<Case, Error> {
        let default_scale = 1.0 / (self.head_dim as f32).sqrt();
        let slopes = |alibi: AlibiSpec| alibi.slopes(self.lengths.batch(), self.heads_q());
        let options = ForwardOptions::new()
            .mask(self.mask)
            .softcap(self.softcap)
            .alibi(self.alibi.map(slopes).transpose()?)
            .cu_seqlens(self.lengths.cu_seqlens()?)
            .softmax_scale(self.scale_factor.map(|factor| factor * default_scale))
            .o_layout(self.o_layout);
        let [q, k, v] = self.shapes();
        let tensor = |number: usize, shape| {
            let mut tensor = self.arrangements[number].allocate(self.dtype, shape)?;
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(mix(self.seed, number as u64));
            tensor.fill(|| rng.sample(StandardNormal));
            Ok::<_, Error>(tensor)
        };
        let mut case = Case {
            q: tensor(0, q)?,
            k: tensor(1, k)?,
            v: tensor(2, v)?,
            options,
            o: self.o,
        };
        case.options.modifiers = self.modifiers.build(&case.problem()?, self.seed)?;
        self.kind.apply(&mut case, self.seed);
        Ok(case)
    }
}

impl Case {
    /// The checked problem.
    ///
    /// # Errors
    /// [`Error::Argument`] if the inputs do not fit together.
    pub fn problem(&self) -> Result<Problem, Error> {
        self.problem_with(&self.options)
    }

    /// The problem with other options, which change no shape.
    pub(super) fn problem_with(&self, options: &ForwardOptions) -> Result<Problem, Error> {
        let (q, k, v) = (*self.q.spec(), *self.k.spec(), *self.v.spec());
        match self.place()? {
            None => Problem::with_dense_output(q, k, v, options),
            Some(o) => Problem::new(q, k, v, *o.spec(), options),
        }
    }

    /// Where o goes, NaN all over, if not where the backend puts it.
    fn place(&self) -> Result<Option<HostTensor>, Error> {
        let Some(arrangement) = self.o else {
            return Ok(None);
        };
        let shape = Shape {
            dim: self.v.spec().shape.dim,
            ..self.q.spec().shape
        };
        arrangement.unwritten(self.q.spec().dtype, shape).map(Some)
    }

    /// Runs the case on `backend` and fetches o and lse.
    ///
    /// # Errors
    /// Those of [`forward`].
    pub fn run<B: Backend>(&self, backend: &mut B) -> Result<(HostTensor, HostTensor), Error> {
        let q = self.q.upload(backend.memory())?;
        let k = self.k.upload(backend.memory())?;
        let v = self.v.upload(backend.memory())?;
        let Output { o, lse, .. } = self.compute(backend, [&q, &k, &v], &self.options)?;
        let lse = lse.expect("it is asked for by default");
        let memory = backend.memory();
        Ok((o.download(memory)?, lse.download(memory)?))
    }

    /// Attention to inputs that are uploaded, with options that change no shape.
    pub(super) fn compute<B: Backend>(
        &self,
        backend: &mut B,
        [q, k, v]: [&Tensor<B::Memory>; 3],
        options: &ForwardOptions,
    ) -> Result<Output<B::Memory>, Error> {
        let Some(place) = self.place()? else {
            return forward(backend, q, k, v, options);
        };
        let memory = backend.memory();
        let rows = Shape {
            dim: 1,
            ..place.spec().shape
        };
        let lse = unwritten_f32(rows)?.upload(memory)?;
        let mut output = Output::new(place.upload(memory)?, lse);
        forward_into(backend, q, k, v, &mut output, options)?;
        Ok(output)
    }

    /// Compares all of a result with the oracle's, and what lies between o's elements with what was there; says what is wrong.
    ///
    /// # Errors
    /// Those of [`problem`](Self::problem).
    pub fn check_all(&self, o: &HostTensor, lse: &HostTensor) -> Result<Option<String>, Error> {
        let place = self.place()?;
        if !place.is_none_or(|place| is_kept_between(&place, o)) {
            let wrong = "something is written between o's elements";
            return Ok(Some(wrong.to_owned()));
        }
        let verdict = self.check(o, lse, Rows::All)?;
        Ok((!verdict.passed()).then(|| verdict.to_string()))
    }

    /// Compares a result with the oracle's.
    ///
    /// # Errors
    /// Those of [`problem`](Self::problem).
    pub fn check(&self, o: &HostTensor, lse: &HostTensor, rows: Rows) -> Result<Verdict, Error> {
        let problem = self.problem()?;
        Ok(oracle::check(&problem, self.inputs(), o, lse, rows))
    }

    /// [`oracle::quality`] of a result whose `verdict` on all rows this is.
    ///
    /// # Errors
    /// Those of [`problem`](Self::problem).
    pub fn quality(&self, verdict: &Verdict) -> Result<Option<f64>, Error> {
        Ok(oracle::quality(&self.problem()?, self.inputs(), verdict))
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            q: &self.q,
            k: &self.k,
            v: &self.v,
        }
    }
}

impl fmt::Display for CaseSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            lengths,
            heads_kv,
            head_dim,
            head_dim_v,
            ..
        } = self;
        let heads_q = self.heads_q();
        let dtype = self.dtype.name();
        write!(
            f,
            "{dtype} {lengths} h{heads_q}/{heads_kv} d{head_dim}/{head_dim_v}"
        )?;
        if self.mask != Mask::None {
            write!(f, " {}", self.mask)?;
        }
        if let Some(factor) = self.scale_factor {
            write!(f, " scale ×{factor}")?;
        }
        if let Some(softcap) = self.softcap {
            write!(f, " softcap {softcap}")?;
        }
        if let Some(alibi) = self.alibi {
            let of = if alibi.is_batched {
                "batch, head"
            } else {
                "head"
            };
            write!(f, " alibi {} a {of}", alibi.steepest)?;
        }
        write!(f, "{}", self.modifiers)?;
        if self.o.is_some() {
            write!(f, " scattered o")?;
        }
        match self.kind {
            InputKind::Random => Ok(()),
            kind => write!(f, " {kind}"),
        }
    }
}
