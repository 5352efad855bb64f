use std::any::Any;
use std::ffi::CString;
use std::mem::size_of;
use std::ptr;

use ferroflash::Error;

use crate::c_api::{ErrorCode, ErrorCreateArgs, Function, XlaError};

/// Why a call fails.
#[derive(Debug)]
pub enum Failure {
    /// In words of this library.
    Ours(ErrorCode, String),
    /// An error of XLA's own, which is handed back to it.
    Xlas(*mut XlaError),
}

impl Failure {
    /// An argument, result or attribute that is refused: what is wrong, and what is allowed.
    pub fn argument(name: &str, wrong: impl Into<String>, allowed: impl Into<String>) -> Self {
        Error::argument(name.to_owned(), wrong, allowed).into()
    }

    /// What the API lacks, of the version that XLA has.
    pub fn lacking(function: &str) -> Self {
        let message = format!("jaxlib: XLA's FFI has no {function}; a newer release has it");
        Self::Ours(ErrorCode::Unimplemented, message)
    }

    /// What a panic said.
    pub fn panicked(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let message = format!("ferroflash: it panicked: {}", text.unwrap_or("no message"));
        Self::Ours(ErrorCode::Internal, message)
    }

    /// XLA's error that says so, made by its function for that.
    pub fn into_xla(self, create: Function<ErrorCreateArgs>) -> *mut XlaError {
        let (code, message) = match self {
            Self::Ours(code, message) => (code, message),
            Self::Xlas(error) => return error,
        };
        let Some(create) = create else {
            // There is no other way to say that it failed: to return null is to say that results are there.
            eprintln!("{message}; XLA's FFI makes no errors");
            std::process::abort();
        };
        let message = CString::new(message.replace('\0', "?")).unwrap_or_default();
        let mut args = ErrorCreateArgs {
            struct_size: size_of::<ErrorCreateArgs>(),
            extension_start: ptr::null_mut(),
            message: message.as_ptr(),
            code,
        };
        // SAFETY: the function is XLA's, the struct is as it asks for, and it copies the message.
        unsafe { create(&mut args) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Argument { .. } => ErrorCode::InvalidArgument,
            Error::OutOfMemory { .. } => ErrorCode::ResourceExhausted,
            Error::NoDevice { .. } => ErrorCode::Unavailable,
            _ => ErrorCode::Internal,
        };
        Self::Ours(code, error.to_string())
    }
}
