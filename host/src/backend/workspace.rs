use crate::{Error, Memory};

/// Device memory for the workspaces of a backend's own launches: zeroed when it is allocated; each launch that succeeds
/// leaves it fit for the next.
///
/// CUDA graphs keep addresses, so memory that a launch has used is kept even after a larger allocation replaces it,
/// until a launch fails ([`give_up`](Self::give_up)).
pub(super) struct OwnWorkspace<B> {
    /// Allocations; the last one is the largest, and the one in use.
    buffers: Vec<(usize, B)>,
}

impl<B> Default for OwnWorkspace<B> {
    fn default() -> Self {
        Self {
            buffers: Vec::new(),
        }
    }
}

impl<B> OwnWorkspace<B> {
    /// The address of at least `bytes` bytes; made now if there are less.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::Device`].
    pub fn address<M: Memory<Buffer = B>>(
        &mut self,
        memory: &mut M,
        bytes: usize,
    ) -> Result<u64, Error> {
        match self.buffers.last() {
            Some((size, _)) if *size >= bytes => {}
            _ => {
                // In powers of two, so that lengths that grow do not make one after the other.
                let bytes = bytes.next_power_of_two();
                let mut buffer = memory.alloc(bytes)?;
                memory.write(&mut buffer, &vec![0; bytes])?;
                self.buffers.push((bytes, buffer));
            }
        }
        let (_, buffer) = self.buffers.last().expect("it was made above");
        Ok(memory.address(buffer))
    }

    /// Discards the workspace, which a failed launch may have left in an intermediate state.
    pub fn give_up(&mut self) {
        self.buffers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, Cpu};

    #[test]
    fn memory_grows_and_stays_where_it_is() {
        let mut cpu = Cpu::new();
        let memory = cpu.memory();
        let mut workspace = OwnWorkspace::default();
        let mut address = |bytes| workspace.address(memory, bytes).unwrap();
        let small = address(16);
        assert_eq!((address(3), address(16)), (small, small));
        let large = address(17);
        assert_ne!(large, small);
        assert_eq!((address(32), address(16)), (large, large));
        assert_eq!(workspace.buffers.len(), 2);
        workspace.give_up();
        assert!(workspace.buffers.is_empty());
    }
}
