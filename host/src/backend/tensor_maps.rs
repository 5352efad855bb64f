use std::collections::HashMap;

use foldhash::fast::FixedState;
use kernels_gpu::dtype::DType;
use kernels_gpu::wgmma::tensor_map::{TensorMap, TensorMapSpec};

use super::device::Device;
use crate::Error;

/// Most maps that are kept: of some hundred layers, in a quarter of a MiB.
const CAPACITY: usize = 1024;

/// The tensor maps of launches before, as models call again with the same shapes at the same addresses.
///
/// A map depends on nothing but its specification, so none is ever out of date.
#[derive(Default)]
pub(crate) struct TensorMaps {
    encoded: HashMap<(DType, TensorMapSpec), TensorMap, FixedState>,
}

impl TensorMaps {
    /// What `spec` is encoded to, by `device` if it has not been yet.
    ///
    /// # Errors
    /// [`Error::Device`] if the device refuses it.
    pub fn get<D: Device>(
        &mut self,
        device: &D,
        dtype: DType,
        spec: &TensorMapSpec,
    ) -> Result<TensorMap, Error> {
        let key = (dtype, *spec);
        if let Some(map) = self.encoded.get(&key) {
            return Ok(*map);
        }
        let map = device.encode_tensor_map(dtype, spec)?;
        if self.encoded.len() == CAPACITY {
            self.encoded.clear();
        }
        self.encoded.insert(key, map);
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use kernels_gpu::wgmma::tensor_map::MAX_RANK;

    use super::*;
    use crate::backend::sim::SimDevice;

    fn spec(number: usize) -> TensorMapSpec {
        TensorMapSpec {
            address: 4096 * number as u64,
            rank: 2,
            dims: [64; MAX_RANK],
            strides: [128; MAX_RANK - 1],
            box_dims: [64; MAX_RANK],
        }
    }

    #[test]
    fn a_map_is_encoded_once_and_told_apart() {
        let (device, mut maps) = (SimDevice::new(), TensorMaps::default());
        let mut get = |dtype, number| maps.get(&device, dtype, &spec(number)).unwrap();
        let first = get(DType::Bf16, 1);
        assert_eq!(get(DType::Bf16, 1), first);
        assert_ne!(get(DType::Bf16, 2), first);
        assert_ne!(get(DType::F16, 1), first);
        assert_eq!(maps.encoded.len(), 3);
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for() {
        let (device, mut maps) = (SimDevice::new(), TensorMaps::default());
        for number in 0..2 * CAPACITY + 1 {
            maps.get(&device, DType::Bf16, &spec(number)).unwrap();
            assert!((1..=CAPACITY).contains(&maps.encoded.len()));
        }
    }
}
