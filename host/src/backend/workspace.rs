use crate::{Error, Memory};

/// Device memory for the workspaces of a backend's own launches: zeroed when it is allocated; each launch that succeeds
/// leaves it fit for the next.
///
/// CUDA graphs keep addresses, so memory that a launch has used is kept as long as the backend, also when a larger
/// allocation replaces it, or a new one after a launch that failed.
pub(super) struct OwnWorkspace<B> {
    /// The one in use, and its size in bytes.
    current: Option<(usize, B)>,
    /// Allocations that no further launch uses.
    kept: Vec<B>,
}

impl<B> Default for OwnWorkspace<B> {
    fn default() -> Self {
        Self {
            current: None,
            kept: Vec::new(),
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
        if let Some((size, buffer)) = &self.current
            && *size >= bytes
        {
            return Ok(memory.address(buffer));
        }
        // In powers of two, so that lengths that grow do not make one after the other.
        let bytes = bytes.next_power_of_two();
        let mut buffer = memory.alloc(bytes)?;
        memory.write(&mut buffer, &vec![0; bytes])?;
        let address = memory.address(&buffer);
        self.give_up();
        self.current = Some((bytes, buffer));
        Ok(address)
    }

    /// Launches use this workspace no more, which one that failed may have left in an intermediate state.
    pub fn give_up(&mut self) {
        self.kept
            .extend(self.current.take().map(|(_, buffer)| buffer));
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
        // A workspace that was given up is not used again, and stays where a graph may still reach it.
        workspace.give_up();
        assert_eq!(workspace.kept.len(), 2);
        let new = workspace.address(memory, 16).unwrap();
        assert!(new != small && new != large);
    }
}
