//! Errors: in the PTX text, at a launch, and while a kernel runs.

use thiserror::Error;

use crate::fault::{Fault, FaultKind};

/// Longest piece of a source line an error repeats.
const QUOTED_CHARS: usize = 200;

/// The text is not PTX this simulator understands.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("PTX line {line}: {message}{}", quoted(text))]
pub struct ParseError {
    /// 1-based line in the text handed to [`crate::Module::parse`].
    pub line: u32,
    /// That line, shortened.
    pub text: String,
    pub message: String,
}

fn quoted(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!("\n    {text}")
    }
}

impl ParseError {
    pub(crate) fn new(line: u32, message: impl Into<String>) -> Self {
        Self {
            line,
            text: String::new(),
            message: message.into(),
        }
    }

    /// Fills in the quoted line from the whole text.
    pub(crate) fn with_source(mut self, source: &str) -> Self {
        self.text = source_line(source, self.line);
        self
    }
}

/// Line `line` (1-based) of `source`, trimmed and shortened.
pub(crate) fn source_line(source: &str, line: u32) -> String {
    SourceLines::new(source).quote(line)
}

/// A source whose lines are found without reading it again for each.
pub(crate) struct SourceLines<'s>(Vec<&'s str>);

impl<'s> SourceLines<'s> {
    pub(crate) fn new(source: &'s str) -> Self {
        Self(source.lines().collect())
    }

    /// Line number `line`, counted from 1, cut to what a message has room for.
    pub(crate) fn quote(&self, line: u32) -> String {
        let text = self.0.get((line as usize).saturating_sub(1));
        shortened(text.copied().unwrap_or_default().trim())
    }
}

fn shortened(text: &str) -> String {
    if text.chars().count() > QUOTED_CHARS {
        text.chars().take(QUOTED_CHARS).chain(['…']).collect()
    } else {
        text.to_owned()
    }
}

/// A device-memory operation asked for by the host failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryError {
    #[error("cannot allocate {bytes} bytes of device memory: at most {limit}")]
    TooLarge { bytes: u64, limit: u64 },
    #[error("cannot allocate {bytes} bytes of device memory: the host has no room for them")]
    OutOfMemory { bytes: u64 },
    #[error("address {address:#x} is not the start of a live allocation")]
    NotAllocated { address: u64 },
    #[error(
        "{size} bytes at {address:#x} lie outside every live allocation{}",
        nearest(*nearest_start, *nearest_bytes)
    )]
    OutOfBounds {
        address: u64,
        size: u64,
        nearest_start: u64,
        nearest_bytes: u64,
    },
    #[error("byte at {address:#x} was never written ({unwritten} of {size} bytes were not)")]
    Uninitialised {
        address: u64,
        unwritten: u64,
        size: u64,
    },
}

fn nearest(start: u64, bytes: u64) -> String {
    if bytes == 0 {
        String::new()
    } else {
        format!(" (the nearest holds {bytes} bytes from {start:#x})")
    }
}

/// A launch was refused, or a kernel failed while it ran.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum SimError {
    #[error("the module has no kernel `{name}`; it has {known}")]
    NoSuchKernel { name: String, known: String },
    #[error("kernel `{kernel}`: {message}")]
    BadLaunch { kernel: String, message: String },
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The kernel did something wrong; see [`Fault::kind`].
    #[error(transparent)]
    Fault(Box<Fault>),
}

impl SimError {
    /// The fault, if a kernel raised one.
    pub fn fault(&self) -> Option<&FaultKind> {
        match self {
            Self::Fault(fault) => Some(&fault.kind),
            _ => None,
        }
    }
}
