//! `ferroflash bench --kv-len N`: attention of a few queries to a cache, checked and then timed.

use ferroflash::backend::cuda::Cuda;
use ferroflash::{
    Backend, DType, ForwardOptions, KvCache, Memory, Output, Plan, Tensor, decode, decode_into,
    decode_planned_into,
};
use ferroflash_insight::gpu_spec::GpuSpec;
use ferroflash_insight::timing::queued_ms;
use ferroflash_testing::cases::{CacheShape, DecodeCase, ScaleKind};
use ferroflash_testing::oracle::Rows;

use super::protocol;
use super::report::{Amount, CacheRates, GraphRates, Ran, Report};
use super::statistics::{median, second_half};
use super::verdict::refuse_unless;
use crate::arguments;
use crate::backends::Work;
use crate::failure::Failure;
use crate::progress;

#[derive(clap::Args)]
pub struct CacheArgs {
    /// Time attention to a cache with N keys a sequence, its --seq-q [1] queries' own included
    #[arg(long, value_name = "N", conflicts_with_all = ["seq_kv", "varlen", "varlen_seed", "sweep"], value_parser = arguments::count, allow_hyphen_values = true)]
    kv_len: Option<usize>,
    /// As --kv-len, with so many keys in each sequence: N, or N:C for C sequences of N keys
    #[arg(long, value_name = "N,…", conflicts_with_all = ["kv_len", "batch", "seq_kv", "varlen", "varlen_seed", "sweep"], value_delimiter = ',', value_parser = arguments::repeated, allow_hyphen_values = true)]
    kv_lens: Option<Vec<(usize, usize)>>,
    /// The cache lies in shuffled pages of N keys [default: a sequence in one piece]
    #[arg(long, value_name = "N", value_parser = arguments::positive, allow_hyphen_values = true)]
    page_size: Option<usize>,
    /// Element type of k and v [default: --dtype]
    #[arg(long, value_enum)]
    kv_dtype: Option<KvDtypeName>,
    /// What a scale of an e4m3 cache is for
    #[arg(long, value_enum, default_value_t = KvScaleName::Tensor)]
    kv_scale: KvScaleName,
    /// Time a CUDA graph of N calls [20] too, which holds no host's time
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "20", value_parser = arguments::positive)]
    graph: Option<usize>,
}

/// Element types of a cache beside q's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KvDtypeName {
    E4m3,
}

/// What one scale is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KvScaleName {
    /// There are none
    None,
    /// All of k, or of v
    Tensor,
    /// A head
    Head,
    /// A page
    Page,
    /// A key of a head
    Key,
}

impl CacheArgs {
    /// The element type of k and v beside queries of `dtype`.
    pub fn kv_dtype(&self, dtype: DType) -> DType {
        match self.kv_dtype {
            None => dtype,
            Some(KvDtypeName::E4m3) => DType::E4m3,
        }
    }

    /// What scales are for, if the cache has some.
    pub fn scales(&self) -> Option<ScaleKind> {
        self.kv_dtype?;
        match self.kv_scale {
            KvScaleName::None => None,
            KvScaleName::Tensor => Some(ScaleKind::Tensor),
            KvScaleName::Head => Some(ScaleKind::Head),
            KvScaleName::Page => Some(ScaleKind::Page),
            KvScaleName::Key => Some(ScaleKind::Key),
        }
    }

    /// The keys of each of `batch` sequences, if there is a cache.
    pub fn kv_lens(&self, batch: usize) -> Option<Vec<usize>> {
        let repeated = |&(keys, count): &(usize, usize)| vec![keys; count];
        match (&self.kv_lens, self.kv_len) {
            (Some(lens), _) => Some(lens.iter().flat_map(repeated).collect()),
            (None, Some(len)) => Some(vec![len; batch]),
            (None, None) => None,
        }
    }

    /// The first given argument of a cache.
    pub fn given(&self) -> Option<&'static str> {
        let arguments = [
            ("--kv-len", self.kv_len.is_some()),
            ("--kv-lens", self.kv_lens.is_some()),
            ("--page-size", self.page_size.is_some()),
            ("--graph", self.graph.is_some()),
            ("--kv-dtype", self.kv_dtype.is_some()),
        ];
        let given = arguments.into_iter().find(|(_, is_given)| *is_given);
        given.map(|(argument, _)| argument)
    }

    /// Refuses what only a cache has, where there is none.
    pub fn refuse_without_cache(&self) -> Result<(), Failure> {
        match (self.kv_lens(0), self.given()) {
            (None, Some(argument)) => Err(Failure::refused(
                argument,
                "only a cache has it",
                "with --kv-len or --kv-lens, or leave it out",
            )),
            _ => Ok(()),
        }
    }

    pub fn page_size(&self) -> Option<usize> {
        self.page_size
    }

    pub fn graph_calls(&self) -> Option<usize> {
        self.graph
    }
}

/// Attention to a cache to time.
pub struct BenchCache {
    pub shape: CacheShape,
    pub options: ForwardOptions,
    pub json: bool,
}

/// Caches are made until they are at least so many bytes, and calls go round them, so that no call finds its keys in a GPU's L2.
const ROTATED_BYTES: u64 = 256 << 20;

/// Most caches.
const MOST_CACHES: u64 = 20;

/// Replays of a graph, of which the second half counts.
const REPLAYS: usize = 30;

/// What a call reads and writes.
struct Loaded<B: Backend> {
    q: Tensor<B::Memory>,
    caches: Vec<KvCache<B::Memory>>,
    output: Output<B::Memory>,
    plan: Plan,
    /// Number of the next call.
    next: usize,
}

impl<B: Backend> Loaded<B> {
    /// One call with the kept plan, on the next cache.
    fn call(&mut self, backend: &mut B) -> Result<(), Failure> {
        let cache = &self.caches[self.next % self.caches.len()];
        self.next += 1;
        decode_planned_into(backend, &self.plan, &self.q, cache, &mut self.output)
            .map_err(Failure::from)
    }
}

impl Work for BenchCache {
    fn run<B: Backend>(self, backend: &mut B) -> Result<(), Failure> {
        let (report, _) = self.measure(backend)?;
        self.print(&report)
    }
}

impl BenchCache {
    /// As [`Work::run`], and times a graph of `calls` calls.
    pub fn run_with_graph(&self, cuda: &mut Cuda, calls: usize) -> Result<(), Failure> {
        let (mut report, mut loaded) = self.measure(cuda)?;
        let us = graph_us(cuda, &mut loaded, calls)?;
        let cache = report.cache.as_mut().expect("it is of a cache");
        cache.graph = Some(GraphRates::new(calls, us, cache.kv_bytes));
        self.print(&report)
    }

    fn print(&self, report: &Report) -> Result<(), Failure> {
        match self.json {
            true => report.print_json()?,
            false => report.print()?,
        }
        Ok(())
    }

    /// Checks the result, then times it.
    fn measure<B: Backend>(&self, backend: &mut B) -> Result<(Report, Loaded<B>), Failure> {
        let spinner = progress::spinner("inputs");
        let case = self.shape.case(self.options.clone())?;
        let problem = case.problem()?;
        let plan = backend.plan(&problem)?;
        let kv_bytes = kv_bytes(&case);
        let count = match backend.memory().is_queued() {
            true => (ROTATED_BYTES / kv_bytes.max(1) + 1).min(MOST_CACHES),
            false => 1,
        };
        let caches = (0..count).map(|_| case.cache(backend));
        let caches = caches.collect::<Result<Vec<_>, _>>()?;
        let q = case.q.upload(backend.memory())?;

        spinner.set_message("check");
        let output = decode(backend, &q, &caches[0], &self.options)?;
        check(backend, &case, &output, &plan)?;
        spinner.set_message("time");
        let mut loaded = Loaded {
            q,
            caches,
            output,
            plan,
            next: 0,
        };
        let mut next = 0;
        let times = protocol::times(backend, &mut |backend: &mut B| {
            let cache = &loaded.caches[next % loaded.caches.len()];
            next += 1;
            decode_into(backend, &loaded.q, cache, &mut loaded.output, &self.options)
                .map_err(Failure::from)
        })?;
        let host_us_planned =
            protocol::host_us(backend, &times, &mut |backend: &mut B| loaded.call(backend))?;
        spinner.finish_and_clear();
        let device = backend.device_name();
        let rates = CacheRates {
            page_size: self.shape.page_size,
            caches: loaded.caches.len(),
            kv_bytes,
            kv_gbs: kv_bytes as f64 / times.ms_sustained / 1e6,
            device_gbs: GpuSpec::of_device(&device).map(|gpu| gpu.bandwidth / 1e9),
            graph: None,
        };
        let rows_bytes = problem.bytes() - bytes_of_all_pages(&case);
        let ran = Ran {
            kernel: loaded.plan.kernel_name(),
            heads_per_tile: loaded.plan.heads_per_tile(),
            input: None,
            device,
            is_queued: backend.memory().is_queued(),
            host_us_planned,
            workspace_bytes: loaded.plan.workspace_bytes(),
        };
        let amount = Amount {
            flops: case.flops()?,
            moved_bytes: kv_bytes as f64 + rows_bytes,
            operand_bytes: problem.bytes() as u64,
        };
        let report = Report::new(ran, &amount, &times).of_cache(rates);
        Ok((report, loaded))
    }
}

/// Compares the first and the last sequence with the oracle.
fn check<B: Backend>(
    backend: &mut B,
    case: &DecodeCase,
    output: &Output<B::Memory>,
    plan: &Plan,
) -> Result<(), Failure> {
    let lse = output.lse.as_ref().expect("it is asked for by default");
    let memory = backend.memory();
    let (o, lse) = (output.o.download(memory)?, lse.download(memory)?);
    let last = case.kv_lens.len() - 1;
    for sequence in if last == 0 { 0..=0 } else { 0..=1 }.map(|end| end * last) {
        let verdict = case.check_rows(sequence, &o, &lse, CHECKED_ROWS)?;
        refuse_unless(verdict.passed(), &plan.kernel_name(), &verdict)?;
    }
    Ok(())
}

/// Rows of a sequence that are checked before anything is timed.
const CHECKED_ROWS: Rows = Rows::Sampled { count: 32, seed: 0 };

/// Bytes of the keys and values that some query sees: what a call has to read.
fn kv_bytes(case: &DecodeCase) -> u64 {
    let keys: usize = (0..case.kv_lens.len())
        .map(|sequence| case.seen_keys(sequence))
        .sum();
    let (k, v) = (case.k.spec(), case.v.spec());
    let of_key = k.shape.heads * (k.shape.dim * k.dtype.bytes() + v.shape.dim * v.dtype.bytes());
    keys as u64 * of_key as u64
}

/// Bytes of all of k and v.
fn bytes_of_all_pages(case: &DecodeCase) -> f64 {
    let bytes = [&case.k, &case.v].map(|tensor| tensor.bytes().len() as f64);
    bytes.iter().sum()
}

/// Microseconds of a call in a graph of `calls`, by the median replay.
fn graph_us(cuda: &mut Cuda, loaded: &mut Loaded<Cuda>, calls: usize) -> Result<f64, Failure> {
    let graph = cuda.capture(|cuda| (0..calls).try_for_each(|_| loaded.call(cuda)))?;
    let ms = queued_ms(cuda, REPLAYS, |cuda| {
        // SAFETY: operands and the backend's own workspace stay as they are until the last replay is waited for.
        unsafe { cuda.replay(&graph) }.map_err(Failure::from)
    })?;
    Ok(median(second_half(&ms)) * 1e3 / calls as f64)
}
