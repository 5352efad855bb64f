//! How the CUDA backend calls the driver, seen through a driver that is a fake: no GPU is needed.
//!
//! `fake_libcuda` keeps device memory on the host, refuses what a driver refuses, and logs the calls.

mod fake;

use fake::{BAD_PTX, NOTHING_PTX, PAIRS_PTX, VECTOR_ADD_PTX, fake};
use ferroflash::backend::cuda::{Cuda, CudaDevice, KernelLaunch};
use ferroflash::{
    AlibiSlopes, Backend, BackwardOptions, CuSeqlens, DType, DeviceLengths, Error, ForwardOptions,
    GradientOperands, HostTensor, Layout, Lengths, Mask, Memory, Operands, Plan, Problem, Shape,
    TensorSpec, Variant, Workspace, forward, forward_into,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A launch of the kernel that does nothing.
const NOTHING: KernelLaunch<'_> = KernelLaunch {
    name: "nothing",
    ptx: NOTHING_PTX,
    grid: 7,
    block: 96,
    shared_bytes: 0,
    params: &[],
};

fn launch(device: &mut CudaDevice, launch: &KernelLaunch<'_>) -> Result<(), Error> {
    // SAFETY: the fake runs only `vector_add`, for which the caller passes good parameters.
    unsafe { device.launch_kernel(launch) }
}

#[test]
fn a_kernel_gets_its_parameters_and_results_come_back() {
    let Some(fake) = fake() else { return };
    let mut device = CudaDevice::new(0).unwrap();
    let a: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let b = vec![0.5_f32; 1000];
    let mut a_buffer = device.alloc(4000).unwrap();
    let mut b_buffer = device.alloc(4000).unwrap();
    let c_buffer = device.alloc(4000).unwrap();
    device
        .write(&mut a_buffer, bytemuck::cast_slice(&a))
        .unwrap();
    device
        .write(&mut b_buffer, bytemuck::cast_slice(&b))
        .unwrap();
    fake.take_log();

    let addresses = [&a_buffer, &b_buffer, &c_buffer].map(|buffer| device.address(buffer));
    let [a_param, b_param, c_param] = addresses.map(u64::to_ne_bytes);
    let add = KernelLaunch {
        name: "vector_add",
        ptx: VECTOR_ADD_PTX,
        grid: 4,
        block: 256,
        params: &[&a_param, &b_param, &c_param, &1000_u32.to_ne_bytes()],
        ..NOTHING
    };
    let ((), milliseconds) = device
        .time(|device| {
            launch(device, &add)?;
            launch(device, &NOTHING)?;
            launch(device, &add)
        })
        .unwrap();
    assert_eq!(milliseconds, 1.5);
    // Each kernel is compiled at its first launch, and nothing waits before the stop event is asked for.
    let add_line = "cuLaunchKernel vector_add grid 4x1x1 block 256x1x1 shared 0 stream 0x57";
    let nothing_line = "cuLaunchKernel nothing grid 7x1x1 block 96x1x1 shared 0 stream 0x57";
    assert_eq!(
        fake.take_log(),
        [
            "cuEventRecord 0x57",
            "cuModuleLoadDataEx",
            add_line,
            "cuModuleLoadDataEx",
            nothing_line,
            add_line,
            "cuEventRecord 0x57",
            "cuEventSynchronize",
        ]
    );

    let mut c = vec![0_f32; 1000];
    device
        .read(&c_buffer, bytemuck::cast_slice_mut(&mut c))
        .unwrap();
    assert!((0..1000).all(|i| c[i] == i as f32 + 0.5));
    // A part of a buffer, from its start.
    let mut head = [0_f32; 2];
    device
        .read(&c_buffer, bytemuck::cast_slice_mut(&mut head))
        .unwrap();
    assert_eq!(head, [0.5, 1.5]);
}

#[test]
fn devices_share_context_and_kernels_and_give_everything_back() {
    let Some(fake) = fake() else { return };
    let mut first = CudaDevice::new(0).unwrap();
    let mut second = CudaDevice::new(0).unwrap();
    launch(&mut first, &NOTHING).unwrap();
    launch(&mut second, &NOTHING).unwrap();
    launch(&mut first, &NOTHING).unwrap();
    let log = fake.take_log();
    assert_eq!(
        log.iter()
            .filter(|call| *call == "cuDevicePrimaryCtxRetain")
            .count(),
        1
    );
    assert_eq!(
        log.iter()
            .filter(|call| *call == "cuModuleLoadDataEx")
            .count(),
        1
    );

    // A buffer and a mark keep what they need alive.
    let buffer = first.alloc(64).unwrap();
    let mark = first.mark().unwrap();
    drop(first);
    drop(second);
    fake.take_log();
    drop(buffer);
    assert_eq!(fake.take_log(), ["cuMemFreeAsync 0x57"]);
    drop(mark);
    let end = [
        "cuStreamDestroy",
        "cuModuleUnload",
        "cuDevicePrimaryCtxRelease",
    ];
    assert_eq!(fake.take_log(), end);
}

#[test]
fn the_callers_stream_is_used_and_the_callers_context_is_left_alone() {
    let Some(fake) = fake() else { return };
    assert_eq!(fake.current_context(), 0);
    // SAFETY: a handle that the fake only logs.
    let mut device = unsafe { CudaDevice::with_stream(0, 0xBEEF as _) }.unwrap();
    assert_eq!(device.stream(), 0xBEEF as _);
    let buffer = device.alloc(16).unwrap();
    launch(&mut device, &NOTHING).unwrap();
    device.synchronize().unwrap();
    assert_eq!(fake.current_context(), 0);
    drop(buffer);
    let log = fake.take_log().join("\n");
    for call in [
        "cuMemAllocAsync 16 0xbeef",
        "stream 0xbeef",
        "cuStreamSynchronize 0xbeef",
        "cuMemFreeAsync 0xbeef",
    ] {
        assert!(log.contains(call), "{call} is not in\n{log}");
    }

    // Another framework's context is current: it stays so, and calls still reach the right one.
    fake.set_current_context(0xF00);
    launch(&mut device, &NOTHING).unwrap();
    drop(CudaDevice::new(0).unwrap());
    assert_eq!(fake.current_context(), 0xF00);
    fake.set_current_context(0);

    // From another thread, where nothing is current.
    std::thread::scope(|scope| {
        scope.spawn(|| launch(&mut device, &NOTHING).unwrap());
    });
    drop(device);
    // The caller's stream is not ours to destroy.
    assert!(
        !fake
            .take_log()
            .join("\n")
            .contains("cuStreamDestroy 0xbeef")
    );
}

#[test]
fn a_stream_says_whether_it_is_captured() {
    let Some(fake) = fake() else { return };
    for (stream, is_captured) in [(0, false), (0xBEEF, false), (0xCA97, true)] {
        // SAFETY: handles that the fake only logs.
        let device = unsafe { CudaDevice::with_stream(0, stream as _) }.unwrap();
        assert_eq!(device.is_capturing().unwrap(), is_captured);
    }
    // Asked in the device's context, and left as it was.
    assert_eq!(fake.current_context(), 0);
}

#[test]
fn shared_memory_beyond_48_kib_is_opted_in_once() {
    let Some(fake) = fake() else { return };
    let mut device = CudaDevice::new(0).unwrap();
    let with_shared = |shared_bytes| KernelLaunch {
        shared_bytes,
        ..NOTHING
    };
    launch(&mut device, &with_shared(48 << 10)).unwrap();
    assert!(!fake.take_log().join("\n").contains("cuFuncSetAttribute"));
    for shared_bytes in [100_000, 99_999, 100_000, 227 << 10] {
        launch(&mut device, &with_shared(shared_bytes)).unwrap();
    }
    let mut log = fake.take_log();
    log.retain(|call| call.starts_with("cuFuncSetAttribute"));
    assert_eq!(
        log,
        [
            "cuFuncSetAttribute nothing 100000",
            "cuFuncSetAttribute nothing 232448"
        ]
    );
    for shared_bytes in [(227 << 10) + 1, u32::MAX] {
        let error = launch(&mut device, &with_shared(shared_bytes)).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("launching kernel nothing failed: CUDA_ERROR_INVALID_VALUE")
        );
    }
}

#[test]
fn a_launch_the_host_can_judge_is_refused_or_skipped_there() {
    let Some(fake) = fake() else { return };
    let mut device = CudaDevice::new(0).unwrap();
    launch(&mut device, &KernelLaunch { grid: 0, ..NOTHING }).unwrap();
    let pairs = KernelLaunch {
        name: "pairs",
        ptx: PAIRS_PTX,
        ..NOTHING
    };
    let error = launch(&mut device, &pairs).unwrap_err().to_string();
    assert!(
        error.contains("7 blocks are no whole number of clusters of 2"),
        "{error}"
    );
    let many = KernelLaunch {
        params: &[&[] as &[u8]; 17],
        ..NOTHING
    };
    let error = launch(&mut device, &many).unwrap_err().to_string();
    assert!(error.contains("17 parameters; at most 16"), "{error}");
    assert!(!fake.take_log().join("\n").contains("cuLaunchKernel"));
}

#[test]
fn a_kernel_that_does_not_compile_says_why() {
    let Some(_fake) = fake() else { return };
    let mut device = CudaDevice::new(0).unwrap();
    let mut compile = |name, ptx| {
        let none = KernelLaunch {
            name,
            ptx,
            grid: 0,
            ..NOTHING
        };
        launch(&mut device, &none)
    };
    let bad = compile("bad", BAD_PTX).unwrap_err();
    assert_eq!(
        bad.to_string(),
        "Fake H1: compiling kernel bad failed: CUDA_ERROR_INVALID_PTX (218): ptxas application ptx input, \
         line 7; fatal   : unknown instruction 'bad_instruction'"
    );
    let new = compile("new", ".version 99.0").unwrap_err();
    let code = "CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)";
    assert!(new.to_string().contains(code), "{new}");
    let absent = compile("absent", NOTHING_PTX).unwrap_err();
    assert!(
        absent
            .to_string()
            .contains("compiling kernel absent failed: CUDA_ERROR_NOT_FOUND (500)")
    );
    let nul = compile("nul", "\0").unwrap_err();
    assert!(nul.to_string().contains("its PTX contains a NUL byte"));
    // A failure is not remembered: the same name with good text works.
    compile("nothing", NOTHING_PTX).unwrap();
}

#[test]
fn out_of_memory_is_an_error_of_its_own() {
    let Some(_fake) = fake() else { return };
    let mut device = CudaDevice::new(0).unwrap();
    let kept = device.alloc(600 << 20).unwrap();
    for bytes in [600 << 20, 2 << 30, usize::MAX] {
        match device.alloc(bytes) {
            Err(Error::OutOfMemory {
                device,
                requested_bytes,
                free,
            }) => {
                assert_eq!(
                    (device.as_str(), requested_bytes),
                    ("Fake H1", bytes as u64)
                );
                assert_eq!(free, "444596224 of 1073741824 bytes are free");
            }
            other => panic!(
                "{bytes} bytes: {:?}",
                other.map(|buffer| buffer.size_bytes())
            ),
        }
    }
    drop(kept);
    assert_eq!(device.alloc(600 << 20).unwrap().size_bytes(), 600 << 20);
}

#[test]
fn an_empty_buffer_needs_no_memory() {
    let Some(fake) = fake() else { return };
    let mut device = CudaDevice::new(0).unwrap();
    fake.take_log();
    let mut empty = device.alloc(0).unwrap();
    device.write(&mut empty, &[]).unwrap();
    device.read(&empty, &mut []).unwrap();
    assert_eq!((device.address(&empty), device.size_bytes(&empty)), (0, 0));
    drop(empty);
    assert_eq!(fake.take_log(), ["cuStreamSynchronize 0x57"]);
}

#[test]
fn a_buffer_of_another_device_is_refused() {
    let Some(_fake) = fake() else { return };
    let mut buffer = CudaDevice::new(0).unwrap().alloc(16).unwrap();
    let mut other = CudaDevice::new(0).unwrap();
    assert!(!other.owns(&buffer));
    let message = "its buffer was allocated by another device";
    for refused in [
        other.write(&mut buffer, &[0; 16]),
        other.read(&buffer, &mut [0; 16]),
    ] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(message), "{refused}");
    }
    let refused = catch_unwind(AssertUnwindSafe(|| other.address(&buffer)));
    let said = refused.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(*said, message);
}

#[test]
fn forward_allocates_the_result_launches_and_does_not_wait() {
    let Some(fake) = fake() else { return };
    let mut cuda = Cuda::on(CudaDevice::new(0).unwrap());
    let shape = Shape {
        batch: 2,
        heads: 3,
        seq: 40,
        dim: 64,
    };
    let ones = vec![1.0; 2 * 3 * 40 * 64];
    let tensor = HostTensor::from_f32(&ones, shape, Layout::Bshd).unwrap();
    let q = tensor.upload(cuda.memory()).unwrap();
    fake.take_log();
    let out = forward(&mut cuda, &q, &q, &q, &ForwardOptions::new()).unwrap();
    let log = fake.take_log();
    let (setup, launch) = log.split_at(log.len() - 1);
    let o_bytes = 4 * ones.len();
    assert_eq!(
        setup[..3],
        [
            format!("cuMemAllocAsync {o_bytes} 0x57"),
            format!("cuMemAllocAsync {} 0x57", o_bytes / 64),
            "cuModuleLoadDataEx".to_owned(),
        ]
    );
    assert!(
        setup[3..]
            .iter()
            .all(|call| call.starts_with("cuFuncSetAttribute"))
    );
    assert!(
        launch[0].starts_with("cuLaunchKernel fa_fwd_"),
        "{launch:?}"
    );
    drop(out);

    // The kernel is there now: another call is two allocations and a launch.
    let _out = forward(&mut cuda, &q, &q, &q, &ForwardOptions::new()).unwrap();
    let mut log = fake.take_log();
    log.retain(|call| !call.starts_with("cuMemFreeAsync"));
    assert_eq!(log.len(), 3, "{log:?}");
}

#[test]
fn slopes_and_lengths_are_copied_once_and_not_at_all_where_they_are_already() {
    let Some(fake) = fake() else { return };
    let mut cuda = Cuda::on(CudaDevice::new(0).unwrap());
    let shape = Shape::packed(40, 2, 64);
    let tensor = HostTensor::from_f32(&[1.0; 40 * 2 * 64], shape, Layout::Bshd).unwrap();
    let q = tensor.upload(cuda.memory()).unwrap();
    let options = ForwardOptions::new()
        .cu_seqlens(CuSeqlens::from_lengths([(10, 30), (30, 10)]).unwrap())
        .alibi(AlibiSlopes::geometric(2).unwrap());
    let mut out = forward(&mut cuda, &q, &q, &q, &options).unwrap();
    let calls = || {
        let mut log = fake.take_log();
        log.retain(|call| !call.starts_with("cuModule") && !call.starts_with("cuFuncSet"));
        log.iter()
            .map(|call| call.split(" grid").next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let first = calls();
    // Two slopes; six lengths.
    for bytes in ["8", "24"] {
        let alloc = format!("cuMemAllocAsync {bytes} 0x57");
        assert_eq!(
            first.iter().filter(|call| **call == alloc).count(),
            1,
            "{first:?}"
        );
    }
    let launch = ["cuLaunchKernel fa_fwd_mma_sm80_f32_hd64"];
    assert_eq!(first.last().map(String::as_str), Some(launch[0]));

    // Of a clone, and of a problem whose other options differ.
    let again = options.clone().mask(Mask::Causal);
    forward_into(&mut cuda, &q, &q, &q, &mut out, &again).unwrap();
    assert_eq!(calls(), launch);

    let problem = Problem::new(*q.spec(), *q.spec(), *q.spec(), *out.o.spec(), &options).unwrap();
    let mut other = Cuda::on(CudaDevice::new(0).unwrap());
    let address = q.address(cuda.memory());
    let operands = every_operand_at(address);
    calls();
    // SAFETY: the fake does not run this kernel.
    unsafe { other.forward_raw(&problem, &operands) }.unwrap();
    assert_eq!(calls(), launch);
}

/// Every operand and array that a problem can have, at one address.
fn every_operand_at(address: u64) -> Operands {
    Operands::new(address, address, address, address)
        .lse(address)
        .alibi_slopes(address)
        .cu_seqlens([address; 2])
        .seqused_kv(address)
}

fn workspace(address: u64, bytes: usize) -> Option<Workspace> {
    Some(Workspace { address, bytes })
}

/// Lengths and slopes on the device, the caller's workspace: what a CUDA graph captures.
#[test]
fn a_planned_launch_allocates_copies_and_waits_for_nothing() {
    let Some(fake) = fake() else { return };
    let mut cuda = Cuda::on(CudaDevice::new(0).unwrap());
    let packed = DeviceLengths::cu_seqlens(2, 40, 40).unwrap();
    let lengths = [
        Lengths::Dense,
        packed.into(),
        packed.and_seqused_kv().into(),
        DeviceLengths::seqused_kv().into(),
    ];
    for dtype in [DType::F32, DType::Bf16] {
        for force in Variant::all().filter(|variant| *variant != Variant::Tiled) {
            for lengths in &lengths {
                let spec = TensorSpec::contiguous(dtype, Shape::packed(40, 2, 64), Layout::Bshd);
                let spec = spec.unwrap();
                let options = ForwardOptions::new()
                    .lengths(lengths.clone())
                    .alibi(AlibiSlopes::on_device(2, false))
                    .force(force);
                let problem = Problem::new(spec, spec, spec, spec, &options).unwrap();
                let Ok(plan) = cuda.plan(&problem) else {
                    // Of another dtype.
                    continue;
                };
                let buffer = cuda.memory().alloc(1 << 20).unwrap();
                let address = cuda.memory().address(&buffer);
                let workspace = cuda.memory().alloc(plan.workspace_bytes().max(1)).unwrap();
                let operands = every_operand_at(address).workspace(Workspace {
                    address: cuda.memory().address(&workspace),
                    bytes: plan.workspace_bytes(),
                });
                // Compiles the kernels.
                // SAFETY: the fake does not run them.
                unsafe { cuda.launch(&plan, &operands) }.unwrap();
                fake.take_log();
                // SAFETY: as above.
                unsafe { cuda.launch(&plan, &operands) }.unwrap();
                let log = fake.take_log();
                let what = format!("{} {lengths:?}: {log:?}", plan.kernel_name());
                assert!(!log.is_empty(), "{what}");
                let launches = log.iter().filter(|call| call.starts_with("cuLaunchKernel"));
                assert_eq!(launches.count(), log.len(), "{what}");
                let last = log.last().unwrap();
                assert!(last.contains(&plan.kernel_name()), "{what}");
            }
        }
    }
}

/// Kernels of Hopper that follow another of the same plan may begin before that has ended; others may not.
#[test]
fn what_follows_in_a_plan_begins_early_on_hopper() {
    let Some(fake) = fake() else { return };
    let mut cuda = Cuda::on(CudaDevice::new(0).unwrap());
    let spec = |shape| TensorSpec::contiguous(DType::Bf16, shape, Layout::Bshd).unwrap();
    let dense = spec(Shape::packed(4000, 2, 64));
    let plain = ForwardOptions::new();
    let of_lengths = |batch| {
        let lengths = DeviceLengths::cu_seqlens(batch, 4000, 4000).unwrap();
        plain.clone().lengths(lengths)
    };
    let forward = |options| Problem::new(dense, dense, dense, dense, options).unwrap();
    let of_gradients = BackwardOptions::default();
    let gradients =
        Problem::backward_with_dense_gradients(dense, dense, dense, dense, dense, &of_gradients);
    let (early, late) = ("cuLaunchKernelEx", "cuLaunchKernel");
    for (problem, expected) in [
        (forward(&plain), vec![late]),
        // Whose tiles are counted, and listed.
        (forward(&of_lengths(2)), vec![late]),
        (forward(&of_lengths(9)), vec![late, early]),
        // delta, the kernel of Hopper, and the one that rounds dq, which is one of Ampere.
        (gradients.unwrap(), vec![late, early, late]),
    ] {
        let plan = cuda.plan(&problem).unwrap();
        let address = 1 << 20;
        let gradients = GradientOperands::new(address, address, address, address);
        let operands = every_operand_at(address).gradients(gradients);
        fake.take_log();
        // SAFETY: the fake does not run the kernels.
        unsafe { cuda.launch(&plan, &operands) }.unwrap();
        let log = fake.take_log();
        let calls = log.iter().filter_map(|call| call.split(' ').next());
        let launches: Vec<_> = calls.filter(|call| call.starts_with(late)).collect();
        assert_eq!(launches, expected, "{log:?}");
    }
}

#[test]
fn a_plan_is_launched_where_and_on_what_it_was_made_for() {
    let Some(_fake) = fake() else { return };
    let mut cuda = Cuda::on(CudaDevice::new(0).unwrap());
    let shape = Shape::packed(40, 2, 64);
    let spec = TensorSpec::contiguous(DType::Bf16, shape, Layout::Bshd).unwrap();
    let problem = Problem::new(spec, spec, spec, spec, &ForwardOptions::new()).unwrap();
    let plan = cuda.plan(&problem).unwrap();
    let address = 1 << 20;
    let operands = every_operand_at(address);
    let refusal = |cuda: &mut Cuda, plan: &Plan, operands: &Operands| {
        // SAFETY: the launch is refused.
        match unsafe { cuda.launch(plan, operands) }.unwrap_err() {
            Error::Argument { argument, .. } => argument.into_owned(),
            other => panic!("{other}"),
        }
    };
    let foreign = ferroflash::Cpu::new().plan(&problem).unwrap();
    assert_eq!(refusal(&mut cuda, &foreign, &operands), "plan");
    type Edit = fn(&mut Operands);
    let wrongs: [(&str, Edit); 7] = [
        ("q", |at| at.q = 0),
        ("v", |at| at.v += 1),
        // The Hopper kernel that was planned cannot reach it.
        ("k", |at| at.k += 8),
        ("lse", |at| at.lse = Some(at.q + 2)),
        ("workspace", |at| at.workspace = workspace(at.q, 3)),
        ("workspace", |at| at.workspace = workspace(0, 99)),
        ("workspace", |at| at.workspace = workspace(at.q + 8, 99)),
    ];
    for (expected, edit) in wrongs {
        let mut wrong = operands;
        edit(&mut wrong);
        assert_eq!(refusal(&mut cuda, &plan, &wrong), expected, "{wrong:?}");
    }
    let mut elsewhere = operands;
    elsewhere.k += 8;
    let other = Plan::for_operands(&problem, &cuda.capabilities(), &elsewhere).unwrap();
    assert_ne!(other.kernel_name(), plan.kernel_name());
    // SAFETY: the fake does not run the kernel.
    unsafe { cuda.launch(&other, &elsewhere) }.unwrap();
    cuda.limit_shared_bytes(100_000);
    assert_eq!(refusal(&mut cuda, &plan, &operands), "plan");
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let Some(_fake) = fake() else { return };
    assert_eq!(CudaDevice::count().unwrap(), 1);
    let error = CudaDevice::new(7).err().unwrap();
    assert_eq!(
        error.to_string(),
        "cuda: no device 7, the driver has 1; an NVIDIA GPU and its driver are needed, or another backend"
    );
}

/// By this an instrument finds the GPU, which it may number otherwise.
#[test]
fn a_device_says_where_it_is_plugged_in() {
    let Some(_fake) = fake() else { return };
    let cuda = Cuda::on(CudaDevice::new(0).unwrap());
    assert_eq!(cuda.pci_bus_id(), Some("0000:1b:00.0"));
}
