//! Every kernel on lengths that only device memory has: longer promised than they are, cut short by seqused_kv, dense and
//! packed; and on lengths and slopes that are wrong: nothing outside is read or written, which the simulator checks at every
//! access, no row of another sequence is touched, and the next launch finds its workspace as it should.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::backend::{Device, Gpu};
use ferroflash::{Backend, Cpu, DType, DeviceLengths, Plan, Variant};
use ferroflash_tests::device_lengths::{Outcome, Scene, Shape, is_packed, scene};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::packed_kernels::{self, every_kernel, head_dim_v, mixed};
use kernels_gpu::instances::{Family, INSTANCES, Instance};
use ptx_sim::Checks;

/// Lengths that decrease, are negative, or lie beyond the total or what is promised.
const WRONG: [i32; 11] = [
    i32::MIN,
    -1,
    90,
    20,
    1 << 30,
    0,
    i32::MAX,
    75,
    -(1 << 30),
    3000,
    33,
];

/// More sequences than a warp of the kernel that lists Hopper's tiles has lanes, of which those in the middle have no rows; a few where
/// none are listed; and of dense ones, all of which have as many rows, a few with rows for each of a block's warps, and one with keys
/// for them.
fn tiny(instance: &Instance, is_packed: bool) -> Vec<(usize, usize)> {
    if instance.family == Family::Wgmma && !is_packed {
        let mut lengths = packed_kernels::tiny(instance, 3);
        lengths.push([instance.block_m as usize; 2].into());
        return lengths;
    }
    let are_many = instance.family == Family::Wgmma;
    let mut lengths = packed_kernels::tiny(instance, if are_many { 40 } else { 9 });
    for (rows, _) in lengths.iter_mut().take(30).skip(9) {
        *rows = 0;
    }
    lengths
}

fn shape(instance: &Instance) -> Shape {
    Shape {
        dtype: instance.dtype,
        head_dim: instance.head_dim as usize,
        head_dim_v: head_dim_v(instance),
    }
}

/// How `instance` runs a scene, if the device can run it at all.
fn plan<D: Device>(gpu: &Gpu<D>, scene: &Scene, instance: &Instance) -> Option<Plan> {
    let problem = scene.problem(Variant::of_family(instance.family).expect("a variant"));
    let plan = gpu.plan(&problem).ok()?;
    assert_eq!(
        plan.kernel_name(),
        instance.name,
        "the scene is for another kernel"
    );
    Some(plan)
}

fn run<B: Backend>(backend: &mut B, scene: &Scene, plan: &Plan, what: &str) -> Outcome {
    let outcome = scene.run(backend, plan);
    outcome.unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Right lengths; `shift` gives each kernel the options of another.
fn right<D: Device>(
    gpu: &mut Gpu<D>,
    lengths: fn(&Instance, bool) -> Vec<(usize, usize)>,
    shift: usize,
) {
    every_kernel(gpu, "device lengths", |gpu, instance, number| {
        let number = number + shift;
        let lengths = lengths(instance, is_packed(number));
        let scene = scene(shape(instance), number, &lengths);
        let Some(plan) = plan(gpu, &scene, instance) else {
            return false;
        };
        let what = format!("{}: scene {number}", instance.name);
        let outcome = run(gpu, &scene, &plan, &what);
        scene.check(&outcome, &what);
        scene.check_untouched(&outcome, &plan, &what);
        true
    });
}

/// A scene whose lengths are wrong, others with each `number`.
fn wrong_scene(instance: &Instance, number: usize) -> Scene {
    let mut scene = scene(shape(instance), number, &mixed(instance));
    let mut next = number;
    let Scene {
        cu_seqlens, used, ..
    } = &mut scene;
    for length in cu_seqlens.iter_mut().chain([used]).flatten() {
        next += 1;
        if !next.is_multiple_of(4) {
            *length = WRONG[next % WRONG.len()];
        }
    }
    scene
}

fn wrong_lengths<D: Device>(gpu: &mut Gpu<D>, shift: usize) {
    every_kernel(gpu, "wrong lengths", |gpu, instance, number| {
        let scene = wrong_scene(instance, number + shift);
        let Some(plan) = plan(gpu, &scene, instance) else {
            return false;
        };
        let what = format!("{}: wrong scene {}", instance.name, number + shift);
        let outcome = run(gpu, &scene, &plan, &what);
        scene.check_untouched(&outcome, &plan, &what);
        true
    });
}

/// Every other sequence claims all rows, and the others none: more tiles than there is room for in Hopper's list.
fn overlapping_lengths<D: Device>(gpu: &mut Gpu<D>) {
    every_kernel(gpu, "lengths that overlap", |gpu, instance, number| {
        let mut scene = scene(shape(instance), 2 * number, &mixed(instance));
        let batch = scene.cu_seqlens[0].len() - 1;
        for ends in &mut scene.cu_seqlens {
            for (index, end) in ends.iter_mut().enumerate() {
                *end = [0, i32::MAX][index % 2];
            }
        }
        let [q, kv] = [&scene.q, &scene.k].map(|tensor| tensor.spec().shape.seq);
        let promised = DeviceLengths::cu_seqlens(batch, q, kv).expect("short");
        scene.options.lengths = match scene.used.is_empty() {
            true => promised.into(),
            false => promised.and_seqused_kv().into(),
        };
        let Some(plan) = plan(gpu, &scene, instance) else {
            return false;
        };
        let what = format!("{}: overlapping", instance.name);
        let outcome = run(gpu, &scene, &plan, &what);
        scene.check_untouched(&outcome, &plan, &what);
        true
    });
}

/// Slopes that are no numbers spoil the rows of their own head only.
fn wrong_slopes<D: Device>(gpu: &mut Gpu<D>) {
    every_kernel(gpu, "wrong slopes", |gpu, instance, number| {
        // Packed, and every other one with keys that are used in part.
        let mut scene = scene(shape(instance), 6 * number, &mixed(instance));
        let Some(plan) = plan(gpu, &scene, instance) else {
            return false;
        };
        let what = format!("{}: slopes", instance.name);
        let first_head = |outcome: &Outcome| {
            let lse = outcome.lse.bytes();
            lse[..lse.len() / 2].to_vec()
        };
        let expected = first_head(&run(gpu, &scene, &plan, &what));
        // Two of them a kernel, in turn.
        let wrongs = [[f32::NAN, f32::MAX], [f32::INFINITY, f32::NEG_INFINITY]];
        for wrong in wrongs[number % 2] {
            for slope in scene.slopes.iter_mut().skip(1).step_by(2) {
                *slope = wrong;
            }
            let outcome = run(gpu, &scene, &plan, &what);
            scene.check_untouched(&outcome, &plan, &what);
            assert!(first_head(&outcome) == expected, "{what}: {wrong}");
        }
        true
    });
}

/// Sequences that claim the same rows write them both, so races are not looked for.
fn without_races(seed: u64) -> Sim {
    let checks = Checks {
        races: false,
        ..Checks::ALL
    };
    Sim::on(SimDevice::with_schedule(seed).checks(checks))
}

#[test]
fn sim() {
    right(
        &mut Sim::on(SimDevice::with_schedule(0x5eed)),
        |instance, _| mixed(instance),
        0,
    );
}

#[test]
fn sim_tiny() {
    right(&mut Sim::on(SimDevice::with_schedule(0x71)), tiny, 1);
}

#[test]
fn sim_wrong_lengths() {
    wrong_lengths(&mut without_races(0), 0);
}

#[test]
fn sim_other_wrong_lengths() {
    wrong_lengths(&mut without_races(0x5eed), 1);
}

#[test]
fn sim_overlapping_lengths() {
    overlapping_lengths(&mut without_races(0));
}

#[test]
fn sim_wrong_slopes() {
    wrong_slopes(&mut without_races(0));
}

#[test]
fn cpu() {
    let mut cpu = Cpu::new();
    for dtype in DType::ALL {
        let shape = Shape {
            dtype,
            head_dim: 24,
            head_dim_v: 40,
        };
        let lengths = [(7, 70), (0, 5), (130, 200), (3, 0), (0, 0), (65, 30)];
        for number in 0..12 {
            let right = scene(shape, number, &lengths);
            let plan = cpu.plan(&right.problem(Variant::Tiled)).expect("eligible");
            let what = format!("{}: scene {number}", dtype.name());
            let outcome = run(&mut cpu, &right, &plan, &what);
            right.check(&outcome, &what);
            right.check_untouched(&outcome, &plan, &what);
        }
    }
}

#[test]
fn cpu_wrong_lengths() {
    let mut cpu = Cpu::new();
    for number in 0..22 {
        let scene = wrong_scene(&INSTANCES[0], number);
        let plan = cpu.plan(&scene.problem(Variant::Tiled)).expect("eligible");
        let what = format!("wrong scene {number}");
        let outcome = run(&mut cpu, &scene, &plan, &what);
        scene.check_untouched(&outcome, &plan, &what);
    }
}

/// The decode kernels on batch entries whose keys are used in part: right lengths, and wrong ones, which are clamped.
fn used_keys<B: Backend>(backend: &mut B) {
    // More queries than 3 are rows for the kernels of 16.
    for (dtype, head_dim, queries) in [
        (DType::F16, 64, 3),
        (DType::Bf16, 64, 7),
        (DType::F16, 64, 7),
        (DType::Bf16, 128, 3),
        (DType::Bf16, 128, 7),
        (DType::F16, 256, 3),
        (DType::Bf16, 40, 3),
    ] {
        // Of the first sequence, most keys are used: several chunks.
        let sequences = [900, 70, 0, 511, 1].map(|keys| (queries, keys));
        // Those of odd numbers are not packed.
        for number in [1, 3, 5, 7, 9, 11] {
            let shape = Shape {
                dtype,
                head_dim,
                head_dim_v: head_dim,
            };
            let mut scene = scene(shape, number, &sequences);
            let plan = backend.plan(&scene.problem(Variant::Decode));
            let plan = plan.expect("eligible");
            for lengths in ["right", "wrong"] {
                let what = format!("{}: {lengths} scene {number}", plan.kernel_name());
                let outcome = run(backend, &scene, &plan, &what);
                scene.check(&outcome, &what);
                scene.check_untouched(&outcome, &plan, &what);
                for (index, length) in scene.used.iter_mut().enumerate() {
                    *length = WRONG[(number + index) % WRONG.len()];
                }
            }
        }
    }
}

/// On a GPU with so many multiprocessors that chunks are items.
#[test]
fn sim_used_keys() {
    used_keys(&mut Sim::on(SimDevice::default().multiprocessors(32)));
}

#[test]
fn cuda_used_keys() {
    if let Some(mut gpu) = gpu_or_not_run("device lengths of few queries") {
        used_keys(&mut gpu);
    }
}

/// A promise of no rows is kept without a launch.
#[test]
fn nothing_is_promised() {
    let mut sim = Sim::new();
    let mut scene = scene(shape(&INSTANCES[0]), 2, &[(5, 5)]);
    scene.options.lengths = DeviceLengths::cu_seqlens(1, 0, 5).expect("short").into();
    let plan = sim.plan(&scene.problem(Variant::Simt));
    let outcome = run(&mut sim, &scene, &plan.expect("eligible"), "nothing");
    assert!(
        outcome
            .o
            .bytes()
            .iter()
            .all(|&byte| byte == ferroflash_tests::device_lengths::PATTERN)
    );
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("device lengths") {
        for shift in 0..12 {
            right(&mut gpu, |instance, _| mixed(instance), shift);
            // Of few dense ones other kernels are preferred, where there are many multiprocessors.
            right(&mut gpu, |instance, _| tiny(instance, true), shift);
            wrong_lengths(&mut gpu, shift);
        }
        overlapping_lengths(&mut gpu);
        wrong_slopes(&mut gpu);
    }
}
