//! CUDA graphs: captured on a fresh stream, replayed with other lengths and contents, two at once.

use std::ptr;

use cust::sys;
use ferroflash::backend::cuda::{Cuda, CudaDevice};
use ferroflash::{
    Backend, DType, DeviceLengths, HostTensor, Layout, Mask, Memory, Operands, Plan, Problem,
    Tensor, TensorSpec, Variant, Workspace,
};
use ferroflash_testing::cases::{
    Arrangement, Case, CaseSpec, InputKind, Lengths as CaseLengths, ModifierSpec,
};
use ferroflash_testing::oracle::Rows;

use crate::device;

/// Packed sequences of other lengths that add up to the same rows.
const LENGTHS: [&[(usize, usize)]; 3] = [
    &[(300, 300), (0, 40), (200, 160)],
    &[(1, 1), (499, 299), (0, 200)],
    &[(0, 0), (250, 500), (250, 0)],
];
const LONGEST: usize = 500;
const BATCH: usize = 3;

fn check(result: sys::CUresult) {
    assert_eq!(result as u32, 0, "{result:?}");
}

/// A stream of its own, on which a backend captures and graphs run.
struct Stream(sys::CUstream);

impl Stream {
    fn new() -> Self {
        let mut stream = ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `stream` is writable; a context is current.
        check(unsafe { sys::cuStreamCreate(&mut stream, flags) });
        Self(stream)
    }

    fn synchronize(&self) {
        // SAFETY: the stream is live.
        check(unsafe { sys::cuStreamSynchronize(self.0) });
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        check(unsafe { sys::cuStreamDestroy_v2(self.0) });
    }
}

/// A captured launch.
struct Graph(sys::CUgraphExec);

impl Graph {
    /// Captures the launches that `work` queues on `stream`.
    fn capture(stream: &Stream, work: impl FnOnce()) -> Self {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_GLOBAL;
        let mut graph = ptr::null_mut();
        let mut executable = ptr::null_mut();
        // SAFETY: the stream is live, the pointers are writable. In this mode an allocation, a copy that waits or a wait
        // breaks the capture.
        unsafe {
            check(sys::cuStreamBeginCapture_v2(stream.0, mode));
            work();
            check(sys::cuStreamEndCapture(stream.0, &mut graph));
            check(sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0));
            check(sys::cuGraphDestroy(graph));
        }
        Self(executable)
    }

    fn launch(&self, stream: &Stream) {
        // SAFETY: the graph's operands live as long as the test.
        check(unsafe { sys::cuGraphLaunch(self.0, stream.0) });
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it does not run any more.
        check(unsafe { sys::cuGraphExecDestroy(self.0) });
    }
}

fn case(dtype: DType, number: usize) -> Case {
    let spec = CaseSpec {
        dtype,
        lengths: CaseLengths::Varlen(LENGTHS[number].to_vec()),
        heads_kv: 2,
        group: 2,
        head_dim: 128,
        head_dim_v: 128,
        mask: Mask::Causal,
        scale_factor: None,
        softcap: None,
        alibi: None,
        modifiers: ModifierSpec::default(),
        kind: InputKind::Planted,
        arrangements: [Arrangement::BSHD; 3],
        o_layout: Layout::Bshd,
        o: None,
        seed: number as u64,
    };
    spec.build().expect("small")
}

type Buffer = <CudaDevice as Memory>::Buffer;

/// Device memory of one problem with lengths on the device, and what runs it.
struct Run {
    plan: Plan,
    q: Buffer,
    k: Buffer,
    v: Buffer,
    o: Tensor<CudaDevice>,
    lse: Tensor<CudaDevice>,
    sums: [Buffer; 2],
    workspace: Buffer,
}

fn bytes_of(tensor: &HostTensor) -> &[u8] {
    tensor.bytes()
}

impl Run {
    fn new(cuda: &mut Cuda, case: &Case, force: Variant) -> Self {
        let mut options = case.options.clone().force(force);
        options.lengths = DeviceLengths::cu_seqlens(BATCH, LONGEST, LONGEST)
            .expect("short")
            .into();
        let [q, k, v] = [&case.q, &case.k, &case.v].map(|tensor| *tensor.spec());
        let problem = Problem::with_dense_output(q, k, v, &options).expect("valid");
        let plan = cuda.plan(&problem).expect("eligible");
        let output = |cuda: &mut Cuda, spec: TensorSpec| {
            let bytes = spec.shape.element_count().expect("small") * spec.dtype.bytes();
            let zeros = HostTensor::new(spec, 0, vec![0; bytes]).expect("small");
            zeros.upload(cuda.memory()).expect("room")
        };
        let lse = TensorSpec::contiguous(
            DType::F32,
            ferroflash::Shape {
                dim: 1,
                ..problem.o().shape
            },
            Layout::Bhsd,
        );
        let (o, lse) = (
            output(cuda, *problem.o()),
            output(cuda, lse.expect("small")),
        );
        let mut alloc = |bytes: usize| cuda.memory().alloc(bytes).expect("room");
        let mut run = Self {
            q: alloc(bytes_of(&case.q).len()),
            k: alloc(bytes_of(&case.k).len()),
            v: alloc(bytes_of(&case.v).len()),
            sums: [alloc(4 * (BATCH + 1)), alloc(4 * (BATCH + 1))],
            workspace: alloc(plan.workspace_bytes().max(16)),
            plan,
            o,
            lse,
        };
        let zeros = vec![0; run.plan.workspace_bytes().max(16)];
        cuda.memory()
            .write(&mut run.workspace, &zeros)
            .expect("written");
        run.fill(cuda, case);
        run
    }

    /// Other contents and lengths at the same addresses.
    fn fill(&mut self, cuda: &mut Cuda, case: &Case) {
        let memory = cuda.memory();
        for (buffer, tensor) in [
            (&mut self.q, &case.q),
            (&mut self.k, &case.k),
            (&mut self.v, &case.v),
        ] {
            memory.write(buffer, bytes_of(tensor)).expect("written");
        }
        let ferroflash::Lengths::Packed(packed) = &case.options.lengths else {
            panic!("the case is packed");
        };
        for (buffer, sums) in self.sums.iter_mut().zip([packed.q(), packed.kv()]) {
            memory
                .write(buffer, bytemuck::cast_slice(sums))
                .expect("written");
        }
    }

    fn operands(&self, memory: &CudaDevice) -> Operands {
        let [q, k, v, workspace] =
            [&self.q, &self.k, &self.v, &self.workspace].map(|buffer| memory.address(buffer));
        Operands::new(q, k, v, self.o.address(memory))
            .lse(self.lse.address(memory))
            .cu_seqlens(self.sums.each_ref().map(|buffer| memory.address(buffer)))
            .workspace(Workspace {
                address: workspace,
                bytes: self.plan.workspace_bytes(),
            })
    }

    fn launch(&self, cuda: &mut Cuda) {
        let operands = self.operands(cuda.memory());
        // SAFETY: the buffers are as large as the problem says, and live until the test has waited.
        unsafe { cuda.launch(&self.plan, &operands) }.expect("launched");
    }

    /// Compares with the oracle.
    fn check(&self, cuda: &mut Cuda, case: &Case, what: &str) {
        let memory = cuda.memory();
        let (o, lse) = (
            self.o.download(memory).expect("read"),
            self.lse.download(memory).expect("read"),
        );
        let verdict = case.check(&o, &lse, Rows::All).expect("checked");
        assert!(verdict.passed(), "{what}: {verdict}");
    }
}

/// Of a family, captured after one warm-up on another stream, replayed on other lengths.
fn replays(dtype: DType, force: Variant) {
    let Some((_device, _turn)) = device() else {
        return;
    };
    let mut warm_up = Cuda::on(CudaDevice::new(0).expect("there is a GPU"));
    Run::new(&mut warm_up, &case(dtype, 0), force).launch(&mut warm_up);
    warm_up.memory().synchronize().expect("it ran");

    let _context = cust::quick_init().expect("there is a GPU");
    let streams = [Stream::new(), Stream::new()];
    // SAFETY: the streams outlive the backends, which are dropped before them.
    let mut backends = streams.each_ref().map(|stream| unsafe {
        Cuda::on(CudaDevice::with_stream(0, stream.0.cast()).expect("a stream of this GPU"))
    });
    // Fresh backends on fresh streams: nothing has run on them.
    let mut runs: Vec<Run> = Vec::new();
    for backend in &mut backends {
        runs.push(Run::new(backend, &case(dtype, 0), force));
    }
    let graphs: Vec<Graph> = (0..2)
        .map(|i| {
            let is_capturing = |backend: &mut Cuda| backend.memory().is_capturing().expect("asked");
            assert!(!is_capturing(&mut backends[i]));
            let graph = Graph::capture(&streams[i], || {
                runs[i].launch(&mut backends[i]);
                assert!(is_capturing(&mut backends[i]));
            });
            assert!(!is_capturing(&mut backends[i]));
            graph
        })
        .collect();
    for round in 0..LENGTHS.len() * 4 {
        let numbers = [round % LENGTHS.len(), (round + 1) % LENGTHS.len()];
        let cases = numbers.map(|number| case(dtype, number));
        for i in 0..2 {
            runs[i].fill(&mut backends[i], &cases[i]);
        }
        // Both at once, each several times.
        for _ in 0..5 {
            for i in 0..2 {
                graphs[i].launch(&streams[i]);
            }
        }
        for i in 0..2 {
            streams[i].synchronize();
            runs[i].check(
                &mut backends[i],
                &cases[i],
                &format!("{force} graph {i}, round {round}"),
            );
        }
    }
    drop(graphs);
    drop(runs);
    drop(backends);
}

#[test]
fn graphs_of_simt_are_replayed_on_other_lengths() {
    replays(DType::F32, "simt".parse().expect("a variant"));
}

#[test]
fn graphs_of_mma_are_replayed_on_other_lengths() {
    replays(DType::Bf16, "mma".parse().expect("a variant"));
}

#[test]
fn graphs_of_wgmma_are_replayed_on_other_lengths() {
    replays(DType::Bf16, "wgmma".parse().expect("a variant"));
}
