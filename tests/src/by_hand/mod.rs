//! Launches put together by hand, on lengths that only device memory has.

mod check;
mod scenes;

pub use scenes::{every_kernel, mixed, scene, tiny};

use bytemuck::{bytes_of, cast_slice};
use ferroflash::backend::{Device, Launch};
use ferroflash::{
    Error, ForwardOptions, HostTensor, Layout, Mask, Operands, Problem, Shape, TensorSpec, modules,
};
use kernels_gpu::abi::{
    AttentionParams, Band, Corner, DeviceAddress, ForwardParams, LengthsParams, MaskParams,
};
use kernels_gpu::config::wgmma::WgmmaTile;
use kernels_gpu::instances::{Instance, TILE_LIST};
use kernels_gpu::tile::schedule::TileList;
use kernels_gpu::wgmma::gqa::Packing;
use kernels_gpu::wgmma::schedule::Schedule;
use kernels_gpu::wgmma::tensor_map::ForwardMaps;
use kernels_gpu::wgmma::tile_list::{TileListParams, Workspace};

/// Arrays of lengths in device memory, right or wrong; dense where there is no `cu_seqlens`.
#[derive(Clone, Debug, Default)]
pub struct Lengths {
    /// cu_seqlens of q, and of k and v.
    pub cu_seqlens: Option<[Vec<i32>; 2]>,
    /// seqused_kv.
    pub used: Option<Vec<i32>>,
}

/// What a launch is to compute.
pub struct Scene {
    /// The kernel.
    pub instance: &'static Instance,
    /// `[batch, heads_q, seq_q, head_dim]`, or packed.
    pub q: HostTensor,
    /// `[batch, heads_kv, seq_kv, head_dim]`, or packed.
    pub k: HostTensor,
    /// `[batch, heads_kv, seq_kv, head_dim_v]`, or packed.
    pub v: HostTensor,
    /// Sequences.
    pub batch: u32,
    /// Rows of q, and of k and v, that no sequence is promised to exceed.
    pub longest: [u32; 2],
    /// As they lie in device memory.
    pub lengths: Lengths,
    /// The band, for [`Corner::TopLeft`] always causal.
    pub mask: Mask,
    /// What it is counted from.
    pub corner: Corner,
    /// As in [`ForwardOptions`].
    pub softcap: Option<f32>,
    /// Slopes `[batch, heads_q]`, which may be no numbers.
    pub slopes: Option<Vec<f32>>,
}

/// What a launch left.
pub struct Outcome {
    /// o, filled with [`PATTERN`] before.
    pub o: HostTensor,
    /// lse, `[batch, heads_q, seq_q]` or `[heads_q, total_q]`, filled likewise.
    pub lse: Vec<f32>,
    /// The whole workspace, with room behind it, filled with [`PATTERN`] before, the tile counter excepted.
    pub workspace: Vec<u8>,
    /// What the list was asked for, where there was one.
    pub list: Option<TileListParams>,
}

/// Every byte of what a launch should not touch. As numbers they are unlike any result.
pub const PATTERN: u8 = 0x5a;

/// Bytes behind the workspace.
pub const MARGIN: usize = 256;

impl Scene {
    fn heads(&self) -> [usize; 2] {
        [&self.q, &self.k].map(|tensor| tensor.spec().shape.heads)
    }

    fn o_spec(&self) -> TensorSpec {
        let shape = Shape {
            dim: self.v.spec().shape.dim,
            ..self.q.spec().shape
        };
        TensorSpec::contiguous(self.q.spec().dtype, shape, Layout::Bshd).expect("small")
    }

    /// What every kernel is launched with, its arrays of lengths at `arrays`: cu_seqlens of q, of k and v, seqused_kv.
    fn params(&self, operands: &Operands, arrays: [u64; 3]) -> ForwardParams {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|tensor| *tensor.spec());
        let options = ForwardOptions::new().softcap(self.softcap);
        let problem = Problem::new(q, k, v, self.o_spec(), &options).expect("valid");
        let mut params = problem.forward_params(operands);
        let [cu_q, cu_kv, used] = arrays.map(DeviceAddress::new);
        let is_packed = self.lengths.cu_seqlens.is_some();
        let total = |spec: TensorSpec| if is_packed { spec.shape.seq as u32 } else { 0 };
        let attention = &mut params.attention;
        attention.batch = self.batch;
        [attention.seq_q, attention.seq_kv] = self.longest;
        attention.mask = MaskParams::new(self.band(), self.corner);
        attention.lengths = LengthsParams {
            total_q: total(q),
            total_kv: total(k),
            cu_seqlens_q: cu_q,
            cu_seqlens_kv: cu_kv,
            seqused_kv: used,
        };
        if self.slopes.is_some() {
            attention.score.alibi_slopes = operands.alibi_slopes.and_then(DeviceAddress::new);
            attention.score.alibi_batch_stride = self.heads()[0] as u64;
        }
        params
    }

    fn band(&self) -> Band {
        let (left, right) = match self.mask {
            Mask::None => (None, None),
            Mask::Causal => (None, Some(0)),
            Mask::Window { left, right } => (left, right),
        };
        let side = |side: Option<u32>| side.map_or(Band::OPEN, |side| side as i32);
        Band {
            lower: -side(left),
            upper: side(right),
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Those of the device.
    pub fn run<D: Device>(&self, device: &mut D) -> Result<Outcome, Error> {
        let upload = |device: &mut D, bytes: &[u8]| -> Result<D::Buffer, Error> {
            let mut buffer = device.alloc(bytes.len())?;
            device.write(&mut buffer, bytes)?;
            Ok(buffer)
        };
        let tensors = [&self.q, &self.k, &self.v].map(|tensor| tensor.upload(device));
        let [q, k, v] = tensors;
        let (q, k, v) = (q?, k?, v?);
        let o_spec = self.o_spec();
        let o_elements = o_spec.shape.element_count().expect("small");
        let rows = o_elements / o_spec.shape.dim;
        let o = upload(device, &vec![PATTERN; o_elements * o_spec.dtype.bytes()])?;
        let lse = upload(device, &vec![PATTERN; rows * size_of::<f32>()])?;
        let slopes = self.slopes.as_deref().unwrap_or_default();
        let slopes = upload(device, cast_slice(slopes))?;
        let mut arrays = Vec::new();
        let [cu_q, cu_kv] = match &self.lengths.cu_seqlens {
            Some(arrays) => arrays.each_ref().map(Some),
            None => [None; 2],
        };
        for array in [cu_q, cu_kv, self.lengths.used.as_ref()] {
            arrays.push(
                array
                    .map(|array| upload(device, cast_slice(array)))
                    .transpose()?,
            );
        }
        let address = |array: &Option<D::Buffer>| array.as_ref().map_or(0, |of| device.address(of));
        let operands = Operands {
            q: q.address(device),
            k: k.address(device),
            v: v.address(device),
            o: device.address(&o),
            lse: device.address(&lse),
            alibi_slopes: Some(device.address(&slopes)),
            ..Operands::default()
        };
        let addresses = [&arrays[0], &arrays[1], &arrays[2]].map(address);
        let params = self.params(&operands, addresses);
        let (workspace, list) = match self.instance.wgmma() {
            Some(tile) => self.launch_wgmma(device, tile, &params)?,
            None => (Vec::new(), None),
        };
        if self.instance.wgmma().is_none() {
            let AttentionParams {
                batch,
                heads_q,
                seq_q,
                ..
            } = params.attention;
            let tiles = TileList::new(batch, heads_q, seq_q, self.instance.block_m);
            launch(device, self.instance, tiles.grid(), &[bytes_of(&params)])?;
        }
        let mut o_bytes = vec![0; o_elements * o_spec.dtype.bytes()];
        device.read(&o, &mut o_bytes)?;
        let mut lse_values = vec![0.0f32; rows];
        device.read(&lse, bytemuck::cast_slice_mut(&mut lse_values))?;
        Ok(Outcome {
            o: HostTensor::new(o_spec, 0, o_bytes)?,
            lse: lse_values,
            workspace,
            list,
        })
    }

    /// Lists the tiles and computes them.
    fn launch_wgmma<D: Device>(
        &self,
        device: &mut D,
        tile: &WgmmaTile,
        params: &ForwardParams,
    ) -> Result<(Vec<u8>, Option<TileListParams>), Error> {
        let attention = &params.attention;
        let packing = self.packing(tile);
        let dtype = self.instance.dtype;
        let maps = ForwardMaps::new(params, tile, packing).expect("TMA reaches the operands");
        let encode = |spec| device.encode_tensor_map(dtype, spec);
        let maps = [
            encode(&maps.q)?,
            encode(&maps.k)?,
            encode(&maps.v)?,
            encode(&maps.o)?,
        ];
        let schedule = Schedule::listed(attention, packing, tile.cluster_m()).expect("few tiles");
        let schedule = schedule.on_gpu(device.info().multiprocessors, tile.cluster);
        let list = |workspace| {
            TileListParams::new(attention, tile, packing, workspace).expect("few tiles")
        };
        let bytes = list(0).layout().bytes as usize + MARGIN;
        let mut image = vec![PATTERN; bytes];
        image[..Workspace::COUNTER_BYTES as usize].fill(0);
        let mut workspace = device.alloc(bytes)?;
        device.write(&mut workspace, &image)?;
        let address = device.address(&workspace);
        let list = list(address);
        launch(device, &TILE_LIST, 1, &[bytes_of(&list)])?;
        let [q, k, v, o] = &maps;
        let images = [
            bytes_of(params),
            bytes_of(q),
            bytes_of(k),
            bytes_of(v),
            bytes_of(o),
            bytes_of(&schedule),
            bytes_of(&address),
        ];
        launch(
            device,
            self.instance,
            schedule.clusters * tile.cluster,
            &images,
        )?;
        device.read(&workspace, &mut image)?;
        Ok((image, Some(list)))
    }

    /// Packs for sequences of mean length, as a host chooses them that does not know the lengths.
    fn packing(&self, tile: &WgmmaTile) -> Packing {
        let [heads_q, heads_kv] = self.heads();
        let group = (heads_q / heads_kv) as u32;
        if self.slopes.is_some() {
            return Packing::none(group);
        }
        let mean = match &self.lengths.cu_seqlens {
            Some(_) => (self.q.spec().shape.seq as u32).div_ceil(self.batch.max(1)),
            None => self.longest[0],
        };
        Packing::fewest_tiles(group, std::iter::once(mean), tile.cluster_m())
    }
}

/// Queues a launch of a kernel.
///
/// # Errors
/// Those of the device.
pub fn launch<D: Device>(
    device: &mut D,
    kernel: &'static Instance,
    grid: u32,
    params: &[&[u8]],
) -> Result<(), Error> {
    let launch = Launch {
        kernel,
        ptx: modules::ptx(kernel.name).expect("every instance has a module"),
        grid,
        params,
    };
    // SAFETY: the parameters are the kernel's, and describe live buffers, which the caller holds until they are read.
    unsafe { device.launch(&launch) }
}
