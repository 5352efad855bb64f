use std::borrow::Cow;
use std::sync::{Arc, Weak};

use crate::{Error, Memory};

/// What device memory holds of small host arrays that problems share, a copy or what is worked out from it; `K` says
/// which. Each is made once, and kept while the array lives and fewer than [`CAPACITY`] came after it.
///
/// An array is known by its place, not by its values: comparing it costs nothing at a launch, and a place
/// is not used again while it is remembered here.
pub(super) struct Uploads<T, K, B> {
    made: Vec<(Weak<[T]>, K, B)>,
}

/// Entries that are kept at most; the oldest goes first.
const CAPACITY: usize = 128;

impl<T, K, B> Default for Uploads<T, K, B> {
    fn default() -> Self {
        Self { made: Vec::new() }
    }
}

impl<T, K: PartialEq, B> Uploads<T, K, B> {
    /// What was made of `values` for `key` in `memory`; made now of `bytes` if there is none.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::Device`].
    pub fn get<'a, M: Memory<Buffer = B>>(
        &mut self,
        memory: &mut M,
        values: &'a Arc<[T]>,
        key: K,
        bytes: impl FnOnce() -> Cow<'a, [u8]>,
    ) -> Result<&B, Error> {
        let is_known = |(known, of, _): &(Weak<[T]>, K, B)| {
            std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(values)) && *of == key
        };
        let place = match self.made.iter().position(is_known) {
            Some(place) => place,
            None => {
                // A dropped buffer is freed behind the launches that read it.
                self.made.retain(|(known, ..)| known.strong_count() > 0);
                if self.made.len() == CAPACITY {
                    self.made.remove(0);
                }
                let bytes = bytes();
                let mut buffer = memory.alloc(bytes.len())?;
                memory.write(&mut buffer, &bytes)?;
                self.made.push((Arc::downgrade(values), key, buffer));
                self.made.len() - 1
            }
        };
        Ok(&self.made[place].2)
    }

    /// How many there are.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.made.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::{CpuBuffer, CpuMemory};
    use crate::{Backend, Cpu};

    #[test]
    fn made_once_for_each_key_and_forgotten_with_the_array() {
        let mut cpu = Cpu::new();
        let memory = cpu.memory();
        let mut uploads = Uploads::default();
        let first: Arc<[i32]> = [1, 2].into();
        let address = |memory: &mut CpuMemory,
                       uploads: &mut Uploads<i32, u32, CpuBuffer>,
                       values: &Arc<[i32]>,
                       key| {
            let bytes = || Cow::Borrowed(bytemuck::cast_slice(values));
            let buffer = uploads.get(memory, values, key, bytes);
            memory.address(buffer.unwrap())
        };
        let copy = address(memory, &mut uploads, &first, 0);
        let mut bytes = [0; 8];
        memory.read(&uploads.made[0].2, &mut bytes).unwrap();
        assert_eq!(bytemuck::cast::<_, [i32; 2]>(bytes), [1, 2]);
        let clone = Arc::clone(&first);
        assert_eq!(address(memory, &mut uploads, &clone, 0), copy);
        assert_eq!(uploads.count(), 1);
        assert_ne!(address(memory, &mut uploads, &first, 1), copy);
        // Equal values elsewhere are another array.
        let second: Arc<[i32]> = [1, 2].into();
        assert_ne!(address(memory, &mut uploads, &second, 0), copy);
        assert_eq!(uploads.count(), 3);
        for key in 2..2 * CAPACITY as u32 {
            address(memory, &mut uploads, &first, key);
        }
        assert_eq!(uploads.count(), CAPACITY);
        drop((first, clone, second));
        let third: Arc<[i32]> = [3].into();
        address(memory, &mut uploads, &third, 0);
        assert_eq!(uploads.count(), 1);
    }
}
