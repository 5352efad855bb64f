//! Bank conflicts: how many passes over shared memory one access of a warp takes.

/// Banks of shared memory, four bytes wide each (CUDA C++ Programming Guide, "Shared Memory" of each architecture).
const BANKS: u32 = 32;
const BANK_BYTES: u32 = 4;

/// Lanes that are served together: as many as fill all banks with accesses of `bytes`.
pub fn lanes_per_phase(bytes: u32) -> usize {
    (BANKS * BANK_BYTES / bytes) as usize
}

/// Passes for one access: `offsets` of the lanes in order, `bytes` each (4, 8 or 16).
///
/// Lanes are served in phases of [`lanes_per_phase`]; a phase takes as many passes as the most demanded bank has
/// different words to give. Without conflicts that is one pass a phase.
pub fn passes(offsets: &[u32], bytes: u32) -> u32 {
    let phases = offsets.chunks(lanes_per_phase(bytes));
    phases.map(|phase| phase_passes(phase, bytes)).sum()
}

fn phase_passes(offsets: &[u32], bytes: u32) -> u32 {
    let words = |offset: &u32| (offset / BANK_BYTES)..((offset + bytes) / BANK_BYTES);
    let mut all: Vec<u32> = offsets.iter().flat_map(words).collect();
    // Lanes that read the same word share it.
    all.sort_unstable();
    all.dedup();
    let demand = |bank| all.iter().filter(|word| *word % BANKS == bank).count() as u32;
    (0..BANKS).map(demand).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: u32, offset: fn(u32) -> u32) -> u32 {
        let offsets: Vec<_> = (0..32).map(offset).collect();
        passes(&offsets, bytes)
    }

    #[test]
    fn known_accesses() {
        assert_eq!(of(4, |lane| lane * 4), 1);
        assert_eq!(of(4, |_| 0), 1, "a broadcast");
        assert_eq!(of(4, |lane| lane * 128), 32, "a column");
        assert_eq!(of(4, |lane| lane * 8), 2, "every other word");
        assert_eq!(of(4, |lane| lane * 132), 1, "a padded column");
        assert_eq!(of(16, |lane| lane * 16), 4);
        assert_eq!(of(16, |lane| lane * 128), 32);
        assert_eq!(of(16, |lane| lane * 144), 4);
        assert_eq!(of(8, |lane| lane * 8), 2);
    }
}
