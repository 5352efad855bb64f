use std::mem::offset_of;

use kernels_gpu::abi::ForwardParams;
use kernels_gpu::instances::Instance;
use kernels_gpu::tile::schedule::TileList;

use super::device::{Device, DeviceInfo, Launch};
use crate::variant::{find_instance, select};
use crate::{Backend, Capabilities, Error, Operands, Problem, Variant, modules};

/// Runs problems with the embedded kernels on a [`Device`].
#[derive(Debug)]
pub struct Gpu<D> {
    device: D,
}

impl<D: Device> Gpu<D> {
    /// A backend on `device`.
    pub fn on(device: D) -> Self {
        Self { device }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// The kernel that will run `problem`.
    fn instance(&self, problem: &Problem) -> Result<&'static Instance, Error> {
        let info = self.device.info();
        let Variant::Kernels(family) = select(problem, &self.capabilities())? else {
            unreachable!("only kernels are eligible on a GPU");
        };
        let instance = find_instance(family, problem, info.compute_capability, info.shared_bytes);
        Ok(instance.expect("an eligible family has a kernel"))
    }
}

impl<D: Device> Backend for Gpu<D> {
    type Memory = D;

    fn name(&self) -> &'static str {
        D::BACKEND_NAME
    }

    fn device_name(&self) -> String {
        self.device.info().name.clone()
    }

    fn memory(&mut self) -> &mut D {
        &mut self.device
    }

    fn capabilities(&self) -> Capabilities {
        let info = self.device.info();
        Capabilities::Gpu {
            compute_capability: info.compute_capability,
            shared_bytes: info.shared_bytes,
        }
    }

    fn kernel_name(&self, problem: &Problem) -> Result<String, Error> {
        Ok(self.instance(problem)?.name.to_owned())
    }

    unsafe fn forward_raw(&mut self, problem: &Problem, operands: &Operands) -> Result<(), Error> {
        let kernel = self.instance(problem)?;
        let params = problem.forward_params(operands);
        let tiles = TileList::new(params.batch, params.heads_q, params.seq_q, kernel.block_m);
        if tiles.count == 0 {
            return Ok(());
        }
        let launch = Launch {
            kernel,
            ptx: modules::ptx(kernel.name).expect("every instance has a module"),
            grid: tiles.grid(),
            params: &[&image(&params)],
        };
        // SAFETY: these are the parameters of every forward kernel; the kernel reads and writes what
        // the problem's shapes and strides reach, which the caller vouches for.
        unsafe { self.device.launch(&launch) }
    }
}

/// The bytes of a parameter struct, zero between and after its fields.
fn image(params: &ForwardParams) -> [u8; size_of::<ForwardParams>()] {
    let mut image = [0; size_of::<ForwardParams>()];
    macro_rules! put {
        ($($field:ident),*) => {
            // Exhaustive: a field added to the struct and forgotten here does not compile.
            let ForwardParams { $($field),* } = params;
            $(
                let start = offset_of!(ForwardParams, $field);
                // SAFETY: no field has padding inside: they are integers, floats and structs of
                // same-sized integers.
                let bytes = unsafe {
                    std::slice::from_raw_parts(
                        std::ptr::from_ref($field).cast::<u8>(),
                        size_of_val($field),
                    )
                };
                image[start..start + bytes.len()].copy_from_slice(bytes);
            )*
        };
    }
    put!(
        q,
        k,
        v,
        o,
        lse,
        batch,
        heads_q,
        heads_kv,
        seq_q,
        seq_kv,
        head_dim,
        head_dim_v,
        softmax_scale,
        softcap,
        band,
        total_q,
        alibi_slopes,
        alibi_batch_stride,
        cu_seqlens_q,
        cu_seqlens_kv
    );
    image
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, ForwardOptions, Layout, Mask, Shape, TensorSpec};

    #[test]
    fn the_image_is_the_struct() {
        let shape = Shape {
            batch: 2,
            heads: 3,
            seq: 5,
            dim: 7,
        };
        let spec = TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd).unwrap();
        let options = ForwardOptions::new().mask(Mask::Causal).softcap(30.0);
        let problem = Problem::new(spec, spec, spec, spec, &options).unwrap();
        let operands = Operands {
            q: 1,
            k: 2,
            v: 3,
            o: 4,
            lse: 5,
        };
        let params = problem.forward_params(&operands);
        let image = image(&params);
        // SAFETY: the image has the struct's size, and every bit pattern of it is a valid value.
        let back = unsafe { image.as_ptr().cast::<ForwardParams>().read_unaligned() };
        assert_eq!(back, params);
    }
}
