//! The CUDA backend on a real GPU. Where there is none, each test prints NOT RUN.

mod graphs;
mod ptx;

use cuda_loader::sys;
use ferroflash::backend::cuda::{CudaDevice, KernelLaunch};
use ferroflash::{Error, Memory};
use std::io::Write;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first GPU, or `None` after saying why there is none; and its only user meanwhile, as tests that
/// measure time need it.
fn device() -> Option<(CudaDevice, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match CudaDevice::new(0) {
        Ok(device) => Some((device, turn)),
        Err(error @ Error::NoDevice { .. }) => {
            say(&format!("NOT RUN: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Prints past the test harness, which keeps what `println` and `eprintln` print.
fn say(line: &str) {
    std::io::stderr()
        .write_all(format!("{line}\n").as_bytes())
        .unwrap();
}

fn upload(device: &mut CudaDevice, values: &[f32]) -> <CudaDevice as Memory>::Buffer {
    let mut buffer = device.alloc(size_of_val(values)).unwrap();
    device
        .write(&mut buffer, bytemuck::cast_slice(values))
        .unwrap();
    buffer
}

fn download(device: &mut CudaDevice, buffer: &<CudaDevice as Memory>::Buffer) -> Vec<f32> {
    let mut values = vec![0_f32; device.size_bytes(buffer) / 4];
    device
        .read(buffer, bytemuck::cast_slice_mut(&mut values))
        .unwrap();
    values
}

/// Queues c = a + b, of three buffers of the same size.
fn add(device: &mut CudaDevice, [a, b, c]: [&<CudaDevice as Memory>::Buffer; 3]) {
    let [a_param, b_param, c_param] = [a, b, c].map(|buffer| device.address(buffer).to_ne_bytes());
    let n = (device.size_bytes(c) / 4) as u32;
    let launch = KernelLaunch {
        name: "vector_add",
        ptx: ptx::VECTOR_ADD,
        grid: n.div_ceil(256),
        block: 256,
        shared_bytes: 0,
        params: &[&a_param, &b_param, &c_param, &n.to_ne_bytes()],
    };
    // SAFETY: these are the kernel's parameters; it stays below n, which the buffers hold.
    unsafe { device.launch_kernel(&launch) }.unwrap();
}

/// Queues the kernel that keeps the stream busy for a while.
fn wait(device: &mut CudaDevice, time: Duration) {
    let launch = KernelLaunch {
        name: "wait",
        ptx: ptx::WAIT,
        grid: 1,
        block: 1,
        shared_bytes: 0,
        params: &[&(time.as_nanos() as u64).to_ne_bytes()],
    };
    // SAFETY: this is the kernel's parameter; it touches no memory.
    unsafe { device.launch_kernel(&launch) }.unwrap();
}

#[test]
fn the_device_says_what_it_is() {
    let Some((device, _turn)) = device() else {
        return;
    };
    let info = device.cuda_info();
    say(&format!("{info}"));
    assert!(!info.device.name.is_empty());
    assert!(info.device.compute_capability >= (5, 0));
    assert!(info.device.multiprocessors > 0 && info.l2_bytes > 0);
    assert!(info.device.shared_bytes >= 48 << 10 && info.device.memory_bytes > Some(1 << 30));
    assert!(CudaDevice::count().unwrap() >= 1);
}

#[test]
fn kernels_of_two_modules_run_in_order() {
    let Some((mut device, _turn)) = device() else {
        return;
    };
    let n = 100_003;
    let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let a = upload(&mut device, &a);
    let b = upload(&mut device, &vec![0.5; n]);
    let c = device.alloc(4 * n).unwrap();
    // A struct passed by value: address, count, factor.
    let mut params = [0; 16];
    params[..8].copy_from_slice(&device.address(&c).to_ne_bytes());
    params[8..12].copy_from_slice(&(n as u32).to_ne_bytes());
    params[12..].copy_from_slice(&2_f32.to_ne_bytes());
    let scale = KernelLaunch {
        name: "scale",
        ptx: ptx::SCALE,
        grid: (n as u32).div_ceil(128),
        block: 128,
        shared_bytes: 0,
        params: &[&params],
    };
    let ((), milliseconds) = device
        .time(|device| {
            add(device, [&a, &b, &c]);
            // SAFETY: this is the kernel's parameter; it stays below n, which c holds.
            unsafe { device.launch_kernel(&scale) }
        })
        .unwrap();
    assert!(milliseconds > 0.0);
    let c = download(&mut device, &c);
    assert!((0..n).all(|i| c[i] == 2.0 * (i as f32 + 0.5)));
}

#[test]
fn a_block_may_use_more_than_48_kib_of_shared_memory() {
    let Some((mut device, _turn)) = device() else {
        return;
    };
    // As much as the device has: 99 KiB at the least since Ampere, 227 KiB on Hopper.
    let n = device.cuda_info().device.shared_bytes / 4;
    let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let x = upload(&mut device, &values);
    let launch = KernelLaunch {
        name: "reverse",
        ptx: ptx::REVERSE,
        grid: 1,
        block: 1024,
        shared_bytes: 4 * n,
        params: &[&device.address(&x).to_ne_bytes(), &n.to_ne_bytes()],
    };
    // SAFETY: these are the kernel's parameters; it stays below n, which x and shared memory hold.
    unsafe { device.launch_kernel(&launch) }.unwrap();
    let mut reversed = download(&mut device, &x);
    reversed.reverse();
    assert_eq!(reversed, values);

    let too_much = KernelLaunch {
        shared_bytes: 4 * n + 4,
        ..launch
    };
    // SAFETY: refused.
    let error = unsafe { device.launch_kernel(&too_much) }.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("launching kernel reverse failed: CUDA_ERROR_"),
        "{error}"
    );
}

#[test]
fn clusters_are_launched_as_the_kernel_says() {
    let Some((mut device, _turn)) = device() else {
        return;
    };
    if device.cuda_info().device.compute_capability < (9, 0) {
        say(&format!("NOT RUN: {} has no clusters", device.cuda_info()));
        return;
    }
    let out = upload(&mut device, &[0.0; 6]);
    let launch = KernelLaunch {
        name: "cluster_rank",
        ptx: ptx::CLUSTER_RANK,
        grid: 6,
        block: 1,
        shared_bytes: 0,
        params: &[&device.address(&out).to_ne_bytes()],
    };
    // SAFETY: this is the kernel's parameter; it writes one word a block.
    unsafe { device.launch_kernel(&launch) }.unwrap();
    let ranks = download(&mut device, &out);
    assert_eq!(bytemuck::cast_slice::<f32, u32>(&ranks), [0, 1, 0, 1, 0, 1]);
    let half_a_cluster = KernelLaunch { grid: 7, ..launch };
    // SAFETY: refused.
    let error = unsafe { device.launch_kernel(&half_a_cluster) }.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("7 blocks are no whole number of clusters of 2"),
        "{error}"
    );
}

#[test]
fn a_launch_does_not_wait() {
    let Some((mut device, _turn)) = device() else {
        return;
    };
    let busy = Duration::from_millis(200);
    // The first launch compiles.
    wait(&mut device, Duration::ZERO);
    device.synchronize().unwrap();
    let started = Instant::now();
    let ((), milliseconds) = device
        .time(|device| {
            wait(device, busy);
            wait(device, busy);
            let queued = started.elapsed();
            assert!(queued < busy / 2, "two launches took {queued:?}");
            Ok(())
        })
        .unwrap();
    assert!(started.elapsed() >= 2 * busy);
    // Events and the host's clock agree: the one kernel began when the other had ended.
    assert!((399.0..600.0).contains(&milliseconds), "{milliseconds} ms");

    // Reading waits for what is queued.
    let value = upload(&mut device, &[1.0]);
    wait(&mut device, busy);
    add(&mut device, [&value, &value, &value]);
    assert_eq!(download(&mut device, &value), [2.0]);
    device.synchronize().unwrap();
}

#[test]
fn a_launch_costs_little_on_the_host() {
    let Some((mut device, _turn)) = device() else {
        return;
    };
    let x = upload(&mut device, &[1.0]);
    add(&mut device, [&x, &x, &x]);
    device.synchronize().unwrap();
    // Fewer than the driver's queue holds, so that a launch never waits for a free place.
    let launches = 500;
    let mut best = Duration::MAX;
    for _ in 0..10 {
        let started = Instant::now();
        (0..launches).for_each(|_| add(&mut device, [&x, &x, &x]));
        best = best.min(started.elapsed() / launches);
        device.synchronize().unwrap();
    }
    say(&format!("a launch takes {best:?} on the host"));
    assert!(best < Duration::from_micros(10), "a launch takes {best:?}");
}

#[test]
fn the_callers_stream_and_context_are_respected() {
    let Some((own, _turn)) = device() else { return };
    let mut stream = ptr::null_mut();
    let mut context = ptr::null_mut();
    // SAFETY: both are writable; the primary context is retained by `own` until the end of the test.
    unsafe {
        let retained = cust::sys::cuDevicePrimaryCtxRetain(&mut context, 0);
        assert_eq!(retained as u32, 0);
        sys::cuCtxPushCurrent_v2(context).ok().unwrap();
        assert_eq!(cust::sys::cuStreamCreate(&mut stream, 1) as u32, 0);
        sys::cuCtxPopCurrent_v2(&mut context).ok().unwrap();
    }
    let current = || {
        let mut current = ptr::null_mut();
        // SAFETY: `current` is writable.
        unsafe { sys::cuCtxGetCurrent(&mut current) }.ok().unwrap();
        current
    };
    assert!(current().is_null(), "a device leaves its context current");

    for stream in [stream, ptr::null_mut()] {
        // SAFETY: a stream of the primary context, destroyed at the end; or the default one.
        let mut device = unsafe { CudaDevice::with_stream(0, stream.cast()) }.unwrap();
        assert_eq!(device.stream(), stream.cast());
        let a = upload(&mut device, &[1.0, 2.0]);
        let b = upload(&mut device, &[10.0, 20.0]);
        let c = device.alloc(8).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| add(&mut device, [&a, &b, &c]));
        });
        assert_eq!(download(&mut device, &c), [11.0, 22.0]);
        assert!(current().is_null());
    }
    drop(own);
    // SAFETY: everything that used the stream is gone; the context was retained above.
    unsafe {
        sys::cuCtxPushCurrent_v2(context).ok().unwrap();
        assert_eq!(cust::sys::cuStreamDestroy_v2(stream) as u32, 0);
        sys::cuCtxPopCurrent_v2(&mut context).ok().unwrap();
        assert_eq!(cust::sys::cuDevicePrimaryCtxRelease_v2(0) as u32, 0);
    }
}

#[test]
fn a_kernel_that_does_not_compile_says_why() {
    let Some((mut device, _turn)) = device() else {
        return;
    };
    let bad = KernelLaunch {
        name: "bad",
        ptx: ptx::BAD,
        grid: 0,
        block: 1,
        shared_bytes: 0,
        params: &[],
    };
    // SAFETY: no block is launched.
    let error = unsafe { device.launch_kernel(&bad) }
        .unwrap_err()
        .to_string();
    say(&error);
    assert!(
        error.contains("compiling kernel bad failed: CUDA_ERROR_INVALID_PTX (218)"),
        "{error}"
    );
    assert!(error.contains("bad_instruction"), "{error}");
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn out_of_memory_is_an_error_and_the_device_goes_on() {
    let Some((mut device, _turn)) = device() else {
        return;
    };
    // All of its memory, of which the context itself already has some; and more than any device has.
    let all = usize::try_from(device.cuda_info().device.memory_bytes.unwrap()).unwrap();
    for bytes in [all, usize::MAX] {
        match device.alloc(bytes) {
            Err(error @ Error::OutOfMemory { .. }) => say(&format!("{error}")),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("{bytes} bytes were allocated"),
        }
    }
    let x = upload(&mut device, &[3.0]);
    add(&mut device, [&x, &x, &x]);
    assert_eq!(download(&mut device, &x), [6.0]);
}
