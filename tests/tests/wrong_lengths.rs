//! Every kernel on lengths and slopes that are none: nothing is read or written outside, which the simulator checks at every
//! access, no row of another sequence is touched, and the next launch finds its workspace as it should.

use ferroflash::backend::Device;
use ferroflash::backend::sim::SimDevice;
use ferroflash::{Gpu, Mask};
use ferroflash_tests::by_hand::{Outcome, Scene, every_kernel, mixed, scene};
use ferroflash_tests::gpu::gpu_or_not_run;
use kernels_gpu::abi::{Corner, SequenceRows};
use kernels_gpu::instances::Instance;
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

/// A launch for one kernel whose lengths are wrong, others with each `number`.
fn wrong_scene(instance: &'static Instance, number: usize) -> Scene {
    let mut scene = scene(instance, number, &mixed(instance));
    let mut next = number;
    let mut wrong = |array: &mut Vec<i32>| {
        for length in array.iter_mut() {
            next += 1;
            if next % 4 != 0 {
                *length = WRONG[next % WRONG.len()];
            }
        }
    };
    let arrays = &mut scene.lengths;
    arrays.cu_seqlens.iter_mut().flatten().for_each(&mut wrong);
    arrays.used.iter_mut().for_each(&mut wrong);
    // Shorter than the lengths say, too.
    if scene.lengths.cu_seqlens.is_some() {
        scene.longest = scene.longest.map(|rows| rows / 3);
    }
    scene
}

/// Rows of q that some sequence claims.
fn claimed(scene: &Scene) -> Vec<bool> {
    let shape = scene.q.spec().shape;
    let mut claimed = vec![false; shape.batch * shape.seq];
    for batch in 0..scene.batch {
        let SequenceRows { q_begin, seq_q, .. } = scene.rows(batch);
        let begin = scene.place(batch) * shape.seq + q_begin as usize;
        claimed[begin..begin + seq_q as usize].fill(true);
    }
    claimed
}

fn run<D: Device>(scene: &Scene, device: &mut D, what: &str) -> Outcome {
    let name = scene.instance.name;
    let outcome = scene.run(device);
    outcome.unwrap_or_else(|error| panic!("{name}: {what}: {error}"))
}

fn wrong_lengths<D: Device>(gpu: &mut Gpu<D>, shift: usize) {
    every_kernel(gpu, |device, instance, number| {
        let scene = wrong_scene(instance, number + shift);
        let what = format!("scene {}", number + shift);
        let outcome = run(&scene, device, &what);
        scene.check_untouched(&outcome, &claimed(&scene), &what);
        scene.check_workspace(&outcome, &what);
    });
}

/// Every other sequence claims all rows: more tiles than the list has room for.
fn overlapping_lengths<D: Device>(gpu: &mut Gpu<D>) {
    every_kernel(gpu, |device, instance, number| {
        let mut scene = scene(instance, 2 * number, &mixed(instance));
        let arrays = scene.lengths.cu_seqlens.as_mut().expect("it is packed");
        for (index, length) in arrays
            .iter_mut()
            .flat_map(|array| array.iter_mut().enumerate())
        {
            *length = [0, i32::MAX][index % 2];
        }
        scene.longest = [&scene.q, &scene.k].map(|tensor| tensor.spec().shape.seq as u32);
        let outcome = run(&scene, device, "overlapping");
        scene.check_workspace(&outcome, "overlapping");
    });
}

/// Slopes that are no numbers spoil their own heads only.
fn wrong_slopes<D: Device>(gpu: &mut Gpu<D>) {
    every_kernel(gpu, |device, instance, number| {
        // Packed, with a corner at the bottom right, every other one with lengths that are used in part.
        let mut good = scene(instance, 12 * number, &mixed(instance));
        (good.mask, good.corner) = (Mask::Causal, Corner::BottomRight);
        let slopes: Vec<f32> = (0..2 * good.batch)
            .map(|index| 0.1 / (1 + index) as f32)
            .collect();
        good.slopes = Some(slopes);
        let expected = run(&good, device, "slopes");
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
            let mut bad = scene(instance, 12 * number, &mixed(instance));
            (bad.mask, bad.corner) = (good.mask, good.corner);
            let mut slopes = good.slopes.clone().expect("they are there");
            slopes
                .iter_mut()
                .skip(1)
                .step_by(2)
                .for_each(|slope| *slope = wrong);
            bad.slopes = Some(slopes);
            let outcome = run(&bad, device, &format!("slope {wrong}"));
            bad.check_untouched(&outcome, &claimed(&bad), "slopes");
            bad.check_workspace(&outcome, "slopes");
            let lse = |outcome: &Outcome| {
                let of_head = outcome.lse.len() / 2;
                outcome.lse[..of_head]
                    .iter()
                    .map(|lse| lse.to_bits())
                    .collect::<Vec<_>>()
            };
            assert_eq!(
                lse(&outcome),
                lse(&expected),
                "{}: slope {wrong}",
                instance.name
            );
        }
    });
}

/// Sequences that claim the same rows write them both, so races are not looked for.
fn sim(seed: u64) -> Gpu<SimDevice> {
    let checks = Checks {
        races: false,
        ..Checks::ALL
    };
    Gpu::on(SimDevice::with_schedule(seed).checks(checks))
}

#[test]
fn lengths() {
    wrong_lengths(&mut sim(0), 0);
}

#[test]
fn lengths_of_other_kernels() {
    wrong_lengths(&mut sim(0x5eed), 1);
}

#[test]
fn overlapping() {
    overlapping_lengths(&mut sim(0));
}

#[test]
fn slopes() {
    wrong_slopes(&mut sim(0));
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("wrong lengths and slopes") {
        for shift in 0..22 {
            wrong_lengths(&mut gpu, shift);
        }
        overlapping_lengths(&mut gpu);
        wrong_slopes(&mut gpu);
    }
}
