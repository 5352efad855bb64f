use crate::Error;
use crate::sealed::Sealed;

/// Memory that a backend computes in, and the queue its work runs on.
///
/// Implemented by this crate's backends alone: the trait will gain methods.
///
/// Work is stream-ordered: [`write`](Self::write) and [`read`](Self::read) take their place behind
/// what was queued before them, and [`read`](Self::read) returns with the bytes in hand.
///
/// # Safety
/// Safe code launches kernels on what this trait returns: [`address`](Self::address) must be the
/// start of [`size_bytes`](Self::size_bytes) bytes that kernels may read and write, that no other
/// live buffer shares, and that stay allocated until work queued before the drop is done.
pub unsafe trait Memory: Sealed {
    /// An allocation, freed when dropped.
    type Buffer;
    /// A point in the queue.
    type Mark;

    /// Whether a launch returns before its work is done, so that many can be queued before any is waited for. Where it
    /// is `false`, the work of a call is done when the call returns.
    fn is_queued(&self) -> bool;

    /// Allocates without initialising. `bytes` may be 0.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn alloc(&mut self, bytes: usize) -> Result<Self::Buffer, Error>;

    /// Size of an allocation, in bytes, as it was asked for.
    fn size_bytes(&self, buffer: &Self::Buffer) -> usize;

    /// Whether `buffer` was allocated here: only then does its address mean anything to this memory's kernels.
    fn owns(&self, buffer: &Self::Buffer) -> bool;

    /// The address kernels see; aligned to 16 bytes at least.
    ///
    /// # Panics
    /// If this memory does not [own](Self::owns) the buffer.
    fn address(&self, buffer: &Self::Buffer) -> u64;

    /// Copies `bytes` to the start of `buffer`.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::Argument`] on `buffer` if this memory does not [own](Self::owns) it.
    ///
    /// # Panics
    /// If `bytes` is longer than the buffer.
    fn write(&mut self, buffer: &mut Self::Buffer, bytes: &[u8]) -> Result<(), Error>;

    /// Copies the start of `buffer` to `bytes`: [`read_at`](Self::read_at) of 0.
    ///
    /// # Errors
    /// Those of [`read_at`](Self::read_at).
    ///
    /// # Panics
    /// If `bytes` is longer than the buffer.
    fn read(&mut self, buffer: &Self::Buffer, bytes: &mut [u8]) -> Result<(), Error> {
        self.read_at(buffer, 0, bytes)
    }

    /// Copies what lies in `buffer` from byte number `offset` on to `bytes`, after everything queued so far.
    ///
    /// # Errors
    /// [`Error::Device`], which may report the failure of an earlier launch; [`Error::Argument`] on `buffer` if this memory
    /// does not [own](Self::owns) it.
    ///
    /// # Panics
    /// If that reaches beyond the buffer.
    fn read_at(
        &mut self,
        buffer: &Self::Buffer,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), Error>;

    /// Waits for everything queued so far.
    ///
    /// # Errors
    /// [`Error::Device`], which may report the failure of an earlier launch.
    fn synchronize(&mut self) -> Result<(), Error>;

    /// Queues a time mark.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn mark(&mut self) -> Result<Self::Mark, Error>;

    /// Waits for `stop` and returns the milliseconds from `start` to it.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn elapsed_ms(&mut self, start: &Self::Mark, stop: &Self::Mark) -> Result<f64, Error>;
}

/// The fault of a buffer that its memory does not own, for messages.
pub(crate) const FOREIGN_BUFFER: &str = "its buffer was allocated by another device";

/// Refuses a buffer that `memory` does not own.
pub(crate) fn check_owned<M: Memory>(memory: &M, buffer: &M::Buffer) -> Result<(), Error> {
    check_owned_operand(memory, buffer, "buffer")
}

/// Refuses `argument` if `memory` does not own its buffer.
pub(crate) fn check_owned_operand<M: Memory>(
    memory: &M,
    buffer: &M::Buffer,
    argument: &'static str,
) -> Result<(), Error> {
    match memory.owns(buffer) {
        true => Ok(()),
        false => Err(Error::argument(
            argument,
            FOREIGN_BUFFER,
            "it must be one of the memory that it is used with",
        )),
    }
}
