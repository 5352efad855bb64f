//! Finding and opening libcuda.

use crate::symbols::{SYMBOLS, cuDriverGetVersion};
use crate::{DriverError, fallback};
use libloading::Library;
use std::env;
use std::ffi::{OsStr, OsString};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// Names a library to open instead of the system's libcuda.
pub const LIBRARY_VARIABLE: &str = "FERROFLASH_LIBCUDA";

/// Where the driver's library is: by its name on the loader's path, and where WSL keeps it.
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"];

/// Why there is no driver to call.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no NVIDIA driver: {reason}")]
pub struct LoadError {
    reason: String,
}

/// A loaded libcuda: from here on `cust` and [`crate::sys`] call into it.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    library: &'static OsStr,
    missing: &'static [&'static str],
}

impl Driver {
    /// The library that was opened.
    pub fn library(&self) -> &OsStr {
        self.library
    }

    /// The CUDA version that the driver supports, as (major, minor).
    pub fn cuda_version(&self) -> Result<(u32, u32), DriverError> {
        let mut version = 0;
        // SAFETY: `version` is writable; the function may be called at any time.
        unsafe { cuDriverGetVersion(&mut version) }.ok()?;
        let version = version as u32;
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Whether the driver has this function; a call to one it lacks returns `CUDA_ERROR_NOT_FOUND`.
    ///
    /// A name that [`crate::sys`] and `cust_raw` do not have either counts as lacking.
    pub fn provides(&self, function: &str) -> bool {
        SYMBOLS.iter().any(|(name, _)| *name == function) && !self.missing.contains(&function)
    }
}

/// Opens libcuda and points every trampoline into it, once a process; later calls repeat the answer.
///
/// `cuInit` is left to the caller (`cust::init`).
///
/// # Errors
/// No library is found, or it is not a CUDA driver.
pub fn load() -> Result<Driver, LoadError> {
    static DRIVER: OnceLock<Result<Driver, LoadError>> = OnceLock::new();
    DRIVER.get_or_init(open).clone()
}

fn open() -> Result<Driver, LoadError> {
    let candidates: Vec<OsString> = match env::var_os(LIBRARY_VARIABLE) {
        Some(library) => vec![library],
        None => LIBRARIES.map(OsString::from).into(),
    };
    let mut first_error = None;
    for name in candidates {
        // SAFETY: opening the driver's library runs its initialisers, which is what the caller asks for.
        match unsafe { Library::new(&name) } {
            Ok(library) => return connect(name, library),
            // The error of the plain name explains more than those of the fallbacks.
            Err(error) => first_error.get_or_insert(error),
        };
    }
    let reason = match first_error {
        Some(error) => error.to_string(),
        None => format!("{LIBRARY_VARIABLE} names no library"),
    };
    Err(LoadError { reason })
}

/// Points the trampolines into `library`, which stays open for good.
fn connect(name: OsString, library: Library) -> Result<Driver, LoadError> {
    let library: &'static Library = Box::leak(Box::new(library));
    // SAFETY: only the address is taken here; the trampoline's caller knows the signature.
    let find = |function: &str| unsafe { library.get::<*mut ()>(function.as_bytes()) };
    if find("cuInit").is_err() {
        let reason = format!("{} has no cuInit", name.display());
        return Err(LoadError { reason });
    }
    let mut missing = Vec::new();
    for (function, slot) in SYMBOLS {
        let address = match find(function) {
            Ok(symbol) => *symbol,
            Err(_) => {
                missing.push(*function);
                fallback::not_found as *mut ()
            }
        };
        // Release: a thread that sees the address also sees the library's initialised data.
        slot.store(address, Ordering::Release);
    }
    Ok(Driver {
        library: Box::leak(name.into_boxed_os_str()),
        missing: missing.leak(),
    })
}
