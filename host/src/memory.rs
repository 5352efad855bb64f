use crate::Error;

/// Memory that a backend computes in, and the queue its work runs on.
///
/// Work is stream-ordered: [`write`](Self::write) and [`read`](Self::read) take their place behind
/// what was queued before them, and [`read`](Self::read) returns with the bytes in hand.
///
/// # Safety
/// Safe code launches kernels on what this trait returns: [`address`](Self::address) must be the
/// start of [`size_bytes`](Self::size_bytes) bytes that kernels may read and write, that no other
/// live buffer shares, and that stay allocated until work queued before the drop is done.
pub unsafe trait Memory {
    /// An allocation, freed when dropped.
    type Buffer;
    /// A point in the queue.
    type Mark;

    /// Whether a launch returns before its work is done, so that many can be queued before any is waited for. Where it
    /// is `false`, the work of a call is done when the call returns.
    const IS_QUEUED: bool;

    /// Allocates without initialising. `bytes` may be 0.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn alloc(&mut self, bytes: usize) -> Result<Self::Buffer, Error>;

    /// Size of an allocation, in bytes, as it was asked for.
    fn size_bytes(&self, buffer: &Self::Buffer) -> usize;

    /// The address kernels see; aligned to 16 bytes at least.
    fn address(&self, buffer: &Self::Buffer) -> u64;

    /// Copies `bytes` to the start of `buffer`.
    ///
    /// # Errors
    /// [`Error::Device`].
    ///
    /// # Panics
    /// If `bytes` is longer than the buffer.
    fn write(&mut self, buffer: &mut Self::Buffer, bytes: &[u8]) -> Result<(), Error>;

    /// Copies the start of `buffer` to `bytes`, after everything queued so far.
    ///
    /// # Errors
    /// [`Error::Device`], which may report the failure of an earlier launch.
    ///
    /// # Panics
    /// If `bytes` is longer than the buffer.
    fn read(&mut self, buffer: &Self::Buffer, bytes: &mut [u8]) -> Result<(), Error>;

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
