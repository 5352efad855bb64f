//! Runs every kernel on packed sequences: masks, lengths, and the loop over kernels.

use std::collections::BTreeSet;

use ferroflash::backend::{Device, Gpu};
use ferroflash::{Backend, Mask};
use kernels_gpu::instances::{Family, INSTANCES, Instance};

use crate::not_run::not_run;
use crate::replaced::is_untouched;

/// Masks of packed sequences, each aligned to its sequence's own bottom-right corner.
pub const MASKS: [Mask; 4] = [
    Mask::None,
    Mask::Causal,
    Mask::Window {
        left: Some(70),
        right: Some(20),
    },
    // Rows near the start of a sequence with fewer keys than queries see nothing.
    Mask::Window {
        left: Some(3),
        right: Some(0),
    },
];

/// Sequences longer than a tile, shorter than a warp's rows, without queries, without keys, and without both. One is
/// long enough for the kernel to be preferred.
pub fn mixed(instance: &Instance) -> Vec<(usize, usize)> {
    let rows = (instance.block_m * instance.cluster) as usize;
    let keys = instance.block_n as usize;
    vec![
        (7, keys + 9),
        (0, 5),
        (rows.max(shortest(instance)) + 5, 2 * keys + 1),
        (3, 0),
        (0, 0),
        (65, 30),
    ]
}

/// `count` sequences, all shorter than a warp's rows, those of one row and of none among them; and a long one for a kernel
/// that is preferred for such.
pub fn tiny(instance: &Instance, count: usize) -> Vec<(usize, usize)> {
    let some = [(1, 1), (0, 2), (9, 3), (2, 0), (5, 11), (1, 17), (0, 0)];
    let long = (shortest(instance) > 0).then(|| (shortest(instance), 3));
    some.into_iter().cycle().take(count).chain(long).collect()
}

/// Sequences of about one length, whose tiles no kernel has to list: the whole tiles alone, so that the tile that the first lacks begins
/// where its rows end and others' do, and then a few rows more.
pub fn even(instance: &Instance) -> Vec<(usize, usize)> {
    let rows = (instance.block_m * instance.cluster) as usize;
    let rows = shortest(instance).next_multiple_of(rows).max(rows);
    let keys = instance.block_n as usize;
    vec![(rows, keys + 1), (rows + 5, keys + 9)]
}

/// Sequences of so many blocks of keys that the next tile is fetched in the middle of one, whose tiles are listed or need not be; a
/// few rows for a kernel that fetches none.
pub fn long(instance: &Instance, are_listed: bool) -> Vec<(usize, usize)> {
    let keys = 7 * instance.block_n as usize;
    let mut lengths = match shortest(instance) {
        _ if instance.wgmma().is_none() => vec![(3, keys)],
        0 => vec![(70, keys), (69, keys - 1), (68, keys), (70, keys - 3)],
        shortest if are_listed => vec![(shortest, keys)],
        shortest => vec![(shortest - 1, keys - 1), (shortest, keys)],
    };
    if are_listed {
        lengths.extend([(1, 1); 2]);
    }
    lengths
}

/// Query rows from which the kernel is preferred.
fn shortest(instance: &Instance) -> usize {
    instance.wgmma().map_or(0, |config| config.min_rows) as usize
}

/// Components of v that the kernel is for.
pub fn head_dim_v(instance: &Instance) -> usize {
    let head_dim_v = instance.wgmma().map(|config| config.head_dim_v);
    head_dim_v.unwrap_or(instance.head_dim) as usize
}

/// Runs `test` with every kernel of the device's families that takes packed sequences, and its number. `test` says whether
/// it ran the kernel; families of which none ran are reported as `what` that was not run.
///
/// # Panics
/// If no fp32 kernel ran, which every device has.
pub fn every_kernel<D: Device>(
    gpu: &mut Gpu<D>,
    what: &str,
    mut test: impl FnMut(&mut Gpu<D>, &'static Instance, usize) -> bool,
) {
    let mut ran = BTreeSet::new();
    let families = gpu.gpu_capabilities().families;
    let takes_packed = |instance: &&Instance| {
        families.contains(&instance.family) && instance.wgmma().is_none_or(|tile| tile.varlen)
    };
    for (number, instance) in INSTANCES.iter().filter(takes_packed).enumerate() {
        // A tile for little shared memory is not chosen where a larger one fits.
        gpu.limit_shared_bytes(instance.shared_bytes);
        if is_untouched(instance.name) || test(gpu, instance, number) {
            ran.insert(instance.family.name());
        }
    }
    gpu.limit_shared_bytes(u32::MAX);
    for family in Family::ALL {
        if !ran.contains(family.name()) {
            let device = gpu.device_name();
            not_run(&format!("{what} in {} kernels on {device}", family.name()));
        }
    }
    assert!(ran.contains(Family::Simt.name()), "{ran:?}");
}
