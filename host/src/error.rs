use std::borrow::Cow;

/// Everything that can go wrong in this crate.
///
/// A message about an argument reads `<argument>: <what is wrong>; <what is allowed>` on one line, one about a device
/// `<device>: <operation> failed: <the device's own words>`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is refused before anything runs.
    #[error("{argument}: {wrong}; {allowed}")]
    Argument {
        /// The argument, by its name in the API (`q`, `softmax_scale`, `force`, …).
        argument: Cow<'static, str>,
        /// Its value and why that is refused.
        wrong: String,
        /// The values that are allowed.
        allowed: String,
    },
    /// No device of the requested kind answers.
    #[error("{backend}: {wrong}; {allowed}")]
    NoDevice {
        /// The backend that was asked for.
        backend: &'static str,
        /// The driver's or loader's message.
        wrong: String,
        /// A possible remedy.
        allowed: String,
    },
    /// An allocation failed.
    #[error("{device}: out of memory allocating {requested_bytes} bytes; {free}")]
    OutOfMemory {
        /// The device that refused.
        device: String,
        /// The size that was asked for.
        requested_bytes: u64,
        /// The device's report of its free memory.
        free: String,
    },
    /// The driver, the device or the simulator reported a failure.
    #[error("{device}: {operation} failed: {detail}")]
    Device {
        /// The device that failed.
        device: String,
        /// The operation that failed.
        operation: String,
        /// The failure in the device's own words.
        detail: String,
    },
}

impl Error {
    /// An [`Error::Argument`].
    pub fn argument(
        argument: impl Into<Cow<'static, str>>,
        wrong: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        Self::Argument {
            argument: argument.into(),
            wrong: wrong.into(),
            allowed: allowed.into(),
        }
    }
}
