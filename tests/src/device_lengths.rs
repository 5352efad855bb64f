//! Problems whose lengths and slopes lie in the backend's memory alone, launched by a plan.

use bytemuck::cast_slice;
use ferroflash::{
    AlibiSlopes, Backend, DType, DeviceLengths, Error, ForwardOptions, HostTensor, KnownArrays,
    Layout, Mask, Memory, Operands, Plan, Problem, Variant, Workspace,
};
use ferroflash_testing::cases::{
    Arrangement, CaseSpec, InputKind, Lengths as CaseLengths, ModifierSpec,
};
use ferroflash_testing::oracle::{self, Inputs, Rows};

use crate::packed_kernels;

/// A problem, its inputs and its arrays.
pub struct Scene {
    pub q: HostTensor,
    pub k: HostTensor,
    pub v: HostTensor,
    /// Mask, softcap, and that lengths and slopes are on the device.
    pub options: ForwardOptions,
    /// cu_seqlens of q, and of k and v; empty where sequences are batch entries.
    pub cu_seqlens: [Vec<i32>; 2],
    /// seqused_kv; empty where all keys are used.
    pub used: Vec<i32>,
    /// `[batch, heads_q]`; empty without ALiBi.
    pub slopes: Vec<f32>,
}

/// Buffers after a launch.
pub struct Outcome {
    /// Output; filled with [`PATTERN`] before the launch.
    pub o: HostTensor,
    /// Log-sum-exp; filled with [`PATTERN`] before the launch.
    pub lse: HostTensor,
    /// The workspace with `MARGIN` bytes behind it; before the launch, [`PATTERN`] except in the part that the plan
    /// needs zeroed.
    pub workspace: Vec<u8>,
}

/// Fill of every byte that a launch should not touch. As a number it is unlike any result.
pub const PATTERN: u8 = 0x5a;

/// Bytes behind the workspace.
const MARGIN: usize = 256;

/// Shape that the kernel under test needs.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub dtype: DType,
    pub head_dim: usize,
    pub head_dim_v: usize,
}

/// Masks aligned to either corner.
const MASKS: [Mask; 6] = {
    let [none, causal, window, narrow] = packed_kernels::MASKS;
    let band = Mask::Band {
        lower: Some(-40),
        upper: Some(9),
    };
    [Mask::CAUSAL_TOP_LEFT, none, causal, window, narrow, band]
};

/// Whether the sequences of scene `number` are packed.
pub fn is_packed(number: usize) -> bool {
    number.is_multiple_of(2)
}

/// Sequences of (seq_q, seq_kv): packed in operands that have some rows more, or a batch whose keys are partly used.
/// The other options depend on `number`.
pub fn scene(shape: Shape, number: usize, sequences: &[(usize, usize)]) -> Scene {
    let batch = sequences.len();
    let is_packed = is_packed(number);
    let sums = |of: fn(&(usize, usize)) -> usize| -> Vec<i32> {
        let ends = sequences.iter().scan(0, |end, sequence| {
            *end += of(sequence) as i32;
            Some(*end)
        });
        [0].into_iter().chain(ends).collect()
    };
    let longest = |of: fn(&(usize, usize)) -> usize| sequences.iter().map(of).max().unwrap_or(0);
    let (seq_q, seq_kv) = (longest(|pair| pair.0), longest(|pair| pair.1));
    let cu_seqlens = match is_packed {
        true => [sums(|pair| pair.0), sums(|pair| pair.1)],
        false => [Vec::new(), Vec::new()],
    };
    let has_used = !is_packed || number.is_multiple_of(4);
    // Unused keys would change every row if they were read; and the array may claim more than there are.
    let used = |(index, &(_, kv)): (usize, &(usize, usize))| {
        [kv as i32 - 3, kv as i32 / 2, kv as i32 + 5][index % 3]
    };
    let used: Vec<i32> = sequences.iter().enumerate().map(used).collect();
    let lengths = match is_packed {
        // The promised bound may be larger than the longest sequence.
        true => DeviceLengths::cu_seqlens(batch, 2 * seq_q, 2 * seq_kv).expect("short"),
        false => DeviceLengths::seqused_kv(),
    };
    let spec = CaseSpec {
        dtype: shape.dtype,
        lengths: match is_packed {
            // Rows outside every sequence lie behind the last one.
            true => CaseLengths::one(
                sequences.iter().map(|pair| pair.0).sum::<usize>() + 9,
                sequences.iter().map(|pair| pair.1).sum::<usize>() + 70,
            ),
            false => CaseLengths::Dense {
                batch,
                seq_q,
                seq_kv,
            },
        },
        heads_kv: 1,
        group: 2,
        head_dim: shape.head_dim,
        head_dim_v: shape.head_dim_v,
        mask: MASKS[number % MASKS.len()],
        scale_factor: None,
        softcap: [None, Some(20.0)][number / 2 % 2],
        alibi: None,
        modifiers: ModifierSpec::default(),
        kind: InputKind::Random,
        arrangements: [Arrangement::BSHD; 3],
        o_layout: Layout::Bshd,
        o: None,
        seed: number as u64,
    };
    let case = spec.build().expect("small");
    let slopes = match number.is_multiple_of(3) {
        true => (0..2 * batch)
            .map(|index| 0.1 / (1 << (index % 7)) as f32)
            .collect(),
        false => Vec::new(),
    };
    let alibi = (!slopes.is_empty()).then(|| AlibiSlopes::on_device(2, true));
    Scene {
        q: case.q,
        k: case.k,
        v: case.v,
        options: case.options.alibi(alibi).lengths(match has_used {
            true => lengths.and_seqused_kv(),
            false => lengths,
        }),
        cu_seqlens,
        used: if has_used { used } else { Vec::new() },
        slopes,
    }
}

impl Scene {
    /// The problem, forced to run by `variant`.
    ///
    /// # Panics
    /// If it is not valid.
    pub fn problem(&self, variant: Variant) -> Problem {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|tensor| *tensor.spec());
        let options = self.options.clone().force(variant);
        Problem::with_dense_output(q, k, v, &options).expect("valid")
    }

    /// The problem as kernels see it, whose lengths are clamped.
    ///
    /// # Panics
    /// If it is not valid.
    pub fn known(&self) -> Problem {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|tensor| *tensor.spec());
        let problem = Problem::with_dense_output(q, k, v, &self.options).expect("valid");
        problem.with_known_arrays(&KnownArrays {
            cu_seqlens: self.cu_seqlens.each_ref().map(Vec::as_slice),
            seqused_kv: &self.used,
            alibi_slopes: &self.slopes,
        })
    }

    /// Launches `plan`, which is of this scene's problem.
    ///
    /// # Errors
    /// Those of the backend.
    pub fn run<B: Backend>(&self, backend: &mut B, plan: &Plan) -> Result<Outcome, Error> {
        let memory = backend.memory();
        let (q, k) = (self.q.upload(memory)?, self.k.upload(memory)?);
        let v = self.v.upload(memory)?;
        let o_spec = *plan.problem().o();
        let o_bytes = o_spec.shape.element_count().expect("small") * o_spec.dtype.bytes();
        let lse_bytes = o_bytes / o_spec.dtype.bytes() / o_spec.shape.dim * size_of::<f32>();
        let o = upload(memory, &vec![PATTERN; o_bytes])?;
        let lse = upload(memory, &vec![PATTERN; lse_bytes])?;
        let mut image = vec![PATTERN; plan.workspace_bytes() + MARGIN];
        image[..plan.zeroed_workspace_bytes()].fill(0);
        let workspace = upload(memory, &image)?;
        let [cu_q, cu_kv] = &self.cu_seqlens;
        let cu_seqlens = [
            upload(memory, cast_slice(cu_q))?,
            upload(memory, cast_slice(cu_kv))?,
        ];
        let used = upload(memory, cast_slice(&self.used))?;
        let slopes = upload(memory, cast_slice(&self.slopes))?;
        let [q, k, v] = [&q, &k, &v].map(|tensor| tensor.address(memory));
        let sums =
            (!cu_q.is_empty()).then(|| cu_seqlens.each_ref().map(|array| memory.address(array)));
        let operands = Operands::new(q, k, v, memory.address(&o))
            .lse(memory.address(&lse))
            .alibi_slopes((!self.slopes.is_empty()).then(|| memory.address(&slopes)))
            .cu_seqlens(sums)
            .seqused_kv((!self.used.is_empty()).then(|| memory.address(&used)))
            .workspace(Workspace {
                address: memory.address(&workspace),
                bytes: plan.workspace_bytes(),
            });
        // SAFETY: the buffers are as large as the problem says, and live until they are read below.
        unsafe { backend.launch(plan, &operands) }?;
        let memory = backend.memory();
        let mut download = |buffer: &<B::Memory as Memory>::Buffer, bytes: usize| {
            let mut image = vec![0; bytes];
            memory.read(buffer, &mut image).map(|()| image)
        };
        let (o, lse) = (download(&o, o_bytes)?, download(&lse, lse_bytes)?);
        let lse_shape = ferroflash::Shape {
            dim: 1,
            ..o_spec.shape
        };
        let lse_spec = ferroflash::TensorSpec::contiguous(DType::F32, lse_shape, Layout::Bhsd)?;
        Ok(Outcome {
            o: HostTensor::new(o_spec, 0, o)?,
            lse: HostTensor::new(lse_spec, 0, lse)?,
            workspace: download(&workspace, plan.workspace_bytes() + MARGIN)?,
        })
    }

    /// Compares the rows of every sequence with the oracle's.
    ///
    /// # Panics
    /// Naming `what`, if one is wrong.
    pub fn check(&self, outcome: &Outcome, what: &str) {
        let inputs = Inputs {
            q: &self.q,
            k: &self.k,
            v: &self.v,
        };
        let verdict = oracle::check(&self.known(), inputs, &outcome.o, &outcome.lse, Rows::All);
        assert!(verdict.passed(), "{what}: {verdict}");
    }

    /// Asserts that every row outside the sequences still holds [`PATTERN`], and that the workspace is ready for the
    /// next launch.
    ///
    /// # Panics
    /// Naming `what`, if one was touched.
    pub fn check_untouched(&self, outcome: &Outcome, plan: &Plan, what: &str) {
        let known = self.known();
        let shape = known.o().shape;
        let mut has_row = vec![false; shape.batch * shape.seq];
        for sequence in known.sequences() {
            let first = sequence.batch * shape.seq;
            has_row[first..][sequence.q_rows].fill(true);
        }
        let is_pattern = |bytes: &[u8]| bytes.iter().all(|&byte| byte == PATTERN);
        let row_bytes = shape.heads * shape.dim * known.o().dtype.bytes();
        for (row, bytes) in outcome.o.bytes().chunks(row_bytes).enumerate() {
            assert!(has_row[row] || is_pattern(bytes), "{what}: o's row {row}");
        }
        for (index, bytes) in outcome.lse.bytes().chunks(size_of::<f32>()).enumerate() {
            let row = index / (shape.heads * shape.seq) * shape.seq + index % shape.seq;
            assert!(has_row[row] || is_pattern(bytes), "{what}: lse's row {row}");
        }
        let (own, behind) = outcome.workspace.split_at(plan.workspace_bytes());
        assert!(is_pattern(behind), "{what}: behind the workspace");
        // The tile counter, or those of a decode kernel.
        let counters = match plan.variant() {
            Variant::Decode => plan.zeroed_workspace_bytes(),
            _ => own.len().min(size_of::<u32>()),
        };
        let are_zero = own[..counters].iter().all(|&byte| byte == 0);
        assert!(are_zero, "{what}: the counters");
    }
}

fn upload<M: Memory>(memory: &mut M, bytes: &[u8]) -> Result<M::Buffer, Error> {
    let mut buffer = memory.alloc(bytes.len())?;
    memory.write(&mut buffer, bytes)?;
    Ok(buffer)
}
