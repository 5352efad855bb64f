use std::collections::HashMap;

use foldhash::fast::FixedState;
use kernels_gpu::dtype::DType;
use kernels_gpu::wgmma::tensor_map::{ForwardMaps, TensorMap, TensorMapSpec};

use super::device::Device;
use crate::Error;

/// Most maps that are kept: enough for some hundred layers, in a quarter of a MiB.
const CAPACITY: usize = 1024;

/// Tensor maps of earlier launches: models call again with the same shapes at the same addresses.
///
/// A map depends on nothing but its specification, so none is ever out of date.
#[derive(Default)]
pub(crate) struct TensorMaps {
    encoded: HashMap<Key, TensorMap, FixedState>,
    /// The maps of the last launch, which the next one often repeats.
    last: Option<([Key; OPERANDS], [TensorMap; OPERANDS])>,
}

/// Everything that a map depends on.
type Key = (DType, TensorMapSpec);

/// Number of operands that TMA reads or writes in a launch: q, k, v and o.
const OPERANDS: usize = 4;

impl TensorMaps {
    /// The tensor maps of a launch's operands, in the order of the kernel's parameters.
    ///
    /// # Errors
    /// [`Error::Device`] if the device refuses one.
    pub fn of_forward<D: Device>(
        &mut self,
        device: &D,
        dtype: DType,
        specs: &ForwardMaps,
    ) -> Result<[TensorMap; OPERANDS], Error> {
        let ForwardMaps { q, k, v, o } = *specs;
        self.get_all(device, dtype, [q, k, v, o])
    }

    /// The encodings of `specs`.
    ///
    /// # Errors
    /// [`Error::Device`] if the device refuses one.
    pub fn get_all<D: Device>(
        &mut self,
        device: &D,
        dtype: DType,
        specs: [TensorMapSpec; OPERANDS],
    ) -> Result<[TensorMap; OPERANDS], Error> {
        let keys = specs.map(|spec| (dtype, spec));
        if let Some((_, maps)) = self.last.as_ref().filter(|(last, _)| *last == keys) {
            return Ok(*maps);
        }
        let mut get = |spec| self.get(device, dtype, spec);
        let [a, b, c, d] = &specs;
        let maps = [get(a)?, get(b)?, get(c)?, get(d)?];
        self.last = Some((keys, maps));
        Ok(maps)
    }

    /// The tensor map of `spec`, encoded by `device` unless it is kept already.
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

#[cfg(all(test, feature = "sim"))]
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
    fn a_launch_gets_its_own_operands() {
        let (device, mut maps) = (SimDevice::new(), TensorMaps::default());
        let specs = |first: usize| ForwardMaps {
            q: spec(first),
            k: spec(first + 1),
            v: spec(first + 2),
            o: spec(first + 3),
        };
        let mut get = |dtype, first| maps.of_forward(&device, dtype, &specs(first)).unwrap();
        let (first, second) = (get(DType::Bf16, 1), get(DType::Bf16, 2));
        assert_eq!(first[1..], second[..3]);
        assert_eq!((get(DType::Bf16, 2), get(DType::Bf16, 1)), (second, first));
        assert_ne!(get(DType::F16, 1), first);
        assert_eq!(maps.encoded.len(), 5 + 4);
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
