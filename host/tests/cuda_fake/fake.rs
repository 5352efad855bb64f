//! Loading the fake driver and talking to it.

use cuda_loader::{LIBRARY_VARIABLE, sys};
use std::env;
use std::ffi::{CString, c_char};
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A kernel that the fake driver runs: c = a + b over f32.
pub const VECTOR_ADD_PTX: &str = ".visible .entry vector_add(...)";
/// A kernel that it only logs.
pub const NOTHING_PTX: &str = ".visible .entry nothing()";
/// A kernel in clusters of two blocks.
pub const PAIRS_PTX: &str = ".visible .entry pairs() .explicitcluster .reqnctapercluster 2, 1, 1";
/// A module that it does not compile.
pub const BAD_PTX: &str = ".visible .entry bad() { bad_instruction; }";

/// The fake driver, for one test at a time: they share its log.
pub struct Fake {
    library: libloading::Library,
    _turn: MutexGuard<'static, ()>,
}

/// Loads the fake driver in place of the real one.
///
/// Cargo builds it next to the tests. A folder that `xtask dist` packed does not have it.
pub fn fake() -> Option<Fake> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let path = env::current_exe()
        .unwrap()
        .with_file_name("libfake_libcuda.so");
    if !path.exists() && env::var_os("FERROFLASH_DATA").is_some() {
        // Not `eprintln`, which the test harness keeps for itself.
        let not_run = b"NOT RUN: the fake driver is not packed\n";
        std::io::stderr().write_all(not_run).unwrap();
        return None;
    }
    // SAFETY: other tests of this process read and write the environment only here, in turn.
    unsafe { env::set_var(LIBRARY_VARIABLE, &path) };
    cuda_loader::load().unwrap();
    // SAFETY: the fake driver runs nothing when it is opened.
    let library = unsafe { libloading::Library::new(&path) }.unwrap();
    let fake = Fake {
        library,
        _turn: turn,
    };
    fake.take_log();
    Some(fake)
}

impl Fake {
    /// The calls since this was last asked.
    pub fn take_log(&self) -> Vec<String> {
        // SAFETY: the fake's function has this signature and gives the string away.
        let log = unsafe {
            let take = self
                .library
                .get::<unsafe extern "C" fn() -> *mut c_char>(b"fake_take_log");
            CString::from_raw(take.unwrap()())
        };
        log.to_str().unwrap().lines().map(str::to_owned).collect()
    }

    /// The context current to this thread.
    pub fn current_context(&self) -> usize {
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is writable.
        unsafe { sys::cuCtxGetCurrent(&mut context) }.ok().unwrap();
        context as usize
    }

    /// Makes a context current to this thread, 0 for none.
    pub fn set_current_context(&self, context: usize) {
        // SAFETY: the fake takes any handle.
        let result = unsafe { cust::sys::cuCtxSetCurrent(context as _) };
        assert_eq!(result as u32, 0);
    }
}
