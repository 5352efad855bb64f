//! The simulator's schedules that its tests run on.

use ferroflash::Backend;
use ferroflash::backend::sim::{Sim, SimDevice};
use ptx_sim::Checks;

/// Seeds for `SimDevice::with_schedule`: warps in turn with copies as late as can be, and two orders drawn at random.
pub const SCHEDULES: [u64; 3] = [0, 0x5eed, 0xa5c3];

/// Which of [`SCHEDULES`] a case runs on whose text is `text`: the same whatever stands beside it, so that what it executes stays.
pub fn of_text(text: &str) -> usize {
    // FNV-1a, which is no other hash in another version.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash % SCHEDULES.len() as u64) as usize
}

/// A simulated GPU of each schedule.
pub fn simulated_gpus() -> [Sim; SCHEDULES.len()] {
    SCHEDULES.map(|seed| Sim::on(SimDevice::with_schedule(seed)))
}

/// A simulated GPU that counts what it runs, from the first launch on, and checks nothing, which is faster.
pub fn counting(schedule: u64) -> Sim {
    counting_on(SimDevice::with_schedule(schedule))
}

/// The same of a GPU that has other properties than usual.
pub fn counting_on(device: SimDevice) -> Sim {
    let counts = Checks {
        statistics: true,
        coverage: true,
        ..Checks::NONE
    };
    let mut sim = Sim::on(device.checks(counts));
    sim.memory().take_statistics();
    sim
}

/// A simulated GPU whose launches take turns at [`SCHEDULES`].
pub fn in_turn() -> Sim {
    Sim::on(SimDevice::with_schedules(SCHEDULES))
}

/// A test of `$all`, a function of any backend, on a GPU; `$what` is said not to be run if there is none.
#[macro_export]
macro_rules! on_gpu {
    ($all:path, $what:literal) => {
        #[test]
        fn cuda() {
            if let Some(mut gpu) = $crate::gpu::gpu_or_not_run($what) {
                $all(&mut gpu);
            }
        }
    };
}

/// Tests of `$all`, a function of any backend with many cases of every kernel: in the simulator on one of [`SCHEDULES`] a launch, and on a
/// GPU, where `$what` is said not to be run if there is none.
#[macro_export]
macro_rules! on_schedules_in_turn_and_gpu {
    ($all:path, $what:literal) => {
        #[test]
        fn sim() {
            $all(&mut $crate::schedules::in_turn());
        }

        $crate::on_gpu!($all, $what);
    };
}

/// Tests of `$all`, a function of any backend: in the simulator on each of [`SCHEDULES`], of which the second and the third show a
/// missing barrier or wait, and on a GPU, where `$what` is said not to be run if there is none.
#[macro_export]
macro_rules! on_simulator_and_gpu {
    ($all:path, $what:literal) => {
        $crate::on_simulator_and_gpu!($all, $what, drop);
    };
    // What the first schedule's kernels execute is held to what is recorded.
    ($all:path, $what:literal, $recorded:literal) => {
        $crate::on_simulator_and_gpu!($all, $what, |sim| {
            $crate::record!($recorded).finish(&mut [sim]);
        });
    };
    ($all:path, $what:literal, $then:expr) => {
        fn simulated(schedule: usize) -> ::ferroflash::backend::sim::Sim {
            use ::ferroflash::backend::sim::{Sim, SimDevice};
            let seed = $crate::schedules::SCHEDULES[schedule];
            let mut sim = Sim::on(SimDevice::with_schedule(seed));
            $all(&mut sim);
            sim
        }

        #[test]
        fn sim() {
            ($then)(simulated(0));
        }

        #[test]
        fn sim_interleaved() {
            simulated(1);
        }

        #[test]
        fn sim_interleaved_otherwise() {
            simulated(2);
        }

        $crate::on_gpu!($all, $what);
    };
}
