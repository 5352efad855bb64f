use std::sync::{Arc, Weak};

use bytemuck::Pod;

use crate::{Error, Memory};

/// Device copies of small host arrays that problems share, each made once and kept while the array lives.
///
/// An array is known by its place, not by its values: comparing it costs nothing at a launch, and a place
/// is not used again while it is remembered here.
pub(super) struct Uploads<T, B> {
    copies: Vec<(Weak<[T]>, B)>,
}

impl<T, B> Default for Uploads<T, B> {
    fn default() -> Self {
        Self { copies: Vec::new() }
    }
}

impl<T: Pod, B> Uploads<T, B> {
    /// Address of the copy of `values` in `memory`, made now if there is none.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::Device`].
    pub fn address<M: Memory<Buffer = B>>(
        &mut self,
        memory: &mut M,
        values: &Arc<[T]>,
    ) -> Result<u64, Error> {
        let is_known =
            |(known, _): &(Weak<[T]>, B)| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(values));
        if let Some((_, copy)) = self.copies.iter().find(|entry| is_known(entry)) {
            return Ok(memory.address(copy));
        }
        // A dropped buffer is freed behind the launches that read it.
        self.copies.retain(|(known, _)| known.strong_count() > 0);
        let bytes = bytemuck::cast_slice(values);
        let mut copy = memory.alloc(bytes.len())?;
        memory.write(&mut copy, bytes)?;
        let address = memory.address(&copy);
        self.copies.push((Arc::downgrade(values), copy));
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, Cpu};

    #[test]
    fn a_copy_is_made_once_and_forgotten_with_its_array() {
        let mut cpu = Cpu::new();
        let memory = cpu.memory();
        let mut uploads = Uploads::default();
        let first: Arc<[i32]> = [1, 2].into();
        let address = uploads.address(memory, &first).unwrap();
        let mut bytes = [0; 8];
        memory.read(&uploads.copies[0].1, &mut bytes).unwrap();
        assert_eq!(bytemuck::cast::<_, [i32; 2]>(bytes), [1, 2]);
        assert_eq!(
            uploads.address(memory, &Arc::clone(&first)).unwrap(),
            address
        );
        assert_eq!(uploads.copies.len(), 1);
        // Equal values elsewhere are another array.
        let second: Arc<[i32]> = [1, 2].into();
        assert_ne!(uploads.address(memory, &second).unwrap(), address);
        assert_eq!(uploads.copies.len(), 2);
        drop((first, second));
        let third: Arc<[i32]> = [3].into();
        uploads.address(memory, &third).unwrap();
        assert_eq!(uploads.copies.len(), 1);
    }
}
