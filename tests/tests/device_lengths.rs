//! Every kernel on lengths that only device memory has: longer promised than they are, and cut short by seqused_kv, dense
//! and packed.

use ferroflash::Gpu;
use ferroflash::backend::Device;
use ferroflash::backend::sim::SimDevice;
use ferroflash_tests::by_hand::{every_kernel, mixed, scene, tiny};
use ferroflash_tests::gpu::gpu_or_not_run;
use kernels_gpu::instances::Instance;

/// Right lengths.
fn right<D: Device>(gpu: &mut Gpu<D>, lengths: fn(&Instance) -> Vec<(usize, usize)>, shift: usize) {
    every_kernel(gpu, |device, instance, number| {
        let scene = scene(instance, number + shift, &lengths(instance));
        let what = format!("scene {}", number + shift);
        let outcome = scene.run(device);
        let outcome = outcome.unwrap_or_else(|error| panic!("{}: {what}: {error}", instance.name));
        scene.check(&outcome, &what);
    });
}

fn sim(seed: u64) -> Gpu<SimDevice> {
    Gpu::on(SimDevice::with_schedule(seed))
}

#[test]
fn right_lengths() {
    right(&mut sim(0x5eed), mixed, 0);
}

#[test]
fn right_lengths_of_many_sequences() {
    right(&mut sim(0), tiny, 1);
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("device lengths") {
        for shift in 0..30 {
            right(&mut gpu, mixed, shift);
            right(&mut gpu, tiny, shift);
        }
    }
}
