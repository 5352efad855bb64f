use std::sync::{Arc, Weak};

use bytemuck::{NoUninit, cast_slice};

use crate::{Error, Memory};

/// Copies of small host arrays in device memory, shared by problems. Each is made once, and kept while the array lives
/// and fewer than [`CAPACITY`] newer ones were made.
///
/// An array is identified by its address, not by its values: that costs nothing at a launch, and an address is not
/// reused while it is remembered here.
pub(super) struct Uploads<T, B> {
    made: Vec<(Weak<[T]>, B)>,
}

/// Entries that are kept at most; the oldest goes first.
const CAPACITY: usize = 128;

impl<T, B> Default for Uploads<T, B> {
    fn default() -> Self {
        Self { made: Vec::new() }
    }
}

impl<T: NoUninit, B> Uploads<T, B> {
    /// The copy of `values` in `memory`; made now if there is none.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::Device`].
    pub fn get<M: Memory<Buffer = B>>(
        &mut self,
        memory: &mut M,
        values: &Arc<[T]>,
    ) -> Result<&B, Error> {
        let is_known =
            |(known, _): &(Weak<[T]>, B)| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(values));
        let place = match self.made.iter().position(is_known) {
            Some(place) => place,
            None => {
                // A dropped buffer is freed behind the launches that read it.
                self.made.retain(|(known, _)| known.strong_count() > 0);
                if self.made.len() == CAPACITY {
                    self.made.remove(0);
                }
                let bytes = cast_slice(values);
                let mut buffer = memory.alloc(bytes.len())?;
                memory.write(&mut buffer, bytes)?;
                self.made.push((Arc::downgrade(values), buffer));
                self.made.len() - 1
            }
        };
        Ok(&self.made[place].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::{CpuBuffer, CpuMemory};
    use crate::{Backend, Cpu};

    #[test]
    fn made_once_and_forgotten_with_the_array() {
        let mut cpu = Cpu::new();
        let memory = cpu.memory();
        let mut uploads = Uploads::default();
        let first: Arc<[i32]> = [1, 2].into();
        let address =
            |memory: &mut CpuMemory, uploads: &mut Uploads<i32, CpuBuffer>, values: &Arc<[i32]>| {
                let buffer = uploads.get(memory, values);
                memory.address(buffer.unwrap())
            };
        let copy = address(memory, &mut uploads, &first);
        let mut bytes = [0; 8];
        memory.read(&uploads.made[0].1, &mut bytes).unwrap();
        assert_eq!(bytemuck::cast::<_, [i32; 2]>(bytes), [1, 2]);
        let clone = Arc::clone(&first);
        assert_eq!(address(memory, &mut uploads, &clone), copy);
        assert_eq!(uploads.made.len(), 1);
        // Equal values elsewhere are another array.
        let second: Arc<[i32]> = [1, 2].into();
        assert_ne!(address(memory, &mut uploads, &second), copy);
        assert_eq!(uploads.made.len(), 2);
        let many: Vec<Arc<[i32]>> = (0..2 * CAPACITY as i32).map(|i| [i].into()).collect();
        for values in &many {
            address(memory, &mut uploads, values);
        }
        assert_eq!(uploads.made.len(), CAPACITY);
        drop((first, clone, second, many));
        let third: Arc<[i32]> = [3].into();
        address(memory, &mut uploads, &third);
        assert_eq!(uploads.made.len(), 1);
    }
}
