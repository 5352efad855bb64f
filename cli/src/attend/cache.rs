//! `ferroflash attend` on a file with a paged cache: `block_table` and `kv_lens` beside q, k and v, and scales if these are e4m3.

use bytemuck::allocation::pod_collect_to_vec;
use ferroflash::{
    Backend, CacheLayout, DType, ForwardOptions, HostTensor, Indices, KvCache, Layout, Problem,
    Shape, TensorSpec, decode,
};
use safetensors::Dtype;

use super::file::{File, wrong_dtype};
use super::results::Results;
use crate::backends::Work;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress;
use crate::say::say;

/// The names of the arrays in a file.
const BLOCK_TABLE: &str = "block_table";
const KV_LENS: &str = "kv_lens";
const SCALES: [&str; 2] = ["k_scales", "v_scales"];

/// The arrays of a paged cache.
pub struct CacheArrays {
    block_table: Vec<i32>,
    max_pages: usize,
    kv_lens: Vec<i32>,
    /// Of k and v in e4m3.
    scales: Option<[HostTensor; 2]>,
}

/// The arrays of a file's cache, if it has one.
pub fn read(file: &mut File, layout: Layout) -> Result<Option<CacheArrays>, Failure> {
    let is_there = |name: &&str| file.info(name).is_some();
    if ![BLOCK_TABLE, KV_LENS].iter().any(is_there) {
        return match SCALES.into_iter().find(is_there) {
            None => Ok(None),
            Some(name) => {
                let wrong = "the file has scales, and no cache";
                let allowed = "block_table and kv_lens too, or a file without scales";
                Err(Failure::refused(name, wrong, allowed))
            }
        };
    }
    let mut array = |name, rank: usize, allowed| {
        let info = file.find(name, "both block_table and kv_lens, or neither")?;
        if info.dtype != Dtype::I32 {
            return Err(wrong_dtype(name, info.dtype, "I32"));
        }
        if info.shape.len() != rank {
            let wrong = format!("its shape is {:?}", info.shape);
            return Err(Failure::refused(name, wrong, allowed));
        }
        Ok((
            pod_collect_to_vec::<u8, i32>(&file.read(&info)?),
            info.shape,
        ))
    };
    let (block_table, shape) = array(BLOCK_TABLE, 2, "[batch, max_pages]")?;
    let (kv_lens, _) = array(KV_LENS, 1, "[batch]")?;
    let (rows, max_pages) = (shape[0], shape[1]);
    if rows != kv_lens.len() {
        let wrong = format!(
            "its shape is {shape:?}, and there are {} kv_lens",
            kv_lens.len()
        );
        return Err(Failure::refused(BLOCK_TABLE, wrong, "[batch, max_pages]"));
    }
    Ok(Some(CacheArrays {
        block_table,
        max_pages,
        kv_lens,
        scales: scales(file, layout)?,
    }))
}

/// The scales of a file's cache, if it has some.
fn scales(file: &mut File, layout: Layout) -> Result<Option<[HostTensor; 2]>, Failure> {
    if SCALES.iter().all(|name| file.info(name).is_none()) {
        return Ok(None);
    }
    let [k, v] = SCALES.map(|name| scales_of(file, name, layout));
    Ok(Some([k?, v?]))
}

fn scales_of(file: &mut File, name: &'static str, layout: Layout) -> Result<HostTensor, Failure> {
    let info = file.find(name, "both k_scales and v_scales, or neither")?;
    if info.dtype != Dtype::F32 {
        return Err(wrong_dtype(name, info.dtype, "F32"));
    }
    let shape = match *info.shape.as_slice() {
        [] => layout.shape([1; 4]),
        [heads] => Shape {
            heads,
            ..layout.shape([1; 4])
        },
        [pages, x, y] => layout.shape([pages, x, y, 1]),
        ref dims => {
            let wrong = format!("its shape is {dims:?}, of rank {}", dims.len());
            let allowed = "rank 0, a number for all; rank 1, [heads_kv]; or rank 3, k's axes without head_dim, each of k's \
                           size or 1";
            return Err(Failure::refused(name, wrong, allowed));
        }
    };
    let spec = TensorSpec::contiguous(DType::F32, shape, layout)?;
    Ok(HostTensor::new(spec, 0, file.read(&info)?)?)
}

/// Attention of q to a cache in the pages k and v.
pub struct AttendCache {
    pub inputs: [HostTensor; 3],
    pub arrays: CacheArrays,
    /// Dtype to convert the inputs to, but those in e4m3.
    pub dtype: Option<DType>,
    pub layout: Layout,
    pub options: ForwardOptions,
    pub output: Output,
}

impl AttendCache {
    /// The checked problem of tensors of these specs.
    pub fn problem(
        [q, k, v]: [TensorSpec; 3],
        arrays: &CacheArrays,
        options: &ForwardOptions,
    ) -> Result<Problem, Failure> {
        let CacheArrays {
            max_pages,
            kv_lens,
            scales,
            ..
        } = arrays;
        if kv_lens.len() != q.shape.batch {
            let wrong = format!("there are {}", kv_lens.len());
            let allowed = format!("{}, one for each batch entry of q", q.shape.batch);
            return Err(Failure::refused(KV_LENS, wrong, &allowed));
        }
        let shape = Shape {
            dim: v.shape.dim,
            ..q.shape
        };
        let o = TensorSpec::contiguous(q.dtype, shape, options.o_layout)?;
        let layout = CacheLayout::Paged {
            max_pages: *max_pages,
            table_stride: *max_pages,
        };
        let problem = Problem::decode(q, k, v, o, layout, options)?;
        match scales {
            None => Ok(problem),
            Some([k, v]) => Ok(problem.with_cache_scales(*k.spec(), *v.spec())?),
        }
    }
}

impl Work for AttendCache {
    fn run<B: Backend>(self, backend: &mut B) -> Result<(), Failure> {
        let file_dtype = self.inputs[0].spec().dtype;
        let dtype = self.dtype.unwrap_or(file_dtype);
        let spinner = progress::spinner("attend");
        // Codes stay what they are: kernels read them beside q of any dtype.
        let converted = |input: HostTensor| match input.spec().dtype {
            of_input if of_input == dtype || of_input == DType::E4m3 => Ok(input),
            _ => input.convert(dtype, self.layout),
        };
        let [q, k, v] = self.inputs.map(converted);
        let (q, k, v) = (q?, k?, v?);
        let specs = [*q.spec(), *k.spec(), *v.spec()];
        let plan = backend.plan(&Self::problem(specs, &self.arrays, &self.options)?)?;
        let memory = backend.memory();
        let (q, k, v) = (q.upload(memory)?, k.upload(memory)?, v.upload(memory)?);
        let CacheArrays {
            block_table,
            max_pages,
            kv_lens,
            scales,
        } = self.arrays;
        let batch = kv_lens.len();
        let table = Indices::upload(memory, &block_table, [batch, max_pages])?;
        let kv_lens = Indices::upload(memory, &kv_lens, [batch, 1])?;
        let mut cache = KvCache::paged(memory, k, v, table, kv_lens)?;
        if let Some([k, v]) = scales {
            cache = cache.with_scales(k.upload(memory)?, v.upload(memory)?);
        }
        let result = decode(backend, &q, &cache, &self.options)?;
        let memory = backend.memory();
        let mut results = Results::new(file_dtype, self.layout, false);
        results.add("o", result.o.download(memory)?)?;
        let lse = result.lse.as_ref().expect("it is asked for by default");
        results.add_lse(lse.download(memory)?);
        let faults = cache.faults(memory)?;
        results.write(self.output)?;
        spinner.finish_and_clear();
        if faults.bad_page {
            say!("block_table has pages that do not exist: rows of their sequences are NaN");
        }
        if faults.bad_length {
            say!("kv_lens has lengths that do not fit: rows of their sequences are NaN");
        }
        let kernel = plan.kernel_name();
        say!("kernel {kernel}, computed from {} inputs", dtype.name());
        Ok(())
    }
}
